"""Work does not grow with rules times paths: groups of rules are tried at once, exact rules are looked up."""

import re
import warnings

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keras_dist as kd
from keras_dist._support import safe_patterns
from keras_dist.distribution import lint
from keras_dist.errors import LayoutWarning, RuleTimeoutError
from tests.test_patterns import ENDLESS

COUNT = 320
GROUPS = COUNT // safe_patterns.GROUP_SIZE


def planned(rule_of):
    """The plan for as many arrays as there are rules, and what is warned of."""
    rules = kd.LayoutMap(kd.DeviceMesh("data=2,model=4"))
    for index in range(COUNT):
        rules[rule_of(index)] = (None, "model")
    tree = {f"layer_{index}": {"kernel": jax.ShapeDtypeStruct((8, 8), np.float32)} for index in range(COUNT)}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", LayoutWarning)
        return kd.ModelParallel(rules).plan(tree), [str(warning.message) for warning in caught]


@pytest.fixture
def calls(monkeypatch):
    """The texts that regular expressions are tried on, each time; and the same for groups of them."""
    tried = {"one": [], "group": []}

    class Counted:
        def __init__(self, compiled, kind):
            self.compiled, self.kind = compiled, kind

        def __getattr__(self, method):
            def run(text, **options):
                tried[self.kind].append(text)
                return getattr(self.compiled, method)(text, **options)

            return run

    pattern, joined = safe_patterns.pattern, safe_patterns._joined
    for module in (safe_patterns, lint):
        monkeypatch.setattr(module, "pattern", lambda rule: Counted(pattern(rule), "one"))
    monkeypatch.setattr(safe_patterns, "_joined", lambda rules: Counted(joined(rules), "group"))
    return tried


def test_a_path_is_tried_once_on_each_group_of_rules(calls):
    plan, told = planned(lambda index: f".*layer_{index}/k.*")
    assert [row.rule for row in plan.rows] == [f".*{row.path[:-5]}.*" for row in plan.rows]
    assert told == []
    assert len(calls["group"]) == COUNT * GROUPS
    assert len(calls["one"]) == COUNT * safe_patterns.GROUP_SIZE  # the rules of the group that matches


def test_exact_rules_are_looked_up(calls):
    plan, told = planned(lambda index: f"layer_{index}/kernel")
    assert all(row.rule == row.path for row in plan.rows)
    assert told == []
    assert calls == {"one": [], "group": []}


RULES = [".*kernel", "(?i)KERNEL", r"(a)b\1", r"(?P<n>a)b(?P=n)", "a|b", "ab?", "(?!x).*", "(?#c)a", "[(]?a", "aba"]
TEXTS = ["kernel", "a", "b", "ab", "aba", "x", "dkernel"]


@given(st.lists(st.sampled_from([*RULES, "(?x: a b )a"]), unique=True), st.sampled_from(TEXTS))
def test_groups_match_as_rules_one_by_one(rules, text):
    for method in ("fullmatch", "match", "search"):
        one_by_one = [rule for rule in rules if getattr(re.compile(rule), method)(text)]
        assert safe_patterns.Patterns(rules, method).matching(text) == one_by_one


def test_a_slow_rule_in_a_group_is_named(monkeypatch):
    monkeypatch.setattr(safe_patterns, "LIMIT_SECONDS", 0.05)
    slow, text = ENDLESS[0]
    with pytest.raises(RuleTimeoutError, match=re.escape(repr(slow))):
        safe_patterns.Patterns(["x.*", slow, "y.*"]).matching(text)


def test_rules_that_change_are_matched_anew():
    rules = kd.LayoutMap(kd.DeviceMesh("model=8"))
    rules["a.*"] = ("model",)
    assert rules.match("ab") == "a.*"
    copy = rules.copy()
    rules["ab"] = (None,)
    assert rules.match("ab") == "ab"
    del rules["ab"]
    rules.pop("a.*")
    assert rules.match("ab") is None
    rules[".b"] = ("model",)
    assert (rules.match("ab"), copy.match("ab")) == (".b", "a.*")
