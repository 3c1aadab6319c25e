"""Layers around other layers: `Wrapper`, their base, `TimeDistributed`, `SpectralNormalization`, and `Pipeline`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any, Unpack

import jax
import jax.numpy as jnp
from flax import nnx

from keras_dist._support.arguments import argument_error, check_size
from keras_dist._support.types import PyTree
from keras_dist._unstable.flax_internals import variable_role
from keras_dist.errors import ModelError
from keras_dist.initializers import TruncatedNormal
from keras_dist.layers.base.call_arguments import InputSpec, call_parameters
from keras_dist.layers.base.layer import Layer
from keras_dist.layers.base.other_frameworks import check_is_ours
from keras_dist.layers.base.shape_calls import example, shapes_of_call
from keras_dist.layers.base.stacked_layers import add_losses, call_inside
from keras_dist.layers.base.weight_arguments import LayerArguments
from keras_dist.layers.base.weights import walk
from keras_dist.layers.core.foreign_modules import as_layer
from keras_dist.ops.normalization import divided_by_norm

_LARGEST_FACTOR = 1e7
"""Limit of the factor by which `SpectralNormalization` normalizes vectors."""


class Wrapper(Layer):
    """The base of layers around another layer. Subclasses define `call`.

    Paths of weights contain the name of the wrapped layer: `wrapper/dense/kernel`.

    Args:
        layer: the wrapped layer.
        **kwargs: see `Layer`.
    """

    def __init__(self, layer: Layer, **kwargs: Unpack[LayerArguments]) -> None:
        super().__init__(**kwargs)
        if not isinstance(layer, Layer):
            check_is_ours(f"`layer` of layer {self.name!r}", layer)
            fix = "make an object of a class; wrap a function as layers.Lambda, a module as layers.NNXLayer"
            raise argument_error("layer", layer, "a layer", layer=self.name, fix=fix)
        self._members = {layer.name: layer}

    def build(self, input_shape: Any = None) -> None:
        """Create the weights of the wrapped layer, for the same inputs."""
        if not self.layer.built and input_shape is not None:
            self.layer.build(input_shape)

    @property
    def layer(self) -> Layer:
        """The wrapped layer."""
        (layer,) = self._members.values()
        return layer


class TimeDistributed(Wrapper):
    """Apply a layer to each time step of a sequence, with the same weights.

    All steps are computed at once, except for layers that draw random numbers or update statistics. Paths of weights
    contain the name of the layer: `dense/kernel`.

    Args:
        layer: any layer.
        **kwargs: see `Layer`.

    Differs from Keras: losses that the layer adds are summed over the time steps.
    """

    def __init__(self, layer: Layer, **kwargs: Unpack[LayerArguments]) -> None:
        super().__init__(layer, **kwargs)
        self.input_spec = InputSpec(min_ndim=3)
        self.supports_masking = True

    def build(self, input_shape: tuple[int, ...]) -> None:
        """Create the weights of the layer, for inputs without the time dim."""
        shapes_of_call(self.layer, example((input_shape[0], *input_shape[2:]), self.compute_dtype))

    def call(self, inputs: jax.Array, training: bool | None = None, mask: jax.Array | None = None) -> PyTree:
        """Return the outputs (batch, time, ...).

        Args:
            inputs: (batch, time, ...).
            training: passed to the layer.
            mask: boolean, valid time steps, (batch, time, ...); passed to a layer with a parameter `mask`.

        Raises:
            ModelError: the mask does not fit.
        """
        if mask is not None and mask.shape[:2] != inputs.shape[:2]:
            summary = f"the mask of layer {self.name!r} must begin with {inputs.shape[:2]}, as its input"
            given = f"a mask of shape {mask.shape} for an input of shape {inputs.shape}"
            raise ModelError(summary, given=given, fix="reshape the mask, or leave it out")
        mask = mask if "mask" in inspect.signature(self.layer.call).parameters else None

        def step(inputs: jax.Array, mask: jax.Array | None) -> PyTree:
            return call_inside(self.layer, training, inputs, **({} if mask is None else {"mask": mask}))

        if all(variable_role(variable) == "parameter" for _, variable in walk(self.layer)):
            axes = (1, None if mask is None else 1)
            outputs, losses = jax.vmap(step, in_axes=axes, out_axes=(1, 0))(inputs, mask)
        else:
            times = range(inputs.shape[1])
            steps = [step(inputs[:, time], None if mask is None else mask[:, time]) for time in times]
            outputs = jax.tree.map(lambda *arrays: jnp.stack(arrays, 1), *[outputs for outputs, _ in steps])
            losses = [loss for _, losses in steps for loss in losses]
        add_losses(self, losses)
        return outputs


class SpectralNormalization(Wrapper):
    """Divide the kernel of a layer by its largest singular value in training, estimated by power iteration.

    Adds the non-trainable weight `vector_u` (1, last dim of the kernel), which training updates. Paths of the layer's
    own weights contain its name: `dense/kernel`.

    A call with `training=True` stores the divided kernel, and inference uses the stored kernel. As in Keras on JAX,
    steps of `fit` compute with the divided kernel and train the stored one, which they do not divide. For inference
    with the kernel as it was trained, call the model once with `training=True` after `fit`.

    Args:
        layer: a layer with a weight `kernel` or `embeddings`.
        power_iterations: number of power iterations in each training step.
        **kwargs: see `Layer`.

    Source: `keras.layers.SpectralNormalization`; arXiv:1802.05957.
    """

    def __init__(self, layer: Layer, power_iterations: int = 1, **kwargs: Unpack[LayerArguments]) -> None:
        super().__init__(layer, **kwargs)
        self.power_iterations = check_size("power_iterations", power_iterations, self.name)

    def build(self, input_shape: tuple[int, ...]) -> None:
        """Create the weights of the layer, and `vector_u`."""
        shapes_of_call(self.layer, example(input_shape, self.compute_dtype))
        kernel = self._kernel()
        self.vector_u = self.add_weight(
            (1, kernel.shape[-1]),
            TruncatedNormal(stddev=0.02),
            kernel.dtype,
            trainable=False,
            autocast=False,
            name="vector_u",
        )
        self.input_spec = InputSpec(min_ndim=1, axes={-1: input_shape[-1]})

    def call(self, inputs: jax.Array, training: bool | None = False) -> jax.Array:
        if training:
            variable = self._kernel()
            kernel = variable.get_raw_value()  # as it is stored, not as it is computed with
            matrix, right = kernel.reshape(-1, kernel.shape[-1]), self.vector_u[...]
            for _ in range(self.power_iterations):
                left = divided_by_norm(right @ matrix.T, None, _LARGEST_FACTOR)
                right = divided_by_norm(left @ matrix, None, _LARGEST_FACTOR)
            left, right = jax.lax.stop_gradient((left, right))
            is_zero = jnp.all(kernel == 0)
            self.vector_u[...] = jnp.where(is_zero, self.vector_u[...], right)
            variable[...] = kernel / jnp.where(is_zero, 1, (left @ matrix @ right.T)[0, 0])
        return self.layer(inputs, training=training).astype(inputs.dtype)

    def _first_weights(self) -> Iterator[tuple[tuple[Any, ...], nnx.Variable, Layer]]:
        """Yield the kernel of the layer, which precedes `vector_u` as in Keras."""
        for name in ("kernel", "embeddings"):
            if isinstance(variable := vars(self.layer).get(name), nnx.Variable):
                yield ("_members", self.layer.name, name), variable, self.layer

    def _kernel(self) -> nnx.Variable:
        for _, variable, _ in self._first_weights():
            return variable
        fix = "for example SpectralNormalization(Dense(10))"
        raise ModelError(f"`layer` of layer {self.name!r} has no kernel", given=repr(self.layer), fix=fix)


class Pipeline(Layer):
    """A sequence of layers as one layer, for image preprocessing; `training` is True by default.

    Args:
        layers: the layers; each is called on the output of the previous one.
        name: by default "pipeline".

    Raises:
        ModelError: `layers` is not a list of layers.

    Example:
        >>> import jax.numpy as jnp
        >>> from keras_dist import layers
        >>> layers.Pipeline([layers.Rescaling(2.0), layers.Flatten()])(jnp.ones((2, 3, 4))).shape
        (2, 12)
    """

    def __init__(self, layers: Sequence[Layer], name: str | None = None) -> None:
        super().__init__(name=name)
        if not isinstance(layers, list | tuple):
            raise argument_error("layers", layers, "a list of layers", layer=self.name, fix="Pipeline([layer])")
        self.layers = [as_layer(layer) for layer in layers]
        self.supports_masking = True

    def call(self, inputs: PyTree, training: bool = True, mask: PyTree = None) -> PyTree:
        for layer in self.layers:
            takes_mask = mask is not None and "mask" in call_parameters(type(layer))
            inputs = layer(inputs, training=training, **({"mask": mask} if takes_mask else {}))
        return inputs
