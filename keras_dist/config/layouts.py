"""The tables `[mesh]` and `[distribution]` of a config.

Axis names are looked up while pydantic validates a field, in its validation context: pydantic knows the position of
each name, and a later check would not run where anything else is wrong.
"""

from __future__ import annotations

import re
import typing
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self, cast

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    ModelWrapValidatorHandler,
    Tag,
    ValidationInfo,
    field_validator,
    model_validator,
)

from keras_dist._support.safe_patterns import pattern
from keras_dist.config import mesh_shape
from keras_dist.config.problems import ConfigTable, Loc, Problem, as_table, as_tuple, refuse, show
from keras_dist.errors import MeshError, did_you_mean, nearest

UNSHARDED = "-"
LayoutEntry = str | tuple[str, ...] | None
_ENTRY = f'an axis name, "{UNSHARDED}" (in quotes) or null for unsharded, or a list of axis names'
_RULE = "the path of a variable, or a regular expression for whole paths"

MESH_AXES = "mesh_axes"
"""Key of the names of the mesh's axes in the validation context; empty if they are not known."""


def _axis_name(name: object) -> object:
    problem = mesh_shape.name_problem(name) if isinstance(name, str) else "the name of an axis is not a string"
    if problem:
        raise refuse(problem, allowed=mesh_shape.ALLOWED_NAME, fix='for example "data"')
    return name


def _axis_size(size: object) -> object:
    if type(size) is not int or size < -1 or size == 0:
        what = f"an axis cannot have the size {show(size, with_type=True)}"
        raise refuse(what, allowed=mesh_shape.ALLOWED_SIZE, fix="for example 4, without quotes")
    return size


_Sizes = dict[Annotated[str, BeforeValidator(_axis_name)], Annotated[int, BeforeValidator(_axis_size)]]


