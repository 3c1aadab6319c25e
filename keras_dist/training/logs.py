"""`LazyLogs`: what callbacks get, fetched from the device when it is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax

from keras_dist.metrics import Mean


class LazyLogs(Mapping[str, float]):
    """Loss and metrics by name, as floats. Reading the first one waits for the step and fetches all of them.

    Args:
        means: open means on the device.
        names: their order.
        known: further values that are on the host already.
    """

    def __init__(
        self, means: Mapping[str, Mean], names: Sequence[str], known: Mapping[str, float] | None = None
    ) -> None:
        self._means = means
        self._names = names
        self._known = dict(known or {})
        self._fetched: dict[str, float] | None = None

    def __getitem__(self, name: str) -> float:
        return self._values()[name]

    def __iter__(self) -> Iterator[str]:
        return iter([*self._names, *self._known])

    def __len__(self) -> int:
        return len(self._names) + len(self._known)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {list(self)}>"

    def _values(self) -> dict[str, Any]:
        if self._fetched is None:
            host = jax.device_get(dict(self._means))
            found = {name: float(host[name].total / host[name].weight) for name in self._names}
            self._fetched = found | self._known
        return self._fetched
