"""`dim_classes`: which dims of a model's weights and inputs must be sharded alike, found in its traced train step."""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from keras_dist._support.text_tables import Table, render
from keras_dist._support.types import PyTree
from keras_dist._unstable import shardy
from keras_dist.distribution.devices import list_devices
from keras_dist.distribution.layout import Axis, TensorLayout
from keras_dist.distribution.layout_map import LayoutMap
from keras_dist.distribution.mesh import DeviceMesh, axis_tuple
from keras_dist.distribution.model_parallel import ModelParallel
from keras_dist.distribution.plan import Row
from keras_dist.distribution.render import render_bytes
from keras_dist.errors import LayoutError, unknown_name_error
from keras_dist.planner.candidates import Screen
from keras_dist.planner.dim_graph import PASSES, DimGraph, Event
from keras_dist.planner.propagation import Propagated
from keras_dist.planner.tracing import StepProgram, trace_step

INPUTS = "input/"
"""What names of arrays begin with for which there are rules; of the others in a batch the rows alone are sharded."""

_MOST_PATHS = 4


@dataclasses.dataclass(frozen=True)
class DimClass:
    """Dims that must be sharded alike.

    Repeated blocks, whose dims do the same but are not connected, are one class.

    Attributes:
        name: what they are: `batch`, `sequence`, `spatial`, `embed`, `mlp`, `heads`, `vocab`, `channels`, else a number
            as `dim7`; a number is added where several classes are the same, as in `mlp2`.
        size: what a number of shards must divide so that all of them can be sharded: their size, or the greatest common
            divisor of their sizes, and of those of what they fall into: a projection to 4 heads of 12 has size 4.
        members: path and dim of each weight, and each array of the batch.
        parts: for each member what a number of shards must divide so that it can be sharded itself.
        nbytes: bytes of the weights among them.
    """

    name: str
    size: int
    members: tuple[tuple[str, int], ...]
    parts: tuple[int, ...]
    nbytes: int


class DimClasses:
    """The classes of a model's dims, in the order in which the step comes to them. Printing it gives a table.

    Attributes:
        program: the train step that they were found in.
        logical_names: the names that the model itself gives to dims.
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
            fix = "print(kd.planner.dim_classes(model, batch)) shows them"
            raise unknown_name_error("the model has no dims", name, self._classes, fix=fix, error=LayoutError)
        return self._classes[name]

    @functools.cached_property
    def screen(self) -> Screen:
        """The step, to be propagated under other layouts."""
        return Screen(self.program)

    def names_of(self, path: str) -> tuple[str | None, ...]:
        """Return the class of each dim of an array of the state or the batch; None for a dim without one."""
        return tuple(name for name, _ in self._dims[path])

    def layouts(
        self, rules: Mapping[str, Axis], sizes: Mapping[str, int]
    ) -> tuple[dict[str, tuple[Axis, ...]], list[Unsharded]]:
        """Return the layouts that follow from axes for classes, and what they leave unsharded.

        A dim that its axes do not divide stays whole, and so does a second dim of an array over the same axis.

        Args:
            rules: for each name of a class a mesh axis, several, or None.
            sizes: the axes of the mesh.

        Returns:
            For each array of the state and the batch that has such dims the axes of all its dims; and of those that are
            no optimizer slots what stays whole.
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
                    reason = "another dim lies over the same axis"
                elif parts % shards and name != "batch":  # whose rows are padded
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
        """Return what the step needs where this class alone is sharded.

        Args:
            name: the class.
            shards: over how many devices; by default the smallest number that divides its size.

        Raises:
            LayoutError: there is no such class, or the number does not divide its size.
        """
        size = self[name].size
        if shards is None:
            shards = next((each for each in range(2, size + 1) if size % each == 0), 1)
        if size % shards:
            given = f"shards={shards}"
            fix = "leave `shards` out"
            raise LayoutError(f"`shards` must be a divisor of {size}, the size of class {name!r}", given=given, fix=fix)
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
            listed = [
                *listed[:_MOST_PATHS],
                *([f"and {len(listed) - _MOST_PATHS} more"] if len(listed) > _MOST_PATHS else []),
            ]
            causes = render_collectives(self.cost_of(each.name)) if each.size > 1 else "-"
            table.rows.append((each.name, str(each.size), "\n".join(listed), render_bytes(each.nbytes), causes))
        return render(table)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {', '.join(f'{each.name}={each.size}' for each in self)}>"


