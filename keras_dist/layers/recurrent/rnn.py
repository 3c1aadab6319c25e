"""`RNN` and `StackedRNNCells`, and `RecurrentLayer`, the base of `GRU`, `LSTM` and similar layers."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, ClassVar, TypedDict, Unpack

import jax
import jax.numpy as jnp

from keras_dist._support.arguments import argument_error
from keras_dist._support.types import PyTree, Shape
from keras_dist.distribution.strategy import distribution as current_distribution
from keras_dist.errors import ModelError, with_type
from keras_dist.layers.base.call_arguments import InputSpec
from keras_dist.layers.base.layer import Layer
from keras_dist.layers.base.other_frameworks import check_is_ours
from keras_dist.layers.base.shape_calls import shapes_of_call
from keras_dist.layers.base.stacked_layers import add_losses, call_inside
from keras_dist.layers.base.weight_arguments import LayerArguments, keyword_defaults, show_keywords
from keras_dist.layers.recurrent.recurrent_cell import RecurrentArguments, RecurrentCell
from keras_dist.layers.recurrent.time_loop import scan_time
from keras_dist.serialization.object_registry import snake_case
from keras_dist.variables.variable import Variable


class StackedRNNCells(Layer):
    """Several cells as one: each is called on the output of the previous one.

    Paths of weights contain the names of the cells; equal names are numbered: `lstm_cell/kernel`,
    `lstm_cell_1/kernel`.

    Args:
        cells: the cells, as `RNN` takes them.
        **kwargs: see `Layer`.
    """

    def __init__(self, cells: Sequence[Layer], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not isinstance(cells, list | tuple) or not cells:
            fix = "for example StackedRNNCells([LSTMCell(32), LSTMCell(16)])"
            raise argument_error("cells", cells, "a list of cells", layer=self.name, fix=fix)
        members: dict[str, Layer] = {}
        for cell in cells:
            name, count = check_cell(cell, self.name).name, 0
            while name in members:
                count += 1
                name = f"{cell.name}_{count}"
            members[name] = cell
        self._members = members
        self._names = tuple(members)

    @property
    def cells(self) -> list[Layer]:
        """The cells."""
        return [self._members[name] for name in self._names]

    @property
    def state_size(self) -> list[PyTree]:
        """Size of the state, or sizes of the states, of each cell."""
        return [cell.state_size for cell in self.cells]

    @property
    def output_size(self) -> int:
        """Size of the output of the last cell."""
        return output_size(self.cells[-1])

    def get_initial_state(self, batch_size: int) -> list[PyTree]:
        return [first_states(cell, batch_size) for cell in self.cells]

    def draw_noise(self, input_shape: tuple[int, ...]) -> list[PyTree]:
        """Return the `noise` of each cell for one call in training, or None."""
        drawn: list[PyTree] = []
        for cell in self.cells:
            drawn.append(cell.draw_noise(input_shape) if hasattr(cell, "draw_noise") else None)
            input_shape = (input_shape[0], output_size(cell))
        return drawn

    def call(
        self, inputs: jax.Array, states: PyTree, training: bool | None = False, noise: PyTree = None
    ) -> tuple[jax.Array, list[PyTree]]:
        """Return the output of the last cell, and the new states of all."""
        found: list[PyTree] = []
        for cell, own, drawn in zip(self.cells, states, noise or [None] * len(self.cells), strict=True):
            options = {} if drawn is None else {"noise": drawn}
            inputs, new = cell(inputs, own if isinstance(own, list | tuple) else [own], training=training, **options)
            found.append(new)
        return inputs, found


class RNN(Layer):
    """Loop over the time steps of a sequence with a cell.

    A cell is a layer with an attribute `state_size`, an integer or a list, and a method `call(inputs, states)` that
    returns the output of a step and the new states. It may have `output_size` (by default the size of its first state)
    and `get_initial_state(batch_size)` (by default zeros). Its call is traced once for all steps, so that it must not
    draw random numbers or update statistics; in training, the result of a method `draw_noise(input_shape)` is passed to
    each step as the argument `noise`. Paths of weights contain the name of the cell: `lstm_cell/kernel`.

    Args:
        cell: a cell, or a list of cells, which are stacked.
        return_sequences: whether to return the outputs of all steps, instead of the last output.
        return_state: whether to return the last states, too.
        go_backwards: whether to start with the last time step; outputs are in the order of computation.
        stateful: whether each batch starts with the last states of the previous batch. They are non-trainable weights
            `rnn_state`, so that all batches must have the same number of rows.
        unroll: whether to unroll the loop in the compiled program. Otherwise, where the batch is sharded over the whole
            mesh, gradients of weights are summed once, after the loop, and `jax.jvp` raises.
        zero_output_for_mask: whether outputs of masked time steps are 0, instead of the previous output.
        **kwargs: see `Layer`.

    Differs from Keras: with `stateful=True`, the states are in `weights`, and `fit`, `evaluate` and `predict` keep
    them.
    """

    def __init__(
        self,
        cell: Layer | Sequence[Layer],
        return_sequences: bool = False,
        return_state: bool = False,
        go_backwards: bool = False,
        stateful: bool = False,
        unroll: bool = False,
        zero_output_for_mask: bool = False,
        **kwargs: Unpack[LayerArguments],
    ) -> None:
        super().__init__(**kwargs)
        is_list = isinstance(cell, list | tuple)
        cell = StackedRNNCells(cell, dtype=self.dtype_policy) if is_list else check_cell(cell, self.name)
        self._members = {cell.name: cell}
        self._cell_name = cell.name
        self.return_sequences = return_sequences
        self.return_state = return_state
        self.go_backwards = go_backwards
        self.stateful = bool(stateful)
        self.unroll = unroll
        self.zero_output_for_mask = zero_output_for_mask
        self.input_spec = InputSpec(min_ndim=3)
        self.supports_masking = True

    @property
    def cell(self) -> Layer:
        """The cell."""
        return self._members[self._cell_name]

    @property
    def state_size(self) -> list[PyTree]:
        """Size of the state, or sizes of the states, of the cell."""
        size = self.cell.state_size
        return list(size) if isinstance(size, list | tuple) else [size]

    def build(self, sequences_shape: Shape, initial_state_shape: PyTree = None) -> None:
        """Create the weights of the cell."""
        batch = sequences_shape[0] or 1
        step = jnp.zeros((batch, *sequences_shape[2:]), self.compute_dtype)
        states = self.states_before((batch, *sequences_shape[1:]))
        shapes_of_call(self.cell, step, states)
        if self.stateful:
            self.rnn_states = create_states(self, states, sequences_shape)

    @property
    def states(self) -> list[Any] | None:
        """The kept states, as weights; None without `stateful=True`, and before the layer is built."""
        return self.rnn_states if self.stateful and self.built else None

    def reset_state(self) -> None:
        """Set the kept states to zeros."""
        for state in self.states or ():
            state.assign(jnp.zeros(state.shape, state.dtype))

    def reset_states(self) -> None:
        """Alias of `reset_state`."""
        self.reset_state()

    def get_initial_state(self, batch_size: int) -> list[PyTree]:
        """Return the initial states: (batch, size) each."""
        states = first_states(self.cell, batch_size)
        return list(states) if isinstance(states, list | tuple) else [states]

    def states_before(self, sequences_shape: Shape) -> list[PyTree]:
        """Return the initial states for sequences of this shape."""
        return self.get_initial_state(sequences_shape[0] or 1)

    def call(
        self,
        sequences: jax.Array,
        initial_state: PyTree = None,
        mask: jax.Array | None = None,
        training: bool | None = False,
    ) -> PyTree:
        """Return the output of the last time step, or of all.

        Args:
            sequences: (batch, time, features).
            initial_state: initial states, (batch, size) each; by default zeros.
            mask: boolean, valid time steps, (batch, time); masked steps do not change the states.
            training: whether the cell drops inputs and states.

        Returns:
            (batch, units), or (batch, time, units) with `return_sequences`; with `return_state`, a tuple of the outputs
            and the states, (batch, size) each.
        """
        if initial_state is None:
            initial_state = self.states_before(sequences.shape)
            if self.stateful:
                check_batch(self, sequences, self.rnn_states)
                kept = [state[...] for state in self.rnn_states]
                initial_state = jax.tree.unflatten(jax.tree.structure(initial_state), kept)
        states = self._as_states(initial_state)
        options = {}
        if training and hasattr(self.cell, "draw_noise"):
            options["noise"] = self.cell.draw_noise((sequences.shape[0], *sequences.shape[2:]))

        def step(states: list[PyTree], position: PyTree) -> PyTree:
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
        states, (outputs, losses) = scan_time(step, states, steps, self.go_backwards, self.unroll)
        add_losses(self, losses)
        outputs, states = jax.tree.map(lambda array: array.astype(self.compute_dtype), (outputs, states))
        if self.stateful:
            for kept, state in zip(self.rnn_states, jax.tree.leaves(states), strict=True):
                kept.assign(jax.lax.stop_gradient(state))
        outputs = outputs[::-1] if self.go_backwards else outputs
        outputs = jnp.swapaxes(outputs, 0, 1) if self.return_sequences else outputs[-1]
        return (outputs, *states) if self.return_state else outputs

    def compute_mask(self, inputs: PyTree, mask: PyTree = None) -> PyTree:
        """Return the mask of the input for sequences of outputs, and None for states."""
        mask = mask if self.return_sequences else None
        return [mask, *[None] * len(jax.tree.leaves(self.state_size))] if self.return_state else mask

    def _as_states(self, states: PyTree) -> list[PyTree]:
        states = list(states) if isinstance(states, list | tuple) else [states]
        sizes = jax.tree.leaves(self.state_size)
        if len(jax.tree.leaves(states)) != len(sizes):
            summary = f"`initial_state` of layer {self.name!r} must be {len(sizes)} states of sizes {sizes}"
            given = f"states of shapes {[jnp.shape(state) for state in jax.tree.leaves(states)]}"
            fix = "pass what get_initial_state(batch_size) or a call with return_state=True gives"
            raise ModelError(summary, given=given, fix=fix)
        return jax.tree.map(lambda state: jnp.asarray(state, self.cell.compute_dtype), states)

    def _output_in(self, states: list[PyTree]) -> PyTree:
        """Return the state that is the output of the previous step."""
        return jax.tree.leaves(states[-1])[0] if isinstance(self.cell, StackedRNNCells) else states[0]


class SequenceArguments(TypedDict, total=False):
    """Keyword arguments of `RNN`."""

    return_sequences: bool
    return_state: bool
    go_backwards: bool
    stateful: bool
    unroll: bool
    zero_output_for_mask: bool


class RecurrentLayerArguments(RecurrentArguments, SequenceArguments, total=False):
    """Keyword arguments of every `RecurrentLayer`."""


class RecurrentLayer(RNN):
    """The base of layers that create their cell: its arguments are arguments and attributes of the layer."""

    cell_class: ClassVar[type[RecurrentCell]]
    cell_name: ClassVar[str | None] = None  # by default the name of the class
    _cell_arguments: ClassVar[tuple[str, ...]]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Show the arguments of the cell in the signature, and as attributes."""
        super().__init_subclass__(**kwargs)
        if "cell_class" in vars(cls):
            arguments = keyword_defaults(cls.cell_class.__init__)
            if "__init__" in vars(cls):
                show_keywords(cls.__init__, arguments)
            cls._cell_arguments = tuple(name for name in arguments if name != "activity_regularizer")
            for name in ("units", *cls._cell_arguments):
                setattr(cls, name, property(operator.attrgetter(f"cell.{name}"), doc=f"`{name}` of the cell."))

    def __init__(self, *args: Any, **kwargs: Unpack[RecurrentLayerArguments]) -> None:
        options: dict[str, Any] = dict(kwargs)
        of_cell: dict[str, Any] = {name: options.pop(name) for name in self._cell_arguments if name in options}
        of_both: dict[str, Any] = {name: options[name] for name in ("dtype", "trainable") if name in options}
        cell_class: type[Layer] = self.cell_class
        cell = cell_class(*args, name=self.cell_name or snake_case(cell_class.__name__), **of_cell, **of_both)
        super().__init__(cell, **options)
        self.input_spec = InputSpec(ndim=3)


