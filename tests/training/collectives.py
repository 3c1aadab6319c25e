"""Reads the collectives out of a compiled program's text."""

import re

_OPERATION = re.compile(
    r"^\s*(?:ROOT )?%?\S+ = (?P<result>.*?) "
    r"(?P<kind>all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\(",
    re.MULTILINE,
)
_ARRAY = re.compile(r"[a-z]+\d+\[([\d,]*)\]")


def collectives_of(lowered):
    """`(kind, [shapes of its results])` for every collective in the compiled program."""
    return collectives_in(lowered.compile())


def collectives_in(program):
    """The same of a program that is compiled."""
    text = program.as_text()
    return [(match["kind"], _shapes(match["result"])) for match in _OPERATION.finditer(text)]


def _shapes(result):
    return [tuple(int(size) for size in dims.split(",") if size) for dims in _ARRAY.findall(result)]


def of_kind(collectives, kind):
    """The results of the collectives of one kind."""
    return [shapes for found, shapes in collectives if found == kind]