@dataclasses.dataclass(frozen=True)
class Unsharded:
    """A dim that stays whole although a rule is for its class.

    Attributes:
        path: the array.
        dim: which of its dims.
        name: the class.
        reason: why.
    """

    path: str
    dim: int
    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name} in dim {self.dim} of {self.path!r}: {self.reason}"


def dim_classes(model_or_factory: Any, batch: PyTree, optimizer: Any = None, loss: Any = None) -> DimClasses:
    """Find which dims of weights and inputs must be sharded alike, in the traced train step. Allocates nothing.

    Classes come from what Shardy knows of each operation, and so do their names: no names of layers or parameters
    count, and no table says what a layer does. Scans, tied weights, convolutions and modules of others
    are seen as they are.

    Args:
        model_or_factory: as for `kd.plan`.
        batch: `x`, `(x, y)` or `(x, y, sample_weight)`: arrays or `jax.ShapeDtypeStruct`s, or pytrees of them.
        optimizer: in place of that of `compile`; without any `"adam"`.
        loss: in place of that of `compile`; without any the mean square of the outputs, which needs no targets.

    Raises:
        DataError: the arrays of the batch have different lengths, or the loss needs targets that are not there.
        ModelError: there is no model, or it does not take the batch.

    Example:
        >>> import keras_dist as kd, numpy as np
        >>> mlp = lambda: kd.Sequential([kd.Input((16,)), kd.layers.Dense(64, "relu"), kd.layers.Dense(16)])
        >>> kd.planner.dim_classes(mlp, np.zeros((8, 16), "float32"))
        <DimClasses batch=8, dim1=16, mlp=64, dim3=16>

    Source: https://openxla.org/shardy/sharding_representation
    """
    one_device = OneDevice()
    return classes_of(trace_step(model_or_factory, batch, one_device, optimizer, loss), one_device.own_names)


class OneDevice(ModelParallel):
    """The distribution under which a step is traced whose layouts are not known yet.

    Args:
        axis_names: the axes of its mesh, for modules that name them; each has one device.

    Attributes:
        own_names: for each variable to whose dims the model itself gives names these.
    """

    def __init__(self, axis_names: Sequence[str] = ("batch",)) -> None:
        super().__init__(LayoutMap(DeviceMesh([1] * len(axis_names), axis_names, list_devices()[:1])))
        self.own_names: dict[str, tuple[Any, ...]] = {}

    def get_variable_layout(self, variable: Any) -> TensorLayout:
        """Return a layout that shards nothing, and note the names of the dims."""
        own = getattr(variable, "own", None)
        if own is not None and own.layout is None:
            self.own_names[variable.path] = own.entries
        return TensorLayout.replicated(len(variable.shape), self.device_mesh)


def classes_of(program: StepProgram, own_names: Mapping[str, Sequence[Any]] | None = None) -> DimClasses:
    """Find the classes of dims in a step that is traced already; see `dim_classes`.

    Args:
        program: the step.
        own_names: for paths of weights the names that the model itself gives to their dims.
    """
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
"""The roles of arrays that are listed as members; others follow."""

Dim = tuple[str | None, int]
"""The class of a dim, and what a number of shards must divide so that it can be sharded."""


class _Member(NamedTuple):
    path: str
    dim: int
    parts: int
    row: Row


@dataclasses.dataclass
class _Group:
    """Classes that are not connected but alike: in each array there is one of them at most."""

    signature: tuple[str, int, frozenset[Event]]
    members: list[_Member] = dataclasses.field(default_factory=list)
    paths: set[str] = dataclasses.field(default_factory=set)


def _kind(events: Sequence[Event], members: Sequence[_Member]) -> str:
    """What the dims of a class are, by what happens to them in program order; empty for none of the known."""
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
    """The exchanges of a step by kind, as text: `all_reduce of 1.8 MiB in 4 places`."""
    nbytes: collections.Counter[str] = collections.Counter()
    places: collections.Counter[str] = collections.Counter()
    for each in step.collectives:
        nbytes[each.kind] += each.nbytes_per_step
        places[each.kind] += max(each.turns, 1)
    return (
        "\n".join(
            f"{kind} of {render_bytes(size)} in {places[kind]} place{'s' if places[kind] > 1 else ''}"
            for kind, size in nbytes.items()
        )
        or "nothing"
    )
