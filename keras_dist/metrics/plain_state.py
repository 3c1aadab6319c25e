"""Check that metrics have no state in plain attributes, which compiled steps do not update."""

# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any

import numpy as np

from keras_dist.errors import ModelError, shorten
from keras_dist.metrics.metric import Metric


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