def check_cell(cell: Any, layer: str) -> Layer:
    """Return `cell`; raise unless it has `call` and `state_size`."""
    if not isinstance(cell, Layer) or not hasattr(cell, "state_size"):
        check_is_ours(f"`cell` of layer {layer!r}", cell)
        summary = f"`cell` of layer {layer!r} must be a Layer with `state_size` and call(inputs, states)"
        fix = "for example RNN(LSTMCell(32)); self.state_size = units in the __init__ of a cell of your own"
        raise ModelError(summary, given=with_type(cell), fix=fix)
    return cell


def first_states(cell: Layer, batch_size: int) -> PyTree:
    """Return the initial states of a cell; by default zeros."""
    if hasattr(cell, "get_initial_state"):
        return cell.get_initial_state(batch_size=batch_size)
    zeros = [jnp.zeros((batch_size, size), cell.compute_dtype) for size in jax.tree.leaves(cell.state_size)]
    return zeros if isinstance(cell.state_size, list | tuple) else zeros[0]


def output_size(cell: Layer) -> int:
    """Return the size of the output of a cell; by default the size of its first state."""
    size = getattr(cell, "output_size", None)
    return jax.tree.leaves(cell.state_size)[0] if size is None else size


def _of_steps(mask: jax.Array) -> jax.Array:
    """Return a mask (batch, time) or (batch, time, features) as (time, batch): whether anything counts."""
    mask = jnp.asarray(mask, bool)
    return jnp.swapaxes(mask if mask.ndim == 2 else jnp.any(mask, axis=tuple(range(2, mask.ndim))), 0, 1)


