"""What the cells of recurrent layers share: kernels for several gates, noise, sizes and states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from keras_dist import activations, random
from keras_dist._arguments import check_fraction, check_option, check_size
from keras_dist.errors import ModelError, shorten
from keras_dist.layers.layer import Layer
from keras_dist.layers.other_libraries import check_is_ours

Noise = tuple[list[jax.Array], list[jax.Array]]
"""What the inputs, and what the states are multiplied by: nothing, one array, or one for each gate."""


class RecurrentCell(Layer):
    """One step of a recurrent layer, with `gates` kernels side by side.

    Attributes:
        gates: how many kernels there are.
        state_size: size of its state, or sizes of its states.
        output_size: size of its output.

    Args:
        units: size of the output.
        activation: a name or a function; None for none.
        use_bias: whether a bias is added.
        kernel_initializer: gives the first value of `kernel` (features, gates * units).
        recurrent_initializer: gives the first value of `recurrent_kernel` (units, gates * units).
        bias_initializer: gives the first value of `bias`.
        kernel_regularizer: a function of `kernel` that is added to the loss.
        recurrent_regularizer: likewise of `recurrent_kernel`.
        bias_regularizer: likewise.
        kernel_constraint: a function of `kernel`, applied after each update.
        recurrent_constraint: likewise of `recurrent_kernel`.
        bias_constraint: likewise.
        dropout: which fraction of the inputs is dropped in training, the same in all steps.
        recurrent_dropout: likewise of the states.
        seed: fixes what is dropped.
        implementation: 1 to drop for each gate apart; so does `recurrent_dropout`.
        kernel_layout: where the dims of `kernel` lie: a `TensorLayout`, or axes; layout rules win over it.
        recurrent_kernel_layout: likewise.
        bias_layout: likewise.
        **kwargs: as of `Layer`.
    """

    gates = 1

    def __init__(
        self,
        units: int,
        *,
        activation: Any,
        use_bias: bool,
        kernel_initializer: Any,
        recurrent_initializer: Any,
        bias_initializer: Any,
        kernel_regularizer: Any,
        recurrent_regularizer: Any,
        bias_regularizer: Any,
        kernel_constraint: Any,
        recurrent_constraint: Any,
        bias_constraint: Any,
        dropout: float,
        recurrent_dropout: float,
        seed: int | None,
        implementation: int = 2,
        kernel_layout: Any,
        recurrent_kernel_layout: Any,
        bias_layout: Any,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.units = check_size("units", units, self.name)
        self.identify("activation", activations.get, activation)
        self.use_bias = use_bias
        self.describe_weight("kernel", kernel_initializer, kernel_regularizer, kernel_constraint, kernel_layout)
        self.describe_weight(
            "recurrent_kernel",
            recurrent_initializer,
            recurrent_regularizer,
            recurrent_constraint,
            recurrent_kernel_layout,
        )
        self.describe_weight("bias", bias_initializer, bias_regularizer, bias_constraint, bias_layout)
        self.dropout = check_fraction("dropout", dropout, self.name)
        self.recurrent_dropout = check_fraction("recurrent_dropout", recurrent_dropout, self.name)
        self.implementation = check_option("implementation", implementation, (1, 2), self.name)
        self.seed = seed
        if self.dropout or self.recurrent_dropout:
            self.seed_generator = random.SeedGenerator(seed)

    @property
    def state_size(self) -> Any:
        """Size of its state, or sizes of its states."""
        return self.units

    @property
    def output_size(self) -> int:
        """Size of its output."""
        return self.units

    def build(self, input_shape: tuple[int, ...]) -> None:
        """Create `kernel` (features, gates * units), `recurrent_kernel` (units, gates * units) and `bias`."""
        columns = self.gates * self.units
        self.kernel = self.add_weight((input_shape[-1], columns), name="kernel")
        self.recurrent_kernel = self.add_weight((self.units, columns), name="recurrent_kernel")
        if self.use_bias:
            self.bias = self.add_weight(self._bias_shape(), self._first_bias(), name="bias")

    def get_initial_state(self, batch_size: int | None = None) -> list[jax.Array]:
        """Zeros: (batch, units) for each state."""
        sizes = self.state_size if isinstance(self.state_size, list) else [self.state_size]
        return [jnp.zeros((batch_size or 1, size), self.compute_dtype) for size in sizes]

    def draw_noise(self, input_shape: tuple[int, ...]) -> Noise:
        """What one call in training multiplies the inputs (batch, features) and the states of all its steps by."""
        count = self.gates if self.implementation == 1 or self.recurrent_dropout else 1
        state_shape = (input_shape[0], self.units)
        return (
            [self._draw(self.dropout, input_shape) for _ in range(count if self.dropout else 0)],
            [self._draw(self.recurrent_dropout, state_shape) for _ in range(count if self.recurrent_dropout else 0)],
        )

    def _noise(self, inputs: Any, training: Any, noise: Noise | None) -> Noise:
        if not training:
            return [], []
        return self.draw_noise(inputs.shape) if noise is None else noise

    def _draw(self, rate: float, shape: tuple[int, ...]) -> jax.Array:
        return random.dropout(jnp.ones(shape, self.compute_dtype), rate, seed=self.seed_generator)

    def _bias_shape(self) -> tuple[int, ...]:
        return (self.gates * self.units,)

    def _first_bias(self) -> Any:
        """An initializer for `bias`; None for the one that was given."""
        return None


def project(inputs: jax.Array, kernel: jax.Array, noise: Sequence[jax.Array]) -> jax.Array:
    """`inputs @ kernel`, the inputs times noise: one array for all columns, or one for each part of them."""
    if not noise:
        return jnp.matmul(inputs, kernel)
    parts = jnp.split(kernel, len(noise), axis=1)
    return jnp.concatenate([jnp.matmul(inputs * one, part) for one, part in zip(noise, parts, strict=True)], axis=1)


def check_cell(cell: Any, layer: str) -> Layer:
    """`cell`, if it can be called as the step of a recurrent layer.

    Raises:
        ModelError: it is no layer, or does not say how large its states are.
    """
    if not isinstance(cell, Layer) or not hasattr(cell, "state_size"):
        check_is_ours(f"`cell` of layer {layer!r}", cell)
        raise ModelError(
            f"`cell` of layer {layer!r} cannot be a step",
            given=f"{shorten(cell)} of type {type(cell).__name__}",
            expected="a Layer with `state_size` and call(inputs, states), which returns the output and the new states",
            fix="for example RNN(LSTMCell(32)); self.state_size = units in the __init__ of a cell of your own",
        )
    return cell


def first_states(cell: Any, batch_size: int) -> Any:
    """What a cell begins with: what its `get_initial_state` gives, else zeros."""
    if hasattr(cell, "get_initial_state"):
        return cell.get_initial_state(batch_size=batch_size)
    zeros = [jnp.zeros((batch_size, size), cell.compute_dtype) for size in jax.tree.leaves(cell.state_size)]
    return zeros if isinstance(cell.state_size, list | tuple) else zeros[0]


def output_size(cell: Any) -> int:
    """Size of the output of a cell: where it does not say so, of its first state."""
    size = getattr(cell, "output_size", None)
    return jax.tree.leaves(cell.state_size)[0] if size is None else size


def check_no_cudnn(value: Any, layer: str) -> Any:
    """`value`, unless it insists on cuDNN.

    Raises:
        ModelError: it does, or is no option; calls it `use_cudnn` of the layer called `layer`.
    """
    if check_option("use_cudnn", value, ("auto", True, False), layer) is True:
        raise ModelError(
            f"`use_cudnn` of layer {layer!r} asks for a kernel that is not used here",
            given="use_cudnn=True",
            expected='"auto" or False',
            fix="leave it out: XLA compiles the loop for every device",
        )
    return value