class MeshConfig(ConfigTable):
    """`[mesh]`: the axes of the device mesh.

    Args:
        shape: size of each axis by name, in order; or the text `"data=2,model=4"`. One size may be -1.
        dcn_shape: number of slices or processes along each axis, in the same forms, 1 by default. `shape` is then the
            shape within a slice or process.

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
        description="the number of slices or processes along each axis (by default 1), as a table or text",
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
        sizes = () if shape is None else shape.values()
        if shape is not None and (problem := mesh_shape.sizes_problem(sizes) or mesh_shape.count_problem(sizes)):
            most = f"{mesh_shape.MOST_DEVICES:,} devices"
            allowed = f"at least one axis, and at most {most}; a size is {mesh_shape.ALLOWED_SIZE}"
            raise refuse(problem, allowed=allowed, fix='for example {"data": 2, "model": 4}')
        return shape

    @field_validator("dcn_shape")
    @classmethod
    def _check_spans(cls, spans: dict[str, int] | None, info: ValidationInfo) -> dict[str, int] | None:
        shape: dict[str, int] = info.data.get("shape") or {}
        if foreign := [name for name in spans or () if shape and name not in shape]:
            summary = f"mesh.shape has no axis {foreign[0]!r}{did_you_mean(foreign[0], shape)}"
            fix = f"write one of these, or add {show(foreign[0])} to mesh.shape, with its size in a slice, such as 1"
            raise refuse(summary, allowed=f"an axis of mesh.shape: {', '.join(map(show, shape))}", fix=fix)
        if problem := mesh_shape.count_problem((*shape.values(), *(spans or {}).values())):
            allowed = f"with mesh.shape at most {mesh_shape.MOST_DEVICES:,} devices"
            raise refuse(problem, allowed=allowed, fix="write smaller sizes")
        return spans


def _in_mesh(name: str, info: ValidationInfo) -> str:
    context = cast("dict[str, Any]", info.context or {})
    axes: tuple[str, ...] = context.get(MESH_AXES, ())
    if axes and name not in axes:
        near = nearest(name, axes)
        source = context.get("mesh", "mesh.shape")
        add = "" if name == UNSHARDED else f", or add {show(name)} to the mesh"
        allowed = f"an axis of the mesh: {', '.join(map(show, axes))} (from {source})"
        fix = f"write {show(near)}" if near else f"write one of these{add}"
        raise refuse(f"the mesh has no axis {name!r}{did_you_mean(name, axes)}", allowed=allowed, fix=fix)
    return name


def _each_once(entries: tuple[LayoutEntry, ...]) -> tuple[LayoutEntry, ...]:
    names = Counter(name for entry in entries for name in ((entry,) if isinstance(entry, str) else entry or ()))
    if repeated := [name for name, count in names.items() if count > 1]:
        allowed = "each axis of the mesh on one dim at most, and each once"
        fix = f'put "{UNSHARDED}" in one of the places'
        raise refuse(f"axis {repeated[0]!r} appears twice in one layout", allowed=allowed, fix=fix)
    return entries


def _rule(rule: object) -> object:
    if not isinstance(rule, str):
        raise refuse("the rule is not a string", allowed=_RULE, fix='put it in quotes, for example "d1/kernel"')
    try:
        pattern(rule)
    except re.error as error:
        fix = 'put a backslash before characters such as "(" that stand for themselves'
        raise refuse(f"the rule is not a regular expression: {error}", allowed=_RULE, fix=fix) from error
    return rule


def _strategy_in(options: Mapping[str, Any]) -> Any:
    default = "data_parallel" if options.get("layout") is None else "model_parallel"
    return default if options.get("strategy") is None else options["strategy"]


def _form(value: object) -> str:
    return "none" if value is None else "name" if isinstance(value, str) else "names"


_Name = Annotated[str, AfterValidator(_in_mesh)]
_Names = Annotated[tuple[_Name, ...], Field(min_length=1), BeforeValidator(as_tuple), AfterValidator(_each_once)]
_Entry = Annotated[
    Annotated[None, Tag("none")] | Annotated[_Name, Tag("name")] | Annotated[_Names, Tag("names")], Discriminator(_form)
]

Axes = Annotated[
    _Entry, Field(description="an axis name, or a list of axis names, each once", examples=["data", ["data", "fsdp"]])
]
"""Type of an option for an axis of the mesh, or several; None for a default."""

Layout = Annotated[
    dict[
        Annotated[str, BeforeValidator(_rule)],
        Annotated[
            tuple[Annotated[_Entry, BeforeValidator(lambda entry: None if entry == UNSHARDED else entry)], ...],
            BeforeValidator(as_tuple),
            AfterValidator(_each_once),
        ],
    ]
    | None,
    Field(
        description=f"a table: path or regular expression -> list with an entry for each dim: {_ENTRY}",
        examples=[{"d1/kernel": ["-", "model"]}],
    ),
]
"""Type of an option for layouts by rule."""

_Axis = Annotated[_Name | None, Field(description="an axis name", examples=["model"])]
_Flag = Annotated[bool, Field(description="true or false", examples=[True])]


class DistributionConfig(ConfigTable):
    """`[distribution]`: the layout of variables and batches on the mesh.

    Each subclass has the options of a strategy; its field `strategy` has the name of the strategy as `Literal` type and
    default. Defining a subclass registers the strategy for config files.

    Args:
        strategy: name of the strategy. By default `"model_parallel"` with a layout, else `"data_parallel"`.
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
        DistributionConfig.by_name |= dict.fromkeys(typing.get_args(cls.model_fields["strategy"].annotation), cls)

    @classmethod
    def described_by(cls, given: object) -> type[DistributionConfig]:
        """Return the class of the strategy in a table; this class for an unknown strategy."""
        name = _strategy_in(as_table(given) or {})
        return DistributionConfig.by_name.get(name, cls) if isinstance(name, str) else cls

    @classmethod
    def key_names(cls) -> list[str]:
        """Return the options of all strategies; options of this strategy come first."""
        kinds = (cls, *DistributionConfig.by_name.values())
        return list(dict.fromkeys(name for kind in kinds for name in kind.model_fields))

    @classmethod
    def unknown(cls, loc: Loc, beside: object) -> Problem | None:
        """Return the problem with an option that the strategy does not have; None if the strategy is unknown."""
        option, table = str(loc[-1]), as_table(beside) or {}
        if option not in cls.key_names():
            return super().unknown(loc, beside)
        if cls is DistributionConfig:
            return None
        takers = " or ".join(repr(name) for name, one in cls.by_name.items() if option in one.model_fields)
        strategy, default = _strategy_in(table), "" if table.get("strategy") else " (the default)"
        return Problem(
            loc,
            f"is not an option of strategy {strategy!r}",
            f"{show(table.get(option))}, strategy {show(strategy)}{default}",
            f"{option} with strategy {takers}",
            f"remove {option}, or set strategy to {takers}",
        )

    def layout_axes(self) -> dict[str, tuple[LayoutEntry, ...]]:
        """Return rules for a `LayoutMap`: `{"d1/kernel": (None, "model")}`; empty without a layout."""
        return {}

    @field_validator("strategy", mode="before")
    @classmethod
    def _known(cls, name: object) -> object:
        strategies = DistributionConfig.by_name
        if cls is DistributionConfig and name not in [*strategies]:
            text = name if isinstance(name, str) else ""
            near = nearest(text, strategies)
            *others, last = map(show, strategies)
            allowed = f"{', '.join(others)} or {last}; or a registered strategy of an imported module"
            fix = f"write {show(near)}" if near else f"for example {show(next(iter(strategies)))}"
            raise refuse(f"unknown value{did_you_mean(text, strategies)}", allowed=allowed, fix=fix)
        return name

    @model_validator(mode="wrap")
    @classmethod
    def _of_its_strategy(cls, value: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo) -> Self:
        options = value.model_dump() if isinstance(value, DistributionConfig) else as_table(value)
        kind = cls.described_by(options)
        if options is None or cls is not DistributionConfig or kind is cls:
            return handler(value)
        foreign = set(cls.key_names()) - set(kind.model_fields)  # allowed if null or false
        asked = {name: one for name, one in options.items() if name not in foreign or not (one is None or one is False)}
        named = {**asked, "strategy": _strategy_in(options)}
        return cast("Self", kind.model_validate(named, context=info.context))


