"""`Dense` and `EinsumDense`, and `project`: logits of a vocabulary, whose loss need not store them."""

from __future__ import annotations

import functools
import re
import string
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Unpack

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist import activations, initializers
from keras_dist._support.arguments import argument_error, check_size
from keras_dist._support.dim_names import INPUTS, OUTPUTS, DimNames, of_einsum
from keras_dist._support.types import Shape
from keras_dist.errors import ModelError, shorten
from keras_dist.layers.base.call_arguments import InputSpec
from keras_dist.layers.base.lora import LoraLayer
from keras_dist.layers.base.quantized import form_of
from keras_dist.layers.base.weight_arguments import Identifier, KernelAndBiasArguments
from keras_dist.losses.vocabulary import Projection
from keras_dist.variables import call_context
from keras_dist.variables.variable import Variable


def project(
    inputs: jax.Array,
    weight: Variable,
    *,
    kernel: jax.Array | None = None,
    vocabulary_dim: int = 1,
    soft_cap: float | None = None,
) -> jax.Array:
    """Return logits `inputs @ kernel`, (..., vocabulary), or `soft_cap * tanh(inputs @ kernel / soft_cap)`.

    If the result is the output of a model, `losses.CausalLM` computes the logits of a large vocabulary in chunks
    instead of storing them.

    Args:
        inputs: (..., features).
        weight: the weight that the kernel is computed from. Its layout is the layout of the kernel.
        kernel: (features, vocabulary), or (vocabulary, features) with `vocabulary_dim=0`; by default `weight[...]`.
        vocabulary_dim: the dim of the vocabulary, 0 or 1.
        soft_cap: limit of the logits; None for none.
    """
    kernel = weight[...] if kernel is None else kernel
    logits = jnp.matmul(inputs, kernel if vocabulary_dim else kernel.T)
    logits = logits if soft_cap is None else soft_cap * jnp.tanh(logits / soft_cap)
    context = call_context.current()
    if context is not None and form_of(weight) is None:  # a quantized one is dequantized in another trace
        inputs, kernel = (array.astype(logits.dtype) for array in (inputs, kernel))
        context.note_projection(logits, Projection(inputs, kernel, vocabulary_dim, soft_cap), weight.path)
    return logits


class Dense(LoraLayer):
    """`activation(inputs @ kernel + bias)`, over the last dim.

    Args:
        units: size of the last dim of the output.
        activation: a name or a function; None for none.
        use_bias: whether a bias is added.
        lora_rank: rank of a trainable update of the frozen `kernel`; None for no LoRA. See `enable_lora`.
        lora_alpha: scaling factor; the update is multiplied by `lora_alpha / lora_rank`. By default `lora_rank`.
        **kwargs: `kernel_initializer`, `kernel_regularizer`, `kernel_constraint` and `kernel_layout` of the weight
            `kernel` (features, units), the same of `bias` (units,), and the arguments of `Layer`.
    """

    weight_initializers: ClassVar = {"kernel": "glorot_uniform", "bias": "zeros"}
    _kernel_dims: ClassVar[DimNames] = (INPUTS, OUTPUTS)

    def __init__(
        self,
        units: int,
        activation: Identifier = None,
        use_bias: bool = True,
        *,
        lora_rank: int | None = None,
        lora_alpha: float | None = None,
        **kwargs: Unpack[KernelAndBiasArguments],
    ) -> None:
        super().__init__(**kwargs)
        self.units = check_size("units", units, self.name)
        self.identify("activation", activations.get, activation)
        self.use_bias = use_bias
        self._describe_lora(lora_rank, lora_alpha)
        self.input_spec = InputSpec(min_ndim=2)
        self.supports_masking = True

    def build(self, input_shape: tuple[int, ...]) -> None:
        """Create `kernel` (features, units) and `bias` (units,)."""
        self.kernel = self._add_adapted((input_shape[-1], self.units), self._kernel_dims)
        if self.use_bias:
            self.bias = self.add_weight((self.units,), name="bias")
        self._add_factors()
        self.input_spec = InputSpec(min_ndim=2, axes={-1: input_shape[-1]})

    def call(self, inputs: jax.Array, training: bool | None = None) -> jax.Array:
        """Return the output (..., units) for inputs (batch, ..., features)."""
        outputs = self._adapted_outputs(inputs, lambda x, kernel: project(x, self.kernel, kernel=kernel))
        if self.use_bias:
            outputs = outputs + self.bias[...]
        return outputs if self.activation is None else self.activation(outputs)

    def _update(self, inputs: jax.Array, apply: Callable[[jax.Array, jax.Array], jax.Array]) -> jax.Array:
        first, second = self._factors()
        return apply(apply(inputs, first), second)


