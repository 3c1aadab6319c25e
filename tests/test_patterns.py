"""Regular expressions end soon, and mean what they mean to `re`."""

import itertools
import re

import numpy as np
import pytest

import keras_dist as kd
from keras_dist._support import safe_patterns
from keras_dist._support.safe_patterns import Pattern
from keras_dist.errors import LayoutError, RuleTimeoutError

ENDLESS = [("(a|a)*b", "a" * 60 + "cb"), ("(a|aa)+", "a" * 60 + "c"), ("(a|b|ab)*c", "ab" * 40 + "ca")]
SEEN_THROUGH = [("(a+)+b", "a" * 26), ("(.*a){12}b", "a" * 90), ("(.*)" * 12 + "x", "ab" * 40), ("(x+x+)+y", "x" * 50)]

RULES = [
    *("(a+)+b", "(a|a)*b", "(.*a){3}", "(a?){3}a{2,4}b?", "a{2}|(?:bc){1,2}", "(a|ab)(c|bcd)*(d*)", "((a*)*b?)*c"),
    *("(?!.*b).*", ".*(?<=ab)c.*", "(?<!a)b(a|b|)*", "(?=(a+)+b).*c", r"[^a]*\bb\w*", r"\Aa+\Z", "^a*$|b", ".*?a.*?b"),
    *("(?i:AB)+(?-i:c)?", "(?i)aB*c", "(?s:.)*", "(?m)^a*$", r"[a-c]+?\d?", "(a|b){0,2}(?:|c){3}", "", r"(\w)\1"),
]


def rules_with(rule):
    rules = kd.LayoutMap(kd.DeviceMesh("data=8,model=1"))
    rules[rule] = ("data",)
    return rules


@pytest.mark.parametrize(("rule", "text"), ENDLESS)
def test_a_rule_that_does_not_end_is_an_error_that_names_it(monkeypatch, rule, text):
    monkeypatch.setattr(safe_patterns, "LIMIT_SECONDS", 0.05)
    with pytest.raises(RuleTimeoutError, match="takes too long to match") as caught:
        kd.ModelParallel(rules_with(rule)).plan({text: np.ones((8,))})
    assert repr(rule) in str(caught.value) and text in str(caught.value)


@pytest.mark.parametrize(("rule", "text"), SEEN_THROUGH)
def test_rules_that_never_end_in_re_and_do_here(rule, text):
    assert rules_with(rule)[text] is None


@pytest.mark.parametrize("rule", RULES)
def test_rules_mean_what_they_mean_to_re(rule):
    ours, expected = Pattern(rule), re.compile(rule)
    texts = ["".join(letters) for count in range(5) for letters in itertools.product("abc", repeat=count)]
    for text in [*texts, "AB", "aBc", "a\nb", "abcd", "ab 1", "b", "\n", "aabbcc"]:
        for way in ("fullmatch", "match", "search"):
            one, other = getattr(ours, way)(text), getattr(expected, way)(text)
            assert (one and one.span()) == (other and other.span()), (way, text)


def test_what_is_no_rule_is_an_error_that_names_it():
    with pytest.raises(LayoutError, match="is not a regular expression") as error:
        kd.LayoutMap(None)["(" * 9999] = ("data",)
    assert repr("(" * 9999) in str(error.value)


@pytest.mark.filterwarnings("ignore:Possible nested set")
def test_what_only_regex_knows_are_characters():
    assert Pattern("kernel{d}").fullmatch("kernel{d}") and not Pattern("kernel{d}").fullmatch("kerne")
    assert Pattern(r"a{2,3}\{x").fullmatch("aa{x") and Pattern("[[:a]+").fullmatch("[a:")
