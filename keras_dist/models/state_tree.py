"""The variables of a model, its optimizer and its metrics as nested dicts by path."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from flax import traverse_util

from keras_dist.errors import ModelError, shorten

_KINDS = ("trainable_variables", "non_trainable_variables", "optimizer_variables", "metrics_variables")


def variables_of(model: Any, kind: str) -> list[tuple[str, Any]]:
    """Return the variables of one kind by path, below the name of their optimizer or metric."""
    if kind == "metrics_variables":
        return [(one.path, one) for one in model.metrics_variables]
    if kind != "optimizer_variables":
        return [(one.path, one) for one in getattr(model, kind)]
    optimizer = model.optimizer
    return [] if optimizer is None else [(_path_in(optimizer.name, one.path), one) for one in optimizer.variables]


def _path_in(optimizer: str, path: str) -> str:
    """The path of an array of an optimizer: below its name, as in Keras."""
    inner = path.removeprefix(f"{optimizer}/").removeprefix("optimizer/").removeprefix("inner/")
    return f"{optimizer}/{inner}"


def state_tree_of(model: Any, value_format: str) -> dict[str, Any]:
    """Return the values of variables as nested dicts; see `Model.get_state_tree`."""
    if value_format not in ("backend_tensor", "numpy_array"):
        summary = "get_state_tree: invalid `value_format` argument"
        raise ModelError(summary, given=shorten(value_format), fix='"backend_tensor" or "numpy_array"')
    return {kind: _nested(variables_of(model, kind), value_format == "numpy_array") for kind in _KINDS}


def set_state_tree_of(model: Any, state_tree: Mapping[str, Any]) -> None:
    """Set the variables with paths in nested dicts; ignore other paths. See `Model.set_state_tree`."""
    unknown = [kind for kind in state_tree if kind not in _KINDS]
    if unknown:
        fix = f"take the form that get_state_tree() returns: {', '.join(_KINDS)}"
        raise ModelError("set_state_tree: unknown variable name", given=", ".join(map(repr, unknown)), fix=fix)
    for kind, tree in state_tree.items():
        values = traverse_util.flatten_dict(tree, sep="/")
        for path, variable in variables_of(model, kind):
            if path in values:
                variable.assign(values[path])


def _nested(variables: Iterable[tuple[str, Any]], is_numpy: bool) -> dict[str, Any]:
    flat: dict[tuple[str, ...], Any] = {}
    for path, variable in variables:
        parts = tuple(path.split("/"))
        if parts in flat:
            summary = f"The following variable path is found twice in the model: {path!r}"
            fix = "give layers and metrics names of their own"
            raise ModelError(summary, given="two variables of one path", fix=fix)
        flat[parts] = np.asarray(variable.value) if is_numpy else variable.value
    return traverse_util.unflatten_dict(flat)
