"""The schema of config files, and what must agree between its fields.

Checks across fields read plain tables and pass over values of wrong types, so that a file with other mistakes in it is
checked, too.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self, cast

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ModelWrapValidatorHandler,
    SerializeAsAny,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo

from keras_dist._patterns import pattern
from keras_dist.config import mesh_shape
from keras_dist.config.problems import Problem, Table, across, refuse, show
from keras_dist.errors import MeshError, did_you_mean, nearest

UNSHARDED = "-"
LayoutEntry = str | tuple[str, ...] | None
_RULE = "the path of a variable, or a regular expression for whole paths"
_ENTRY = f'an axis name, "{UNSHARDED}" (in quotes) or null for unsharded, or a list of axis names'


def as_table(value: object) -> dict[Any, Any] | None:
    """Return `value` if it is a table."""
    return cast("dict[Any, Any]", value) if isinstance(value, dict) else None


def as_list(value: object) -> Sequence[Any] | None:
    """Return `value` if it is a list."""
    return cast("Sequence[Any]", value) if isinstance(value, list | tuple) else None


def _axis_name(name: object) -> object:
    problem = mesh_shape.name_problem(name) if isinstance(name, str) else "the name of an axis is not a string"
    if problem:
        raise refuse(problem, allowed=mesh_shape.ALLOWED_NAME, fix='for example "data"')
    return name


def _axis_size(size: object) -> object:
    if type(size) is not int or size < -1 or size == 0:  # `_arguments` would load numpy
        what = f"an axis cannot have the size {show(size, with_type=True)}"
        raise refuse(what, allowed=mesh_shape.ALLOWED_SIZE, fix="for example 4, without quotes")
    return size


_Sizes = dict[Annotated[str, BeforeValidator(_axis_name)], Annotated[int, BeforeValidator(_axis_size)]]


class MeshConfig(Table):
    """`[mesh]`: the axes of the device mesh.

    Args:
        shape: size of each axis by name, in order; or the text `"data=2,model=4"`. One size may be -1.
        dcn_shape: how many slices or processes each axis spans, in the same forms; `shape` is then that of the mesh
            within one of them. An axis that is not named spans one.

    Example:
        >>> MeshConfig.model_validate({"shape": "data=2,model=4"}).shape
        {'data': 2, 'model': 4}
    """

    shape: _Sizes = Field(
        description=f'a table with a size for each axis, or text such as "data=2,model=4"; '
        f"a size is {mesh_shape.ALLOWED_SIZE}",
        examples=[{"data": 2, "model": 4}],
    )
    dcn_shape: _Sizes | None = Field(
        None,
        description="how many slices or processes each axis spans, as a table or text; one that is not named spans one",
        examples=[{"data": 2}],
    )

    @field_validator("shape", "dcn_shape", mode="before")
    @classmethod
    def _parse(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        try:
            return mesh_shape.parse_mesh_shape(value)
        except MeshError as error:
            raise refuse(error.summary, allowed=error.expected, fix=error.fix) from error

    @field_validator("shape", "dcn_shape")
    @classmethod
    def _check_sizes(cls, shape: dict[str, int] | None) -> dict[str, int] | None:
        if shape is not None and (problem := mesh_shape.sizes_problem(shape.values())):
            allowed = f"at least one axis; a size is {mesh_shape.ALLOWED_SIZE}"
            raise refuse(problem, allowed=allowed, fix='for example {"data": 2, "model": 4}')
        return shape


def _names(value: object) -> tuple[str, ...] | None:
    """Return `value` as axis names if it is a list of some, each once."""
    names = as_list(value)
    if not names or not all(isinstance(name, str) and name != UNSHARDED for name in names):
        return None
    return tuple(names) if len(set(names)) == len(names) else None


def _axes(value: object) -> object:
    if value is None or isinstance(value, str):
        return value
    if (names := _names(value)) is None:
        raise refuse(
            "is neither an axis name nor a list of them",
            allowed="an axis name, or a list of axis names, each once",
            fix='for example "data", or ["data", "fsdp"]',
        )
    return names


def _entry(value: object) -> object:
    if value is None or value == UNSHARDED:
        return None
    if isinstance(value, str):
        return value
    if (names := _names(value)) is None:
        raise refuse("is not an entry of a layout", allowed=_ENTRY, fix=f'for example "model", or "{UNSHARDED}"')
    return names


def _entries(value: object) -> object:
    entries = as_list(value)
    if entries is None:
        raise refuse("a layout is a list", allowed=f"an entry for each dim: {_ENTRY}", fix='for example ["-", "model"]')
    return tuple(entries)


def _each_axis_once(entries: tuple[LayoutEntry, ...]) -> tuple[LayoutEntry, ...]:
    names = [name for entry in entries for name in ((entry,) if isinstance(entry, str) else entry or ())]
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise refuse(
            f"axis {repeated[0]!r} appears twice in one layout",
            allowed="each axis of the mesh on one dim at most",
            fix=f'put "{UNSHARDED}" in one of the places',
        )
    return entries


def _rule(rule: object) -> object:
    if not isinstance(rule, str):
        raise refuse("the rule is not a string", allowed=_RULE, fix='put it in quotes, for example "d1/kernel"')
    try:
        pattern(rule)
    except re.error as error:
        raise refuse(
            f"the rule is not a regular expression: {error}",
            allowed=_RULE,
            fix='put a backslash before characters such as "(" that stand for themselves',
        ) from error
    return rule


_NAMES_AXES, _IS_LAYOUT = "names axes of the mesh", "is a layout"
"""Marks of fields whose axes are looked up in the mesh."""

Axes = Annotated[str | tuple[str, ...] | None, BeforeValidator(_axes), _NAMES_AXES]
"""The type of an option that names an axis of the mesh, or several; None for a default."""

Entries = Annotated[
    tuple[Annotated[LayoutEntry, BeforeValidator(_entry)], ...],
    BeforeValidator(_entries),
    AfterValidator(_each_axis_once),
]

Layout = Annotated[dict[Annotated[str, BeforeValidator(_rule)], Entries] | None, _IS_LAYOUT]
"""The type of an option that holds entries of layouts by rule."""


class DistributionConfig(Table):
    """`[distribution]`: the layout of variables and batches on the mesh.

    The options of a strategy are the fields of the subclass whose field `strategy` has its name as `Literal` type and
    default. Defining the subclass is enough for config files to name it.

    Args:
        strategy: its name; by default `"model_parallel"` when there is a layout, else `"data_parallel"`.
        batch_axis: the mesh axis, or axes, over which batches are sharded; None for the first.

    Example:
        >>> config = DistributionConfig.model_validate({"layout": {"d1/kernel": ["-", "model"]}})
        >>> config.strategy
        'model_parallel'
        >>> config.layout_axes()
        {'d1/kernel': (None, 'model')}
    """

    by_name: ClassVar[dict[str, type[DistributionConfig]]] = {}

    strategy: Any  # a Literal in each subclass
    batch_axis: Axes = None

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        name = cls.model_fields["strategy"].default
        if isinstance(name, str):
            DistributionConfig.by_name[name] = cls

    @classmethod
    def fields(cls) -> dict[str, FieldInfo]:
        """Return the options of all strategies by name; those of this one count first."""
        found = dict(cls.model_fields)
        for kind in DistributionConfig.by_name.values():
            found |= {name: field for name, field in kind.model_fields.items() if name not in found}
        return found

    def layout_axes(self) -> dict[str, tuple[LayoutEntry, ...]]:
        """Return the rules as a `LayoutMap` takes them: `{"d1/kernel": (None, "model")}`; empty without a layout."""
        return {}

    @model_validator(mode="wrap")
    @classmethod
    def _of_its_strategy(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        options = as_table(value)
        if options is None or cls is not DistributionConfig:
            return handler(value)
        problems = list(option_problems(options))
        kind = kind_of(options)
        if kind is None:
            across(problems)
            return handler(value)
        named = {**_own_options(kind, options), "strategy": kind.model_fields["strategy"].default}
        found = kind.model_validate(named)
        across(problems)
        return cast("Self", found)


class DataParallelConfig(DistributionConfig):
    """`strategy = "data_parallel"`.

    Args:
        shard_optimizer: whether optimizer slots are sharded.
    """

    strategy: Literal["data_parallel"] = "data_parallel"
    shard_optimizer: bool = Field(default=False, description="true or false", examples=[True])


class ModelParallelConfig(DistributionConfig):
    """`strategy = "model_parallel"`.

    Args:
        layout: layouts by rule, where a rule is a path or a regular expression that matches whole paths.
        strict: whether rules that match no variable raise.
    """

    strategy: Literal["model_parallel"] = "model_parallel"
    layout: Layout = Field(
        default=None,
        description=f"a table: path or regular expression -> list with an entry for each dim: {_ENTRY}",
        examples=[{"d1/kernel": ["-", "model"]}],
    )
    strict: bool = Field(default=False, description="true or false", examples=[True])

    def layout_axes(self) -> dict[str, tuple[LayoutEntry, ...]]:
        """Return the rules as a `LayoutMap` takes them."""
        return dict(self.layout or {})


class FullyShardedConfig(ModelParallelConfig):
    """`strategy = "fully_sharded"`, with the options of `"model_parallel"`, too.

    Args:
        axis: the mesh axis, or axes, over which variables are sharded; None for the first.
        min_size_bytes: smaller variables are not sharded.
    """

    strategy: Literal["fully_sharded"] = "fully_sharded"  # pyright: ignore[reportIncompatibleVariableOverride]
    axis: Axes = None
    min_size_bytes: int | None = Field(default=None, ge=0, description="an integer >= 0", examples=[1024])


def kind_of(options: Mapping[str, Any]) -> type[DistributionConfig] | None:
    """Return the class that describes the options in `[distribution]`; None for an unknown strategy."""
    named = options.get("strategy")
    if named is None:
        named = "data_parallel" if options.get("layout") is None else "model_parallel"
    return DistributionConfig.by_name.get(named) if isinstance(named, str) else None


def _own_options(kind: type[DistributionConfig], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options without those that only other strategies take."""
    return {name: value for name, value in options.items() if name in kind.model_fields or name not in kind.fields()}


