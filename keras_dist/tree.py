"""Nested lists, tuples, dicts and deques. Anything else is a leaf, also None and variables.

Source: names, arguments and defaults as in `keras.tree`.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from keras_dist._support.arguments import check_callable
from keras_dist._support.missing_names import missing_from
from keras_dist._support.raw_errors import explain_functions
from keras_dist._support.types import PyTree
from keras_dist.errors import ModelError, shorten

__all__ = [
    "MAP_TO_NONE",
    "assert_same_paths",
    "assert_same_structure",
    "flatten",
    "flatten_with_path",
    "is_nested",
    "lists_to_tuples",
    "map_shape_structure",
    "map_structure",
    "map_structure_up_to",
    "pack_sequence_as",
    "traverse",
]


class MAP_TO_NONE:
    """Returned by a function of `traverse`, as class or object, to replace a part by None."""


def is_nested(structure: PyTree) -> bool:
    """Return whether `structure` is a list, tuple, dict or deque."""
    return _steps(structure) is not None


def flatten(structure: PyTree) -> list[Any]:
    """Return the leaves as a list, in the order of keys in dicts, with keys of different types by type.

    Example:
        >>> from keras_dist import tree
        >>> tree.flatten({"b": [1, None], "a": (2,)})
        [2, 1, None]
    """
    return [leaf for _, leaf in _leaves_below((), structure)]


def flatten_with_path(structure: PyTree) -> list[tuple[tuple[Any, ...], Any]]:
    """Return pairs of a path, which is a tuple of indices and keys, and a leaf."""
    return [*_leaves_below((), structure)]


def pack_sequence_as(structure: PyTree, flat_sequence: Iterable[Any]) -> PyTree:
    """Return `structure` with the leaves of `flat_sequence`.

    Raises:
        ModelError: the numbers of leaves differ.
    """
    leaves, count = list(flat_sequence), len(flatten(structure))
    if len(leaves) != count:
        raise _differ(f"a structure of {count} leaves", f"{len(leaves)} leaves")
    waiting = iter(leaves)
    return _mapped(lambda _: next(waiting), structure)


def map_structure(func: Callable[..., Any], *structures: PyTree, none_is_leaf: bool = True) -> PyTree:
    """Apply `func` to the leaves at the same position in several structures.

    Args:
        func: takes a leaf of each structure.
        *structures: at least one, all of the same structure.
        none_is_leaf: whether `func` is called on None; otherwise None stays.

    Raises:
        ModelError: the structures differ, or there is none.

    Example:
        >>> from keras_dist import tree
        >>> tree.map_structure(lambda x, y: x + y, [1, {"a": 2}], [3, {"a": 4}])
        [4, {'a': 6}]
    """
    first = _first_of(structures)
    for other in structures[1:]:
        assert_same_structure(first, other)

    def mapped(*leaves: Any) -> Any:
        return None if not none_is_leaf and leaves[0] is None else func(*leaves)

    return _mapped(mapped, *structures)


def map_structure_up_to(shallow_structure: PyTree, func: Callable[..., Any], *structures: PyTree) -> PyTree:
    """Apply `func` to the parts of several structures at the leaves of a shallow one.

    Args:
        shallow_structure: the structure of the result; its leaves are unused.
        func: takes a part of each structure.
        *structures: at least one, of the structure of `shallow_structure` or deeper.

    Raises:
        ModelError: the structures differ, or there is none.
    """
    _first_of(structures)
    return _mapped(lambda _, *parts: func(*parts), shallow_structure, *structures)


def map_shape_structure(func: Callable[[Any], Any], structure: PyTree) -> PyTree:
    """Apply `func` to each shape in a structure; lists and tuples of integers and None are leaves."""

    def is_shape(value: Any) -> bool:
        dims = isinstance(value, list | tuple) and all(size is None or isinstance(size, int) for size in value)
        return dims or not is_nested(value)

    return _mapped(check_callable("func", func, "shape"), structure, is_leaf=is_shape)


def traverse(func: Callable[[Any], Any], structure: PyTree, top_down: bool = True) -> PyTree:
    """Replace each part of a structure, including the whole and the leaves, by the result of `func`.

    Args:
        func: takes a part; None keeps the part and visits its parts, `MAP_TO_NONE` replaces it by None.
        structure: nested lists, tuples and dicts.
        top_down: whether to visit the whole before its parts.
    """
    if top_down:
        found = func(structure)
        return _or_none(_traverse_parts(func, structure, top_down) if found is None else found)
    parts = _traverse_parts(func, structure, top_down)
    found = func(parts)
    return _or_none(parts if found is None else found)


def lists_to_tuples(structure: PyTree) -> PyTree:
    """Return the structure with tuples in place of lists."""
    return traverse(lambda part: tuple(part) if isinstance(part, list) else None, structure, top_down=False)


def assert_same_structure(a: PyTree, b: PyTree, check_types: bool | None = None) -> None:
    """Check that two structures are the same, except for their leaves; `check_types` is unused, as in Keras.

    Raises:
        ModelError: the structures differ.
    """
    del check_types
    if not _are_alike(a, b):
        raise _differ(a, b)


def assert_same_paths(a: PyTree, b: PyTree) -> None:
    """Check that the leaves of two structures have the same paths, in lists or in tuples.

    Raises:
        ModelError: the paths differ.
    """
    of_a, of_b = ({path for path, _ in flatten_with_path(structure)} for structure in (a, b))
    if of_a != of_b:
        raise _differ(f"only the first has {sorted(of_a - of_b, key=str)}", f"only the other {of_b - of_a or ''}")


def _steps(part: PyTree) -> list[Any] | None:
    """Return the indices or keys of a structure, in the order of `flatten`, or None for a leaf."""
    if isinstance(part, dict):
        return [*part] if isinstance(part, OrderedDict) else _sorted(part)
    return [*range(len(part))] if isinstance(part, list | tuple | deque) else None


def _sorted(keys: Iterable[Any]) -> list[Any]:
    try:
        return sorted(keys)
    except TypeError:  # keys of different types
        return sorted(keys, key=lambda key: (type(key).__qualname__, key))


def _made_like(structure: PyTree, parts: list[Any]) -> PyTree:
    """Return a structure of the same kind with these parts, in the order of `flatten`."""
    if isinstance(structure, dict):
        found = dict(zip(_steps(structure) or (), parts, strict=True))
        items = [(key, found[key]) for key in structure]
        return (
            defaultdict(structure.default_factory, items)
            if isinstance(structure, defaultdict)
            else type(structure)(items)
        )
    if isinstance(structure, deque):
        return deque(parts, structure.maxlen)
    return type(structure)(*parts) if hasattr(structure, "_fields") else type(structure)(parts)


def _mapped(
    func: Callable[..., Any], structure: PyTree, *others: PyTree, is_leaf: Callable[[Any], bool] = lambda _: False
) -> PyTree:
    steps = None if is_leaf(structure) else _steps(structure)
    if steps is None:
        return func(structure, *others)
    for other in others:
        if type(other) is not type(structure) or _steps(other) != steps:
            raise _differ(structure, other)
    parts = [_mapped(func, structure[step], *(other[step] for other in others), is_leaf=is_leaf) for step in steps]
    return _made_like(structure, parts)


def _are_alike(a: PyTree, b: PyTree) -> bool:
    steps = _steps(a)
    if steps is None or _steps(b) is None:
        return steps is _steps(b)
    return type(a) is type(b) and steps == _steps(b) and all(_are_alike(a[step], b[step]) for step in steps)


def _leaves_below(path: tuple[Any, ...], part: PyTree) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield paths and leaves in the order of `flatten`; named tuples have indices."""
    steps = _steps(part)
    if steps is None:
        yield path, part
    for step in steps or ():
        yield from _leaves_below((*path, step), part[step])


def _traverse_parts(func: Callable[[Any], Any], structure: PyTree, top_down: bool) -> PyTree:
    steps = _steps(structure)
    return (
        structure if steps is None else _made_like(structure, [traverse(func, structure[i], top_down) for i in steps])
    )


def _or_none(found: Any) -> Any:
    return None if found is MAP_TO_NONE or isinstance(found, MAP_TO_NONE) else found


def _first_of(structures: tuple[PyTree, ...]) -> PyTree:
    if not structures:
        fix = "map_structure(func, structure)"
        raise ModelError("map_structure needs at least one structure", given="no structures", fix=fix)
    return structures[0]


def _differ(a: Any, b: Any) -> ModelError:
    given = f"{shorten(a)} and {shorten(b)}"
    fix = "tree.map_structure_up_to takes one that is deeper than the other"
    return ModelError("the structures don't have the same nested structure", given=given, fix=fix)


explain_functions(vars())
if not TYPE_CHECKING:
    __getattr__: Callable[[str], NoReturn] = missing_from(__name__)
