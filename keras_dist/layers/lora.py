"""`LoraLayer`: the base of layers with low-rank adaptation (LoRA) of their largest weight.

Factors follow their weight dim by dim, unless a rule names them: the product must be sharded as the weight is.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from keras_dist import initializers
from keras_dist._support.arguments import check_number, check_optional, check_size
from keras_dist.errors import ModelError
from keras_dist.layers.attributes import undone_on_error
from keras_dist.layers.layer import Layer
from keras_dist.layers.weight_arguments import Identifier
from keras_dist.variables.variable import Variable


@dataclasses.dataclass(frozen=True)
class _Factors:
    """Rank, scale and initializers of the factors of a weight."""

    rank: int
    alpha: float
    a_initializer: Identifier = "he_uniform"
    b_initializer: Identifier = "zeros"


class LoraLayer(Layer):
    """The base of layers whose largest weight can be frozen and adapted by LoRA.

    `call` computes with `weight + lora_alpha / lora_rank * lora_<weight>_a @ lora_<weight>_b`. The factors are sharded
    as the dims of the weight, the rank is replicated; a layout rule for a factor takes precedence.
    """

    _adapted: ClassVar[str] = "kernel"

    def _describe_lora(self, rank: int | None, alpha: float | None) -> None:
        self.lora_rank = check_optional(check_size, "lora_rank", rank, self.name)
        alpha = check_optional(check_number, "lora_alpha", alpha, layer=self.name)
        self.lora_alpha = self.lora_rank if alpha is None else alpha

    @property
    def lora_enabled(self) -> bool:
        """Whether the layer is built and its weight is adapted."""
        return self.built and self.lora_rank is not None

    @property
    def lora_scale(self) -> float:
        """The scaling factor of the product of the factors; 0 without LoRA."""
        return 0.0 if self.lora_rank is None else (self.lora_alpha or 0) / self.lora_rank

    @property
    def lora_names(self) -> tuple[str, str, str]:
        """The names of the frozen weight and of its two factors."""
        return self._adapted, f"lora_{self._adapted}_a", f"lora_{self._adapted}_b"

    def enable_lora(
        self,
        rank: int,
        lora_alpha: float | None = None,
        a_initializer: Identifier = "he_uniform",
        b_initializer: Identifier = "zeros",
    ) -> None:
        """Freeze the largest weight, and train a low-rank update of it.

        The factors become weights of the model, sharded as the frozen weight; a compiled optimizer is reset.

        Args:
            rank: the rank of the update.
            lora_alpha: scaling factor; the update is multiplied by `lora_alpha / rank`. By default `rank`.
            a_initializer: initializer of the first factor.
            b_initializer: initializer of the second factor; the default, zeros, keeps the outputs unchanged.

        Raises:
            ModelError: the layer is not built, has LoRA already, has a constraint on the weight, or shares it with
                another model; or `fit` is running.

        Source: `keras.layers.Dense.enable_lora`; https://arxiv.org/abs/2106.09685.
        """
        self._check_adaptable()
        alpha = check_optional(check_number, "lora_alpha", lora_alpha, layer=self.name)
        rank = check_size("rank", rank, self.name)
        given = (initializers.get(a_initializer), initializers.get(b_initializer))
        factors = _Factors(rank, rank if alpha is None else alpha, *given)
        if self._runtime.membership is None:
            with undone_on_error(self):
                self._adapt(factors)
        else:
            self._runtime.membership.add_weights(self, lambda: self._adapt(factors))
        vars(self).update(lora_rank=factors.rank, lora_alpha=factors.alpha)  # allowed in a built model, too
        if hasattr(self, "_arguments"):
            self._arguments.update(lora_rank=factors.rank, lora_alpha=factors.alpha)

    def _adapt(self, factors: _Factors) -> None:
        self.lora_rank, self.lora_alpha = factors.rank, factors.alpha
        getattr(self, self._adapted).freeze()
        self._add_factors(factors)

    def _add_adapted(self, shape: tuple[int, ...], initializer: Identifier = None) -> Variable:
        """Create the weight that LoRA adapts; it is frozen if there is a rank."""
        weight = self.add_weight(shape, initializer, name=self._adapted, trainable=self.lora_rank is None)
        weight.set_metadata(is_frozen=self.lora_rank is not None)
        return weight

    def _add_factors(self, factors: _Factors | None = None) -> None:
        if self.lora_rank is None:
            return
        self._check_no_constraint()
        factors = factors or _Factors(self.lora_rank, self.lora_alpha or self.lora_rank)
        shape = getattr(self, self._adapted).shape
        outer = tuple(range(len(shape) - 1))
        dims_of = ((*outer, None), (None, len(outer)))
        initial = (factors.a_initializer, factors.b_initializer)
        for name, dims, initializer in zip(self.lora_names[1:], dims_of, initial, strict=True):
            sizes = tuple(factors.rank if dim is None else shape[dim] for dim in dims)
            regularizer = getattr(self, f"{self._adapted}_regularizer")
            weight = self.add_weight(sizes, initializer, "float32", regularizer=regularizer, name=name)
            weight.set_metadata(factor_of=(self._adapted, dims))
            setattr(self, name, weight)

    def _adapted_value(self) -> jax.Array:
        """Return the weight plus the update, as `call` uses it."""
        weight = getattr(self, self._adapted)[...]
        return weight if self.lora_rank is None else (weight + self._product()).astype(self.compute_dtype)

    def _product(self, rows: jax.Array | None = None) -> jax.Array:
        """Return the update of the weight, or of some of its rows."""
        first, second = (getattr(self, name)[...] for name in self.lora_names[1:])
        return self.lora_scale * jnp.matmul(first if rows is None else jnp.take(first, rows, axis=0), second)

    def _config_arguments(self) -> dict[str, Any]:
        """Return the arguments of the constructor; as in Keras, LoRA's only if it is enabled."""
        arguments = super()._config_arguments()
        return {
            name: value
            for name, value in arguments.items()
            if self.lora_rank is not None or name not in ("lora_rank", "lora_alpha")
        }

    def _check_adaptable(self) -> None:
        if not self.built:
            raise self._not_built("enable_lora")
        if self.lora_rank is not None:
            given = f"a layer with lora_rank={self.lora_rank}"
            fix = "enable it once; with another rank in a layer that is made anew"
            raise ModelError(f"enable_lora: layer {self.name!r} has LoRA already", given=given, fix=fix)
        self._check_no_constraint()

    def _check_no_constraint(self) -> None:
        constraint = getattr(self, f"{self._adapted}_constraint")
        if constraint is not None:
            summary = f"LoRA of layer {self.name!r}: its weight {self._adapted!r} must not have a constraint"
            given = f"{self._adapted}_constraint={constraint!r}, which the sum of weight and factors would not keep"
            raise ModelError(summary, given=given, fix=f"leave out {self._adapted}_constraint")
