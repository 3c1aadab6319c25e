"""`RecurrentCell` and `GatedCell`: the bases of `SimpleRNNCell`, `GRUCell` and `LSTMCell`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Unpack

import jax
import jax.numpy as jnp

from keras_dist import activations, random
from keras_dist._support.arguments import check_fraction, check_option, check_size
from keras_dist._support.dim_names import INPUTS, OUTPUTS
from keras_dist.errors import ModelError
from keras_dist.layers.base.layer import Layer
from keras_dist.layers.base.weight_arguments import Identifier, KernelAndBiasArguments, Layout

Noise = tuple[list[jax.Array], list[jax.Array]]
"""Dropout factors of inputs and states: no array, one, or one for each gate."""

Step = tuple[jax.Array, list[jax.Array]]
"""The output of a time step, and the new states."""


class RecurrentArguments(KernelAndBiasArguments, total=False):
    """Keyword arguments of every `RecurrentCell`."""

    dropout: float
    recurrent_dropout: float
    seed: int | None
    recurrent_initializer: Identifier
    recurrent_regularizer: Identifier
    recurrent_constraint: Identifier
    recurrent_kernel_layout: Layout


class RecurrentCell(Layer):
    """The base of all cells: one time step of a recurrent layer; for the arguments see `SimpleRNNCell`."""

    gates = states = 1
    implementation = 2
    kernel_size: tuple[int, ...] = ()  # of convolutions
    channel_axis = -1
    weight_initializers: ClassVar = {"kernel": "glorot_uniform", "bias": "zeros"}

    def __init__(
        self,
        units: int,
        activation: Identifier,
        use_bias: bool,
        *,
        dropout: float = 0.0,
        recurrent_dropout: float = 0.0,
        seed: int | None = None,
        recurrent_initializer: Identifier = "orthogonal",
        recurrent_regularizer: Identifier = None,
        recurrent_constraint: Identifier = None,
        recurrent_kernel_layout: Layout = None,
        **kwargs: Unpack[KernelAndBiasArguments],
    ) -> None:
        super().__init__(**kwargs)
        self.units = check_size("units", units, self.name)
        self.identify("activation", activations.get, activation)
        self.use_bias = use_bias
        self.describe_weight("recurrent", recurrent_initializer, recurrent_regularizer, recurrent_constraint)
        self.recurrent_kernel_layout = recurrent_kernel_layout
        self.dropout = check_fraction("dropout", dropout, self.name)
        self.recurrent_dropout = check_fraction("recurrent_dropout", recurrent_dropout, self.name)
        self.seed = seed
        if self.dropout or self.recurrent_dropout:
            self.seed_generator = random.SeedGenerator(seed)

    @property
    def state_size(self) -> int | list[int]:
        """Size of the state, or sizes of the states."""
        return self.units if self.states == 1 else [self.units] * self.states

    @property
    def output_size(self) -> int:
        """Size of the output."""
        return self.units

    def build(self, input_shape: tuple[int, ...]) -> None:
        """Create `kernel` (*kernel_size, features, gates * units), `recurrent_kernel` and `bias`."""
        columns = self.gates * self.units
        features = input_shape[self.channel_axis]
        names = (*[INPUTS] * (len(self.kernel_size) + 1), OUTPUTS)
        self.kernel = self.add_weight((*self.kernel_size, features, columns), name="kernel", dim_names=names)
        self.recurrent_kernel = self.add_weight(
            (*self.kernel_size, self.units, columns),
            self.recurrent_initializer,
            regularizer=self.recurrent_regularizer,
            constraint=self.recurrent_constraint,
            name="recurrent_kernel",
            layout=self.recurrent_kernel_layout,
            dim_names=names,
        )
        if self.use_bias:
            self.bias = self.add_weight(self._bias_shape(), self._first_bias(), name="bias")

    def call(
        self, inputs: jax.Array, states: Sequence[jax.Array], training: bool | None = False, noise: Noise | None = None
    ) -> Step:
        """Return the output of one time step, and the new states.

        Args:
            inputs: (batch, features); with convolutions (batch, spatial dims, channels).
            states: states of the previous time step; the first is its output.
            training: whether to drop inputs and states.
            noise: the result of `draw_noise`; by default it is drawn.
        """
        if not training:
            noise = ([], [])
        return self._step(inputs, states, self.draw_noise(inputs.shape) if noise is None else noise)

    def _step(self, inputs: jax.Array, states: Sequence[jax.Array], noise: Noise) -> Step:
        raise NotImplementedError(f"{type(self).__name__} defines neither call nor _step")

    def get_initial_state(self, batch_size: int | None = None) -> list[jax.Array]:
        """Return zeros (batch, units) for each state."""
        sizes = self.state_size if isinstance(self.state_size, list) else [self.state_size]
        return [jnp.zeros((batch_size or 1, size), self.compute_dtype) for size in sizes]

    def draw_noise(self, input_shape: tuple[int, ...]) -> Noise:
        """Return dropout factors of inputs and states, for all time steps of one call in training."""
        count = self.gates if self.implementation < 2 or self.recurrent_dropout else 1
        rates = ((self.dropout, input_shape), (self.recurrent_dropout, self.state_shape(input_shape)))
        of_inputs, of_states = ([self._draw(*one) for _ in range(count if one[0] else 0)] for one in rates)
        return of_inputs, of_states

    def state_shape(self, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of each state for inputs of this shape."""
        return (input_shape[0], self.units)

    def _draw(self, rate: float, shape: tuple[int, ...]) -> jax.Array:
        return random.dropout(jnp.ones(shape, self.compute_dtype), rate, seed=self.seed_generator)

    def _bias_shape(self) -> tuple[int, ...]:
        return (self.gates * self.units,)

    def _first_bias(self) -> Identifier:
        return None  # for `bias_initializer`


class GatedArguments(RecurrentArguments, total=False):
    """Keyword arguments of every `GatedCell`."""

    implementation: int


class GatedCell(RecurrentCell):
    """The base of `GRUCell` and `LSTMCell`; for the arguments see `GRUCell`."""

    def __init__(
        self,
        units: int,
        activation: Identifier = "tanh",
        recurrent_activation: Identifier = "sigmoid",
        use_bias: bool = True,
        *,
        implementation: int = 2,
        **kwargs: Unpack[RecurrentArguments],
    ) -> None:
        super().__init__(units, activation, use_bias, **kwargs)
        self.identify("recurrent_activation", activations.get, recurrent_activation)
        self.implementation = check_option("implementation", implementation, (0, 1, 2), self.name)


def project(inputs: jax.Array, kernel: jax.Array, noise: Sequence[jax.Array]) -> jax.Array:
    """Return `(inputs * noise) @ kernel`, with noise for all columns, or for each part of them."""
    if not noise:
        return jnp.matmul(inputs, kernel)
    parts = jnp.split(kernel, len(noise), axis=1)
    return jnp.concatenate([jnp.matmul(inputs * one, part) for one, part in zip(noise, parts, strict=True)], axis=1)


def check_no_cudnn(value: Any, layer: str) -> Any:
    """Return `value` unless it is True."""
    if check_option("use_cudnn", value, ("auto", True, False), layer) is True:
        summary = f"`use_cudnn` of layer {layer!r} asks for a kernel that is not used here"
        raise ModelError(summary, given="use_cudnn=True", fix="leave it out: XLA compiles the loop for every device")
    return value
