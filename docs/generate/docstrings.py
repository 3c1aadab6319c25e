"""Docstrings of this project as reStructuredText: `x` is code, or a link if it is a public name."""

from __future__ import annotations

import functools
import inspect
import re

from docs.generate import names

_SPAN = re.compile(r"``.+?``|`[^`]+`", re.DOTALL)
_HEAD = re.compile(r"^(\s*(?:\*{0,2}\w+, )*\*{0,2}\w+:)(?= |$)")


@functools.cache
def targets() -> dict[str, str]:
    """Return what can be linked, with its documented name."""
    found = {each.full: each.canonical for each in names.names()}
    for each in names.names():
        if inspect.isclass(each.value):
            found |= {f"{each.full}.{name}": f"{each.canonical}.{name}" for name in names.members(each.value)}
    return found


def target(text: str, package: str) -> str | None:
    """Return the documented name that a piece of code in a docstring of `package` stands for, if any."""
    name = re.sub(r"\(\)$", "", text.strip()).removeprefix("kd.").removeprefix("keras_dist.")
    if not re.fullmatch(r"[A-Za-z]\w*(\.\w+)*", name):
        return None
    places = [package, "keras_dist"] if name[0].isupper() or "." in name else [package]
    return next((targets()[f"{place}.{name}"] for place in places if f"{place}.{name}" in targets()), None)


def as_rst(lines: list[str], package: str) -> list[str]:
    """Return a docstring with its code marked as reStructuredText does; examples stay as they are."""
    text = re.sub(
        r"(?m)^( *)(.*[^:\n]):\n\n(?=\1    +(?!>>>|- )\S)", r"\1\2::\n\n", "\n".join(lines)
    )  # code by its indent
    text = re.sub(
        r"(?m)^( +(?:\*{0,2}\w+, )*\*{0,2}\w+,)\n +(?=(?:\*{0,2}\w+, )*\*{0,2}\w+:)", r"\1 ", text
    )  # a head on two lines
    blocks = re.split(r"(\n\s*\n)", text)
    converted, literal = [], -1
    for block in blocks:
        indent = len(block) - len(block.lstrip(" "))
        if block.strip() and indent <= literal:
            literal = -1
        if block.strip() and (literal >= 0 or re.search(r"^\s*>>> ", block, re.MULTILINE)):
            converted.append(_example(block, package))
            continue
        converted.append(_prose(block, package))
        if block.rstrip().endswith("::"):
            literal = len(block.splitlines()[-1]) - len(block.splitlines()[-1].lstrip(" "))
    return "".join(converted).split("\n")


def _example(block: str, package: str) -> str:
    """Return a block whose prose ends where its example begins."""
    before, mark, after = block.partition(">>> ")
    return _prose(before, package) + mark + after if mark else block


def _prose(block: str, package: str) -> str:
    pieces, end = [], 0
    for span in _SPAN.finditer(block):
        pieces += [_escape(block[end : span.start()]), _code(span[0], block[span.end() : span.end() + 1], package)]
        end = span.end()
    return "".join([*pieces, _escape(block[end:])])


def _code(span: str, following: str, package: str) -> str:
    text = " ".join(span.strip("`").split())
    found = target(text, package)
    role = f":py:obj:`{text} <{found}>`" if found else f"``{text}``"
    return role + ("\\ " if re.match(r"\w", following) else "")


def _escape(text: str) -> str:
    """Return prose in which no character is markup; the heads of described arguments stay."""
    lines = []
    for line in text.split("\n"):
        head = _HEAD.match(line)
        start = head.end() if head else 0
        rest = re.sub(r"^(\s*)\*( )", r"\1-\2", line[start:])  # bullets
        first = line[:start] if line.lstrip().startswith("*") else line[:start].replace("*", "\\*")
        lines.append(first + re.sub(r"([*|])|(?<=\w)_(?!\w)", lambda found: f"\\{found[0]}", rest))
    return "\n".join(lines)
