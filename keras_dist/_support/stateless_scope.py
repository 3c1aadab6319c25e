# pyright: basic
"""`StatelessScope`: values of variables while a function of them is traced."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, Self

import jax

from keras_dist._support.ambient import variable_access, with_fields, with_value
from keras_dist._unstable.jax_internals import current_trace, is_traced
from keras_dist.errors import ModelError


@dataclasses.dataclass(frozen=True, eq=False)
class VariableAccess:
    """Settings for reading variables: the scope, and whether a variable without an array gives its shape."""

    scope: StatelessScope | None = None
    shapes_only: bool = False


_OUTSIDE, _SHAPES = VariableAccess(), VariableAccess(shapes_only=True)


class StatelessScope:
    """Inside, variables have given or assigned values, which have no effect outside.

    Attributes:
        found: further variables that were read or assigned, in that order.
        assigned: variables that were assigned, in that order.
        masks: outputs of models in this scope and around, each with its mask.
    """

    def __init__(self, variables: Iterable[Any] = (), values: Iterable[Any] = ()) -> None:
        self._given = list(variables)  # the objects must live as long as their ids are keys
        self._values: dict[int, Any] = dict(zip(map(id, self._given), values, strict=True))
        self._outer: StatelessScope | None = None
        self.found: list[Any] = []
        self.assigned: list[Any] = []
        self.masks: list[tuple[Any, Any]] = []

    def get(self, variable: Any, own: Callable[[], Any]) -> Any:
        """Return the value of a variable; `own` returns the value outside of all scopes."""
        if id(variable) not in self._values:
            if self._outer is None and variable.is_traced:
                return own()  # JAX's copy of a variable, with a traced array
            with jax.ensure_compile_time_eval():  # copies are created outside of the trace
                self._values[id(variable)] = own() if self._outer is None else self._outer.get(variable, own)
            self.found.append(variable)
        return self._values[id(variable)]

    def put(self, variable: Any, value: Any) -> Any:
        """Set and return the value of a variable; values of an inner loop or branch are an error."""
        if is_traced(value) and current_trace() != self._trace:
            raise trace_error(variable.path)
        if id(variable) not in self._values:
            self.found.append(variable)
        if not any(variable is other for other in self.assigned):
            self.assigned.append(variable)
        self._values[id(variable)] = value
        return value

    def values(self, variables: Iterable[Any]) -> list[Any]:
        """Return the values of variables of this scope."""
        return [self._values[id(variable)] for variable in variables]

    def __enter__(self) -> Self:
        access = variable_access.get() or _OUTSIDE
        self._outer = access.scope
        if self._outer is not None:
            self.masks = self._outer.masks
        self._token = variable_access.set(dataclasses.replace(access, scope=self))
        self._trace = current_trace()
        return self

    def __exit__(self, *_: object) -> None:
        variable_access.reset(self._token)


def current_scope() -> StatelessScope | None:
    """Return the innermost scope, or None."""
    access = variable_access.get()
    return None if access is None else access.scope


def without_scope() -> contextlib.AbstractContextManager[object]:
    """Leave all scopes inside."""
    return with_fields(variable_access, _OUTSIDE, scope=None)


def shapes_only() -> contextlib.AbstractContextManager[object]:
    """Return a context in which reading a variable without an array gives its shape, and creates no array."""
    access = variable_access.get()  # each attribute of a layer that is set enters
    return with_value(variable_access, _SHAPES if access is None else dataclasses.replace(access, shapes_only=True))


def reads_shapes() -> bool:
    """Return whether this is inside `shapes_only`."""
    access = variable_access.get()
    return access is not None and access.shapes_only


def trace_error(path: str) -> ModelError:
    """Return the error for a variable that an inner function of JAX assigns."""
    return ModelError(
        f"variable {path!r} is assigned inside of a function that JAX traces separately",
        given="an assignment inside of the function of a jax.lax.scan, cond, jax.jit, vmap, grad or checkpoint",
        fix="let the function return the new value, and assign that outside, or in keras_dist.dtensor.value_and_grad",
    )
