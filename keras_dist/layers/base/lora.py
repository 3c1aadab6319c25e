"""`LoraLayer`: the base of layers with low-rank adaptation (LoRA) of their largest weight.

Factors follow their weight dim by dim, unless a rule names them: the product must be sharded as the weight is.
`enable_lora` of a layer is Keras's: factors of `EinsumDense` split off its last dim. `enable_lora` of a model splits
outputs from inputs, as PEFT does. Inputs are then multiplied by one factor after the other, so that no gradient of the
size of the weight is computed.
"""

from __future__ import annotations

import dataclasses
import string
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp

from keras_dist import initializers
from keras_dist._support.arguments import check_number, check_optional, check_size
from keras_dist._support.dim_names import BLOCKS, CLASSES, INPUTS, LEADING, OUTPUTS, DimNames, leading, of_slice
from keras_dist.errors import ModelError, NotAvailableError
from keras_dist.layers.base.attributes import undone_on_error
from keras_dist.layers.base.layer import Layer
from keras_dist.layers.base.quantized import form_of, product_with, shape_of, weight_value
from keras_dist.layers.base.weight_arguments import Identifier
from keras_dist.layers.base.weight_lists import not_built
from keras_dist.layers.regularization.regularization import Dropout
from keras_dist.variables.variable import Variable

Vector = Literal["", "magnitude", "bias"]
"""A third factor: the norms of the outputs of the sum, as in DoRA, or a bias of the second factor."""

_LEAST_NORM = 1e-30

Dims = tuple[tuple[int | None, ...], tuple[int | None, ...]]
"""For each dim of the two factors the dim of the weight; None for the rank."""


def factor_dims(names: DimNames) -> Dims:
    """Return the dims of factors that split outputs from inputs, given the names of the dims of the weight."""
    both, inputs, outputs = (
        [dim for dim, name in enumerate(names) if name in kind]
        for kind in ((*LEADING, BLOCKS), (*LEADING, BLOCKS, INPUTS), (OUTPUTS, CLASSES))
    )
    return (*inputs, None), (*both, None, *outputs)


def output_dims(dims: Dims) -> tuple[int, ...]:
    """Return the dims of the weight without its inputs, given the dims of the factors."""
    return tuple(sorted(dim for dim in dims[1] if dim is not None))


def _input_dims(dims: Dims) -> tuple[int, ...]:
    return tuple(dim for dim in dims[0] if dim is not None and dim not in dims[1])


def norms(weight: Any, dims: Dims, xp: Any = jnp) -> Any:
    """Return the norm over the inputs for each output of a weight; above zero, also for padded rows of a vocabulary."""
    return xp.maximum(xp.sqrt(xp.square(weight).sum(_input_dims(dims))), _LEAST_NORM)


def with_update(weight: Any, factors: Sequence[Any], dims: Dims, scale: float, vector: Vector, xp: Any = jnp) -> Any:
    """Return a weight plus `scale` times the product of its factors; with a magnitude, its outputs have these norms."""
    value = weight + xp.float32(scale) * product(factors[0], factors[1], dims, xp.einsum)
    if vector != "magnitude":
        return value
    return value * xp.expand_dims(factors[2] / norms(value, dims, xp), _input_dims(dims))


def product(first: Any, second: Any, dims: Dims, einsum: Callable[..., Any] = jnp.einsum) -> Any:
    """Return the product of two factors, which has the dims of the weight."""
    letters = ["".join("Z" if dim is None else string.ascii_letters[dim] for dim in one) for one in dims]
    of_weight = "".join(sorted(set("".join(letters)) - {"Z"}))
    return einsum(f"{letters[0]},{letters[1]}->{of_weight}", first, second)


@dataclasses.dataclass(frozen=True)
class Factors:
    """Rank, scale and initializers of the factors of a weight, and the fraction of inputs that they drop in training.

    If `splits_inputs`, they split outputs from inputs; else the last dim from the others, as in Keras.
    """

    rank: int
    alpha: float
    a_initializer: Identifier = "he_uniform"
    b_initializer: Identifier = "zeros"
    splits_inputs: bool = False
    dropout: float = 0.0
    vector: Vector = ""

    def first_initializer(self, dims: Dims) -> Identifier:
        """Return the initializer of the first factor; the dims of inputs are its fan-in."""
        if not self.splits_inputs:
            return self.a_initializer
        places = range(-len(dims[0]), 0)  # from the end, as slices of leading dims have them
        inputs = [place for place, dim in zip(places, dims[0], strict=True) if dim is not None and dim not in dims[1]]
        return initializers.HeUniform(input_axes=inputs, output_axes=[-1])