def option_problems(options: Mapping[str, Any]) -> Iterator[Problem]:
    """Return an unknown strategy, or the options that it does not take; null and false ask for nothing."""
    strategies, named, kind = DistributionConfig.by_name, options.get("strategy"), kind_of(options)
    if kind is None:
        text = named if isinstance(named, str) else ""
        near = nearest(text, strategies)
        *others, last = map(show, strategies)
        yield Problem(
            ("distribution", "strategy"),
            f"unknown value{did_you_mean(text, strategies)}",
            show(named),
            f"{', '.join(others)} or {last}; one of your own when its module has been imported",
            f"write {show(near)}" if near else f"for example {show(next(iter(strategies)))}",
        )
        return
    strategy = kind.model_fields["strategy"].default
    for option in (name for name in kind.fields() if name not in kind.model_fields):
        value = options.get(option)
        if value is not None and value is not False:
            takers = " or ".join(repr(name) for name, one in strategies.items() if option in one.model_fields)
            yield Problem(
                ("distribution", option),
                f"is not an option of strategy {strategy!r}",
                f"{show(value)}, strategy {show(strategy)}" + (" (the default)" if named is None else ""),
                f"{option} with strategy {takers}",
                f"remove {option}, or set strategy to {takers}",
            )


def axis_problems(axes: Sequence[str], options: Mapping[str, Any], source: str) -> Iterator[Problem]:
    """Yield the names in `[distribution]` that are not among the `axes` of the mesh, whose shape `source` gives."""
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
    """Return the axis names in `[distribution]`, each with the way to it."""
    for option, field in (kind_of(options) or DistributionConfig).fields().items():
        if _NAMES_AXES in field.metadata:
            yield from _names_in((option,), options.get(option))
        elif _IS_LAYOUT in field.metadata:
            for rule, entries in (as_table(options.get(option)) or {}).items():
                for dim, entry in enumerate(as_list(entries) or ()):
                    if entry != UNSHARDED:
                        yield from _names_in((option, str(rule), dim), entry)


