"""One page of the reference for each public package: reStructuredText for autodoc, from the names that it exports."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable

import keras_dist
from docs.generate import docstrings, names

LARGEST = 70
"""Names on one page; more are divided by their first letters, so that no page is over 1 MB."""


def pages() -> dict[str, str]:
    """Return the text of each page by its path below the folder of generated pages."""
    found = {"keras_dist.rst": _front_page()}
    for package in names.packages():
        here = [each for each in names.names() if each.package == package]
        own, aliases = [each for each in here if not each.is_alias], [each for each in here if each.is_alias]
        parts = _parts(own)
        for number, part in enumerate(parts):
            title = _title(package, parts, part)
            last, listed = number == len(parts) - 1, own if number == 0 else part
            found[page_of(package, number)] = _page(title, package, part, listed, aliases if last else [], number == 0)
    return found


def page_of(package: str, number: int = 0) -> str:
    """Return the path of a page of a package."""
    return f"{package}.rst" if number == 0 else f"{package}-{number + 1}.rst"


def _title(package: str, parts: list[list[names.Name]], part: list[names.Name]) -> str:
    return package if len(parts) == 1 else f"{package}, {part[0].name} to {part[-1].name}"


def _parts(own: list[names.Name]) -> list[list[names.Name]]:
    ordered = sorted(own, key=lambda each: each.name.lower()) if len(own) > LARGEST else own
    return [ordered[start : start + LARGEST] for start in range(0, len(ordered), LARGEST)] or [[]]


def _page(
    title: str, package: str, own: list[names.Name], listed: list[names.Name], aliases: list[names.Name], is_first: bool
) -> str:
    lines = [title, "=" * len(title), ""]
    if is_first:
        doc = inspect.getdoc(names.packages()[package]) or ""
        lines += [*docstrings.as_rst(doc.split("\n"), package), "", f".. py:module:: {package}", ""]
    else:
        lines += [f".. py:currentmodule:: {package}", ""]
    lines += _table(listed)
    lines += [line for each in own for line in _entry(each)]
    if aliases:
        lines += ["Names that are documented elsewhere", "-" * 35, "", *_links(aliases)]
    return "\n".join(lines) + "\n"


def _entry(each: names.Name) -> list[str]:
    if inspect.isclass(each.value):
        listed = ", ".join(names.members(each.value))
        return [f".. autoclass:: {each.full}", *([f"   :members: {listed}"] if listed else []), ""]
    if inspect.isfunction(each.value):
        return [f".. autofunction:: {each.full}", ""]
    return [f".. py:data:: {each.full}", "", f"   ``{' '.join(repr(each.value).split())[:200]}``", ""]


def _table(listed: list[names.Name]) -> list[str]:
    """Return a table of names with the first sentence of each, which link to what is below or on the next pages."""
    if not listed:
        return []
    lines = [".. list-table::", "   :class: names", "   :widths: 35 65", ""]
    for each in listed:
        lines += [f"   * - :py:obj:`{each.name} <{each.canonical}>`", f"     - {_summary(each)}"]
    return [*lines, ""]


def _links(listed: Iterable[names.Name]) -> list[str]:
    return [*(f"- :py:obj:`{each.name} <{each.canonical}>`: {_summary(each)}" for each in listed), ""]


def _summary(each: names.Name) -> str:
    """Return the first sentence of a name's docstring; a constant has its value."""
    if not inspect.isclass(each.value) and not inspect.isfunction(each.value):
        return f"``{' '.join(repr(each.value).split())[:80]}``"
    first = " ".join((inspect.getdoc(each.value) or "").split("\n\n")[0].split())
    sentence, *more = re.split(r"(?<=[a-z`)])\. (?=[A-Z`])", first)
    return " ".join(docstrings.as_rst([f"{sentence}." if more else sentence], each.package))


def _front_page() -> str:
    top = [each for each in names.names() if each.package == "keras_dist"]
    doc = inspect.getdoc(keras_dist) or ""
    lines = [
        "keras_dist",
        "==========",
        "",
        *docstrings.as_rst(doc.split("\n"), "keras_dist"),
        "",
        ".. py:module:: keras_dist",
        "",
    ]
    lines += ["The examples say ``import keras_dist as kd``.", "", "Names at the top", "----------------", ""]
    lines += [*_table(top), *(line for each in top if not each.is_alias for line in _entry(each))]
    lines += ["Packages", "--------", "", ".. toctree::", "   :maxdepth: 1", ""]
    for package in sorted(names.packages()):
        parts = _parts([each for each in names.names() if each.package == package and not each.is_alias])
        for number, part in enumerate(parts):
            title = _title(package, parts, part).removeprefix("keras_dist.")  # the navigation is narrow
            lines.append(f"   {title} <{page_of(package, number)[:-4]}>")
    return "\n".join(lines) + "\n"
