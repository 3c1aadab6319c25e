"""The schema of config files."""

from __future__ import annotations

import re
from collections import Counter
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from keras_dist._arguments import is_int
from keras_dist._patterns import pattern
from keras_dist.config import mesh_shape
from keras_dist.config.checks import UNSHARDED, as_list, as_table, axis_problems, default_strategy, option_problems
from keras_dist.config.problems import across, refuse, show
from keras_dist.errors import MeshError

LayoutEntry = str | tuple[str, ...] | None
_RULE = "the path of a variable, or a regular expression for whole paths"
_ENTRY = f'an axis name, "{UNSHARDED}" (in quotes) or null for unsharded, or a list of axis names'


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def _axis_name(name: object) -> object:
    problem = mesh_shape.name_problem(name) if isinstance(name, str) else "the name of an axis is not a string"
    if problem:
        raise refuse(problem, allowed=mesh_shape.ALLOWED_NAME, fix='for example "data"')
    return name


def _axis_size(size: object) -> object:
    if not is_int(size, -1) or size == 0:
        what = f"an axis cannot have the size {show(size, with_type=True)}"
        raise refuse(what, allowed=mesh_shape.ALLOWED_SIZE, fix="for example 4, without quotes")
    return size


class MeshConfig(_Table):
    """`[mesh]`: the axes of the device mesh.

    Args:
        shape: size of each axis by name, in order; or the text `"data=2,model=4"`. One size may be -1.

    Example:
        >>> MeshConfig.model_validate({"shape": "data=2,model=4"}).shape
        {'data': 2, 'model': 4}
    """

    shape: dict[Annotated[str, BeforeValidator(_axis_name)], Annotated[int, BeforeValidator(_axis_size)]] = Field(
        description=f'a table with a size for each axis, or text such as "data=2,model=4"; '
        f"a size is {mesh_shape.ALLOWED_SIZE}",
        examples=[{"data": 2, "model": 4}],
    )

    @field_validator("shape", mode="before")
    @classmethod
    def _parse(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        try:
            return mesh_shape.parse_mesh_shape(value)
        except MeshError as error:
            raise refuse(error.summary, allowed=error.expected, fix=error.fix) from error

    @field_validator("shape")
    @classmethod
    def _check_sizes(cls, shape: dict[str, int]) -> dict[str, int]:
        if problem := mesh_shape.sizes_problem(shape.values()):
            allowed = f"at least one axis; a size is {mesh_shape.ALLOWED_SIZE}"
            raise refuse(problem, allowed=allowed, fix='for example {"data": 2, "model": 4}')
        return shape


def _names(value: object) -> tuple[str, ...] | None:
    """`value` as axis names when it is a list of some, each once."""
    names = as_list(value)
    if not names or not all(isinstance(name, str) and name != UNSHARDED for name in names):
        return None
    return tuple(names) if len(set(names)) == len(names) else None


def _batch_axis(value: object) -> object:
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


Entries = Annotated[
    tuple[Annotated[LayoutEntry, BeforeValidator(_entry)], ...],
    BeforeValidator(_entries),
    AfterValidator(_each_axis_once),
]


class DistributionConfig(_Table):
    """`[distribution]`: what lies where on the mesh.

    Args:
        strategy: `"data_parallel"`, `"model_parallel"` or `"fully_sharded"`; by default `"model_parallel"` when there
            is a layout, else `"data_parallel"`.
        batch_axis: the axis of the mesh, or the axes, along which batches lie; None for the first.
        layout: entries of layouts by rule, where a rule is a path or a regular expression for whole paths.
        strict: rules that match no variable raise.
        axis: the axis, or the axes, along which `"fully_sharded"` shards; None for the first.
        min_size_bytes: what is smaller is not sharded by `"fully_sharded"`.
        shard_optimizer: `"data_parallel"` shards optimizer slots.

    Example:
        >>> config = DistributionConfig.model_validate({"layout": {"d1/kernel": ["-", "model"]}})
        >>> config.strategy
        'model_parallel'
        >>> config.layout_axes()
        {'d1/kernel': (None, 'model')}
    """

    strategy: Literal["data_parallel", "model_parallel", "fully_sharded"] = Field(
        default="data_parallel",
        description='"data_parallel", "model_parallel" or "fully_sharded"',
        examples=["data_parallel"],
    )
    batch_axis: Annotated[str | tuple[str, ...] | None, BeforeValidator(_batch_axis)] = None
    layout: dict[Annotated[str, BeforeValidator(_rule)], Entries] | None = Field(
        default=None,
        description=f"a table: path or regular expression -> list with an entry for each dim: {_ENTRY}",
        examples=[{"d1/kernel": ["-", "model"]}],
    )
    strict: bool = Field(default=False, description="true or false", examples=[True])
    axis: Annotated[str | tuple[str, ...] | None, BeforeValidator(_batch_axis)] = None
    min_size_bytes: int | None = Field(default=None, ge=0, description="an integer >= 0", examples=[1024])
    shard_optimizer: bool = Field(default=False, description="true or false", examples=[True])

    def layout_axes(self) -> dict[str, tuple[LayoutEntry, ...]]:
        """The rules as a `LayoutMap` takes them: `{"d1/kernel": (None, "model")}`; empty without a layout."""
        return dict(self.layout or {})

    @model_validator(mode="before")
    @classmethod
    def _default_strategy(cls, value: Any) -> Any:
        options = as_table(value)
        if options is not None and options.get("strategy") is None:
            return {**options, "strategy": default_strategy(options)}
        return value

    @model_validator(mode="after")
    def _check_options(self) -> DistributionConfig:
        across(option_problems({name: getattr(self, name) for name in self.model_fields_set}))
        return self


class RunConfig(_Table):
    """The settings of a run: immutable, and checked as a whole.

    Args:
        mesh: the axes of the device mesh.
        distribution: what lies where on it.

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
    distribution: DistributionConfig = Field(
        default_factory=DistributionConfig,
        description="a table with the keys " + ", ".join(DistributionConfig.model_fields),
        examples=[{"strategy": "data_parallel"}],
    )

    @model_validator(mode="after")
    def _check_axes(self) -> RunConfig:
        across(axis_problems(list(self.mesh.shape), self.distribution.model_dump(), "mesh.shape"))
        return self