def add_factors(layer: Layer, adapted: str, dims_of: Dims, factors: Factors, regularizer: Any) -> None:
    """Create the factors of a weight of a layer, `lora_<weight>_a`, `lora_<weight>_b`, and the vector, if any."""
    weight = getattr(layer, adapted)
    names = of_slice(weight.dim_names, weight.ndim)
    before = len(weight.dim_names) - weight.ndim  # dims of a stack that is built now
    initial, shape = (factors.first_initializer(dims_of), factors.b_initializer, "zeros"), shape_of(weight)
    ends = ("a", "b", factors.vector) if factors.vector else ("a", "b")
    for end, dims, initializer in zip(ends, (*dims_of, output_dims(dims_of)), initial, strict=False):
        sizes = tuple(factors.rank if dim is None else shape[dim] for dim in dims)
        name = f"lora_{adapted}_{end}"
        named = tuple(None if dim is None else names[dim] for dim in dims)
        options: dict[str, Any] = {"autocast": False} if end == factors.vector else {"regularizer": regularizer}
        factor = layer.add_weight(sizes, initializer, "float32", name=name, dim_names=named, **options)
        factor.set_metadata(
            factor_of=(adapted, (*range(before), *(dim if dim is None else dim + before for dim in dims)))
        )
        setattr(layer, name, factor)


