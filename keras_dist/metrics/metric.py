"""`Metric`: state that every batch updates, and a result computed from it.

metrax has a fifth of Keras's metrics, with other arguments and rounding, as frozen dataclasses that users cannot
subclass with `add_variable`. States travel through the compiled steps, replicated; nothing is fetched that nobody
reads. Totals are float32: adding a batch rounds by one part in 2**24, so that a total grows up to 2**24 batches.
"""

# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist._support.arguments import check_is_mesh
from keras_dist._support.array_operators import value_of, values_in
from keras_dist._support.signatures import takes
from keras_dist._support.stateless_scope import StatelessScope, trace_error
from keras_dist._support.types import ArrayLike, DTypeLike, PyTree
from keras_dist._unstable.jax_internals import is_traced
from keras_dist.errors import ModelError, UnknownNameError, did_you_mean, shorten
from keras_dist.serialization.configurable import Configurable, not_initialised
from keras_dist.serialization.object_registry import snake_case
from keras_dist.variables import Variable, call_context
from keras_dist.variables.lending import Borrower, Lendable

_INITIALIZERS: dict[str, Callable[..., np.ndarray]] = {"zeros": np.zeros, "ones": np.ones}


class Metric(Configurable):
    """Base of all metrics: state that every batch updates, and a result computed from it.

    A subclass creates its variables in `__init__` with `add_variable`, or in the first `update_state` if it needs
    shapes. It assigns to them in `update_state`, and `result` returns a scalar, an array or a dict of these.
    `class Largest(Metric, direction="up")` declares for `mode="auto"` of callbacks that more is better.

    Args:
        dtype: dtype of the computations; float32 by default.
        name: name in logs; by default the name of the class in snake case.
        mesh: unused, for code written for DTensor; the state is on the mesh of the model.

    Example:
        >>> import numpy as np
        >>> from keras_dist import metrics
        >>> class Largest(metrics.Metric):
        ...     def __init__(self, name="largest", **kwargs):
        ...         super().__init__(name=name, **kwargs)
        ...         self.found = self.add_variable(shape=(), name="found")
        ...     def update_state(self, y_true, y_pred, sample_weight=None):
        ...         self.found.assign(np.maximum(self.found.value, y_pred.max()))
        ...     def result(self):
        ...         return self.found.value
        >>> float(Largest()(None, np.array([1.0, 3.0])))
        3.0
    """

    _never_called: ClassVar[Mapping[str, str]] = {"reset_states": "call it `reset_state`"}

    needs_targets: ClassVar[bool] = True
    """Whether targets must be given."""

    _direction: str | None = None
    """`"up"` if more is better, `"down"` if less is, None if unknown."""

    def __init_subclass__(cls, direction: str | None = None, **kwargs: Any) -> None:
        """Set the better direction."""
        super().__init_subclass__(**kwargs)
        cls._direction = direction or cls._direction

    def __init__(self, dtype: DTypeLike | None = None, name: str | None = None, mesh: object = None) -> None:
        if self._arguments.get("mesh") is mesh:  # not an argument of a subclass
            self._arguments.pop("mesh", None)
        check_is_mesh(mesh)
        if not isinstance(name, str | None):  # pyright: ignore[reportUnnecessaryIsInstance]
            fix = "to give a function a name: MeanMetricWrapper(fn, name='mine')"
            raise ModelError("`name` must be a string or None", given=f"name={shorten(name)}", fix=fix)
        self.name = name or snake_case(type(self).__name__)
        self._dtype = _resolved_dtype(dtype).name
        self._variables: list[Variable] = []

    @property
    def dtype(self) -> str:
        """Name of the dtype of the computations."""
        return self._dtype

    @property
    def variables(self) -> list[Variable]:
        """The state: variables of this metric, then of metrics among its attributes."""
        self._check_initialised()
        inner = [metric for value in vars(self).values() for metric in _metrics_in(value)]
        return [*self._variables, *(variable for metric in inner for variable in metric.variables)]

    def add_variable(
        self,
        shape: Sequence[int],
        initializer: str | ArrayLike | Callable[..., Any] = "zeros",
        dtype: DTypeLike | None = None,
        aggregation: str = "sum",
        name: str | None = None,
    ) -> Variable:
        """Add a variable to the state and return it.

        Args:
            shape: the shape of the variable, which is fixed.
            initializer: `"zeros"`, `"ones"`, an array of this shape, or a callable `(shape, dtype) -> array`.
            dtype: float32 by default.
            aggregation: ignored; the variable is one array over all devices.
            name: name in errors and listings.

        Raises:
            UnknownNameError: the initializer is unknown.
            ModelError: `super().__init__()` was not called, or the array has another shape.
        """
        self._check_initialised()
        make = _INITIALIZERS.get(initializer, initializer) if isinstance(initializer, str) else initializer
        if hasattr(initializer, "shape"):
            make = functools.partial(_checked_array, initializer)
        if not callable(make):
            summary = f"unknown initializer{did_you_mean(str(initializer), _INITIALIZERS)}"
            fix = f"one of {', '.join(_INITIALIZERS)}, an array, or a callable (shape, dtype) -> array"
            raise UnknownNameError(summary, given=f"initializer={shorten(initializer)}", fix=fix)
        dtype = _resolved_dtype(dtype)
        with jax.ensure_compile_time_eval():  # the first update may create variables inside a trace
            value = np.asarray(make(tuple(shape), dtype=dtype))
            name = name or f"variable_{len(self._variables)}"
            variable = Variable.holding(jax.ShapeDtypeStruct(value.shape, value.dtype), f"{self.name}/{name}", name)
        variable.lend_to(MetricState(value))
        self._variables.append(variable)
        return variable

    def add_weight(
        self,
        shape: Sequence[int] = (),
        initializer: str | ArrayLike | Callable[..., Any] | None = None,
        dtype: DTypeLike | None = None,
        name: str | None = None,
    ) -> Variable:
        """Add a variable to the state, by default a scalar of zeros; see `add_variable`."""
        return self.add_variable(shape, "zeros" if initializer is None else initializer, dtype, name=name)

    def update_state(self, *args: Any, **kwargs: Any) -> None:
        """Add a batch to the state; metrics of models take `(y_true, y_pred, sample_weight=None)`."""
        raise NotImplementedError(f"{type(self).__name__}.update_state")

    def weighs(self, y_true: PyTree, y_pred: PyTree) -> bool:
        """Whether `update_state` accepts a `sample_weight` for these targets and predictions."""
        return takes(self.update_state, y_true, y_pred, None)

    def result(self) -> PyTree:
        """Return the value so far: a scalar, an array, or a dict of these by name."""
        raise NotImplementedError(f"{type(self).__name__}.result")

    def reset_state(self) -> None:
        """Set every variable to zero."""
        for variable in self.variables:
            variable.assign(jnp.zeros(variable.shape, variable.dtype))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call `update_state` with these arguments, and return `result`."""
        self._check_initialised()
        self.update_state(*args, **kwargs)
        return self.result()

    def stateless_update_state(
        self, metric_variables: Sequence[ArrayLike], *args: Any, **kwargs: Any
    ) -> list[jax.Array]:
        """Return the values of `variables` after `update_state` from `metric_variables`; a pure function.

        Raises:
            ModelError: `metric_variables` does not fit `variables`.
        """
        with StatelessScope(self.variables, self._checked(metric_variables)):
            self.update_state(*args, **kwargs)
            return [variable.value for variable in self.variables]

    def stateless_result(self, metric_variables: Sequence[ArrayLike]) -> PyTree:
        """Return `result` for these values of the variables; a pure function.

        Raises:
            ModelError: `metric_variables` does not fit `variables`.
        """
        with StatelessScope(self.variables, self._checked(metric_variables)):
            return values_in(self.result())

    def stateless_reset_state(self) -> list[jax.Array]:
        """Return the values of `variables` after `reset_state`; a pure function."""
        with StatelessScope():
            self.reset_state()
            return [variable.value for variable in self.variables]

    def hold(self, metric_variables: Sequence[jax.Array]) -> None:
        """Set the variables to values that are fetched from the devices when first read."""
        for variable, value in zip(self.variables, metric_variables, strict=True):
            variable.lend_to(MetricState(value))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} name={self.name}>"

    def _checked(self, values: Sequence[ArrayLike]) -> list[jax.Array]:
        variables = self.variables
        if len(values) != len(variables):
            summary = f"metric {self.name!r}: `metric_variables` does not fit"
            given = f"{len(values)} values for {[variable.name for variable in variables]}"
            raise ModelError(summary, given=given, fix="start from metric.stateless_reset_state()")
        return [jnp.asarray(value, variable.dtype) for variable, value in zip(variables, values, strict=True)]

    def _check_initialised(self) -> None:
        if "_variables" not in vars(self):
            raise not_initialised(self)


def _checked_array(array: Any, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    if tuple(array.shape) != shape:
        summary = "`initializer` is an array of another shape than the variable"
        given = f"an array of shape {tuple(array.shape)} for shape {shape}"
        raise ModelError(summary, given=given, fix=f"add_variable(shape={tuple(array.shape)}, ...)")
    return np.array(value_of(array), dtype)


def _resolved_dtype(dtype: Any) -> np.dtype:
    dtype = getattr(dtype, "compute_dtype", dtype)  # a dtype policy
    widths = {None: "float32", "int": "int32", "float": "float32"}
    try:
        return jnp.dtype(widths.get(dtype, dtype))
    except Exception:  # numpy raises several
        fix = "leave it out for float32; a name goes into name="
        raise ModelError("`dtype` must be the name of a dtype", given=f"dtype={shorten(dtype)}", fix=fix) from None


def _metrics_in(value: Any) -> list[Metric]:
    items: Any = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else [value]
    return [item for item in items if isinstance(item, Metric)]


class MetricState(Borrower):
    """Owner of the array of a metric variable.

    A step does not wait for its metrics: state on devices is copied to the host only when it is read. Initial values
    stay on the host until then, so that planning allocates nothing.
    """

    def __init__(self, array: jax.Array | np.ndarray) -> None:
        self._array: Any = array
        self._is_read = False

    def array_of(self, variable: Lendable) -> jax.Array:
        with jax.ensure_compile_time_eval():
            self._array = jnp.asarray(self._array)  # pyright: ignore[reportUnknownMemberType]
        return self._array

    def unshared(self, variable: Lendable) -> jax.Array:
        """Return the state; copy it first if it was read."""
        if self._is_read:
            self.set_to_copy(variable, self._array)
        return self.array_of(variable)

    def copy_of(self, variable: Lendable) -> jax.Array:
        """Return the state as an array on no mesh."""
        if not self._is_read:
            self.set_to_copy(variable, np.asarray(self._array))
            self._is_read = True
        return self._array

    def take(self, variable: Lendable, array: Any) -> None:
        self._array, self._is_read = array, False

    def set_to_copy(self, variable: Lendable, value: Any) -> None:
        if is_traced(value):
            if (layer := call_context.caller()) is None:
                raise trace_error(variable.path)  # pyright: ignore[reportArgumentType]
            fix = "add_loss(value) in `call` for a term of the loss; to log a value compile(metrics=[...]), or update "
            fix += "the metric in an overridden `compute_metrics` or `train_step`"
            summary = f"layer {layer!r} updates a metric inside of `call`: metrics are not updated there"
            raise ModelError(summary, given=f"an assignment to the variable {variable.path!r} of a metric", fix=fix)
        with jax.ensure_compile_time_eval():
            self.take(variable, jnp.array(value, variable.dtype))  # pyright: ignore[reportUnknownMemberType]


@contextlib.contextmanager
def no_plain_state(metric: Metric) -> Generator[None, None, None]:
    """Context manager: raise if tracing the update of `metric` changes a plain attribute.

    Python runs an update once for each compiled step, not for each batch: `self.count += 1` would count once.
    """
    before = _attributes(metric)
    yield
    after = _attributes(metric)
    for name, value in after.items():
        if name not in before or not _is_same(before[name], value):
            summary = f"metric {metric.name!r} keeps state in the plain attribute `{name}`"
            given = f"{type(metric).__name__}.{name} = {shorten(value)}, before the update {shorten(before.get(name))}"
            fix = f"self.{name} = self.add_variable((), name={name!r}) in __init__, and assign to it in update_state"
            raise ModelError(summary, given=given, fix=fix)


def _attributes(metric: Metric) -> dict[str, Any]:
    return {name: _snapshot(value) for name, value in vars(metric).items() if not isinstance(value, Metric)}


def _snapshot(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _snapshot(item) for key, item in value.items()}
    return type(value)(map(_snapshot, value)) if type(value) in (list, tuple, set) else value


def _is_same(before: Any, after: Any) -> bool:
    if before is after:
        return True
    if type(before) is not type(after):
        return False
    if isinstance(after, dict):
        return before.keys() == after.keys() and all(_is_same(before[key], after[key]) for key in after)
    if isinstance(after, list | tuple):
        return len(before) == len(after) and all(map(_is_same, before, after))
    if isinstance(after, np.ndarray):
        return np.array_equal(before, after)
    return isinstance(after, bool | int | float | str | bytes | set | np.generic) and before == after
