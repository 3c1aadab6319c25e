"""Regular expressions with a time limit, for rules from config files of others.

Python's `re` tries exponentially many ways to match `(a+)+b`, takes half a minute on 26 characters, and cannot be
interrupted. The package `regex` matches the same rules, and takes a time limit. Groups of 64 rules are tried at once.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from typing import Any

import regex

from keras_dist.errors import RuleTimeoutError

LIMIT_SECONDS = 1.0
"""The limit of one match. Ordinary rules take microseconds."""


_BRACES = re.compile(r"\\N\{[^}]*\}|\\.|\{(?!\d+(?:,\d*)?\}|,\d*\})|\[(?=\[:)", re.DOTALL)
"""Literal braces and `[[:` of `re`, which are fuzzy matches and classes to `regex`."""


def _escaped(found: re.Match[str]) -> str:
    return found[0] if found[0].startswith("\\") else found[0].replace("{", "\\{").replace("[", "[\\")


def _as_regex(rule: str) -> str:
    return _BRACES.sub(_escaped, rule)


class Pattern:
    """A regular expression of `re`, or `re.error`; matches raise a RuleTimeoutError after `LIMIT_SECONDS`."""

    def __init__(self, rule: str) -> None:
        try:
            re.compile(rule)
            self._compiled = regex.compile(_as_regex(rule), regex.VERSION0)
        except (RecursionError, OverflowError, regex.error) as error:
            raise re.error(str(error), rule) from error
        self._rule = rule

    def fullmatch(self, text: str) -> Any:
        """Match the whole text; return the match or None."""
        return self._limited(self._compiled.fullmatch, text)

    def match(self, text: str) -> Any:
        """Match the beginning of the text; return the match or None."""
        return self._limited(self._compiled.match, text)

    def search(self, text: str) -> Any:
        """Return the first match in the text, or None."""
        return self._limited(self._compiled.search, text)

    def _limited(self, method: Any, text: str) -> Any:
        try:
            return method(text, timeout=LIMIT_SECONDS)
        except TimeoutError:
            given = f"{text!r}, for more than {LIMIT_SECONDS:g} s"
            fix = "write repetitions that cannot match one text in many ways: a+b for (a+)+b"
            raise RuleTimeoutError(f"rule {self._rule!r} takes too long to match", given=given, fix=fix) from None


pattern = functools.lru_cache(16384)(Pattern)
"""Return the cached pattern of a rule."""


_SPECIAL = re.compile(r"[.^$*+?{}\[\]\\|()]")
_ALONE = re.compile(r"\\[0-9gN]|\(\?(?!:|=|!|<=|<!)")
"""Rules with flags or references to groups, whose meaning would change after other rules."""
GROUP_SIZE = 64
"""Number of rules that are tried at once: 5,000 x 5,000 take 70 s one by one, and 1 to 16 s in groups."""


def is_literal(rule: str) -> bool:
    """Return whether `rule` matches only itself, because it has no special characters."""
    return _SPECIAL.search(rule) is None


class Patterns:
    """Many regular expressions, tried in groups by `"fullmatch"`, `"match"` or `"search"`."""

    def __init__(self, rules: Iterable[str], method: str = "fullmatch") -> None:
        self._method = method
        self._places = {rule: place for place, rule in enumerate(rules)}
        together = [rule for rule in self._places if not _ALONE.search(rule)]
        self._groups = [(rule,) for rule in self._places if _ALONE.search(rule)]
        self._groups += [tuple(together[at : at + GROUP_SIZE]) for at in range(0, len(together), GROUP_SIZE)]

    def matching(self, text: str) -> list[str]:
        """Return the rules that match the text, in their order."""
        found = [rule for group in self._groups if self._may_match(group, text) for rule in group]
        return sorted(
            (rule for rule in found if getattr(pattern(rule), self._method)(text)), key=self._places.__getitem__
        )

    def _may_match(self, group: tuple[str, ...], text: str) -> bool:
        if len(group) == 1:
            return True
        try:
            return getattr(_joined(group), self._method)(text, timeout=LIMIT_SECONDS) is not None
        except TimeoutError:  # the limit is meant for one rule
            return True


@functools.lru_cache(1024)
def _joined(rules: tuple[str, ...]) -> Any:
    return regex.compile("|".join(f"(?:{_as_regex(rule)})" for rule in rules), regex.VERSION0)