class LoraLayer(Layer):
    """The base of layers whose largest weight can be frozen and adapted by LoRA.

    `call` computes with `weight + lora_alpha / lora_rank * lora_<weight>_a @ lora_<weight>_b`. The factors are sharded
    as the dims of the weight, the rank is replicated; a layout rule for a factor takes precedence.
    """

    _adapted: ClassVar[str] = "kernel"
    _drops_inputs: ClassVar[bool] = True

    def _describe_lora(self, rank: int | None, alpha: float | None) -> None:
        self.lora_rank = check_optional(check_size, "lora_rank", rank, self.name)
        alpha = check_optional(check_number, "lora_alpha", alpha, layer=self.name)
        self.lora_alpha = self.lora_rank if alpha is None else alpha
        self._splits_inputs = False

    @property
    def lora_enabled(self) -> bool:
        """Whether the layer is built and its weight is adapted."""
        return self.built and self.lora_rank is not None

    @property
    def lora_scale(self) -> float:
        """The scaling factor of the product of the factors; 0 without LoRA."""
        return 0.0 if self.lora_rank is None else (self.lora_alpha or 0) / self.lora_rank

    @property
    def lora_names(self) -> tuple[str, ...]:
        """The names of the frozen weight and of its factors."""
        ends = ("a", "b", self.lora_vector) if self.lora_vector else ("a", "b")
        return self._adapted, *(f"lora_{self._adapted}_{end}" for end in ends)

    @property
    def lora_vector(self) -> Vector:
        """The kind of the third factor; empty without one."""
        if f"lora_{self._adapted}_magnitude" in vars(self):
            return "magnitude"
        return "bias" if f"lora_{self._adapted}_bias" in vars(self) else ""

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
        self.check_adaptable()
        alpha = check_optional(check_number, "lora_alpha", lora_alpha, layer=self.name)
        rank = check_size("rank", rank, self.name)
        given = (initializers.get(a_initializer), initializers.get(b_initializer))
        factors = Factors(rank, rank if alpha is None else alpha, *given)
        if self._record.membership is None:
            with undone_on_error(self):
                self.adapt(factors)
                for name in self.lora_names[1:]:
                    getattr(self, name).peek()  # an initializer may raise
        else:
            self._record.membership.add_weights(self, lambda: self.adapt(factors))
        if hasattr(self, "_arguments"):
            self._arguments.update(lora_rank=factors.rank, lora_alpha=factors.alpha)

    def adapt(self, factors: Factors) -> None:
        """Freeze the weight, and create factors; its model must be told."""
        self.lora_rank, self.lora_alpha = factors.rank, factors.alpha
        self._splits_inputs = factors.splits_inputs
        if factors.dropout and self._drops_inputs:
            self.lora_dropout = Dropout(factors.dropout, dtype=self.dtype_policy)
            self.lora_dropout.built = True
            generator: Any = self.lora_dropout.seed_generator
            _ = generator.state  # created now, not in a call
        getattr(self, self._adapted).freeze()
        self._add_factors(factors)

    def remove_factors(self) -> None:
        """Undo `adapt`, without the update; its model must be told."""
        for name in (*self.lora_names[1:], "lora_dropout"):
            if name in vars(self):
                delattr(self, name)
        self.lora_rank = self.lora_alpha = None
        if hasattr(self, "_arguments"):
            self._arguments.update(lora_rank=None, lora_alpha=None)
        self._splits_inputs = False
        _unfreeze(getattr(self, self._adapted))

    def _add_adapted(self, shape: tuple[int, ...], dim_names: DimNames, initializer: Identifier = None) -> Variable:
        """Create the weight that LoRA adapts; it is frozen if there is a rank."""
        weight = self.add_weight(shape, initializer, name=self._adapted, dim_names=dim_names)
        if self.lora_rank is not None:
            weight.freeze()
        return weight

    @property
    def lora_dims(self) -> Dims:
        """The dims of the weight that the dims of the factors are."""
        weight: Variable = getattr(self, self._adapted)
        names = of_slice(weight.dim_names, weight.ndim)
        if self._splits_inputs:
            return factor_dims(names)
        return (*range(weight.ndim - 1), None), (*range(leading(names)), None, weight.ndim - 1)

    def _add_factors(self, factors: Factors | None = None) -> None:
        if self.lora_rank is None:
            return
        self.check_no_constraint()
        factors = factors or Factors(self.lora_rank, self.lora_alpha or self.lora_rank)
        add_factors(self, self._adapted, self.lora_dims, factors, getattr(self, f"{self._adapted}_regularizer"))

    def _adapted_value(self) -> jax.Array:
        """Return the weight plus the update, as `call` uses it."""
        weight = weight_value(self, self._adapted)
        return weight if self.lora_rank is None else (weight + self._product()).astype(self.compute_dtype)

    def _product(self, rows: jax.Array | None = None) -> jax.Array:
        """Return the update of the weight, or of some of its rows."""
        first, second = self._factors()
        if rows is not None:
            return self.lora_scale * jnp.matmul(jnp.take(first, rows, axis=0), second)
        return self.lora_scale * product(first, second, self.lora_dims)

    def _factors(self) -> tuple[jax.Array, jax.Array]:
        first, second = (getattr(self, name)[...] for name in self.lora_names[1:3])
        return first, second

    def _adapted_outputs(self, inputs: jax.Array, apply: Callable[[jax.Array, jax.Array], jax.Array]) -> jax.Array:
        """Return `apply(inputs, weight)`, which is linear, with the update."""
        if self.lora_rank is not None and not self._splits_inputs:
            return apply(inputs, self._adapted_value())
        outputs = product_with(self, self._adapted, inputs, apply)
        if self.lora_rank is None:
            return outputs
        kept = self.lora_dropout(inputs) if "lora_dropout" in vars(self) else inputs
        update, vector = self._update(kept, apply), self.lora_vector
        if vector == "bias":
            update = update + self.per_output(getattr(self, self.lora_names[3])[...])
        update = self.lora_scale * update
        if vector == "magnitude":  # as in peft, the first term has dropped inputs, too
            base = outputs if kept is inputs else product_with(self, self._adapted, kept, apply)
            ratio = self.per_output(self._ratio())
            update = (ratio - 1) * base + ratio * update
        return outputs + update.astype(outputs.dtype)

    def _ratio(self) -> jax.Array:
        """Return the magnitude divided by the norms of the sum, which are constants for gradients."""
        value = weight_value(self, self._adapted).astype("float32") + self._product()
        return getattr(self, self.lora_names[3])[...] / jax.lax.stop_gradient(norms(value, self.lora_dims))

    def per_output(self, value: Any) -> Any:
        """Return a number for each output of the weight with the dims of a bias."""
        return value

    def _update(self, inputs: jax.Array, apply: Callable[[jax.Array, jax.Array], jax.Array]) -> jax.Array:
        """Return the unscaled update of the outputs."""
        return apply(inputs, product(*self._factors(), self.lora_dims))

    def _config_arguments(self) -> dict[str, Any]:
        """Return the arguments of the constructor; as in Keras, LoRA's only if it is enabled."""
        arguments = super()._config_arguments().items()
        left_out = ("lora_rank", "lora_alpha") if self.lora_rank is None else ()
        return {name: value for name, value in arguments if name not in left_out}

    def check_adaptable(self) -> None:
        """Raise unless the layer is built, has no LoRA, and no constraint on the weight."""
        if not self.built:
            raise not_built(self, "enable_lora")
        if self.lora_rank is not None:
            given = f"a layer with lora_rank={self.lora_rank}"
            fix = "enable it once; with another rank in a layer that is made anew"
            raise ModelError(f"enable_lora: layer {self.name!r} has LoRA already", given=given, fix=fix)
        self.check_no_constraint()

    def check_no_constraint(self) -> None:
        """Raise if the weight has a constraint."""
        constraint = getattr(self, f"{self._adapted}_constraint")
        if constraint is not None:
            summary = f"LoRA of layer {self.name!r}: its weight {self._adapted!r} must not have a constraint"
            given = f"{self._adapted}_constraint={constraint!r}, which the sum of weight and factors would not keep"
            raise ModelError(summary, given=given, fix=f"leave out {self._adapted}_constraint")


