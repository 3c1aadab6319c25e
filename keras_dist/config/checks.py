"""What must agree between the fields of a config: options with their strategy, axis names with the mesh.

These read plain tables and pass over values of wrong types, so that a file with other mistakes in it is checked too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from keras_dist.config.problems import Problem, show
from keras_dist.errors import did_you_mean, nearest

UNSHARDED = "-"

STRATEGIES_TAKING: dict[str, tuple[str, ...]] = {
    "layout": ("model_parallel", "fully_sharded"),
    "strict": ("model_parallel", "fully_sharded"),
    "axis": ("fully_sharded",),
    "min_size_bytes": ("fully_sharded",),
    "shard_optimizer": ("data_parallel",),
}
STRATEGIES = ("data_parallel", "model_parallel", "fully_sharded")


def as_table(value: object) -> dict[Any, Any] | None:
    """`value` when it is a table."""
    return cast("dict[Any, Any]", value) if isinstance(value, dict) else None


def as_list(value: object) -> Sequence[Any] | None:
    """`value` when it is a list."""
    return cast("Sequence[Any]", value) if isinstance(value, list | tuple) else None


def default_strategy(options: Mapping[str, Any]) -> str:
    """The strategy of a `[distribution]` that names none."""
    return "data_parallel" if options.get("layout") is None else "model_parallel"


def option_problems(options: Mapping[str, Any]) -> Iterator[Problem]:
    """The options in `[distribution]` that its strategy does not take; null and false ask for nothing."""
    named = options.get("strategy")
    strategy = default_strategy(options) if named is None else named
    if strategy not in STRATEGIES:
        return
    for option, strategies in STRATEGIES_TAKING.items():
        value = options.get(option)
        if value is not None and value is not False and strategy not in strategies:
            takers = " or ".join(map(repr, strategies))
            yield Problem(
                ("distribution", option),
                f"is not an option of strategy {strategy!r}",
                f"{show(value)}, strategy {show(strategy)}" + (" (the default)" if named is None else ""),
                f"{option} with strategy {takers}",
                f"remove {option}, or set strategy to {takers}",
            )


def axis_problems(axes: Sequence[str], options: Mapping[str, Any], source: str) -> Iterator[Problem]:
    """The names in `[distribution]` that are not among the `axes` of the mesh, whose shape stands in `source`."""
    for loc, name in _axis_names(options):
        if name not in axes:
            near = nearest(name, axes)
            add = "" if name == UNSHARDED else f", or add {show(name)} to the mesh"
            yield Problem(
                ("distribution", *loc),
                f"the mesh has no axis {name!r}{did_you_mean(name, axes)}",
                show(name),
                f"an axis of the mesh: {', '.join(map(show, axes))} (from {source})",
                f"write {show(near)}" if near else f"write one of these{add}",
            )


def _axis_names(options: Mapping[str, Any]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """The axis names in `[distribution]`, each with the way to it."""
    for option in ("batch_axis", "axis"):
        yield from _names((option,), options.get(option))
    for rule, entries in (as_table(options.get("layout")) or {}).items():
        for dim, entry in enumerate(as_list(entries) or ()):
            if entry != UNSHARDED:
                yield from _names(("layout", str(rule), dim), entry)


def _names(loc: tuple[str | int, ...], value: object) -> Iterator[tuple[tuple[str | int, ...], str]]:
    if isinstance(value, str):
        yield loc, value
    else:
        for index, name in enumerate(as_list(value) or ()):
            if isinstance(name, str) and name != UNSHARDED:
                yield (*loc, index), name
