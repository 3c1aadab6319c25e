"""`Cursor`: where in the data a run is, to the row, as plain JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from keras_dist._arguments import is_int
from keras_dist.errors import DataError, shorten


@dataclasses.dataclass(frozen=True)
class Cursor:
    """How far a run over data has come. It knows nothing of meshes and processes, and holds for any of them.

    Attributes:
        epoch: the epoch that is running, counted from 0.
        batch: how many batches of it are done.
        rows: how many rows of it are done.
        seed: what fixes the order of the rows, with the epoch; None where they come in their own order.
        source: what an iterator that can tell where it is told of itself, as JSON; None for all others.
    """

    epoch: int = 0
    batch: int = 0
    rows: int = 0
    seed: int | None = None
    source: Any = None

    def after(self, rows: int, source: Any = None) -> Cursor:
        """One batch of so many rows later, where an iterator tells this of itself."""
        return dataclasses.replace(self, batch=self.batch + 1, rows=self.rows + rows, source=source)

    def to_json(self) -> dict[str, Any]:
        """As a dict."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, state: Any) -> Cursor:
        """The cursor that `to_json` told of.

        Raises:
            DataError: it did not tell that.
        """
        names = [field.name for field in dataclasses.fields(cls)]
        if (
            not isinstance(state, Mapping)
            or set(state) != set(names)
            or not all(_fits(*item) for item in state.items())
        ):
            raise DataError(
                "this is not where a run over data was",
                given=shorten(state),
                expected=f"a dict of {', '.join(names)}, integers of at least 0 (seed and source may be None)",
                fix="pass what `get_state()` gave",
            )
        return cls(**state)


def _fits(name: str, value: Any) -> bool:
    if name == "source" or (name == "seed" and value is None):
        return True
    return is_int(value, 0)