@dataclasses.dataclass(frozen=True)
class AdaptedWeight:
    """One of several weights of a layer, with the interface of `LoraLayer`. The layer computes with `lora_update`."""

    layer: Layer
    name: str  # the attribute of the weight
    regularizer: Any = None
    constraint: Any = None
    lora_vector: ClassVar[Vector] = ""

    @property
    def lora_enabled(self) -> bool:
        """Whether the weight is adapted."""
        return self._scale in vars(self.layer)

    @property
    def lora_scale(self) -> float:
        """The scaling factor of the product of the factors."""
        return getattr(self.layer, self._scale)

    @property
    def lora_names(self) -> tuple[str, str, str]:
        """The names of the weight and of its two factors."""
        return self.name, f"lora_{self.name}_a", f"lora_{self.name}_b"

    @property
    def lora_dims(self) -> Dims:
        """The dims of the weight that the dims of the factors are."""
        weight: Variable = getattr(self.layer, self.name)
        return factor_dims(of_slice(weight.dim_names, weight.ndim))

    def adapt(self, factors: Factors) -> None:
        """Freeze the weight, and create factors; its model must be told."""
        weight: Variable = getattr(self.layer, self.name)
        weight.freeze()
        add_factors(self.layer, self.name, self.lora_dims, factors, self.regularizer)
        setattr(self.layer, self._scale, factors.alpha / factors.rank)

    def remove_factors(self) -> None:
        """Undo `adapt`, without the update; its model must be told."""
        for name in (*self.lora_names[1:], self._scale):
            delattr(self.layer, name)
        _unfreeze(getattr(self.layer, self.name))

    def check_adaptable(self) -> None:
        """Raise if the weight has a constraint."""
        if self.constraint is not None:
            fix = "leave out the constraint, which the sum of weight and factors would not keep"
            raise ModelError(f"LoRA of {self.name!r}: it must not have a constraint", fix=fix)

    @property
    def _scale(self) -> str:
        return f"lora_{self.name}_scale"


class AdaptableLayer(Layer):
    """The base of layers with several weights that LoRA can adapt."""

    def adapted_weights(self) -> list[AdaptedWeight]:
        """Return the weights."""
        raise NotImplementedError

    @property
    def enable_lora(self) -> Any:
        """Not available for single layers: `Model.enable_lora` adapts the weights."""
        fix = "model.enable_lora(rank=8, layers='.*/experts_.*')"
        raise NotAvailableError(f"layer {self.name!r} has several weights, which its model adapts", fix=fix)


def lora_update(layer: Layer, name: str, inputs: jax.Array, equation: str) -> jax.Array | None:
    """Return the update of `einsum(equation, inputs, weight)` by the factors of an `AdaptedWeight`; None without."""
    if f"lora_{name}_scale" not in vars(layer):
        return None
    first, second = (getattr(layer, f"lora_{name}_{end}")[...] for end in "ab")
    return getattr(layer, f"lora_{name}_scale") * jnp.einsum(equation, jnp.einsum(equation, inputs, first), second)


def _unfreeze(weight: Variable) -> None:
    if form_of(weight) is None:
        weight.freeze(False)


Adapted = LoraLayer | AdaptedWeight


def lora_parts(layer: Layer) -> Sequence[Adapted]:
    """Return what LoRA can adapt of a layer: a `LoraLayer` itself, or several weights."""
    if isinstance(layer, AdaptableLayer):
        return layer.adapted_weights()
    return [layer] if isinstance(layer, LoraLayer) else []


def owner_of(part: Adapted) -> Layer:
    """Return the layer with the factors."""
    return part if isinstance(part, LoraLayer) else part.layer
