"""What docstrings of a package say once: arguments in the class that takes them first, `Source:` here."""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Mapping
from typing import Any

_ARGS = re.compile(r"^    Args:\n((?: {8}.*\n|\n(?= {8}))+)", re.MULTILINE)
_ENTRY = re.compile(r"^ {8}(\*{0,2}\w+): .*\n(?:(?: {9}.*)?\n)*", re.MULTILINE)
_SECTION = re.compile(r"^    (?:Attributes|Raises|Example|Returns|Yields|Source|Differs from Keras):", re.MULTILINE)


def complete_docstrings(package: Mapping[str, Any], ours: Collection[str] = ()) -> None:
    """Complete the docstrings of the public classes and functions of a package.

    Classes get those arguments that only a base outside of the package's public names describes; names of Keras get
    `Source:`, as in `keras.layers.Dense` for `keras_dist.layers.Dense`, where they do not name a source themselves.

    Args:
        package: `vars()` of the package, with its `__all__`.
        ours: names that Keras does not have.
    """
    place = package["__name__"].replace("keras_dist", "keras", 1)
    public = {name: package[name] for name in package["__all__"]}
    for name, value in public.items():
        text: str = getattr(value, "__doc__", None) or ""  # None under python -OO
        if not text or getattr(value, "__name__", "") != name or not callable(value):
            continue
        if isinstance(value, type):
            text = _with_arguments(value, text, public.values())
        if name not in ours and "Source:" not in text:
            text = f"{text.rstrip()}\n\n    Source: `{place}.{name}`.\n    "
        value.__doc__ = text


def _with_arguments(described: type, text: str, public: Collection[Any]) -> str:
    """The docstring of a class with the arguments that its bases describe, in the order of its constructor."""
    bases = described.__mro__[1:]
    hidden = bases[: next((index for index, base in enumerate(bases) if base in public), len(bases))]
    entries = _entries(text)
    inherited = [entry for base in hidden for entry in _entries(vars(base).get("__doc__") or "").items()]
    if all(name in entries for name, _ in inherited):
        return text
    for name, entry in inherited:
        entries.setdefault(name, entry)
    named = [name for name in inspect.signature(described.__init__).parameters if name in entries]
    ordered = [*named, *(name for name in entries if name not in named and not name.startswith("*"))]
    ordered += sorted(name for name in entries if name.startswith("*"))[::-1]
    arguments = "    Args:\n" + "".join(entries[name].rstrip("\n") + "\n" for name in ordered)
    if _ARGS.search(text):
        return _ARGS.sub(lambda _: arguments, text, count=1)
    section = _SECTION.search(text)
    if section is None:
        return f"{text.rstrip()}\n\n{arguments}    "
    return f"{text[: section.start()]}{arguments}\n{text[section.start() :]}"


def _entries(text: str) -> dict[str, str]:
    """The arguments of a docstring, each with its lines."""
    section = _ARGS.search(text)
    return {} if section is None else {entry[1]: entry[0] for entry in _ENTRY.finditer(section[1])}
