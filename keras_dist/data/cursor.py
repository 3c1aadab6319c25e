"""`Cursor`: the position of a run in its data."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Generator, Mapping
from typing import Any

from keras_dist._support.arguments import is_int
from keras_dist.errors import DataError, KerasDistError, cause, shorten

_MOST = 2**63 - 1


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
        shuffled = isinstance(state, Mapping) and state.get("seed") is not None
        names = [field.name for field in dataclasses.fields(cls)]
        check_fields(state, names, names[: 4 if shuffled else 3])
        return cls(**state)


def check_fields(state: Any, names: Collection[str], counts: Collection[str] = ()) -> None:
    """Check that a state is a dict of these names, of which `counts` are integers of at least 0."""
    is_dict = isinstance(state, Mapping) and {*state} == {*names}
    if not is_dict or not all(is_int(state[name], 0, _MOST) for name in counts):
        fix = f"pass the result of `get_state()`: a dict of {', '.join(names)}"
        fix += f", of which {', '.join(counts)} are integers of at least 0" if counts else ""
        raise DataError("`state` must be the position of a run over data", given=shorten(state), fix=fix)


def check_same(data: Mapping[str, int | None], saved: Any) -> None:
    """Check that the data of a saved position had these properties, such as the weights of a mixture."""
    saved = {} if saved is None else saved if isinstance(saved, Mapping) else {"state": saved}
    if different := [name for name in {**saved, **data} if name not in saved or saved[name] != data.get(name, saved)]:
        raise DataError(
            "the data differ from the data of the saved position",
            given=", ".join(f"{name}: {data.get(name, 'missing')}" for name in different),
            expected=", ".join(f"{name}: {shorten(saved[name]) if name in saved else 'missing'}" for name in different),
            fix="resume with the same sources, weights and sizes, or begin a new run",
        )


def check_like(state: Any, like: Any) -> None:
    """Check that a state has the names of another state of the same iterator of grain, and integers where it has."""
    if isinstance(like, Mapping):
        counts = [name for name, value in like.items() if is_int(value, 0)]
        check_fields(state, [*like], counts)
        for name, value in like.items():
            check_like(state[name], value)


def set_state(iterator: Any, state: Any, data: str) -> None:
    """Set an iterator to a saved state; errors name the data."""
    with resuming(data, state):
        if type(iterator).__module__.startswith("grain."):  # which itself checks little
            check_like(state, iterator.get_state())
        iterator.set_state(state)


@contextlib.contextmanager
def resuming(data: str, state: Any, kind: type[Exception] = Exception) -> Generator[None]:
    """Enter a context in which a saved state is used; errors name the data."""
    try:
        yield
    except KerasDistError:
        raise
    except kind as error:
        fix = "resume with the same data, or begin a new run"
        given = f"{cause(error)}; state {shorten(state)}"
        raise DataError(f"{data} cannot resume at the saved position", given=given, fix=fix) from error
