"""Ambient state: all context variables, and the settings of the process. All else is an argument.

The classes of the values are where they are used. Context variables differ between threads and tasks; all threads share
the settings of the process, which `keras_dist.config` completes.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Generator
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")

distribution: ContextVar[Any] = ContextVar("keras_dist_distribution", default=None)
"""The `Distribution` whose `scope()` a user has entered: constructors of layers and models take none, as in Keras."""

remat_scopes: ContextVar[tuple[Any, ...]] = ContextVar("keras_dist_remat_scopes", default=())
"""The `RematScope`s that a user has entered: layers take them when they are made, in constructors of others too."""

call: ContextVar[Any] = ContextVar("keras_dist_call", default=None)
"""The `CallContext` that the call of a model enters: `call` of a user's layer does not pass on masks and losses."""

variable_access: ContextVar[Any] = ContextVar("keras_dist_variable_access", default=None)
"""The `VariableAccess` that stateless functions enter: users, JAX and Flax read variables as attributes."""

new_variables: ContextVar[Any] = ContextVar("keras_dist_new_variables", default=None)
"""The `NewVariables` that name scopes and stacks of layers enter: code of users makes variables inside."""

tracing: ContextVar[Any] = ContextVar("keras_dist_tracing", default=None)
"""The `Tracing` that steps and plans enter: layers read it below transformations of JAX and modules of users."""

conversion: ContextVar[Any] = ContextVar("keras_dist_conversion", default=None)
"""The `Conversion` that writers and readers of configs enter: `get_config` and `from_config` of users call others."""

keys: ContextVar[Any] = ContextVar("keras_dist_keys", default=None)
"""Keys of draws without a seed, which calls for shapes enter: code of users draws without any argument for them."""

index_checks: ContextVar[Any] = ContextVar("keras_dist_index_checks", default=None)
"""The `IndexChecks` that checked programs, losses and metrics enter: functions of users look indices up."""

warnings_issued: ContextVar[Any] = ContextVar("keras_dist_warnings_issued", default=None)
"""Texts of warnings of one `fit` or `evaluate`, which enters it: any function may warn, in each of several traces."""


@contextlib.contextmanager
def with_value(variable: ContextVar[Any], value: T) -> Generator[T]:
    """Context manager in which a context variable has this value, which it returns."""
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)


@contextlib.contextmanager
def with_fields(variable: ContextVar[Any], default: Any, **fields: Any) -> Generator[None]:
    """Context manager in which the record in a context variable, or the default one, has these values of fields."""
    token = variable.set(dataclasses.replace(variable.get() or default, **fields))
    try:
        yield
    finally:
        variable.reset(token)


@dataclasses.dataclass(eq=False)
class Process:
    """Settings of the process. Public functions set them, as in Keras; joining a job and signals concern a process."""

    distribution: Any = None  # `set_distribution`
    dtype_policy: Any = None  # `set_dtype_policy`
    seeds: Any = None  # `set_random_seed`
    check_data: Any = "sample"  # `initialize`: how processes compare their data
    monitor: Any = None  # `initialize`: the heartbeats of the process
    interrupts: Any = None  # the handler of signals while the main thread runs steps


process = Process()
