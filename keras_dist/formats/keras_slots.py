"""Optimizer state in the form of Keras: its arrays, their order, and values derived from others."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from keras_dist import optimizers
from keras_dist._support import tree_paths
from keras_dist._unstable.jax_internals import is_key_dtype
from keras_dist.optimizers.arguments import ScheduledRateState, rate_after
from keras_dist.serialization.object_registry import snake_case
from keras_dist.variables import Variable


@dataclasses.dataclass(frozen=True)
class Slot:
    """An array of an optimizer in a file of Keras."""

    name: str  # name in the file, such as `optimizer/vars/2`
    variable: Any = None  # our variable; None without one
    dropped: int | None = None  # dim of size 1 that only our array has; None for none
    sign: int = 1  # factor of our array relative to Keras's
    # function that returns the array of Keras if it differs from ours or has no counterpart
    computed: Callable[[], np.ndarray] | None = None

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Shape of the array in the file; None if any shape is accepted."""
        if self.variable is None:
            return None
        shape, dtype = list(self.variable.shape), self.variable.dtype
        if is_key_dtype(dtype):
            return jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(shape, dtype)).shape
        if self.dropped is not None:
            del shape[self.dropped]
        return tuple(shape)

    def numpy(self) -> np.ndarray:
        """Return the array in the form of Keras; in a job all processes must call it."""
        if self.computed is not None:
            return self.computed()
        value = self.variable.numpy()
        value = value if self.dropped is None else np.squeeze(value, self.dropped)
        return value if self.sign == 1 else -value

    def of_ours(self, index: tuple[slice, ...]) -> tuple[slice, ...]:
        """Convert a slice of our array to the form of Keras."""
        if self.dropped is None:
            return index
        place = self.dropped % len(index)
        return (*index[:place], *index[place + 1 :])

    def ours(self, part: np.ndarray) -> np.ndarray:
        """Convert a slice of an array in the file to our form."""
        part = part if self.dropped is None else np.expand_dims(part, self.dropped)
        return part if self.sign == 1 else -part


def stored_slots(optimizer: Any, paths: Sequence[str], prefix: str) -> list[Slot] | None:
    """Return the slots of an optimizer in the order of Keras; None if Keras has no such optimizer."""
    found = _slots(optimizer, optimizer._state, paths)
    if found is None:
        return None
    named = [dataclasses.replace(slot, name=f"{prefix}/vars/{number}") for number, slot in enumerate(found)]
    if isinstance(optimizer, optimizers.LossScaleOptimizer):
        inner = optimizer.inner_optimizer
        named += stored_slots(inner, paths, f"{prefix}/inner_optimizer") or []
    if isinstance(optimizer, optimizers.MultiOptimizer):
        counts: dict[str, int] = {}
        for inner, own in _parts_of(optimizer, paths):
            kind = snake_case(type(inner).__name__)
            counts[kind] = count = counts.get(kind, -1) + 1
            name = f"{prefix}/optimizers/{kind}_{count}" if count else f"{prefix}/optimizers/{kind}"
            slots = (_slots(inner, inner._state, own) or []) if own else _unused(inner)
            named += [dataclasses.replace(slot, name=f"{name}/vars/{number}") for number, slot in enumerate(slots)]
    return named


def _parts_of(optimizer: Any, paths: Sequence[str]) -> Iterator[tuple[Any, list[str]]]:
    """Yield the optimizers of a `MultiOptimizer`, each with the paths of the variables that it updates."""
    for key, inner in enumerate(optimizer.optimizers):
        yield inner, [path for path in paths if optimizer._chosen.get(path) == str(key)]


def _unused(optimizer: Any) -> list[Slot]:
    """Return what Keras keeps of an optimizer that updates nothing: no steps, and its rate."""
    steps, rate = Slot("", computed=lambda: np.zeros((), np.int32)), optimizer._rate
    return [steps] if callable(rate) else [steps, Slot("", computed=lambda: np.asarray(rate, np.float32))]


def derived(optimizer: Any) -> Iterator[tuple[Any, Any]]:
    """Yield variables that follow from the number of steps, with their values: update counts, scheduled rates."""
    held = optimizer.inner_optimizer if isinstance(optimizer, optimizers.LossScaleOptimizer) else optimizer
    several: list[Any] = held.optimizers if isinstance(held, optimizers.MultiOptimizer) else [held]
    for inner in several:
        if getattr(inner, "_model", None) is None and inner is not held:
            continue  # updates nothing
        state = inner._state
        steps = int(state.inner.iterations)
        for handle in jax.tree.leaves(state.inner.slots, is_leaf=_is_variable):
            if handle.name == "count":
                yield handle, np.int32(steps // (inner.gradient_accumulation_steps or 1))
        if isinstance(state, ScheduledRateState):
            yield state.learning_rate, rate_after(inner._rate, steps)


def _slots(optimizer: Any, state: Any, paths: Sequence[str]) -> list[Slot] | None:
    if isinstance(optimizer, optimizers.LossScaleOptimizer):
        inner = optimizer.inner_optimizer
        found = None if not isinstance(inner, optimizers.Optimizer) else _slots(inner, state.inner, paths)
        if found is None:
            return None
        # Keras counts no steps for the wrapper, and keeps a rate that is never read
        own = [
            Slot("", computed=lambda: np.zeros((), np.int32)),
            Slot("", computed=lambda: np.full((), 0.001, np.float32)),
        ]
        return [*own, Slot("", state.step_counter), Slot("", state.dynamic_scale), *found]
    if isinstance(optimizer, optimizers.MultiOptimizer):
        parts = [_slots(one, one._state, own) if own else _unused(one) for one, own in _parts_of(optimizer, paths)]
        if any(part is None for part in parts):
            return None
        unused = Slot("", computed=lambda: np.zeros((), np.float32))  # a rate that nobody reads
        return [Slot("", state.iterations), unused, *(slot for part in parts for slot in part or ())]
    of_class = _SLOTS.get(type(optimizer))
    if of_class is None:
        return None
    inner = state.inner
    found = [Slot("", inner.iterations)]
    if not isinstance(state, ScheduledRateState):
        found.append(Slot("", state.learning_rate))
    if optimizer.use_ema:
        found += _by_variable(paths, inner.average)
    if optimizer.gradient_accumulation_steps:
        sums = _by_path(inner.accumulated)
        found += [Slot("", computed=_sum_of(optimizer, inner, sums[path])) for path in paths]
    return [*found, *of_class(optimizer, inner.slots, paths)]


def _sum_of(optimizer: Any, inner: Any, accumulated: Any) -> Callable[[], np.ndarray]:
    """Return what gives the sum of the gradients so far: here each counts by the weight of its batch, in Keras by 1."""

    def computed() -> np.ndarray:
        count = int(inner.iterations) % optimizer.gradient_accumulation_steps
        weight, total = float(inner.batch_weight), accumulated.numpy()
        return (total * (count / weight)).astype(total.dtype) if weight else total

    return computed


def _by_path(tree: Any) -> dict[str, Any]:
    flat, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=_is_variable)
    return {tree_paths.join(tree_paths.parts_of(key_path)): leaf for key_path, leaf in flat if _is_variable(leaf)}


