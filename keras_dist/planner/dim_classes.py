"""`dim_classes`: dims of a model's weights and inputs that must be sharded alike, found in its traced train step."""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from keras_dist._support import dim_names
from keras_dist._support.text_tables import Table, render
from keras_dist._support.types import PyTree
from keras_dist._unstable import shardy
from keras_dist.distribution.devices import list_devices
from keras_dist.distribution.layout import Axis, TensorLayout
from keras_dist.distribution.layout_map import LayoutMap
from keras_dist.distribution.mesh import DeviceMesh, axis_tuple
from keras_dist.distribution.model_parallel import ModelParallel
from keras_dist.distribution.plan import FOLLOWS, Row
from keras_dist.distribution.render import render_bytes
from keras_dist.distribution.tracing import without_kernels
from keras_dist.errors import LayoutError, unknown_name_error
from keras_dist.planner.candidates import Screen
from keras_dist.planner.dim_graph import PASSES, DimGraph, Event
from keras_dist.planner.propagated import Propagated
from keras_dist.planner.tracing import StepProgram, trace_step

INPUTS = "input/"
"""Prefix of the arrays of a batch that rules can match; of other arrays only the rows are sharded."""

_MOST_PATHS = 4


@dataclasses.dataclass(frozen=True)
class DimClass:
    """Dims that must be sharded alike. Equivalent dims of repeated blocks are one class.

    Attributes:
        name: `batch`, `sequence`, `spatial`, `embed`, `mlp`, `heads`, `experts`, `vocab` or `channels`, with a number
            for further classes, as `mlp2`; else a number, as `dim7`.
        size: greatest common divisor of `parts`: a number of shards that divides it can shard all members.
        members: path and dim of each weight, and of each array of the batch.
        parts: for each member, its size, or the number of parts that it consists of: a projection to 4 heads of 12 has
            4 parts. A number of shards must divide it.
        nbytes: bytes of the weights of the class.
    """

    name: str
    size: int
    members: tuple[tuple[str, int], ...]
    parts: tuple[int, ...]
    nbytes: int

    def describe(self) -> str:
        """Return size and members in a line, as `size 256, of hidden/bias dim 0, hidden/kernel dim 1`."""
        listed = [f"{path} dim {dim}" for path, dim in self.members[:_MOST_PATHS]]
        more = len(self.members) - len(listed)
        return f"size {self.size}, of {', '.join(listed)}" + f" and {more} more" * (more > 0)


class DimClasses:
    """The classes of a model's dims, in the order of first use in the step. Printing it shows a table.

    Attributes:
        program: the train step.
        logical_names: names of dims that the model itself defines.
    """

    def __init__(
        self,
        program: StepProgram,
        found: Sequence[DimClass],
        dims: Mapping[str, Sequence[Dim]],
        logical_names: Iterable[str] = (),
    ) -> None:
        self.program = program
        self.logical_names = tuple(dict.fromkeys(logical_names))
        self._classes = {each.name: each for each in found}
        self._dims = dims
        self._costs: dict[tuple[str, int], Propagated] = {}

    def __iter__(self) -> Iterator[DimClass]:
        return iter(self._classes.values())

    def __len__(self) -> int:
        return len(self._classes)

    def __contains__(self, name: object) -> bool:
        return name in self._classes

    def __getitem__(self, name: str) -> DimClass:
        if not isinstance(name, str) or name not in self._classes:  # pyright: ignore[reportUnnecessaryIsInstance]
            fix = "print(kd.planner.dim_classes(model, batch)) lists the classes"
            raise unknown_name_error("the model has no dims", name, self._classes, fix=fix, error=LayoutError)
        return self._classes[name]

    @functools.cached_property
    def screen(self) -> Screen:
        """The step, for propagation of other layouts."""
        return Screen(self.program)

    def names_of(self, path: str) -> tuple[str | None, ...]:
        """Return the class of each dim of an array of the state or the batch; None for a dim without one."""
        return tuple(name for name, _ in self._dims[path])

    def layouts(
        self, rules: Mapping[str, Axis], sizes: Mapping[str, int]
    ) -> tuple[dict[str, tuple[Axis, ...]], list[Unsharded]]:
        """Return layouts for axes of classes, and the dims that stay unsharded.

        A dim stays unsharded if its axes do not divide it, or if another dim of the array uses the same axis.

        Args:
            rules: for names of classes a mesh axis, several, or None.
            sizes: sizes of the axes of the mesh.

        Returns:
            The layouts of all arrays of state and batch that are sharded, and the unsharded dims of arrays other than
            optimizer slots.
        """
        own = {path for each in self for path, _ in each.members}
        rowwise = {row.path for row in self.program.batch.rows if not row.path.startswith(INPUTS)}
        layouts: dict[str, tuple[Axis, ...]] = {}
        left: list[Unsharded] = []
        for path, dims in self._dims.items():
            used: set[str] = set()
            axes: list[Axis] = []
            for dim, (name, parts) in enumerate(dims[:1] if path in rowwise else dims):
                asked = axis_tuple(rules.get(name)) if name is not None else ()
                shards = math.prod(sizes[axis] for axis in asked)
                reason = ""
                if used & set(asked):
                    reason = "another dim is sharded over the same axis"
                elif parts % shards and name != "batch":  # rows of a batch are padded
                    reason = f"{shards} does not divide {parts}"
                if reason and path in own:
                    left.append(Unsharded(path, dim, str(name), reason))
                asked = () if reason else asked
                axes.append(None if not asked else asked[0] if len(asked) == 1 else asked)
                used |= set(asked)
            if used:
                layouts[path] = (*axes, *[None] * (len(dims) - len(axes)))
        return layouts, left

    def cost_of(self, name: str, shards: int | None = None) -> Propagated:
        """Return the figures of the step if this class alone is sharded.

        Args:
            name: name of the class.
            shards: number of devices. By default the smallest divisor of the size of the class.

        Raises:
            LayoutError: the class does not exist, or `shards` does not divide its size.
        """
        size = self[name].size
        if shards is None:
            shards = next((each for each in range(2, size + 1) if size % each == 0), 1)
        if size % shards:
            summary = f"`shards` must be a divisor of {size}, the size of class {name!r}"
            raise LayoutError(summary, given=f"shards={shards}", fix="leave `shards` out")
        key = name, shards
        if key not in self._costs:
            sizes = {"shards": shards}
            self._costs[key] = self.screen.propagate(sizes, self.layouts({name: "shards"}, sizes)[0])
        return self._costs[key]

    def __str__(self) -> str:
        headers = ("class", "size", "members", "bytes of weights", "sharded over 2 devices or more it causes")
        table = Table("Dims that must be sharded alike", headers, numbers=("size", "bytes of weights"))
        for each in self:
            listed = [f"{path}[{dim}]" for path, dim in each.members]
            if len(listed) > _MOST_PATHS:
                listed[_MOST_PATHS:] = [f"and {len(listed) - _MOST_PATHS} more"]
            causes = render_collectives(self.cost_of(each.name)) if each.size > 1 else "-"
            table.rows.append((each.name, str(each.size), "\n".join(listed), render_bytes(each.nbytes), causes))
        return render(table)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {', '.join(f'{each.name}={each.size}' for each in self)}>"


