"""The layers that a module holds, and their names: numbered where two would be the same."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from flax import nnx

from keras_dist import _paths
from keras_dist.distribution.variables import VariableSpec
from keras_dist.errors import ModelError
from keras_dist.layers import Layer
from keras_dist.layers.record import binding_of
from keras_dist.layers.weights import children_of, keras_name


def layers_in(module: nnx.Module) -> list[Layer]:
    """The layers that the attributes of a module hold, also in lists and dicts, each once."""
    found: list[Layer] = []
    for _, child in children_of(module):
        if isinstance(child, Layer):
            found.append(child)
        elif isinstance(child, nnx.List | nnx.Dict):
            found += layers_in(child)
    return list({id(layer): layer for layer in found}.values())


def name_members(layers: Sequence[Layer]) -> dict[str, Layer]:
    """The layers of a model by names that differ, as `number_names` gives them; the layers know theirs from now on.

    A layer that lives in another model keeps the name that it has there for itself.
    """
    given: dict[str, Layer] = {}
    for layer in layers:
        if layer._base_name is None and given.setdefault(layer.name, layer) is not layer:
            raise ModelError(
                f"two layers are called {layer.name!r}",
                given=f"{given[layer.name]!r} and {layer!r}",
                expected="a name of its own for each layer of a model",
                fix="name one of them otherwise, or leave its name out",
            )
    members = number_names(layers)
    for name, layer in members.items():
        if _may_be_renamed(layer):
            layer._name = name
    return members


def named_layers(module: nnx.Module) -> list[Layer]:
    """Return what `layers_in` returns, after numbering default names that occur twice. Names that users gave stay."""
    layers = layers_in(module)
    taken = {layer.name for layer in layers if layer._base_name is None}
    candidates: dict[str, Iterator[str]] = {}
    for layer in layers:
        if layer._base_name is not None and layer.name in taken and _may_be_renamed(layer):
            names = candidates.setdefault(layer._base_name, _numbered(layer._base_name))
            layer._name = next(name for name in names if name not in taken)
        taken.add(layer.name)
    return layers


def _may_be_renamed(layer: Layer) -> bool:
    """Whether no other model contains the layer."""
    binding = layer._outside.binding
    return binding is None or not binding.prefix


def number_names(layers: Sequence[Layer]) -> dict[str, Layer]:
    """The layers by their names; those that were given none are numbered in their order: `dense`, `dense_1`."""
    given = {layer.name for layer in layers if layer._base_name is None}
    members: dict[str, Layer] = {}
    candidates = {}
    for layer in layers:
        is_given = layer._base_name is None
        base = layer._base_name or layer.name
        names = candidates.setdefault((base, is_given), _numbered(base))
        members[next(name for name in names if name not in members and (is_given or name not in given))] = layer
    return members


def free_name(name: str, taken: Collection[str]) -> str:
    """`name`, or the first of `name_1`, `name_2`, ... that is not taken."""
    return next(candidate for candidate in _numbered(name) if candidate not in taken)


def _numbered(name: str) -> Iterator[str]:
    yield name
    yield from (f"{name}_{number}" for number in itertools.count(1))


def layers_below(root: nnx.Module) -> list[tuple[str, Layer]]:
    """All layers of a model with their paths, itself included, each once and before its sublayers."""
    found: dict[int, tuple[str, Layer]] = {}

    def visit(node: Any, path: str) -> None:
        if id(node) in found:
            return
        found[id(node)] = (path, node)
        binding = binding_of(node)
        made = [] if binding is None else binding.made_by_building(node)
        for name, child in [*children_of(node), *made]:
            if isinstance(child, nnx.Module):
                visit(child, path if name == _paths.MEMBERS else f"{path}/{name}".lstrip("/"))

    visit(root, "")
    return [(path, node) for path, node in found.values() if isinstance(node, Layer)]


_DEEP = 30
"""Python's stack is deep enough for this many layers inside of each other."""


