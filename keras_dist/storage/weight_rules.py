"""Rules of a `WeightMap`: regular expressions for whole paths, and the names that they give.

In the compiled rule `{}` is a group, which the user's references to groups do not count.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any

from keras_dist._support.safe_patterns import Patterns, pattern
from keras_dist.errors import ModelError
from keras_dist.training.graph import compile_rule

INDEX = "{}"
_INDEX = re.compile(r"(\\?[/_.])?\{\}")  # `{}` in a rule, with what separates it from the name before
_NUMBER = "keras_dist_index_"
_REFERENCE = re.compile(r"\\(?:(\d)|g<(\d+)>)")


@dataclasses.dataclass(frozen=True)
class Match:
    """A rule that matches a path."""

    key: str | tuple[str, ...]  # the rule as it was written: alone, or in a tuple
    member: int  # its number in the tuple
    value: Any  # what the rule is mapped to
    numbers: tuple[str | None, ...]  # what `{}` stands for, in order; None where the path has no number there
    found: Any  # the match of the regular expression; None for a path that is the rule

    def expanded(self, name: str) -> str:
        r"""Return a name with the groups of the rule for `\1` and so on."""
        if self.found is None or "\\" not in name:
            return name
        indices = self.found.re.groupindex
        ours = {index for group, index in indices.items() if group.startswith(_NUMBER)}
        groups = [index for index in range(self.found.re.groups + 1) if index not in ours]
        try:
            return self.found.expand(_REFERENCE.sub(lambda one: rf"\g<{groups[int(one[1] or one[2])]}>", name))
        except (re.error, IndexError) as error:
            summary = f"WeightMap: a name asks for what its rule does not have: {error}"
            fix = "put parentheses around what the name repeats, and write the name as a raw string"
            raise ModelError(summary, given=f"{name!r} for {self.key!r}", fix=fix) from error


class Rules:
    """The rules of an argument, each a regular expression for whole paths; it counts which ones match."""

    def __init__(self, argument: str, rules: Mapping[Any, Any]) -> None:
        self._argument = argument
        self._values = rules
        self._exact: dict[str, tuple[Any, int]] = {}
        self._compiled: dict[str, tuple[Any, int]] = {}
        for key in rules:
            for member, rule in enumerate(_members(key)):
                compile_rule(_INDEX.sub("", rule), argument)
                compiled = _compiled(rule)
                if compiled in self._compiled:
                    summary = f"WeightMap: the rule {rule!r} is in `{argument}` twice"
                    raise ModelError(summary, given=f"{key!r} and {self._compiled[compiled][0]!r}", fix="leave one out")
                self._compiled[compiled] = self._exact[rule] = (key, member)
        self._patterns = Patterns(self._compiled)
        self._unused = dict.fromkeys(rules)

    def match(self, path: str) -> Match | None:
        """Return the rule for a path: the path itself, else the regular expression that matches it."""
        compiled = None
        if path not in self._exact:
            matching = self._patterns.matching(path)
            if len(matching) > 1:
                summary = f"WeightMap: {path!r} matches several rules of `{self._argument}`"
                given = ", ".join(repr(_members(key)[member]) for key, member in map(self._compiled.get, matching))  # type: ignore[misc]
                raise ModelError(summary, given=given, fix="make the regular expressions narrower")
            if not matching:
                return None
            [compiled] = matching
        key, member = self._exact[path] if compiled is None else self._compiled[compiled]
        self._unused.pop(key, None)
        found = None if compiled is None else pattern(compiled).fullmatch(path)
        count = _members(key)[member].count(INDEX)
        numbers = tuple(found[f"{_NUMBER}{each}"] for each in range(count)) if found is not None else ()
        return Match(key, member, self._values[key], numbers, found)

    def unused(self) -> list[str]:
        """Return the rules that have matched nothing, as `names['...']`."""
        return [f"{self._argument}[{key!r}]" for key in self._unused]


def _members(key: str | tuple[str, ...]) -> tuple[str, ...]:
    return (key,) if isinstance(key, str) else key


def _compiled(rule: str) -> str:
    """Return a rule with groups of digits for `{}`, which a path of a stack lacks."""
    parts: Iterable[str] = _INDEX.split(rule)
    text, *rest = parts
    for number in range(len(rest) // 2):
        before, after = rest[2 * number] or "", rest[2 * number + 1]
        text += f"(?:{before}(?P<{_NUMBER}{number}>\\d+))?{after}"
    return text
