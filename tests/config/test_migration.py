"""Rules that were meant for `re.search` or `re.match` decide for the same paths as rules for whole paths."""

import re
import tomllib

import hypothesis
import hypothesis.strategies as st
import pytest

from keras_dist.config import migrate_layout_map
from keras_dist.config.migration import translated

PATHS = ["dense/kernel", "dense_1/kernel", "dense_1/bias", "blocks/0/dense/kernel", "a.b/kernel"]
WEIGHTS = {path: [path] for path in PATHS}


def decided(rule, how, paths=PATHS):
    return [path for path in paths if getattr(re, how)(rule, path)]


@pytest.mark.parametrize(
    "rule",
    [
        *("dense", "dense.*kernel", "^dense", "kernel$", "^dense/kernel$", r"dense_\d", "dense/kernel|bias"),
        *(".*kernel", "(a|dense)/k", r"^a\.b|bias$", "dense.*", r"a\.", r"\.*", r"b\$|kernel", "[|]", "[]|]"),
        "(?:^|/)dense/",
    ],
)
def test_without_a_model_the_text_is_widened(rule):
    assert decided(translated(rule, "search"), "fullmatch") == decided(rule, "search")
    dotted = {path.replace("/", "."): path for path in PATHS}
    before = [dotted[path] for path in decided(rule.replace("/", "."), "match", dotted)]
    assert set(before) >= set(decided(translated(rule.replace("/", "."), "match"), "fullmatch"))
    assert translated(rule, "fullmatch") == rule


def test_anchors_and_what_is_wide_already_are_not_doubled():
    assert translated("^d1/kernel$", "search") == "d1/kernel"
    assert translated(".*kernel", "search") == ".*kernel.*"
    assert translated("dense.*", "search") == ".*dense.*"
    assert translated(r"cost\$", "search") == r".*cost\$.*"


def test_dots_between_names_become_slashes():
    assert translated("feature.kernel", "match") == "feature/kernel.*"
    assert translated(r"blocks\.\d+\.kernel$", "match") == r"blocks/\d+/kernel"
    assert translated(r"blocks.\d+.(kernel|bias)", "match") == r"blocks/\d+/(kernel|bias).*"
    assert translated("feature.*kernel", "match") == "feature.*kernel.*"


def test_how_rules_match_is_seen_from_them():
    assert migrate_layout_map({"feature.kernel": (None,), "a.*b": (None,)}).matching == "match"
    assert migrate_layout_map({"feature.*kernel": (None,)}).matching == "search"
    assert migrate_layout_map({"feature.kernel": (None,), "a/b": (None,)}).matching == "search"
    assert migrate_layout_map({"feature.kernel": (None,)}, "fullmatch").layout == {"feature.kernel": (None,)}


def test_with_a_model_the_shortest_form_is_taken_that_decides_for_the_same():
    found = migrate_layout_map({"dense_1/kernel": ("a",), "^blocks": ("b",), "dense_1/b": ("c",)}, "search", WEIGHTS)
    assert found.layout == {"dense_1/kernel": ("a",), "^blocks.*": ("b",), "dense_1/b.*": ("c",)}
    assert not found.problems
    assert [rule.decides for rule in found.rules] == [(PATHS[1],), (PATHS[3],), (PATHS[2],)]


def test_the_first_of_dtensors_rules_decides():
    weights = {"a/kernel": ["a/kernel"], "a/bias": ["a/bias"], "ab/kernel": ["ab/kernel"]}
    rules = {"a.kernel": ("x", None), "a": ("y",)}
    found = migrate_layout_map(rules, None, weights, tensors=["a/output"])
    assert found.matching == "match"
    # `a.*` would be a rule for an output and for the kernel, too
    assert found.layout == {"a/kernel": ("x", None), "a/bias": ("y",), "ab/kernel": ("y",)}


def test_what_matches_nothing_or_twice_is_a_problem():
    found = migrate_layout_map(
        {"dens_1/kernel": ("a",), "kernel": ("a",), "dense/k": ("b",), "(": ("c",)}, "search", WEIGHTS
    )
    assert found.problems == (
        "rule '(' is not a regular expression: missing ), unterminated subpattern at position 0",
        "'dense/kernel' is matched by 'kernel', 'dense/k'; the first is used",
        "'blocks/0/dense/kernel' is matched by 'kernel', 'dense/k'; the first is used",
        "rule 'dens_1/kernel' matches nothing (did you mean 'dense_1/kernel'?)",
        "rule 'dense/k' decides for nothing: others come first",
    )
    assert found.layout == {".*kernel": ("a",)}
    assert "'dense/k' -> left out; decides for nothing" in str(found)


def test_the_table_is_that_of_a_config(tmp_path):
    rules = {r"a\.b": (None, ("x", "y")), 'say "hi"': ("x",), "it's\\d": (None,), "é😀\x7f": ("x",)}
    found = migrate_layout_map(rules, "fullmatch")
    table = tomllib.loads(found.to_toml())["distribution"]["layout"]
    assert table == {r"a\.b": ["-", ["x", "y"]], 'say "hi"': ["x"], "it's\\d": ["-"], "é😀\x7f": ["x"]}
    (tmp_path / "map.toml").write_text(found.to_toml())
    assert migrate_layout_map(tmp_path / "map.toml", "fullmatch").layout == rules


@hypothesis.given(
    st.lists(
        st.text("ab/", min_size=1, max_size=6).filter(lambda path: path == path.strip("/")), min_size=1, max_size=8
    ),
    st.lists(st.text("ab/.*^$|", min_size=1, max_size=5), min_size=1, max_size=3),
)
def test_a_model_never_gets_another_layout(paths, rules):
    known = {}
    for index, rule in enumerate(rules):
        try:
            re.compile(rule)
        except re.error:
            continue
        known.setdefault(rule, (f"axis{index}",))
    weights = {path: [path] for path in paths}
    found = migrate_layout_map(known, "search", weights)
    for path in weights:
        old = [path] if path in known else decided_rules(known, path, "search")
        new = [path] if path in found.layout else decided_rules(found.layout, path, "fullmatch")
        assert len(new) == bool(old)
        assert [found.layout[rule] for rule in new] == [known[rule] for rule in old[:1]]


def decided_rules(rules, path, how):
    return [rule for rule in rules if getattr(re, how)(rule, path)]