@contextlib.contextmanager
def depth_checked(model: Layer) -> Iterator[None]:
    """Raise an error that names the depth of a model, if its layers are nested too deeply for Python's stack."""
    try:
        yield
    except RecursionError:
        depth = _depth_of(model)
        if depth < _DEEP:
            raise  # a function of the user's
        raise ModelError(
            f"the layers of model {model.name!r} are nested too deeply",
            given=f"{depth} models and layers, one inside of the other",
            expected=f"a depth that Python's stack allows (sys.getrecursionlimit() is {sys.getrecursionlimit()})",
            fix="put the layers into one Sequential or functional model, one after the other",
        ) from None


def _depth_of(root: nnx.Module) -> int:
    """Return how many layers are inside of each other, without recursion."""
    depths: dict[int, int] = {}
    waiting: list[tuple[Any, int]] = [(root, 0)]
    while waiting:
        node, above = waiting.pop()
        depth = above + isinstance(node, Layer)
        if id(node) not in depths:
            depths[id(node)] = depth
            waiting += [(child, depth) for _, child in children_of(node) if isinstance(child, nnx.Module)]
    return max(depths.values())


def is_below(path: str, prefix: str) -> bool:
    """Whether a path is `prefix`, or begins with its parts."""
    return not prefix or path == prefix or path.startswith(f"{prefix}/")


def prefixes(path: str) -> Iterator[str]:
    """Yield the paths that a path is below, the empty one first and itself last."""
    yield ""
    yield from itertools.accumulate(filter(None, path.split("/")), lambda above, name: f"{above}/{name}")


_Item = TypeVar("_Item")


def by_prefix(items: Iterable[_Item], names: Callable[[_Item], Iterable[str]]) -> dict[str, list[_Item]]:
    """Return the items below each prefix of their names, in order. Looking each up in turn would be quadratic."""
    found: dict[str, list[_Item]] = {}
    for item in items:
        for prefix in dict.fromkeys(prefix for name in names(item) for prefix in prefixes(name)):
            found.setdefault(prefix, []).append(item)
    return found


def keras_names(root: nnx.Module) -> list[tuple[str, str]]:
    """For each variable its path, and the one that Keras gives it: names of layers, then of the weight."""
    found: list[tuple[str, str]] = []

    seen: set[int] = set()

    def visit(node: Any, path: str, name: str, names: Mapping[int, str]) -> None:
        if id(node) in seen:
            return
        seen.add(id(node))
        if isinstance(node, Layer):
            name = f"{name}/{names.get(id(node), node.name)}".lstrip("/")
            names = {id(layer): given for given, layer in number_names(layers_in(node)).items()}
        for key, child in children_of(node):
            inner = path if key == _paths.MEMBERS else f"{path}/{key}".lstrip("/")
            if isinstance(child, nnx.Variable):
                found.append((inner, f"{name}/{keras_name(child) or key}"))
            else:
                visit(child, inner, name, names)

    visit(root, "", "", {})
    return found


def with_alias(spec: VariableSpec, names: Mapping[str, str]) -> VariableSpec:
    """A variable that rules know by the name that Keras gives it, too."""
    aliases = dict.fromkeys((*spec.aliases, names.get(spec.path, spec.path)))
    factor_of = None if spec.factor_of is None else (with_alias(spec.factor_of[0], names), spec.factor_of[1])
    return dataclasses.replace(spec, aliases=tuple(name for name in aliases if name != spec.path), factor_of=factor_of)


def path_of_keras(optimizer: str, path: str) -> str:
    """The path of an array of an optimizer as Keras calls it, if that has it: the count of its steps, and its rate."""
    *above, name = path.split("/")
    if not {*above} <= {"optimizer", "inner"} or name not in ("iterations", "learning_rate"):
        return path
    return f"{optimizer}/{name.removesuffix('s')}"
