"""`function` and `value_and_grad`, for training steps written as with `tf.function` and `tf.GradientTape`."""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ParamSpec, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from keras_dist._support.arguments import argument_error
from keras_dist._support.array_operators import Operators
from keras_dist._support.integer_checks import check_fits
from keras_dist._support.stateless_scope import StatelessScope, current_scope
from keras_dist._support.types import PyTree
from keras_dist._unstable import jaxprs, xla_workarounds
from keras_dist._unstable.flax_internals import TraceError
from keras_dist._unstable.jax_internals import has_explicit_mesh, is_traced, without_mesh
from keras_dist.distribution.layout import Axis, TensorLayout
from keras_dist.distribution.mesh import DeviceMesh
from keras_dist.distribution.placement import place_copy
from keras_dist.dtensor.layout import is_dtensor, layout_of
from keras_dist.dtensor.tensors import shown
from keras_dist.errors import LayoutError, ModelError, shorten
from keras_dist.jobs import heartbeat, job
from keras_dist.training.loop import interrupt_between_steps, shield

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_MOST_PROGRAMS = 32
_MAX_IN_FLIGHT = 2
"""More executions in flight can deadlock fake CPU devices (see `backend_environment`), and are not faster."""
_in_flight: collections.deque[jax.Array] = collections.deque()  # an output of each execution in flight
_MOST_TRACES = 4  # a function is traced until a trace reads no new variables, at most so many times


