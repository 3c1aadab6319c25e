"""`Estimate`: an operation whose exchanges are known up to an interval, and the factors of intervals."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from keras_dist.distribution.render import render_interval


@dataclasses.dataclass(frozen=True)
class Estimate:
    """An operation whose exchanges in XLA's program are not known before compilation.

    Attributes:
        layer: path of the submodule; empty if not known.
        operation: the operation of JAX, such as `split`.
        reason: why its exchanges are not known.
        source: file and line of the user's code; empty if not known.
        count: number of such operations.
        least_nbytes: least bytes that a device exchanges for them in a step, by `RATES`.
        most_nbytes: most bytes.
        kind: key of `RATES`.

    Example:
        >>> import dataclasses, keras_dist as kd
        >>> sort = kd.planner.Estimate("head", "sort", "sorts along a dim that 'model' shards", "model.py:7")
        >>> print(dataclasses.replace(sort, most_nbytes=2**20))
        sort of 'head' (model.py:7): sorts along a dim that 'model' shards, 0 B to 1.0 MiB
    """

    layer: str
    operation: str
    reason: str
    source: str = ""
    count: int = 1
    least_nbytes: int = 0
    most_nbytes: int = 0
    kind: str = ""

    def __str__(self) -> str:
        where = f" of {self.layer!r}" if self.layer else ""
        at = f" ({self.source})" if self.source else ""
        more = f"; {self.count - 1} more like it" if self.count > 1 else ""
        size = render_interval(self.least_nbytes, self.most_nbytes)
        return f"{self.operation or 'an operation'}{where}{at}: {self.reason}, {size}{more}"


class Rate(NamedTuple):
    """Bytes of XLA's programs, as factors of the bytes that are expected."""

    least: float
    most: float
    may_change: bool = True  # whether XLA may choose another kind of collective, or other axes


RATES: Mapping[str, Rate] = {
    "reshard": Rate(0.2, 4),  # an operation whose operands get other layouts
    "stack": Rate(0.2, 1),  # a reshard of the part of an array that a loop takes or replaces
    "neighbour": Rate(0.2, 2),  # another collective of a layer with reshards
    "product": Rate(0.2, 1),  # a sum of products of operands that are smaller
    "border": Rate(0, 1, may_change=False),  # borders of shards that convolutions share
    "statistic": Rate(0.5, 1, may_change=False),  # equal sums
    "small": Rate(0.5, 1),  # arrays that are reduced as a whole or scattered
    "wide": Rate(1, 2, may_change=False),  # arrays that are gathered before they are converted to bfloat16
    "other": Rate(0, 2),  # operations across shards without a known exchange, of the array that they would gather
}
"""By the kind of an estimate. Where `may_change`, the least is 0 in loops, out of which XLA may move an exchange.

Source: random programs that were compiled for `cpu:8` and `v5e:2x4`. `python -m tests.planner.random_programs` compares
the intervals with XLA's programs.
"""


def interval_of(nbytes: int, kind: str, turns: int = 1) -> tuple[int, int]:
    """Return between how many bytes XLA exchanges where `nbytes` are expected; `kind` is a key of `RATES` or empty."""
    least, most, may_change = RATES[kind] if kind else Rate(1, 1)
    return 0 if kind and may_change and turns != 1 else int(least * nbytes), int(most * nbytes)


def counted(estimates: Iterable[Estimate]) -> tuple[Estimate, ...]:
    """Return one estimate for all operations with the same layer, operation and reason."""
    found: dict[tuple[str, str, str], Estimate] = {}
    for each in estimates:
        key = each.layer, each.operation, each.reason
        if other := found.get(key):
            names = "count", "least_nbytes", "most_nbytes"
            sums = {name: getattr(each, name) + getattr(other, name) for name in names}
            each = dataclasses.replace(other, **sums)
        found[key] = each
    return tuple(found.values())
