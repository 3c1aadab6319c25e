"""The structure of inputs and outputs as JSON: the list, tuple or dict that contains each array.

A number is an array, by index; `{"list": [...]}`, `{"tuple": [...]}` and `{"dict": {...}}` are structures; null is
None. The arrays of a dict are in the order of its sorted keys, as in JAX.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from keras_dist._support.arguments import is_int
from keras_dist._support.types import PyTree
from keras_dist.errors import ModelError, shorten, with_type

Structure = Any


def described(what: str, tree: PyTree) -> tuple[Structure, list[PyTree]]:
    """Return the structure of a tree, and its leaves."""
    leaves: list[PyTree] = []

    def visit(node: PyTree) -> Structure:
        if node is None:
            return None
        if isinstance(node, dict):
            if type(node) is not dict or not all(isinstance(key, str) for key in node):
                raise _unknown(what, node)
            return {"dict": {key: visit(node[key]) for key in sorted(node)}}
        if isinstance(node, list | tuple):
            if type(node) not in (list, tuple):
                raise _unknown(what, node)
            return {type(node).__name__: [visit(item) for item in node]}
        leaves.append(node)
        return len(leaves) - 1

    return visit(tree), leaves


def filled(structure: Structure, leaves: Sequence[PyTree]) -> PyTree:
    """Return the tree of this structure with these leaves."""
    if structure is None or isinstance(structure, int):
        return None if structure is None else leaves[structure]
    [(kind, inner)] = structure.items()
    if kind == "dict":
        return {key: filled(value, leaves) for key, value in inner.items()}
    return {"list": list, "tuple": tuple}[kind](filled(item, leaves) for item in inner)


def arranged(structure: Structure, names: Sequence[str], value: PyTree) -> list[PyTree]:
    """Return the leaves of a tree of this structure, in its order.

    Lists and tuples may replace each other; a dict may have the names as keys; a single array may be without its list.
    """
    if isinstance(value, Mapping) and not _has_keys(structure, value) and set(names) <= value.keys():
        return [value[name] for name in names]
    is_in_a_list = structure in ({"list": [0]}, {"tuple": [0]})
    if is_in_a_list and not isinstance(value, list | tuple):
        return [value]
    found: dict[int, PyTree] = {}

    def visit(part: Structure, value: PyTree) -> None:
        if part is None or isinstance(part, int):
            if (part is None) != (value is None) or isinstance(value, Mapping):
                raise _misfit(structure, value)
            found.update({} if part is None else {part: value})
            return
        [(kind, inner)] = part.items()
        if kind == "dict":
            if not _has_keys(part, value):
                raise _misfit(structure, value)
            for key, item in inner.items():
                visit(item, value[key])
            return
        if not isinstance(value, list | tuple) or len(value) != len(inner):
            raise _misfit(structure, value)
        for item, one in zip(inner, value, strict=True):
            visit(item, one)

    visit(structure, value)
    return [found[index] for index in range(len(names))]


def is_structure(value: object, count: int) -> bool:
    """Whether a JSON value is the structure of `count` arrays."""
    found: list[int] = []

    def visit(node: object) -> bool:
        if node is None or is_int(node):
            found.extend([] if node is None else [node])
            return True
        if not isinstance(node, dict) or len(node) != 1:
            return False
        [(kind, inner)] = node.items()
        if kind == "dict":
            return isinstance(inner, dict) and all([visit(item) for item in inner.values()])
        return kind in ("list", "tuple") and isinstance(inner, list) and all([visit(item) for item in inner])

    return visit(value) and found == list(range(count))


def _has_keys(structure: Structure, value: PyTree) -> bool:
    """Whether this is the structure of a dict, and a value has its keys."""
    is_dict = isinstance(structure, dict) and "dict" in structure and isinstance(value, Mapping)
    return is_dict and structure["dict"].keys() <= value.keys()


def _misfit(structure: Structure, value: PyTree) -> ModelError:
    given = shorten(value)
    if isinstance(value, list | tuple):
        given = f"a {type(value).__name__} of {len(value)}"
    elif isinstance(value, Mapping):
        given = f"a {type(value).__name__} with {shorten(list(value))}"
    fix = f"pass arrays for the numbers in {json.dumps(structure)}, or a dict by the names in program.inputs"
    return ModelError("the inputs must have the structure of the program's inputs", given=given, fix=fix)


def _unknown(what: str, node: PyTree) -> ModelError:
    fix = "take and return arrays in lists, tuples, and dicts whose keys are strings"
    return ModelError(f"export: {what} cannot be described in JSON", given=with_type(node), fix=fix)