def function(step: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Compile a function that reads and assigns variables of models, optimizers and metrics, and `DVariable`s.

    `step` is traced for each combination of shapes and dtypes of its arrays, and of its other arguments: models and
    optimizers are compared by identity, numbers and strings by value. Pass a number that changes as an array. Branches
    in Python must not depend on values of arrays. Variables that `step` reads become inputs of the program, whether
    they are arguments or not; variables that it assigns become outputs and keep their layouts. Attributes such as
    `layer.trainable` have the values from the time of tracing.

    In a job of several processes, all processes with devices of the mesh must make the same calls. If all processes of
    the job are involved and one calls another function, raises or hangs, the others exit, as in `fit`.

    Args:
        step: the function. It returns arrays, in dicts, lists and tuples.

    Returns:
        A function with the same arguments.

    Raises:
        ModelError: `step` reads other variables each time it is traced.

    Example:
        >>> import jax.numpy as jnp
        >>> from keras_dist import dtensor
        >>> count = dtensor.DVariable(jnp.zeros(()))
        >>> @dtensor.function
        ... def add(x):
        ...     return count.assign_add(jnp.sum(x))
        >>> float(add(jnp.ones(3))), float(add(jnp.ones(3)))
        (3.0, 6.0)

    Source: `tf.function`.
    """
    programs: dict[Any, _Program] = {}
    name = getattr(step, "__qualname__", type(step).__name__)

    @functools.wraps(step)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        leaves, treedef = jax.tree.flatten((args, kwargs), is_leaf=_is_object)
        arrays = [leaf for leaf in leaves if _is_array(leaf)]
        for array in arrays:
            if isinstance(array, np.ndarray):
                check_fits(array, f"an argument of {name}")
        key = treedef, *(_kind(leaf) for leaf in leaves)
        with without_mesh() if has_explicit_mesh() else contextlib.nullcontext():
            program = programs.pop(key, None)
            if program is None:
                program = _Program(step, name, leaves, treedef, arrays)
                if len(programs) >= _MOST_PROGRAMS:
                    del programs[next(iter(programs))]
            programs[key] = program  # in order of use
            return program(arrays)

    return call


class _Program:
    """A function of variables, traced for arguments of one structure."""

    def __init__(
        self, step: Callable[..., Any], name: str, leaves: Sequence[Any], treedef: Any, arrays: Sequence[Any]
    ) -> None:
        self.others = [leaf for leaf in leaves if not _is_array(leaf)]  # kept alive: programs are found by their ids
        self._step, self._name, self._treedef = step, name, treedef
        self._are_arrays = [_is_array(leaf) for leaf in leaves]
        self.inputs: list[Any] = []  # the variables that the function reads or assigns
        self.assigned: list[Any] = []
        for _ in range(_MOST_TRACES):
            known = len(self.inputs)
            values = [variable.peek() for variable in self.inputs]
            jax.eval_shape(self._traced, values, arrays)
            if len(self.inputs) == known:
                break
        else:
            given = f"{_MOST_TRACES} traces, the last with new variables: {shorten(self.inputs[known:])}"
            fix = "create variables, models and metrics outside the function"
            raise ModelError(f"{name} reads other variables each time it is traced", given=given, fix=fix)
        self._place_on_mesh(arrays)
        # donated variables first, in the order of the outputs, as JAX pairs the two
        replaced = {id(variable): index for index, variable in enumerate(self.assigned)}
        self.inputs.sort(key=lambda variable: replaced.get(id(variable), len(replaced)))
        self._replaced = len(replaced)
        # one order for all functions, so that threads cannot deadlock
        self._locks = sorted({variable._lock for variable in self.inputs} | {Operators._lock}, key=id)
        self._compiled: dict[Any, Any] = {}  # by the shardings of inputs and arrays

    def _traced(self, values: list[Any], arrays: list[Any]) -> tuple[list[Any], Any]:
        """Return the new values of the assigned variables, and the result of the function."""
        given, others = iter(arrays), iter(self.others)
        leaves = [next(given if is_array else others) for is_array in self._are_arrays]
        args, kwargs = self._treedef.unflatten(leaves)
        with StatelessScope(self.inputs, values) as scope, _explained(self._name):
            result = jax.tree.map(_value_of, self._step(*args, **kwargs), is_leaf=_is_object)
        self.inputs += scope.found
        self.assigned = scope.assigned
        assigned = zip(self.assigned, scope.values(self.assigned), strict=True)
        return [_own(variable, value) for variable, value in assigned], result

    def _place_on_mesh(self, arrays: Sequence[Any]) -> None:
        """Replicate assigned variables without a mesh on the mesh of the step, where their new values will be."""
        found = (array for array in (*(variable.peek() for variable in self.inputs), *arrays) if is_dtensor(array))
        mesh = next((layout_of(array).mesh for array in found), None)
        for variable in self.assigned if mesh is not None else ():
            array = variable.peek()
            if not array.committed:
                variable._store(place_copy(array, TensorLayout.replicated(array.ndim, mesh).backend_layout))

    def _split(self, replaced: list[Any], kept: list[Any], arrays: list[Any]) -> tuple[list[Any], Any, jax.Array]:
        # the last output is never donated: it shows when an execution is done
        return *self._traced([*replaced, *kept], arrays), jnp.zeros((), bool)

    def _compile(self, arguments: tuple[list[Any], list[Any], list[Any]]) -> Any:
        replaced, kept, arrays = arguments
        known = list(zip(self.inputs, [*replaced, *kept], strict=True))
        _check_devices([*known, *((None, array) for array in arrays)], self._name)
        placed = [layout_of(array) for _, array in known if is_dtensor(array)]
        given = [*arrays, *(array for _, array in known if array.ndim > 2)]
        axes = [layout_of(array).axes for array in given if is_dtensor(array)]
        placed += [layout_of(array) for array in arrays if is_dtensor(array)]

        def rules(constraints: Sequence[Sequence[Axis]]) -> dict[Any, Callable[..., Any]]:
            if not placed:
                return {}
            mesh = placed[0].mesh
            return xla_workarounds.lowering_rules(mesh.backend_mesh, mesh.platform, lambda shape: axes, constraints)

        return jaxprs.lower_with(jax.jit(self._split, donate_argnums=0), arguments, rules).compile()

    def __call__(self, arrays: list[Any]) -> Any:
        if current_scope() is not None or any(map(is_traced, arrays)):  # inside another function
            assigned, result = self._traced([variable.value for variable in self.inputs], arrays)
            for variable, value in zip(self.assigned, assigned, strict=True):
                variable.assign(value)
            return result
        is_shared = self._is_shared(arrays)
        if is_shared:
            heartbeat.current().note_shared_steps(self._name, 1)
        told = heartbeat.current().steps(self._name, is_shared=False)  # the loop of the user may have further steps
        with told, interrupt_between_steps(is_shared=is_shared):
            _finish_oldest()
            return self._dispatched(arrays)

    def _dispatched(self, arrays: list[Any]) -> Any:
        """Run the program, and store the assigned values."""
        with shield(), contextlib.ExitStack() as held:
            for lock in self._locks:
                held.enter_context(lock)
            replaced = [variable._array() for variable in self.inputs[: self._replaced]]
            values = [*replaced, *(variable.peek() for variable in self.inputs[self._replaced :])]
            arguments = replaced, values[self._replaced :], arrays
            places = tuple(getattr(array, "sharding", None) for array in (*values, *arrays))
            if places not in self._compiled:
                self._compiled[places] = self._compile(arguments)
            try:
                assigned, result, signal = self._compiled[places](*arguments)
            except jax.errors.JaxRuntimeError as error:
                if any(array.is_deleted() for array in arguments[0]):
                    error.add_note(_LOST)
                raise
            for variable, value in zip(self.assigned, assigned, strict=True):
                variable._store(value)
            _in_flight.append(signal)
        return result

    def _is_shared(self, arrays: list[Any]) -> bool:
        """Whether all processes of the job run the program."""
        given = itertools.chain(arrays, (variable.peek() for variable in self.inputs))
        placed = (array for array in given if isinstance(array, jax.Array) and array.committed)
        return any(job.are_shared(array.sharding.device_set) for array in itertools.islice(placed, 1))


def _finish_oldest() -> None:
    with contextlib.suppress(IndexError):  # another thread was faster
        while len(_in_flight) >= _MAX_IN_FLIGHT:
            _in_flight.popleft().block_until_ready()
            heartbeat.current().note_step()


_LOST = (
    "keras_dist: the function failed while it wrote into the memory of the variables that it assigns. Their values are "
    "lost: restore a checkpoint, or assign new values."
)


def value_and_grad(fn: Callable[[], Any], variables: PyTree, has_aux: bool = False) -> tuple[Any, PyTree]:
    """Return the result of `fn()`, and the gradients of the loss with respect to variables.

    It replaces `tf.GradientTape`: JAX differentiates functions, and records nothing.

    Args:
        fn: a function of no arguments that returns a scalar loss; with `has_aux` a pair of a loss and anything else.
        variables: variables to differentiate with respect to, such as `model.trainable_variables`.
        has_aux: whether `fn` returns a pair.

    Returns:
        The result of `fn`, and the gradients in the structure of `variables`; zeros for variables that `fn` does not
        read.

    Example:
        >>> import jax.numpy as jnp
        >>> from keras_dist import dtensor
        >>> w = dtensor.DVariable(jnp.array([1.0, 2.0]))
        >>> loss, (gradient,) = dtensor.value_and_grad(lambda: jnp.sum(w**2), [w])
        >>> gradient.tolist()
        [2.0, 4.0]

    Source: `tf.GradientTape`, `jax.value_and_grad`.
    """
    handles, treedef = jax.tree.flatten(variables, is_leaf=_is_object)
    for handle in handles:
        if not isinstance(handle, Operators):
            expected = "variables, such as model.trainable_variables; jax.grad is for arrays"
            raise argument_error("variables", handle, expected)
    assigned: list[Any] = []

    def of_values(values: list[Any]) -> tuple[Any, tuple[Any, list[Any]]]:
        with StatelessScope(handles, values) as scope:
            result = jax.tree.map(_value_of, fn(), is_leaf=_is_object)
        assigned[:] = scope.assigned
        if has_aux and not (isinstance(result, tuple | list) and len(result) == 2):
            raise argument_error("fn", fn, "a function that returns a pair, with has_aux")
        loss, aux = result if has_aux else (result, None)
        return loss, (aux, scope.values(assigned))

    (loss, (aux, after)), gradients = jax.value_and_grad(of_values, has_aux=True)([handle.value for handle in handles])
    for variable, value in zip(assigned, after, strict=True):
        variable.assign(value)
    return (loss, aux) if has_aux else loss, treedef.unflatten(gradients)


@contextlib.contextmanager
def _explained(step: str) -> Iterator[None]:
    """Raise our own error where Flax refuses to set an attribute in a traced function."""
    try:
        yield
    except TraceError as error:
        summary = f"{step} sets an attribute of an object that was created outside the function"
        fix = "make it a dtensor.DVariable(value, trainable=False), and assign to that"
        raise ModelError(summary, given=str(error), fix=fix) from error


def _check_devices(arrays: Iterable[tuple[Any, Any]], step: str) -> None:
    """Check that all committed arrays are on the same devices."""
    first: Any = None
    for variable, array in arrays:
        if isinstance(array, jax.Array) and array.committed:
            first = first or (variable, array)
            if _devices_of(array) != _devices_of(first[1]):
                one, other = (_described(*each) for each in (first, (variable, array)))
                fix = "dtensor.copy_to_mesh(array, layout) brings an array to the mesh of a layout"
                raise LayoutError(f"{step} mixes arrays of different meshes", given=f"{one}; {other}", fix=fix)


def _devices_of(array: jax.Array) -> list[Any]:
    """Return the devices in order, which must be the same for all arrays of a program."""
    sharding = array.sharding
    if isinstance(sharding, jax.sharding.NamedSharding):
        return list(cast(jax.sharding.Mesh, sharding.mesh).devices.flat)
    return sorted(sharding.device_set, key=lambda device: device.id)


def _described(variable: Any, array: jax.Array) -> str:
    what = "an argument" if variable is None else f"variable {variable.path!r}"
    return f"{what} of shape {array.shape} on {shown(layout_of(array).mesh)}"


def _is_object(leaf: Any) -> bool:
    """Whether a value is a variable or module, not to be flattened into its arrays."""
    return isinstance(leaf, Operators | nnx.Module | nnx.Variable)


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray | np.generic)


def _value_of(leaf: Any) -> Any:
    return leaf.value if isinstance(leaf, Operators) else leaf


def _kind(leaf: Any) -> Any:
    """Return the part of an argument that a program depends on."""
    if _is_array(leaf):
        return leaf.shape, leaf.dtype
    if isinstance(leaf, int | float | complex):
        return type(leaf), repr(leaf)  # 0.0 == -0.0
    return leaf if isinstance(leaf, str | TensorLayout | DeviceMesh | None) else id(leaf)


def _own(variable: Any, value: jax.Array) -> jax.Array:
    """Copy a new value of a variable, with the layout of the current value."""
    value = jnp.copy(value)
    return jax.lax.with_sharding_constraint(value, variable.peek().sharding) if is_dtensor(variable) else value
