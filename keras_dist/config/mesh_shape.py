"""`parse_mesh_shape`: the text form of a mesh shape, and checks of shapes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from keras_dist._support.raw_errors import explained
from keras_dist.errors import MeshError

MESH_VARIABLE = "KERAS_DIST_MESH"  # the environment variable that replaces the mesh shape of config files

ALLOWED_NAME = "a name that is not '-' and has no ',', no '=' and no space around it"
ALLOWED_SIZE = "an integer >= 1, or -1 for one axis, to infer it from the number of devices"

MOST_DEVICES = 2**17  # more devices than any machine has

_INTEGER = re.compile(r"-?[0-9]{1,18}")


@explained
def parse_mesh_shape(text: str) -> dict[str, int]:
    """Return the sizes of mesh axes by name, in the order of `text`.

    Args:
        text: `name=size` for each axis, joined by commas. Spaces around names and sizes are ignored. One size may be
            -1: it is inferred from the number of devices.

    Returns:
        Sizes by axis name.

    Raises:
        MeshError: `text` is empty, an item is not `name=size`, a name appears twice, a size is neither >= 1 nor -1,
            or several sizes are -1. The error lists all problems.

    Example:
        >>> parse_mesh_shape("data=4, model=2")
        {'data': 4, 'model': 2}
    """
    problems: list[str] = []
    shape: dict[str, int] = {}
    for item in text.split(",") if text.strip() else ():
        name, equals, size = (part.strip() for part in item.partition("="))
        if not equals:
            problems.append(f"{name!r} has no '='" if name else "nothing stands before or after a comma")
            continue
        if name in shape:
            problems.append(f"axis {name!r} appears twice")
        shape[name] = int(size) if _INTEGER.fullmatch(size) else 0
        if problem := name_problem(name):
            problems.append(problem)
        if shape[name] < 1 and shape[name] != -1:
            problems.append(f"axis {name!r} cannot have the size {size!r}")
    if not problems and (problem := sizes_problem(shape.values())):
        problems.append(problem)
    if problems:
        expected = f"name=size for each axis, joined by commas; a size is {ALLOWED_SIZE}"
        fix = 'for example "data=2,model=4"'
        raise MeshError(f"mesh shape {text!r}: {'; '.join(problems)}", given=repr(text), expected=expected, fix=fix)
    return shape


def name_problem(name: str) -> str:
    """Describe why `name` cannot name a mesh axis; an empty string if it can."""
    if not name.strip():
        return "the name of an axis is empty"
    usable = name == name.strip() and name != "-" and not set(name) & set(",=")
    return "" if usable else f"an axis cannot be named {name!r}"


def sizes_problem(sizes: Iterable[int]) -> str:
    """Describe an inconsistency of the sizes; an empty string without one."""
    sizes = list(sizes)
    if not sizes:
        return "it has no axes"
    return "several sizes are -1" if sizes.count(-1) > 1 else ""


def count_problem(sizes: Iterable[int]) -> str:
    """Describe why no machine has this many devices; an empty string if one may."""
    count = abs(math.prod(sizes))
    return f"a mesh of {count:,} devices or more is too large" if count > MOST_DEVICES else ""