def _names_in(loc: tuple[str | int, ...], value: object) -> Iterator[tuple[tuple[str | int, ...], str]]:
    if isinstance(value, str):
        yield loc, value
    else:
        for index, name in enumerate(as_list(value) or ()):
            if isinstance(name, str) and name != UNSHARDED:
                yield (*loc, index), name


class RunConfig(Table):
    """The settings of a run: immutable, and checked as a whole.

    Args:
        mesh: the axes of the device mesh.
        distribution: the layout on it.

    Raises:
        pydantic.ValidationError: something is missing, unknown or not allowed (`load` makes a `ConfigError` of it).

    Example:
        >>> config = RunConfig.model_validate({"mesh": {"shape": {"data": 8}}})
        >>> config.distribution.strategy
        'data_parallel'
    """

    mesh: MeshConfig = Field(
        description="a table with the key shape",
        examples=[{"shape": {"data": 2, "model": 4}}],
    )
    distribution: SerializeAsAny[DistributionConfig] = Field(
        default_factory=DataParallelConfig,
        description="a table with the keys strategy, batch_axis, and those of the strategy",
        examples=[{"strategy": "data_parallel"}],
    )

    @model_validator(mode="after")
    def _check_axes(self) -> RunConfig:
        across(axis_problems(list(self.mesh.shape), self.distribution.model_dump(), "mesh.shape"))
        return self
