"""`Cursor`: the position of a run in its data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from keras_dist._support.arguments import is_int
from keras_dist.errors import DataError, shorten


@dataclasses.dataclass(frozen=True)
class Cursor:
    """The position of a run in its data, which does not depend on the mesh or the number of processes.

    Attributes:
        epoch: current epoch, counted from 0.
        batch: number of finished batches of the epoch.
        rows: number of finished rows of the epoch.
        seed: fixes the order of the rows, together with the epoch; None if they are not shuffled.
        source: state of an iterator that has one, as JSON; otherwise None.
    """

    epoch: int = 0
    batch: int = 0
    rows: int = 0
    seed: int | None = None
    source: Any = None

    def after(self, rows: int, source: Any = None) -> Cursor:
        """Return the cursor after one more batch of `rows` rows; `source` is the state of the iterator."""
        return dataclasses.replace(self, batch=self.batch + 1, rows=self.rows + rows, source=source)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a dict."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, state: Any) -> Cursor:
        """Return the cursor from the result of `to_json`.

        Raises:
            DataError: `state` is not such a result.
        """
        names = [field.name for field in dataclasses.fields(cls)]
        is_dict = isinstance(state, Mapping) and set(state) == set(names)
        counts = [] if not is_dict else [state["epoch"], state["batch"], state["rows"]]
        if not counts or not all(is_int(count, 0) for count in [*counts, state["seed"] or 0]):
            fix = f"pass the result of `get_state()`: a dict of {', '.join(names)}, integers of at least 0"
            raise DataError("`state` must be the position of a run over data", given=shorten(state), fix=fix)
        return cls(**state)
