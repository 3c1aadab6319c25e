"""What docstrings of a package say once: arguments in the class that takes them first, `Source:` here."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

_ARGS = re.compile(r"^    Args:\n((?: {8}.*\n|\n(?= {8}))+)", re.MULTILINE)
_ENTRY = re.compile(r"^ {8}(\*{0,2}\w+): .*\n(?:(?: {9}.*)?\n)*", re.MULTILINE)
_RAISES = re.compile(r"^    Raises:\n(?: {8}.*\n)+", re.MULTILINE)
_SECTION = re.compile(r"^    (?:Attributes|Raises|Example|Returns|Yields|Source|Differs from Keras):", re.MULTILINE)


def complete_docstrings(
    package: Mapping[str, Any], ours: Collection[str] = (), described_in: type | None = None
) -> None:
    """Complete the docstrings of the public classes and functions of a package.

    Classes get those arguments that only a base outside of the package's public names describes; names of Keras get
    `Source:`, as in `keras.layers.Dense` for `keras_dist.layers.Dense`, where they do not name a source themselves.

    Args:
        package: `vars()` of the package, with its `__all__`.
        ours: names that Keras does not have.
        described_in: a class whose docstring describes arguments, and errors, of all functions of the package.
    """
    place = package["__name__"].replace("keras_dist", "keras", 1)
    public = {name: package[name] for name in package["__all__"]}
    for name, value in public.items():
        text: str = getattr(value, "__doc__", None) or ""  # None under python -OO
        if not text or getattr(value, "__name__", "") != name or not callable(value):
            continue
        if isinstance(value, type):
            hidden = _hidden_bases(value, public.values())
            text = _with_arguments(value.__init__, text, [vars(base).get("__doc__") or "" for base in hidden])
        elif described_in is not None:
            text = _with_arguments(value, text, [described_in.__doc__ or ""])
            raises = _RAISES.search(described_in.__doc__ or "")
            if raises and "Raises:" not in text:
                text = text.replace("    Source:", f"{raises[0]}\n    Source:", 1)
        if name not in ours and "Source:" not in text:
            text = f"{text.rstrip()}\n\n    Source: `{place}.{name}`.\n    "
        value.__doc__ = text


def _hidden_bases(described: type, public: Collection[Any]) -> Sequence[type]:
    """The bases of a class up to the first one that is a public name."""
    bases = described.__mro__[1:]
    return bases[: next((index for index, base in enumerate(bases) if base in public), len(bases))]


def _with_arguments(function: Callable[..., Any], text: str, others: Sequence[str]) -> str:
    """A docstring with the arguments that others describe, in the order of the function's parameters."""
    entries = _entries(text)
    inherited = [entry for other in others for entry in _entries(other).items()]
    if all(name in entries for name, _ in inherited):
        return text
    for name, entry in inherited:
        entries.setdefault(name, entry)
    named = [name for name in inspect.signature(function).parameters if name in entries]
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
