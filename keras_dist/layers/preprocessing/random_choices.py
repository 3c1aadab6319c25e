"""`RandAugment` and `AugMix`: randomly chosen augmentations."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Unpack

import jax
import jax.numpy as jnp

from keras_dist import random
from keras_dist._support.arguments import check_int, check_number, check_size
from keras_dist.layers.preprocessing.histograms import AutoContrast, Equalization
from keras_dist.layers.preprocessing.image_layer import Factor, ImageLayer, check_range
from keras_dist.layers.preprocessing.random_colors import (
    RandomBrightness,
    RandomColorDegeneration,
    RandomContrast,
    RandomPosterization,
    RandomSharpness,
    RangeLayer,
    Solarization,
)
from keras_dist.layers.preprocessing.random_geometry import RandomRotation, RandomShear, RandomTranslation, WarpLayer
from keras_dist.layers.weight_arguments import LayerArguments
from keras_dist.random.seeds import key_of


class ChoiceLayer(RangeLayer):
    """The base of layers that choose among other layers."""

    def _set_options(self, factor: Factor, interpolation: str, seed: int | None) -> None:
        self.factor = check_range("factor", factor, (0, 1), self.name)
        self.interpolation = interpolation
        options: dict[str, Any] = {"data_format": self.data_format, "dtype": self.dtype_policy}
        drawn = {**options, "seed": seed}
        moved, ranged = {**drawn, "interpolation": interpolation}, {**drawn, "value_range": self.value_range}
        fixed = {**options, "value_range": self.value_range}
        self.choices: list[ImageLayer] = [
            RandomShear(self.factor, self.factor, **moved),
            RandomTranslation(self.factor, self.factor, **moved),
            RandomRotation(self.factor, **moved),
            RandomBrightness(self.factor, **ranged),
            RandomColorDegeneration(self.factor, **ranged),
            RandomContrast(self.factor, **ranged),
            RandomSharpness(self.factor, **ranged),
            RandomPosterization(max(1, int(8 * self.factor[1])), **ranged),
            Solarization(self.factor, self.factor, **ranged),
            AutoContrast(**fixed),
            Equalization(**fixed),
        ]

    def _numbers(self, images: Any, seed: Any) -> list[Any]:
        return [choice.get_random_transformation(images, seed=seed) for choice in self.choices]

    def _applied(self, images: jax.Array, numbers: Sequence[Any], chosen: jax.Array, of_masks: bool) -> jax.Array:
        """Apply the layers with these indices in sequence; indices beyond the last do nothing."""
        movers = [choice for choice in self.choices if isinstance(choice, WarpLayer)]
        matrices = jnp.stack([mover._matrices(images, own) for mover, own in zip(movers, numbers, strict=False)])

        def move(images: jax.Array, place: jax.Array) -> jax.Array:
            interpolation = "nearest" if of_masks else self.interpolation
            return movers[0]._moved(images, matrices[place], interpolation).astype(images.dtype)

        def branch(choice: ImageLayer, own: Any) -> Callable[[jax.Array, jax.Array], jax.Array]:
            transform = choice.transform_segmentation_masks if of_masks else choice.transform_images
            return lambda images, _: transform(images, own).astype(images.dtype)

        # the first layers differ only in their matrices; sharing a branch saves most of the compile time
        branches = [move, *map(branch, self.choices[len(movers) :], numbers[len(movers) :]), lambda images, _: images]

        def step(images: jax.Array, place: jax.Array) -> tuple[jax.Array, None]:
            return jax.lax.switch(jnp.maximum(place - len(movers) + 1, 0), branches, images, place), None

        return jax.lax.scan(step, images, chosen)[0]

    def transform_segmentation_masks(
        self, segmentation_masks: jax.Array, transformation: Any = None, training: bool = True
    ) -> jax.Array:
        if not training or transformation is None:
            return segmentation_masks
        return self._augmented(segmentation_masks, transformation, True)

    def _transform(self, images: jax.Array, transformation: Any, interpolation: str) -> jax.Array:
        return self._augmented(images, transformation, False)

    def _augmented(self, images: jax.Array, transformation: Any, of_masks: bool) -> jax.Array:
        raise NotImplementedError


class RandAugment(ChoiceLayer):
    """Apply randomly chosen augmentations, the same for all images of a batch, in training.

    Args:
        num_ops: number of augmentations applied in sequence, out of eleven.
        factor: smallest and largest strength of the augmentations, from 0 to 1; a number x stands for (0, x).
        interpolation: `"bilinear"` or `"nearest"`, for augmentations that move pixels.
        value_range, seed, data_format, **kwargs: as in `RandomBrightness`.

    Source: `keras.layers.RandAugment`; https://arxiv.org/abs/1909.13719.
    """

    def __init__(
        self,
        value_range: Sequence[float] = (0, 255),
        num_ops: int = 2,
        factor: Factor = 0.5,
        interpolation: str = "bilinear",
        seed: int | None = None,
        data_format: str | None = None,
        **kwargs: Unpack[LayerArguments],
    ) -> None:
        super().__init__(value_range, seed, data_format=data_format, **kwargs)
        self.num_ops = check_int("num_ops", num_ops, 0, layer=self.name, example=2)
        self._set_options(factor, interpolation, seed)

    def _draw(self, images: jax.Array, seed: Any) -> Any:
        chosen = random.randint((self.num_ops,), 0, len(self.choices), seed=seed)
        return {"layer_idxes": chosen, "transforms": self._numbers(images, seed)}

    def _augmented(self, images: jax.Array, transformation: Any, of_masks: bool) -> jax.Array:
        return self._applied(images, transformation["transforms"], transformation["layer_idxes"], of_masks)


class AugMix(ChoiceLayer):
    """Mix images with several augmented copies in random proportions, in training.

    Args:
        num_chains: number of copies.
        chain_depth: largest number of augmentations of each copy.
        alpha: proportions are drawn from Dirichlet(alpha, ...) for copies, from Beta(alpha, alpha) for the original.
        all_ops: whether to include brightness, colour, contrast and sharpness augmentations.
        factor, interpolation: as in `RandAugment`.
        value_range, seed, data_format, **kwargs: as in `RandomBrightness`.

    Source: `keras.layers.AugMix`, which draws other random numbers; https://arxiv.org/abs/1912.02781.
    """

    def __init__(
        self,
        value_range: Sequence[float] = (0, 255),
        num_chains: int = 3,
        chain_depth: int = 3,
        factor: Factor = 0.3,
        alpha: float = 1.0,
        all_ops: bool = True,
        interpolation: str = "bilinear",
        seed: int | None = None,
        data_format: str | None = None,
        **kwargs: Unpack[LayerArguments],
    ) -> None:
        super().__init__(value_range, seed, data_format=data_format, **kwargs)
        self.num_chains = check_size("num_chains", num_chains, self.name)
        self.chain_depth = check_size("chain_depth", chain_depth, self.name)
        self.alpha = check_number("alpha", alpha, above=0, layer=self.name, example=1.0)
        self.all_ops = bool(all_ops)
        self._set_options(factor, interpolation, seed)
        if not all_ops:
            del self.choices[3:7]

    def _draw(self, images: jax.Array, seed: Any) -> Any:
        chains, (rows, *dims) = self.num_chains, images.shape
        # one draw of Gamma numbers for both Dirichlet and Beta: each draw takes seconds to compile
        logarithms = jax.random.loggamma(key_of(seed), self.alpha, (chains + 2,))
        places = random.randint((chains, self.chain_depth), 0, len(self.choices) + 1, seed=seed)
        numbers = self._numbers(jax.ShapeDtypeStruct((rows * chains, *dims), images.dtype), seed)
        return {
            "chain_mixing_weights": jax.nn.softmax(logarithms[:chains]),
            "weight_sample": jax.nn.softmax(logarithms[chains:])[0],
            "chain_transforms": (
                jax.tree.map(lambda part: part.reshape(rows, chains, *part.shape[1:]).swapaxes(0, 1), numbers),
                places,
            ),
        }

    def _augmented(self, images: jax.Array, transformation: Any, of_masks: bool) -> jax.Array:
        images = images.astype(self.compute_dtype)
        weights, share = (
            transformation[name].astype(images.dtype) for name in ("chain_mixing_weights", "weight_sample")
        )
        copied = functools.partial(self._applied, images, of_masks=of_masks)

        def chain(mixed: jax.Array, given: Any) -> tuple[jax.Array, None]:
            (numbers, places), weight = given
            return mixed + weight * copied(numbers, places), None

        mixed = jax.lax.scan(chain, jnp.zeros_like(images), (transformation["chain_transforms"], weights))[0]
        images = share * images + (1 - share) * mixed
        return images if of_masks else self._clipped(images)
