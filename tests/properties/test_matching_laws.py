"""Laws of rules and paths."""

import itertools
import re
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

import keras_dist as kd
from keras_dist.errors import LayoutError
from tests.strategies import meshes, names, paths

MESH = kd.DeviceMesh("data=2,model=4")
patterns = st.one_of(paths, names.map(lambda name: f".*{name}"), names.map(lambda name: f"{name}/.*"), st.just(".*"))


def rules_of(keys: Iterable[str], axes: Sequence[tuple] = ()) -> kd.LayoutMap:
    """Rules in the order of `keys`, each with its axes, or all along the model axis."""
    rules = kd.LayoutMap(MESH)
    for key, entry in zip(keys, axes or itertools.repeat(("model",)), strict=False):
        rules[key] = entry
    return rules


@given(st.lists(patterns, unique=True, max_size=5), paths)
def test_exact_first_then_whole_path_then_nothing(keys, path):
    rules = rules_of(keys)
    whole = [key for key in keys if re.fullmatch(key, path)]
    if path in keys:
        assert rules.match(path) == path
    elif len(whole) > 1:
        with pytest.raises(LayoutError, match="matches multiple layout"):
            rules.match(path)
    else:
        assert rules.match(path) == (whole[0] if whole else None)


@given(st.lists(patterns, unique=True, max_size=5), paths, st.randoms())
def test_the_order_of_rules_does_not_matter(keys, path, random):
    def outcome(order: list[str]) -> object:
        try:
            return rules_of(order).match(path)
        except LayoutError:
            return "ambiguous"

    shuffled = list(keys)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert outcome(keys) == outcome(shuffled)


@given(st.lists(patterns, unique=True, max_size=5), st.lists(paths, unique=True, min_size=1, max_size=4), st.data())
def test_any_of_its_paths_finds_a_tied_array(keys, aliases, data):
    rules = rules_of(keys)
    shuffled = data.draw(st.permutations(aliases))

    def found(order: list[str]) -> object:
        try:
            rule = rules.match(order[0], order[1:])
        except LayoutError:
            return "ambiguous"
        return None if rule is None else rules.rule_layout(rule)

    assert found(aliases) == found(list(shuffled))


@given(meshes())
def test_a_mesh_is_rebuilt_from_its_parts(mesh):
    rebuilt = kd.DeviceMesh(mesh.axis_sizes, devices=mesh.devices)
    assert rebuilt == mesh
    assert hash(rebuilt) == hash(mesh)
    assert rebuilt.backend_mesh == mesh.backend_mesh
    text = ",".join(f"{name}={size}" for name, size in mesh.axis_sizes.items())
    assert kd.DeviceMesh(text, devices=list(mesh.devices.flat)) == mesh
