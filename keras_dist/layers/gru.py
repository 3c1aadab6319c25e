"""`GRUCell` and `GRU`: gated recurrent units."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from keras_dist import activations
from keras_dist.layers.input_spec import InputSpec
from keras_dist.layers.recurrent_cell import Noise, RecurrentCell, check_no_cudnn, project
from keras_dist.layers.recurrent_layer import RecurrentLayer, of_cell


class GRUCell(RecurrentCell):
    """One step of `GRU`. The columns of its kernels are those of the update gate, reset gate, new value.

    Args:
        units: size of the output.
        activation: a name or a function, for new values; None for none.
        recurrent_activation: likewise, for gates.
        use_bias: whether a bias is added.
        kernel_initializer: gives the first value of `kernel` (features, 3 * units).
        recurrent_initializer: gives the first value of `recurrent_kernel` (units, 3 * units).
        bias_initializer: gives the first value of `bias` (2, 3 * units), of inputs and of states; without
            `reset_after` (3 * units,).
        kernel_regularizer: a function of `kernel` that is added to the loss.
        recurrent_regularizer: likewise of `recurrent_kernel`.
        bias_regularizer: likewise.
        kernel_constraint: a function of `kernel`, applied after each update.
        recurrent_constraint: likewise of `recurrent_kernel`.
        bias_constraint: likewise.
        dropout: which fraction of the inputs is dropped in training, the same in all steps.
        recurrent_dropout: likewise of the states.
        reset_after: whether the reset gate multiplies what the state gives, not the state.
        seed: fixes what is dropped.
        implementation: 1 to drop for each gate apart; so does `recurrent_dropout`.
        kernel_layout: where the dims of `kernel` lie: a `TensorLayout`, or axes; layout rules win over it.
        recurrent_kernel_layout: likewise.
        bias_layout: likewise.
        **kwargs: as of `Layer`.

    Raises:
        ModelError: an argument is out of its range.

    Source: `keras.layers.GRUCell`.
    """

    gates = 3

    def __init__(
        self,
        units: int,
        activation: Any = "tanh",
        recurrent_activation: Any = "sigmoid",
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        recurrent_initializer: Any = "orthogonal",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        recurrent_regularizer: Any = None,
        bias_regularizer: Any = None,
        kernel_constraint: Any = None,
        recurrent_constraint: Any = None,
        bias_constraint: Any = None,
        dropout: float = 0.0,
        recurrent_dropout: float = 0.0,
        reset_after: bool = True,
        seed: int | None = None,
        *,
        kernel_layout: Any = None,
        recurrent_kernel_layout: Any = None,
        bias_layout: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            units,
            activation=activation,
            use_bias=use_bias,
            kernel_initializer=kernel_initializer,
            recurrent_initializer=recurrent_initializer,
            bias_initializer=bias_initializer,
            kernel_regularizer=kernel_regularizer,
            recurrent_regularizer=recurrent_regularizer,
            bias_regularizer=bias_regularizer,
            kernel_constraint=kernel_constraint,
            recurrent_constraint=recurrent_constraint,
            bias_constraint=bias_constraint,
            dropout=dropout,
            recurrent_dropout=recurrent_dropout,
            seed=seed,
            kernel_layout=kernel_layout,
            recurrent_kernel_layout=recurrent_kernel_layout,
            bias_layout=bias_layout,
            **kwargs,
        )
        self.identify("recurrent_activation", activations.get, recurrent_activation)
        self.reset_after = reset_after

    def call(
        self, inputs: Any, states: Any, training: bool | None = False, noise: Noise | None = None
    ) -> tuple[Any, list[Any]]:
        """The output (batch, units) for inputs (batch, features), and the new states.

        Args:
            inputs: (batch, features).
            states: a list of one state (batch, units).
            training: whether inputs and states are dropped.
            noise: what `draw_noise` gave; by default it is drawn.
        """
        of_inputs, of_states = self._noise(inputs, training, noise)
        state, kernel, split = states[0], self.recurrent_kernel[...], 2 * self.units
        bias, recurrent_bias = self._biases()
        update, reset, new = jnp.split(project(inputs, self.kernel[...], of_inputs) + bias, 3, axis=1)
        if self.reset_after:
            columns = project(state, kernel, of_states) + recurrent_bias
        else:
            columns = project(state, kernel[:, :split], of_states[:2])
        update = self.recurrent_activation(update + columns[:, : self.units])
        reset = self.recurrent_activation(reset + columns[:, self.units : split])
        if self.reset_after:
            old = reset * columns[:, split:]
        else:
            old = project(reset * state, kernel[:, split:], of_states[2:])
        outputs = update * state + (1 - update) * self.activation(new + old)
        return outputs, [outputs]

    def _biases(self) -> tuple[Any, Any]:
        """Of the inputs, and of the states."""
        if not self.use_bias:
            return 0, 0
        return (self.bias[0], self.bias[1]) if self.reset_after else (self.bias[...], 0)

    def _bias_shape(self) -> tuple[int, ...]:
        return (2, 3 * self.units) if self.reset_after else (3 * self.units,)


class GRU(RecurrentLayer):
    """A recurrent layer whose state is its output. Weights are found under `gru_cell/kernel` and so on.

    Args:
        units: as all arguments up to `recurrent_dropout`: as of `GRUCell`.
        activation: likewise.
        recurrent_activation: likewise.
        use_bias: likewise.
        kernel_initializer: likewise.
        recurrent_initializer: likewise.
        bias_initializer: likewise.
        kernel_regularizer: likewise.
        recurrent_regularizer: likewise.
        bias_regularizer: likewise.
        activity_regularizer: a function of the output that is added to the loss.
        kernel_constraint: as of `GRUCell`.
        recurrent_constraint: likewise.
        bias_constraint: likewise.
        dropout: likewise.
        recurrent_dropout: likewise.
        seed: fixes what is dropped.
        return_sequences: as all arguments up to `unroll`: as of `RNN`.
        return_state: likewise.
        go_backwards: likewise.
        stateful: likewise.
        unroll: likewise.
        reset_after: as of `GRUCell`.
        use_cudnn: as in Keras; True is refused, since there is no such kernel here.
        implementation: as of `GRUCell`.
        kernel_layout: where the dims of `kernel` lie: a `TensorLayout`, or axes; layout rules win over it.
        recurrent_kernel_layout: likewise.
        bias_layout: likewise.
        **kwargs: as of `RNN`.

    Raises:
        ModelError: an argument is out of its range.

    Source: `keras.layers.GRU`.
    """

    recurrent_activation = of_cell("recurrent_activation")
    reset_after = of_cell("reset_after")

    def __init__(
        self,
        units: int,
        activation: Any = "tanh",
        recurrent_activation: Any = "sigmoid",
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        recurrent_initializer: Any = "orthogonal",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        recurrent_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        kernel_constraint: Any = None,
        recurrent_constraint: Any = None,
        bias_constraint: Any = None,
        dropout: float = 0.0,
        recurrent_dropout: float = 0.0,
        seed: int | None = None,
        return_sequences: bool = False,
        return_state: bool = False,
        go_backwards: bool = False,
        stateful: bool = False,
        unroll: bool = False,
        reset_after: bool = True,
        use_cudnn: Any = "auto",
        *,
        implementation: int = 2,
        kernel_layout: Any = None,
        recurrent_kernel_layout: Any = None,
        bias_layout: Any = None,
        **kwargs: Any,
    ) -> None:
        cell = GRUCell(
            units,
            activation=activation,
            recurrent_activation=recurrent_activation,
            use_bias=use_bias,
            kernel_initializer=kernel_initializer,
            recurrent_initializer=recurrent_initializer,
            bias_initializer=bias_initializer,
            kernel_regularizer=kernel_regularizer,
            recurrent_regularizer=recurrent_regularizer,
            bias_regularizer=bias_regularizer,
            kernel_constraint=kernel_constraint,
            recurrent_constraint=recurrent_constraint,
            bias_constraint=bias_constraint,
            dropout=dropout,
            recurrent_dropout=recurrent_dropout,
            reset_after=reset_after,
            seed=seed,
            implementation=implementation,
            kernel_layout=kernel_layout,
            recurrent_kernel_layout=recurrent_kernel_layout,
            bias_layout=bias_layout,
            dtype=kwargs.get("dtype"),
            trainable=kwargs.get("trainable", True),
            name="gru_cell",
        )
        super().__init__(
            cell,
            return_sequences=return_sequences,
            return_state=return_state,
            go_backwards=go_backwards,
            stateful=stateful,
            unroll=unroll,
            activity_regularizer=activity_regularizer,
            **kwargs,
        )
        self.input_spec = InputSpec(ndim=3)
        self.use_cudnn = check_no_cudnn(use_cudnn, self.name)