_FORMS = re.compile(
    r"(?P<left>\.\.\.)?(?P<inputs>[a-zA-Z]+)(?P<right>\.\.\.)?,(?P<kernel>[a-zA-Z]+)->"
    r"(?P<left_out>\.\.\.)?(?P<outputs>[a-zA-Z]+)(?P<right_out>\.\.\.)?"
)


class EinsumDense(LoraLayer):
    """`activation(einsum(equation, inputs, kernel) + bias)`.

    Args:
        equation: an einsum equation such as `"ab,bc->ac"` for inputs, kernel and outputs. An ellipsis may stand for
            leading or trailing dims: `"...b,bc->...c"`.
        output_shape: output dims without batch and ellipsis, or one integer; None for dims that follow from the input.
        activation: a name or a function; None for none.
        bias_axes: letters of the output dims of the bias; None for no bias.
        **kwargs: `kernel_initializer`, `kernel_regularizer`, `kernel_constraint` and `kernel_layout` of the weight
            `kernel`, whose dims follow from the equation; the same of `bias`, with the output dims from the first of
            `bias_axes` on, of size 1 if they are not in `bias_axes`; and the arguments of `Layer`.

    Example:
        >>> from keras_dist import layers
        >>> heads = layers.EinsumDense("abc,cde->abde", output_shape=(None, 4, 16), bias_axes="de")
        >>> heads(layers.Input((10, 64))).shape
        (None, 10, 4, 16)

    Differs from Keras: without `gptq_unpacked_column_size` and `quantization_config`.
    """

    weight_initializers: ClassVar = {"kernel": "glorot_uniform", "bias": "zeros"}

    def __init__(
        self,
        equation: str,
        output_shape: int | Shape,
        activation: Identifier = None,
        bias_axes: str | None = None,
        *,
        lora_rank: int | None = None,
        lora_alpha: float | None = None,
        **kwargs: Unpack[KernelAndBiasArguments],
    ) -> None:
        super().__init__(**kwargs)
        self.equation = equation
        self._terms = _check_equation(equation, self.name)
        self.partial_output_shape = self._check_output_shape(output_shape)
        self.identify("activation", activations.get, activation)
        self.bias_axes = self._check_bias_axes(bias_axes)
        self._describe_lora(lora_rank, lora_alpha)

    def build(self, input_shape: tuple[int, ...]) -> None:
        """Create `kernel` and `bias`; their shapes follow from the equation."""
        sizes, passed_on = self._sizes(input_shape)
        inputs, letters, outputs, side = self._terms
        shape = [sizes[letter] for letter in letters]
        names = of_einsum(inputs, letters, outputs)
        self.kernel = self._add_adapted(tuple(shape), names, self._kernel_initializer())
        if self.bias_axes is not None:
            first = min(map(outputs.index, self.bias_axes))
            dims = [sizes[letter] if letter in self.bias_axes else 1 for letter in outputs[first:]]
            self.bias = self.add_weight(dims + [1] * (passed_on if side == "right" else 0), name="bias")
        self._add_factors()
        self.input_spec = InputSpec(ndim=len(input_shape))

    def call(self, inputs: jax.Array, training: bool | None = None) -> jax.Array:
        outputs = self._adapted_outputs(inputs, functools.partial(jnp.einsum, self.equation))
        if self.bias_axes is not None:
            outputs = outputs + self.bias[...]
        return outputs if self.activation is None else self.activation(outputs)

    def _update(self, inputs: jax.Array, apply: Callable[[jax.Array, jax.Array], jax.Array]) -> jax.Array:
        inside, letters, outside, side = self._terms
        rank = next(letter for letter in string.ascii_letters if letter not in inside + letters + outside)
        first, second = ("".join(rank if dim is None else letters[dim] for dim in dims) for dims in self.lora_dims)
        between = "".join(one for one in inside if one in outside) + rank
        left, right = ("..." if side == one else "" for one in ("left", "right"))
        a, b = self._factors()
        between = f"{left}{between}{right}"
        reduced = jnp.einsum(f"{left}{inside}{right},{first}->{between}", inputs, a)
        return jnp.einsum(f"{between},{second}->{left}{outside}{right}", reduced, b)

    def per_output(self, value: Any) -> Any:
        """Return a number for each output of the weight with the dims of a bias."""
        inside, letters, outside, side = self._terms
        given = [letter for letter in letters if letter in outside]
        wanted, first = sorted(given, key=outside.index), min(map(outside.index, given), default=len(outside))
        before = value.ndim - len(given)  # dims of a stack
        sizes = dict(zip(given, value.shape[before:], strict=True))
        value = value.transpose(*range(before), *(before + given.index(letter) for letter in wanted))
        dims = [sizes.get(letter, 1) for letter in outside[first:]]
        after = self.input_spec.ndim - len(inside) if side == "right" else 0
        return value.reshape(*value.shape[:before], *dims, *[1] * after)

    def _sizes(self, input_shape: Sequence[int]) -> tuple[dict[str, int], int]:
        """Return the sizes of the letters, and the number of dims of the ellipsis."""
        inputs, _, outputs, side = self._terms
        passed_on = len(input_shape) - len(inputs)
        if passed_on < 0 or (passed_on > 0 and side is None):
            raise self._does_not_fit(input_shape, f"an input of rank {len(inputs)}" + (" at least" if side else ""))
        # the batch, then the dims of the ellipsis to the left or right of the dims in `output_shape`
        named = self.partial_output_shape
        if side == "left":
            given, values = input_shape[passed_on:], (*input_shape[: max(passed_on, 1)], *named)[passed_on:]
        else:
            given, values = input_shape[: len(inputs)], (input_shape[0], *named)
        if len(values) != len(outputs):
            count = len(outputs) - len(values) + len(named)
            raise self._does_not_fit(input_shape, f"output_shape with {count} sizes")
        sizes = dict(zip(inputs, given, strict=True))
        for letter, size in zip(outputs, values, strict=True):
            if size is not None and sizes.setdefault(letter, size) != size:
                raise self._does_not_fit(input_shape, f"size {sizes[letter]} of {letter!r} in output_shape")
        if unknown := [letter for letter in outputs if letter not in sizes]:
            raise self._does_not_fit(input_shape, f"a size of {unknown[0]!r} in output_shape")
        return sizes, passed_on

    def _kernel_initializer(self) -> Identifier:
        """Return the initializer with the summed dims as fan-in and the others as fan-out."""
        initializer = self.kernel_initializer
        if not isinstance(initializer, initializers.VarianceScaling) or initializer.input_axes is not None:
            return initializer
        _, letters, outputs, _ = self._terms
        axes: dict[str, list[int]] = {"input_axes": [], "output_axes": []}
        for axis, letter in enumerate(letters):
            axes["output_axes" if letter in outputs else "input_axes"].append(axis)
        return type(initializer).from_config({**initializer.get_config(), **axes})

    def _check_output_shape(self, output_shape: int | Shape) -> tuple[int | None, ...]:
        sizes = (output_shape,) if isinstance(output_shape, int | np.integer) else output_shape
        if not isinstance(sizes, Sequence) or isinstance(sizes, str):
            expected = "an integer, or a tuple of integers and None"
            raise argument_error("output_shape", output_shape, expected, layer=self.name, example=(None, 64))
        return tuple(None if size is None else check_size("output_shape", size, self.name) for size in sizes)

    def _check_bias_axes(self, bias_axes: str | None) -> str | None:
        outputs = self._terms[2]
        if bias_axes is not None and (not bias_axes or not set(bias_axes) <= set(outputs)):
            expected = f"letters of the output {outputs!r}, or None"
            raise argument_error("bias_axes", bias_axes, expected, layer=self.name, example=outputs[-1])
        return bias_axes

    def _does_not_fit(self, input_shape: Sequence[int], expected: str) -> ModelError:
        summary = f"the input, `equation` and `output_shape` of layer {self.name!r} must fit together"
        shape = self.partial_output_shape
        given = f"input of shape {tuple(input_shape)}, equation={self.equation!r}, output_shape={shape}"
        fix = "correct one of them; output_shape is without the batch and without what an ellipsis stands for"
        return ModelError(summary, given=given, expected=expected, fix=fix)


def _check_equation(equation: str, layer: str) -> tuple[str, str, str, str | None]:
    """Return the letters of inputs, kernel and outputs, and the side of the ellipsis."""
    found = _FORMS.fullmatch(equation) if isinstance(equation, str) else None
    problem = "ab,bc->ac, ...b,bc->...c or ab...,bc->ac..."
    if found and found["left"] == found["left_out"] and found["right"] == found["right_out"]:
        inputs, kernel, outputs = found["inputs"], found["kernel"], found["outputs"]
        side = "left" if found["left"] else "right" if found["right"] else None
        strange = set(outputs) - set(inputs + kernel) or set(kernel) - set(inputs + outputs)
        if not strange and not (found["left"] and found["right"]):
            return inputs, kernel, outputs, side
        problem = f"{min(strange)!r} in two of inputs, kernel and outputs" if strange else "one ellipsis"
    given = f"equation={shorten(equation)}"
    fix = 'for example equation="abc,cd->abd"'
    raise ModelError(f"`equation` of layer {layer!r} is not of a known form", given=given, expected=problem, fix=fix)
