"""`Source:` in the docstrings of names that are Keras's: `keras_dist.layers.Dense` is `keras.layers.Dense`."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from typing import Any


def name_sources(package: Mapping[str, Any], ours: Collection[str] = ()) -> None:
    """End the docstrings of a package with `Source:` and the name in Keras, where they do not name a source themselves.

    Args:
        package: `vars()` of the package, with its `__all__`.
        ours: names that Keras does not have.
    """
    place = package["__name__"].replace("keras_dist", "keras", 1)
    for name in package["__all__"]:
        value = package[name]
        documented = (inspect.isclass(value) or inspect.isfunction(value)) and value.__doc__  # None under python -OO
        if documented and value.__name__ == name and name not in ours and "Source:" not in documented:
            value.__doc__ = f"{documented.rstrip()}\n\n    Source: `{place}.{name}`.\n    "
