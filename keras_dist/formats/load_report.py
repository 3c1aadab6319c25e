"""`LoadReport`: the loaded weights and all mismatches."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from keras_dist._support.located_warnings import warn
from keras_dist.errors import ModelError, printable

_LISTED = 5
_PROBLEMS = ("missing in the file", "not in the model", "of another shape, or complex", "rules that match no weight")
"""Kinds of mismatch, in the order of the fields of a `LoadReport`."""


@dataclasses.dataclass(frozen=True)
class LoadReport:
    """The result of `load_weights`. Printing it counts the weights of each kind and lists the first names.

    Attributes:
        loaded: paths of the weights that were set.
        missing: paths of weights that are not in the file.
        extra: names in the file that belong to no weight of the model.
        misshaped: paths of weights whose arrays in the file have another shape, or are complex.
        unused: rules of the `weight_map` that match no weight.
    """

    loaded: tuple[str, ...]
    missing: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    misshaped: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()

    def __str__(self) -> str:
        listed_fields = (getattr(self, field.name) for field in dataclasses.fields(self))
        kinds = zip(("loaded", *_PROBLEMS), listed_fields, strict=True)
        parts = [f"{len(names)} {kind}: {listed(names)}" for kind, names in kinds if names]
        return printable("; ".join(parts)) or "empty"

    def warn_of_rest(self, path: str) -> None:
        """Warn of weights that were not loaded."""
        if self.missing or self.extra or self.misshaped or self.unused:
            warn(f"load_weights: {path!r} fits in part: {self}")


def misfit(model: str, path: str, problems: Sequence[Iterable[str]], caller: str = "load_weights") -> ModelError:
    """Return the error for a file that does not match a model; `problems` are in the order of `_PROBLEMS`."""
    fix = (
        "load it into a model made like the one it was saved from, or pass strict=False to load what fits; "
        "model.layout_plan lists the names; for other names and shapes see `weight_map`"
    )
    if caller == "load_model":
        fix = (
            "classes of yours must be those that were saved, with the same class and attribute names; or make the "
            "model in code, and then model.load_weights(path, strict=False) for what fits"
        )
    kinds = zip(_PROBLEMS, map(tuple, problems), strict=True)
    given = "; ".join(f"{kind}: {listed(names)}" for kind, names in kinds if names)
    return ModelError(f"{caller}: {path!r} does not fit model {model!r}", given=given, fix=fix)


def listed(names: Sequence[str]) -> str:
    """Return the first names and the number of others, as text."""
    rest = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {rest} more" if rest > 0 else "")