def _is_variable(node: Any) -> bool:
    return isinstance(node, Variable)


def _by_variable(paths: Iterable[str], *trees: Any) -> list[Slot]:
    """Return the slots in these trees, grouped by variable."""
    found = [_by_path(tree) for tree in trees]
    return [Slot("", leaves[path]) for path in paths for leaves in found if path in leaves]


def _of_adam(optimizer: Any, slots: Any, paths: Sequence[str]) -> list[Slot]:
    found = _by_variable(paths, slots[0].mu, slots[0].nu)
    return found + (_by_variable(paths, slots[0].nu_max) if optimizer.amsgrad else [])


def _of_rmsprop(optimizer: Any, slots: Any, paths: Sequence[str]) -> list[Slot]:
    found = _by_variable(paths, slots[0].nu)
    if optimizer.momentum:
        found += [dataclasses.replace(slot, sign=-1) for slot in _by_variable(paths, slots[2].trace)]
    return found + (_by_variable(paths, slots[0].mu) if optimizer.centered else [])


def _of_adafactor(optimizer: Any, slots: Any, paths: Sequence[str]) -> list[Slot]:
    rows, columns, entries = map(_by_path, (slots.rows, slots.columns, slots.entries))
    found: list[Slot] = []
    for path in paths:
        row, column, entry = rows[path], columns[path], entries[path]
        if len(row.shape) < 2:
            unused = Slot("", computed=lambda: np.zeros((), np.float32))  # for rows and columns, which it does not have
            found += [unused, unused, Slot("", entry)]
        else:
            found += [Slot("", row, -1), Slot("", column, -2), Slot("", computed=_product_of(row, column))]
    return found


def _product_of(row: Any, column: Any) -> Callable[[], np.ndarray]:
    def computed() -> np.ndarray:
        rows = row.numpy()
        means = rows.mean(-2, keepdims=True)
        return (rows / np.where(means, means, 1) * column.numpy()).astype(rows.dtype)

    return computed


def _of_muon(optimizer: Any, slots: Any, paths: Sequence[str]) -> list[Slot]:
    by_label = {label: state.inner_state for label, state in slots[0].inner_states.items()}
    adam, momenta = by_label["adam"][0], by_label["muon"][0].trace
    merged = {**_by_path(adam.mu), **_by_path(momenta)}
    velocities = _by_path(adam.nu)
    return [Slot("", leaves[path]) for path in paths for leaves in (merged, velocities) if path in leaves]


_SLOTS: Mapping[type, Callable[[Any, Any, Sequence[str]], list[Slot]]] = {
    optimizers.SGD: lambda optimizer, slots, paths: _by_variable(paths, slots[1].trace) if optimizer.momentum else [],
    optimizers.Adam: _of_adam,
    optimizers.AdamW: _of_adam,
    optimizers.Adamax: lambda optimizer, slots, paths: _by_variable(paths, slots[0].mu, slots[0].nu),
    optimizers.Nadam: lambda optimizer, slots, paths: (
        [*_by_variable(paths, slots[0].mu, slots[0].nu), Slot("", slots[0].product)]
    ),
    optimizers.Lamb: lambda optimizer, slots, paths: _by_variable(paths, slots[0].mu, slots[0].nu),
    optimizers.RMSprop: _of_rmsprop,
    optimizers.Adagrad: lambda optimizer, slots, paths: _by_variable(paths, slots[0].sum_of_squares),
    optimizers.Adadelta: lambda optimizer, slots, paths: _by_variable(paths, slots[0].e_g, slots[0].e_x),
    optimizers.Ftrl: lambda optimizer, slots, paths: _by_variable(paths, slots.squares, slots.linear),
    optimizers.Lion: lambda optimizer, slots, paths: _by_variable(paths, slots[0].mu),
    optimizers.Adafactor: _of_adafactor,
    optimizers.Muon: _of_muon,
    optimizers.ScheduleFreeAdamW: lambda optimizer, slots, paths: _by_variable(paths, slots.momentum, slots.velocity),
}
"""The slots of each optimizer in the order in which Keras makes them; subclasses are unknown."""
