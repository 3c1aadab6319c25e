"""Updates of optimizer slots in host memory, one parameter after another.

Without an order, XLA transfers all slots to the device before the update: on v5e, Adam for 24 kernels of 256 MiB then
needs 17.8 GiB beside them, and does not fit; in order it needs 9.5 GiB, all that is free (libtpu 0.0.42, jax 0.10.2).
An optimizer updates all parameters in one call, so its equations are evaluated in another order than it wrote them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax

from keras_dist._support.types import PyTree
from keras_dist._unstable import jaxprs
from keras_dist._unstable.jax_internals import is_traced


def is_on_host(array: Any) -> bool:
    """Whether an array, maybe traced, is in the memory of a host."""
    return isinstance(array, jax.Array) and jax.typeof(array).memory_space == jax.memory.Space.Host


def on_device(tree: PyTree) -> PyTree:
    """Return a tree with its arrays in host memory transferred to the devices."""
    return jax.tree.map(lambda leaf: jax.device_put(leaf, jax.memory.Space.Device) if is_on_host(leaf) else leaf, tree)


def _to_host(array: Any) -> Any:
    return jax.device_put(array, jax.memory.Space.Host)


def update_in_turn(
    update: Callable[[PyTree, PyTree, PyTree], tuple[PyTree, PyTree]], grads: PyTree, state: PyTree, params: PyTree
) -> tuple[PyTree, PyTree]:
    """Return `update(grads, state, params)`: a value for each parameter, and the new state in the memory of `state`.

    Slots in host memory are transferred when the value of a parameter needs them, after the value before it, and
    return with this value.
    """
    slots = jax.tree.leaves(state)
    held = [index for index, leaf in enumerate(slots) if is_on_host(leaf)]
    if not held:
        return update(grads, state, params)
    if not any(map(is_traced, jax.tree.leaves((grads, state)))):  # eagerly, so that Python sees every value
        values, new = update(grads, on_device(state), params)
        return values, jax.tree.map(lambda old, leaf: _to_host(leaf) if is_on_host(old) else leaf, state, new)
    given = (grads, state, params)
    closed, shape = jax.make_jaxpr(update, return_shape=True)(*jax.tree.map(jaxprs.shape_of, given))
    closed = jaxprs.with_calls_inlined(closed)  # optax corrects the bias of all parameters in one jitted function
    first, count = len(jax.tree.leaves(grads)), len(slots)
    inputs, outputs = closed.jaxpr.invars[first : first + count], closed.jaxpr.outvars
    values, kept = outputs[: len(outputs) - count], outputs[len(outputs) - count :]
    program, found = _Program(closed, jax.tree.leaves(given), {inputs[index]: index for index in held}), {}
    for value in values:
        after = program.value(value)
        for index in program.transferred - found.keys():
            found[index] = _to_host(program.value(kept[index]))
        program.after = after
    for index in {*range(count)} - found.keys():
        is_same = kept[index] is inputs[index]
        value = slots[index] if is_same else program.value(kept[index])
        found[index] = _to_host(value) if index in held and not is_same else value
    program.run_effects()
    leaves = [*map(program.value, values), *(found[index] for index in range(count))]
    return jax.tree.unflatten(jax.tree.structure(shape), leaves)


class _Program:
    """A traced function of which each value is computed when it is needed; transfers wait for the value `after`."""

    def __init__(self, closed: Any, inputs: list[Any], on_host: Mapping[Any, int]) -> None:
        self._jaxpr, self._on_host = closed.jaxpr, on_host
        self._known = dict(zip((*closed.jaxpr.constvars, *closed.jaxpr.invars), (*closed.consts, *inputs), strict=True))
        self._makers = {var: index for index, each in enumerate(closed.jaxpr.eqns) for var in each.outvars}
        self._done: set[int] = set()
        self.after: Any = None
        self.transferred: set[int] = set()

    def value(self, var: Any) -> Any:
        """Return a value; compute what it needs, in the order of the function."""
        needed, waiting = set[int](), [var]
        while waiting:
            maker = None if jaxprs.is_literal(each := waiting.pop()) else self._makers.get(each)
            if maker is not None and maker not in needed | self._done:
                needed.add(maker)
                waiting += self._jaxpr.eqns[maker].invars
        for index in sorted(needed):
            self._run(index)
        return self._read(var)

    def run_effects(self) -> None:
        """Run what no value needs, such as calls of the host."""
        for index, equation in enumerate(self._jaxpr.eqns):
            if equation.effects and index not in self._done:
                for var in equation.invars:
                    self.value(var)
                self._run(index)

    def _run(self, index: int) -> None:
        equation = self._jaxpr.eqns[index]
        results = jaxprs.evaluate(equation, [self._read(var) for var in equation.invars])
        self._known |= zip(equation.outvars, results, strict=True)
        self._done.add(index)

    def _read(self, var: Any) -> Any:
        if jaxprs.is_literal(var):
            return var.val
        number = self._on_host.get(var)
        if number is not None and number not in self.transferred:
            self.transferred.add(number)
            array = self._known[var]
            if self.after is not None:
                array, _ = jax.lax.optimization_barrier((array, self.after))
            self._known[var] = jax.device_put(array, jax.memory.Space.Device)
        return self._known[var]