class DataParallelConfig(DistributionConfig):
    """`strategy = "data_parallel"`.

    Args:
        shard_optimizer: whether optimizer slots are sharded.
    """

    strategy: Literal["data_parallel"] = "data_parallel"
    shard_optimizer: _Flag = False


class ModelParallelConfig(DistributionConfig):
    """`strategy = "model_parallel"`.

    Args:
        layout: layouts by rule, where a rule is a path or a regular expression that matches whole paths.
        strict: whether rules that match no variable raise.
        sequence_axis: the mesh axis of positions; None for none.
    """

    strategy: Literal["model_parallel"] = "model_parallel"
    layout: Layout = None
    strict: _Flag = False
    sequence_axis: _Axis = None

    def layout_axes(self) -> dict[str, tuple[LayoutEntry, ...]]:
        """Return the rules for a `LayoutMap`."""
        return dict(self.layout or {})


class FullyShardedConfig(ModelParallelConfig):
    """`strategy = "fully_sharded"`, which also has the options of `"model_parallel"`.

    Args:
        axis: the mesh axis, or axes, over which variables are sharded; None for the first.
        min_size_bytes: smaller variables are not sharded.
    """

    strategy: Literal["fully_sharded"] = "fully_sharded"  # pyright: ignore[reportIncompatibleVariableOverride]
    axis: Axes = None
    min_size_bytes: int | None = Field(default=None, ge=0, description="an integer >= 0", examples=[1024])


class FoundConfig(DistributionConfig):
    """Strategies that find dims in the model's step, and so need `[model]` and `[data]`, or have no options."""

    strategy: Any
    batch_axis: None = Field(  # pyright: ignore[reportIncompatibleVariableOverride]
        default=None, description="nothing: the strategy chooses the axes of the batch"
    )


class AutoConfig(FoundConfig):
    """`strategy = "auto"`: `keras_dist.planner.AutoParallel` finds the layout.

    Args:
        objective: the quantity to minimize.
        target: the machine to optimize for, such as `"v5e:2x4"`; None for no machine in particular.
        memory_limit: memory of a device [bytes]; None for the memory of the target.
    """

    strategy: Literal["auto"] = "auto"
    target: str | None = None
    objective: Literal["step_time", "memory"] = "step_time"
    memory_limit: int | None = Field(default=None, ge=1)


class Zero1Config(FoundConfig):
    """`strategy = "zero1"`: `keras_dist.presets.zero1`."""

    strategy: Literal["zero1"] = "zero1"


class PresetConfig(FoundConfig):
    """The strategies of `keras_dist.presets` that shard dims over one axis.

    Args:
        axis: the mesh axis; None for the last.
    """

    strategy: Literal["tensor_parallel", "sequence_parallel", "spatial"]
    axis: _Axis = None


class HybridConfig(FoundConfig):
    """`strategy = "hybrid"`: `keras_dist.presets.hybrid`.

    Args:
        fsdp: the mesh axis, or axes, over which variables are fully sharded; None for all but `tensor`.
        tensor: the mesh axis over which layers are sharded; None for the last.
    """

    strategy: Literal["hybrid"] = "hybrid"
    fsdp: Axes = None
    tensor: _Axis = None