@dataclasses.dataclass(frozen=True)
class Unsharded:
    """A dim that stays unsharded although its class is sharded.

    Attributes:
        path: path of the array.
        dim: index of the dim.
        name: name of the class.
        reason: the reason.
    """

    path: str
    dim: int
    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name} in dim {self.dim} of {self.path!r}: {self.reason}"


def dim_classes(model_or_factory: Any, batch: PyTree, optimizer: Any = None, loss: Any = None) -> DimClasses:
    """Find the dims of weights and inputs that must be sharded alike, in the traced train step. Nothing is allocated.

    Classes and their names follow from Shardy's sharding rules of the operations, not from names of layers or
    parameters. So scans, tied weights, convolutions and foreign modules are supported.

    Args:
        model_or_factory: as for `kd.plan`.
        batch: `x`, `(x, y)` or `(x, y, sample_weight)`: arrays or `jax.ShapeDtypeStruct`s, or pytrees of them.
        optimizer: replaces the optimizer of `compile`. Default without `compile`: `"adam"`.
        loss: replaces the loss of `compile`. Default without `compile`: mean square of the outputs, without targets.

    Raises:
        DataError: the arrays of the batch have different lengths, or the targets of the loss are missing.
        ModelError: `model_or_factory` is not a model, or does not accept the batch.

    Example:
        >>> import keras_dist as kd, numpy as np
        >>> mlp = lambda: kd.Sequential([kd.Input((16,)), kd.layers.Dense(64, "relu"), kd.layers.Dense(16)])
        >>> kd.planner.dim_classes(mlp, np.zeros((8, 16), "float32"))
        <DimClasses batch=8, dim1=16, mlp=64, dim3=16>

    Source: https://openxla.org/shardy/sharding_representation
    """
    one_device = OneDevice()
    with without_kernels():
        program = trace_step(model_or_factory, batch, one_device, optimizer, loss)
    return classes_of(program, one_device.own_names)


class OneDevice(ModelParallel):
    """Distribution for tracing a step before its layouts are known; it records the dim names in the model.

    Factors of LoRA have a reason: they need no rules.
    """

    def __init__(self, axis_names: Sequence[str] = ("batch",)) -> None:
        super().__init__(LayoutMap(DeviceMesh([1] * len(axis_names), axis_names, list_devices()[:1])))
        self.own_names: dict[str, tuple[Any, ...]] = {}

    def get_variable_layout(self, variable: Any) -> TensorLayout:
        """Return a replicated layout, and note the names of the dims."""
        own = getattr(variable, "own", None)
        if own is not None and own.layout is None:
            self.own_names[variable.path] = own.entries
        elif names := dim_names.for_rules(variable.dim_names):
            self.own_names[variable.path] = names
        layout, factor_of = TensorLayout.replicated(len(variable.shape), self.device_mesh), variable.factor_of
        return layout if factor_of is None else layout.because(f"{FOLLOWS}{factor_of[0].path}")


