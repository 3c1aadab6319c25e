"""`GRUCell` and `GRU`: gated recurrent units."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import jax
import jax.numpy as jnp

from keras_dist.layers.recurrent.recurrent_cell import GatedArguments, GatedCell, Noise, Step, check_no_cudnn, project
from keras_dist.layers.recurrent.rnn import RecurrentLayer, RecurrentLayerArguments
from keras_dist.layers.weight_arguments import Identifier


class GRUCell(GatedCell):
    """One step of `GRU`, the gated recurrent unit: https://arxiv.org/abs/1406.1078.

    `h = z * h_before + (1 - z) * candidate`, where the update gate z and the reset gate r are
    `recurrent_activation(inputs @ kernel + h_before @ recurrent_kernel + bias)`. The columns of the kernels belong to
    z, r and the candidate.

    Args:
        units: size of the output.
        activation: a name or a function, for new values; None for none.
        recurrent_activation: a name or a function, for gates; None for none.
        use_bias: whether a bias is added.
        reset_after: whether the candidate depends on `r * (h_before @ recurrent_kernel)`, as in cuDNN, or on
            `(r * h_before) @ recurrent_kernel`.
        **kwargs: initializer, regularizer, constraint and layout, such as `kernel_initializer`, of the weights `kernel`
            (features, 3 * units) and `bias` (2, 3 * units), without `reset_after` (3 * units,); the arguments of
            `Layer`.
        implementation: 1, or 0 as in old configs, to drop for each gate apart; so does `recurrent_dropout`.
    """

    gates = 3

    def __init__(
        self,
        units: int,
        activation: Identifier = "tanh",
        recurrent_activation: Identifier = "sigmoid",
        use_bias: bool = True,
        *,
        reset_after: bool = True,
        **kwargs: Unpack[GatedArguments],
    ) -> None:
        super().__init__(units, activation, recurrent_activation, use_bias, **kwargs)
        self.reset_after = reset_after

    def _step(self, inputs: jax.Array, states: Sequence[jax.Array], noise: Noise) -> Step:
        of_inputs, of_states = noise
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

    def _biases(self) -> tuple[jax.Array | int, jax.Array | int]:
        if not self.use_bias:
            return 0, 0
        return (self.bias[0], self.bias[1]) if self.reset_after else (self.bias[...], 0)

    def _bias_shape(self) -> tuple[int, ...]:
        return (2, 3 * self.units) if self.reset_after else (3 * self.units,)


class GRUArguments(RecurrentLayerArguments, total=False):
    """Keyword arguments of `GRU`."""

    reset_after: bool
    implementation: int


class GRU(RecurrentLayer):
    """The gated recurrent unit over a sequence: `GRUCell` in `RNN`.

    Paths of weights are `gru_cell/kernel` and so on.

    Args:
        use_cudnn: must not be True: cuDNN is not used.
        **kwargs: the arguments of `GRUCell`, then the arguments of `RNN`, such as `return_sequences`.
    """

    cell_class = GRUCell

    def __init__(
        self,
        units: int,
        activation: Identifier = "tanh",
        recurrent_activation: Identifier = "sigmoid",
        use_bias: bool = True,
        *,
        use_cudnn: bool | str = "auto",
        **kwargs: Unpack[GRUArguments],
    ) -> None:
        super().__init__(units, activation, recurrent_activation, use_bias, **kwargs)
        self.use_cudnn = check_no_cudnn(use_cudnn, self.name)