def _where(kept: jax.Array, new: jax.Array, old: jax.Array) -> jax.Array:
    return jnp.where(kept.reshape(-1, *(1,) * (new.ndim - 1)), new, old)


def create_states(layer: Layer, states: PyTree, sequences_shape: Shape) -> list[Variable]:
    """Create a non-trainable weight (batch, size) for each state, sharded like the batch."""
    if sequences_shape[0] is None:
        rest = ", ".join(map(str, sequences_shape[1:]))
        given = f"sequences of shape (None, {rest})"
        fix = f"Input(batch_shape=(32, {rest})), or model.build((32, {rest})) for a model without Input"
        raise ModelError(f"layer {layer.name!r} with `stateful=True` needs a fixed batch size", given=given, fix=fix)
    distribution = current_distribution()
    batch_axes = None if distribution is None else distribution.batch_dim_name
    found = []
    for state in jax.tree.leaves(states):
        layout = None
        if distribution is not None and batch_axes is not None:
            axes = (batch_axes,) if isinstance(batch_axes, str) else batch_axes
            count = math.prod(distribution.device_mesh.axis_size(axis) for axis in axes)
            is_even = state.shape[0] % count == 0
            layout = (batch_axes, *[None] * (state.ndim - 1)) if is_even else None
        weight = layer.add_weight(
            state.shape,
            lambda shape, dtype, key=None, state=state: state.astype(dtype),
            trainable=False,
            autocast=False,
            name="rnn_state",
            layout=layout,
        )
        weight.set_metadata("changes_always", True)
        found.append(weight)
    return found


def check_batch(layer: Layer, sequences: jax.Array, states: list[Any]) -> None:
    """Check that a batch has as many rows as the states."""
    rows = states[0].shape[0]
    if sequences.shape[0] != rows:
        summary = f"layer {layer.name!r} with `stateful=True` keeps states of batches of {rows} rows"
        fix = f"batch_size={rows}, and a number of examples that it divides"
        raise ModelError(summary, given=f"sequences of shape {sequences.shape}", fix=fix)