def classes_of(program: StepProgram, own_names: Mapping[str, Sequence[Any]] | None = None) -> DimClasses:
    """Find the classes of dims in a traced step; `own_names` are the names that the model gives to dims, by path."""
    names = own_names or {}
    batch = {row.path: row for row in program.batch.rows}
    state = {row.path: row for row in program.state.rows}
    module = shardy.copy_of(program.lowered)
    shardy.run_passes(module, PASSES)
    graph = DimGraph(module, [path in batch for path in program.arguments])
    order, events = graph.order(), graph.events()
    members: dict[Any, list[_Member]] = collections.defaultdict(list)
    for index, path in enumerate(program.arguments):
        row = state.get(path) or batch.get(path)
        if row is not None:
            for dim in range(len(row.shape)):
                members[graph.class_of(index, dim)].append(_Member(path, dim, graph.parts_of(index, dim), row))
    groups: list[_Group] = []
    for root in sorted(members, key=lambda each: order.get(each, len(order))):  # dims that no operation orders: last
        own = [member for member in members[root] if member.row.role in _OWN]
        if own:
            given = {names[path][dim] for path, dim, *_ in own if dim < len(names.get(path, ()))} - {None}
            kind = str(given.pop()) if len(given) == 1 else _kind(events.get(root, []), own)
            size = math.gcd(*(member.parts for member in own))
            signature = kind, size, frozenset(events.get(root, []))
            paths = {member.row.path for member in own}
            alike = (each for each in groups if each.signature == signature and not each.paths & paths)
            group = next(alike, None)
            if group is None:
                groups.append(group := _Group(signature))
            group.members += members[root]
            group.paths |= paths
    return _named(program, groups, [name for entries in names.values() for name in entries if isinstance(name, str)])


_OWN = ("parameter", "statistic", "batch")
"""Roles of arrays that are listed as members; others have the layouts of these."""

Dim = tuple[str | None, int]
"""Class of a dim, and the number of parts that a number of shards must divide."""


class _Member(NamedTuple):
    path: str
    dim: int
    parts: int
    row: Row


@dataclasses.dataclass
class _Group:
    """Equivalent classes of repeated blocks; no two of them are dims of one array."""

    signature: tuple[str, int, frozenset[Event]]
    members: list[_Member] = dataclasses.field(default_factory=list)
    paths: set[str] = dataclasses.field(default_factory=set)


def _kind(events: Sequence[Event], members: Sequence[_Member]) -> str:
    """Return the kind of a class, by the events of its dims in program order, or an empty string."""
    seen, in_batch = set(events), any(member.row.role == "batch" for member in members)
    if any(member.row.role == "batch" and member.dim == 0 for member in members):
        return "batch"
    if in_batch and not seen & {"produced", "consumed", "looked up", "channel"}:
        return "spatial" if "spatial" in seen else "sequence"
    if "indexed" in seen:
        return "vocab"
    if "batched" in seen and "stacked" not in seen:
        return "heads"
    made = [event in ("produced", "looked up") for event in events if event in ("produced", "looked up", "consumed")]
    returns = any(not before and after for before, after in itertools.pairwise(made))
    if (returns or ("looked up" in seen and "consumed" in seen)) and events.count("channel") < 2:
        return "embed"
    if "channel" in seen:
        return "channels"
    if "produced" in seen and "consumed" in seen and made[0] and "contracted" not in seen:
        return "mlp"
    if "produced" in seen and "consumed" not in seen and "reduced" in seen:
        return "vocab"
    return ""


def _named(program: StepProgram, groups: Sequence[_Group], logical_names: Sequence[str]) -> DimClasses:
    counts: collections.Counter[str] = collections.Counter()
    ranks = {row.path: len(row.shape) for row in (*program.state.rows, *program.batch.rows)}
    dims: dict[str, list[Dim]] = {path: [(None, 1)] * rank for path, rank in ranks.items()}
    found: list[DimClass] = []
    for number, group in enumerate(groups):
        kind, size, _ = group.signature
        counts[kind] += 1
        name = f"dim{number}" if not kind else kind if counts[kind] == 1 else f"{kind}{counts[kind]}"
        own = [member for member in group.members if member.row.role in _OWN]
        for member in group.members:
            dims[member.path][member.dim] = (name, member.parts)
        weights = {member.row.path: member.row.nbytes for member in own if member.row.role != "batch"}
        members = tuple((member.path, member.dim) for member in own)
        found.append(DimClass(name, size, members, tuple(member.parts for member in own), sum(weights.values())))
    return DimClasses(program, found, dims, logical_names)


def render_collectives(step: Propagated) -> str:
    """Describe the collectives of a step by kind: `all_reduce of 1.8 MiB in 4 places`."""
    nbytes: collections.Counter[str] = collections.Counter()
    places: collections.Counter[str] = collections.Counter()
    for each in step.collectives:
        nbytes[each.kind] += each.nbytes_per_step
        places[each.kind] += max(each.turns, 1)
    lines = [
        f"{kind} of {render_bytes(size)} in {places[kind]} place{'s' if places[kind] > 1 else ''}"
        for kind, size in nbytes.items()
    ]
    return "\n".join(lines) or "nothing"
