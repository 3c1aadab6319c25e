"""Regular expressions end soon, and mean what they mean to `re`."""

import itertools
import re

import pytest

import keras_dist as kd
from keras_dist import _patterns
from keras_dist._patterns import Pattern
from keras_dist.errors import LayoutError

ENDLESS = [
    ("(a+)+b", "a" * 60),
    ("(a|a)*b", "a" * 60),
    ("(.*a){12}b", "a" * 90),
    ("(.*)" * 12 + "x", "ab" * 40),
    ("a?" * 40 + "a" * 40, "a" * 39),
    ("(((((a*)*)*)*)*)*b", "a" * 60),
    ("(?=(a|aa)+$)((a{1,9}){1,9}){1,9}b", "a" * 60),
    ("(a?){4000000000}b", "a" * 60),
]  # for which `re` takes longer than anyone waits

RULES = [
    *("(a+)+b", "(a|a)*b", "(.*a){3}", "(a?){3}a{2,4}b?", "a{2}|(?:bc){1,2}", "(a|ab)(c|bcd)*(d*)", "((a*)*b?)*c"),
    *("(?!.*b).*", ".*(?<=ab)c.*", "(?<!a)b(a|b|)*", "(?=(a+)+b).*c", r"[^a]*\bb\w*", r"\Aa+\Z", "^a*$|b", ".*?a.*?b"),
    *("(?i:AB)+(?-i:c)?", "(?i)aB*c", "(?s:.)*", "(?m)^a*$", r"[a-c]+?\d?", "(a|b){0,2}(?:|c){3}", ""),
]


@pytest.mark.parametrize(("rule", "text"), ENDLESS)
def test_matching_ends(rule, text):
    rules = kd.LayoutMap(kd.DeviceMesh("data=8,model=1"))
    rules[rule] = ("data",)
    assert rules[text] is None
    assert Pattern(rule).search(text + "c") is None


@pytest.mark.parametrize("rule", RULES)
def test_what_is_followed_matches_as_in_re(monkeypatch, rule):
    monkeypatch.setattr(_patterns, "_FEW", -1)
    followed, expected = Pattern(rule), re.compile(rule)
    texts = ["".join(letters) for count in range(5) for letters in itertools.product("abc", repeat=count)]
    for text in [*texts, "AB", "aBc", "a\nb", "abcd", "ab 1", "b", "\n", "aabbcc"]:
        first = expected.search(text)
        found = followed.search(text)
        assert followed.fullmatch(text) == (expected.fullmatch(text) is not None), text
        assert followed.match(text) == (expected.match(text) is not None), text
        assert (found and found[0]) == (first and first.start()), text


def test_ordinary_rules_are_left_to_re():
    for rule in ("d1/kernel", ".*dense.*/(kernel|bias)", r"(encoder|decoder)/layers/\d+/.*", "(?!.*bias).*kernel"):
        assert not Pattern(rule)._is_followed
    assert Pattern(r"(\w+)/\1").fullmatch("a/a")


@pytest.mark.parametrize("rule", [r"((a+)\2)+b", "(?>a+|b)*c", "(" * 300 + "a*" * 5 + ")" * 300, "(" * 9999])
def test_what_can_be_neither_followed_nor_left_to_re_is_refused(rule, tmp_path):
    with pytest.raises(LayoutError, match="is not a regular expression") as error:
        kd.LayoutMap(None)[rule] = ("data",)
    assert repr(rule) in str(error.value)
