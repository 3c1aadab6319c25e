"""Regular expressions with a time limit: rules may come from others, in a config file, and some never end.

Python's `re` cannot be stopped: it tries exponentially many ways to match `(a+)+b`. The package `regex` gives rules the
same meaning, and takes a limit.
"""

from __future__ import annotations

import functools
import re
from typing import Any

import regex

from keras_dist.errors import RuleTimeoutError

LIMIT_SECONDS = 1.0
"""The limit of one match. Ordinary rules take microseconds."""


_BRACES = re.compile(r"\\N\{[^}]*\}|\\.|\{(?!\d+(?:,\d*)?\}|,\d*\})|\[(?=\[:)", re.DOTALL)
"""Braces that are no repetition, and `[[:`: to `re` they are characters, to `regex` fuzzy matches and classes."""


def _escaped(found: re.Match[str]) -> str:
    return found[0] if found[0].startswith("\\") else found[0].replace("{", "\\{").replace("[", "[\\")


class Pattern:
    """A regular expression, as `re.compile` takes it.

    Raises:
        re.error: it is none.
    """

    def __init__(self, rule: str) -> None:
        try:
            re.compile(rule)
            self._compiled = regex.compile(_BRACES.sub(_escaped, rule), regex.VERSION0)
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
            raise RuleTimeoutError(
                f"rule {self._rule!r} takes too long to match",
                given=f"{text!r}, for more than {LIMIT_SECONDS:g} s",
                expected="a regular expression that is matched at once",
                fix="write repetitions that cannot match one text in many ways: a+b for (a+)+b",
            ) from None


pattern = functools.lru_cache(1024)(Pattern)
"""Return the pattern of a rule, which is made once."""
