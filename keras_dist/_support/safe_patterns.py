"""Regular expressions with a time limit: rules may come from others, in a config file, and some never end.

Python's `re` cannot be stopped: it tries exponentially many ways to match `(a+)+b`. The package `regex` gives rules the
same meaning, and takes a limit.
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
"""Braces that are no repetition, and `[[:`: to `re` they are characters, to `regex` fuzzy matches and classes."""


def _escaped(found: re.Match[str]) -> str:
    return found[0] if found[0].startswith("\\") else found[0].replace("{", "\\{").replace("[", "[\\")


def _as_regex(rule: str) -> str:
    return _BRACES.sub(_escaped, rule)


class Pattern:
    """A regular expression, as `re.compile` takes it.

    Raises:
        re.error: it is none.
    """

    def __init__(self, rule: str) -> None:
        try:
            re.compile(rule)
            self._compiled = regex.compile(_as_regex(rule), regex.VERSION0)
        except (RecursionError, OverflowError, regex.error) as error:
            raise re.error(str(error), rule) from error
        self._rule = rule

    def fullmatch(self, text: str) -> Any:
        """Match the whole text; return the match or None.

        Raises:
            RuleTimeoutError: it takes longer than `LIMIT_SECONDS`.
        """
        return self._limited(self._compiled.fullmatch, text)

    def match(self, text: str) -> Any:
        """Match the beginning of the text; return the match or None. Raises as `fullmatch`."""
        return self._limited(self._compiled.match, text)

    def search(self, text: str) -> Any:
        """Return the first match in the text, or None. Raises as `fullmatch`."""
        return self._limited(self._compiled.search, text)

    def _limited(self, method: Any, text: str) -> Any:
        try:
            return method(text, timeout=LIMIT_SECONDS)
        except TimeoutError:
            given = f"{text!r}, for more than {LIMIT_SECONDS:g} s"
            fix = "write repetitions that cannot match one text in many ways: a+b for (a+)+b"
            raise RuleTimeoutError(f"rule {self._rule!r} takes too long to match", given=given, fix=fix) from None


pattern = functools.lru_cache(16384)(Pattern)
"""Return the pattern of a rule, which is made once."""


_SPECIAL = re.compile(r"[.^$*+?{}\[\]\\|()]")
_ALONE = re.compile(r"\\[0-9gN]|\(\?(?!:|=|!|<=|<!)")
"""Rules whose meaning other rules in front would change: they have flags, or refer to groups."""
GROUP_SIZE = 64
"""Number of rules that are tried at once. 5,000 x 5,000 took 70 s one by one, and takes 1 to 16 s in groups."""


def is_literal(rule: str) -> bool:
    """Return whether `rule` has no special characters, so that it matches no other text than itself."""
    return _SPECIAL.search(rule) is None


class Patterns:
    """Many regular expressions, few of which match a text: groups of them are tried at once.

    Args:
        rules: each a regular expression, as `Pattern` takes it.
        method: how they are matched: `"fullmatch"`, `"match"` or `"search"`.
    """

    def __init__(self, rules: Iterable[str], method: str = "fullmatch") -> None:
        self._method = method
        self._places = {rule: place for place, rule in enumerate(rules)}
        together = [rule for rule in self._places if not _ALONE.search(rule)]
        self._groups = [(rule,) for rule in self._places if _ALONE.search(rule)]
        self._groups += [tuple(together[at : at + GROUP_SIZE]) for at in range(0, len(together), GROUP_SIZE)]

    def matching(self, text: str) -> list[str]:
        """Return the rules that match the text, in their order.

        Raises:
            RuleTimeoutError: a rule takes longer than `LIMIT_SECONDS`.
        """
        found = [rule for group in self._groups if self._may_match(group, text) for rule in group]
        return sorted(
            (rule for rule in found if getattr(pattern(rule), self._method)(text)), key=self._places.__getitem__
        )

    def _may_match(self, group: tuple[str, ...], text: str) -> bool:
        if len(group) == 1:
            return True
        try:
            return getattr(_joined(group), self._method)(text, timeout=LIMIT_SECONDS) is not None
        except TimeoutError:  # the limit holds for one rule
            return True


@functools.lru_cache(1024)
def _joined(rules: tuple[str, ...]) -> Any:
    return regex.compile("|".join(f"(?:{_as_regex(rule)})" for rule in rules), regex.VERSION0)
