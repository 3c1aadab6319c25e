"""Names of Keras that are not here: the error says what takes their place, as `KERAS.md` does."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Callable
from typing import Any

_TABLE = pathlib.Path(__file__).with_name("KERAS.md")


def replacement_of(name: str) -> str | None:
    """Return the note of `KERAS.md` on a name of Keras that is not here, such as `ops` or `layers.Hashing`.

    Returns:
        The note, which may be empty; None for a name that Keras 3.15 does not have, or that is here.
    """
    package, _, attribute = name.rpartition(".")
    section = re.escape(f"## keras.{package}".rstrip("."))
    row = rf"\| `{re.escape(attribute)}(?:\.\*)?` \| no \| (?P<note>.*) \|"
    found = re.search(rf"^{section}$(?:\n(?!## ).*)*?\n{row}$", _TABLE.read_text("utf-8"), re.MULTILINE)
    return None if found is None else found["note"].strip()


def missing_from(module: str) -> Callable[[str], Any]:
    """Return the `__getattr__` of a module, whose AttributeError names what to use instead of a name of Keras."""

    def __getattr__(name: str) -> Any:
        text = f"module {module!r} has no attribute {name!r}"
        if not name.startswith("_"):
            note = replacement_of(f"{module.partition('.')[2]}.{name}".lstrip("."))
            if note is not None:
                instead = f"instead: {note}" if note else "nothing takes its place"
                text += f": keras_dist does not have this name of Keras; {instead}"
        raise AttributeError(text, name=name)

    return __getattr__
