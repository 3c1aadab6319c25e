"""`RNN`: any cell as a layer over sequences."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from keras_dist.errors import ModelError
from keras_dist.layers.input_spec import InputSpec
from keras_dist.layers.layer import Layer
from keras_dist.layers.looped import add_losses, build_before, call_inside
from keras_dist.layers.recurrent_cell import check_cell, first_states
from keras_dist.layers.stacked_rnn_cells import StackedRNNCells


class RNN(Layer):
    """A cell, called on one position of a sequence after the other.

    A cell is a layer with an attribute `state_size`, an integer or a list of them, and `call(inputs, states)`, which
    returns the output of the step and the new states. It may have `output_size` (by default that of the first state)
    and `get_initial_state(batch_size)` (by default zeros). It must not draw random numbers or set statistics in its
    call, which is traced once for all steps; a cell with a method `draw_noise(input_shape)` gets what that returns, in
    training, as the argument `noise` of each step.

    Weights are found under the name of the cell: `lstm_cell/kernel`.

    Args:
        cell: a cell, or a list of cells, each of which gets the output of the one before.
        return_sequences: whether to return the outputs of all steps, not of the last one alone.
        return_state: whether to return the last states, too.
        go_backwards: whether to begin with the last position; the outputs come in the order of the steps.
        stateful: only False.
        unroll: whether the compiled program repeats the step instead of looping; the numbers are the same.
        zero_output_for_mask: whether outputs of masked positions are zeros, not repetitions of the last one.
        **kwargs: as of `Layer`.

    Raises:
        ModelError: `cell` is none, or `stateful` is asked for.

    Differs from Keras: `stateful` is refused; pass states on with `return_state` and `initial_state`.

    Source: `keras.layers.RNN`.
    """

    def __init__(
        self,
        cell: Any,
        return_sequences: bool = False,
        return_state: bool = False,
        go_backwards: bool = False,
        stateful: bool = False,
        unroll: bool = False,
        zero_output_for_mask: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        is_list = isinstance(cell, list | tuple)
        cell = StackedRNNCells(cell, dtype=self.dtype_policy) if is_list else check_cell(cell, self.name)
        if stateful:
            raise ModelError(
                f"layer {self.name!r} cannot keep its states from one batch to the next",
                given="stateful=True",
                expected="stateful=False",
                fix="return_state=True, and layer(inputs, initial_state=states) with the states of the batch before",
            )
        self._members = {cell.name: cell}
        self._cell_name = cell.name
        self.return_sequences = return_sequences
        self.return_state = return_state
        self.go_backwards = go_backwards
        self.stateful = False
        self.unroll = unroll
        self.zero_output_for_mask = zero_output_for_mask
        self.input_spec = InputSpec(min_ndim=3)
        self.supports_masking = True

    @property
    def cell(self) -> Any:
        """The cell."""
        return self._members[self._cell_name]

    @property
    def state_size(self) -> list[Any]:
        """Sizes of the states."""
        size = self.cell.state_size
        return list(size) if isinstance(size, list | tuple) else [size]

    def build(self, sequences_shape: Any, initial_state_shape: Any = None) -> None:
        """Create the weights of the cell."""
        batch = sequences_shape[0] or 1
        step = jnp.zeros((batch, *sequences_shape[2:]), self.compute_dtype)
        build_before(self.cell, step, self.get_initial_state(batch))

    def get_initial_state(self, batch_size: int) -> list[Any]:
        """What a sequence begins with: (batch, size) for each state."""
        states = first_states(self.cell, batch_size)
        return list(states) if isinstance(states, list | tuple) else [states]

    def call(self, sequences: Any, initial_state: Any = None, mask: Any = None, training: bool | None = False) -> Any:
        """The output of the last step, or of all.

        Args:
            sequences: (batch, time, features).
            initial_state: the states to begin with, (batch, size) each; by default zeros.
            mask: which positions count (batch, time); at the others states stay as they are.
            training: whether the cell drops inputs and states.

        Returns:
            (batch, units), with `return_sequences` (batch, time, units); with `return_state` a tuple that begins with
            it and goes on with the states, (batch, size) each.
        """
        states = self._as_states(self.get_initial_state(sequences.shape[0]) if initial_state is None else initial_state)
        options = {}
        if training and hasattr(self.cell, "draw_noise"):
            options["noise"] = self.cell.draw_noise((sequences.shape[0], *sequences.shape[2:]))

        def step(states: list[Any], position: Any) -> Any:
            inputs, kept = position
            (outputs, found), losses = call_inside(self.cell, training, inputs, states, **options)
            found = jax.tree.unflatten(jax.tree.structure(states), jax.tree.leaves(found))
            found = jax.tree.map(lambda new, old: new.astype(old.dtype), found, states)
            if kept is not None:
                before = jnp.zeros_like(outputs) if self.zero_output_for_mask else self._output_in(states)
                outputs = _where(kept, outputs, before)
                found = jax.tree.map(lambda new, old: _where(kept, new, old), found, states)
            return found, (outputs, losses)

        steps = (jnp.swapaxes(sequences, 0, 1), None if mask is None else _of_steps(mask))
        states, (outputs, losses) = jax.lax.scan(
            step, states, steps, reverse=self.go_backwards, unroll=True if self.unroll else 1
        )
        add_losses(losses)
        outputs, states = jax.tree.map(lambda array: array.astype(self.compute_dtype), (outputs, states))
        outputs = outputs[::-1] if self.go_backwards else outputs
        outputs = jnp.swapaxes(outputs, 0, 1) if self.return_sequences else outputs[-1]
        return (outputs, *states) if self.return_state else outputs

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Any:
        """The mask of the input for the outputs of all steps; states have none."""
        mask = previous_mask if self.return_sequences else None
        return [mask, *[None] * len(jax.tree.leaves(self.state_size))] if self.return_state else mask

    def _as_states(self, states: Any) -> list[Any]:
        """States as they go through the loop.

        Raises:
            ModelError: there are more or fewer than the cell has.
        """
        states = list(states) if isinstance(states, list | tuple) else [states]
        sizes = jax.tree.leaves(self.state_size)
        if len(jax.tree.leaves(states)) != len(sizes):
            raise ModelError(
                f"`initial_state` of layer {self.name!r} does not fit its cell",
                given=f"states of shapes {[jnp.shape(state) for state in jax.tree.leaves(states)]}",
                expected=f"{len(sizes)} of sizes {sizes}",
                fix="pass what get_initial_state(batch_size) or a call with return_state=True gives",
            )
        return jax.tree.map(lambda state: jnp.asarray(state, self.cell.compute_dtype), states)

    def _output_in(self, states: list[Any]) -> Any:
        """The state that is the output of the step before."""
        return jax.tree.leaves(states[-1])[0] if isinstance(self.cell, StackedRNNCells) else states[0]


def _of_steps(mask: Any) -> jax.Array:
    """A mask (batch, time) or (batch, time, features) as (time, batch): whether anything counts."""
    mask = jnp.asarray(mask, bool)
    return jnp.swapaxes(mask if mask.ndim == 2 else jnp.any(mask, axis=tuple(range(2, mask.ndim))), 0, 1)


def _where(kept: jax.Array, new: jax.Array, old: jax.Array) -> jax.Array:
    return jnp.where(kept.reshape(-1, *(1,) * (new.ndim - 1)), new, old)
