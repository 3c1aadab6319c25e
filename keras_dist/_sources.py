"""`Source:` in the docstrings of names that are Keras's: `keras_dist.layers.Dense` is `keras.layers.Dense`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any


def name_sources(package: Mapping[str, Any], ours: Collection[str] = ()) -> None:
    """End the docstrings of a package with `Source:` and the name in Keras, where they do not name a source themselves.

    Args:
        package: `vars()` of the package, with its `__all__`.
        ours: names that Keras does not have.
    """
    place = package["__name__"].replace("keras_dist", "keras", 1)
    for name in set(package["__all__"]) - set(ours):
        value: Any = package[name]
        text: str = getattr(value, "__doc__", None) or ""  # None under python -OO
        if text and "Source:" not in text and getattr(value, "__name__", "") == name and callable(value):
            value.__doc__ = f"{text.rstrip()}\n\n    Source: `{place}.{name}`.\n    "
