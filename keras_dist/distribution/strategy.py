"""`Distribution`, the strategy that assigns layouts to arrays, and the current distribution.

The current distribution is a process-wide default for all threads and notebook cells. Inside `Distribution.scope()` a
context variable overrides it, so that scopes in different threads and tasks are independent.

A model keeps the distribution that was current when it was made, as a snapshot that is taken when its weights are
created: rules that are added before that apply, and later ones cannot reach half of a model.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Generator, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Self, TypeVar, cast

import numpy as np

from keras_dist._support import ambient
from keras_dist._support.arguments import argument_error, check_flag, is_keras_object
from keras_dist._support.types import PyTree, PyTreeDef
from keras_dist._unstable.flax_internals import state_of
from keras_dist.distribution import lint
from keras_dist.distribution.layout import TensorLayout
from keras_dist.distribution.layout_map import LayoutMap
from keras_dist.distribution.lint import Problem
from keras_dist.distribution.mesh import DeviceMesh, check_mesh
from keras_dist.distribution.model_layout_hints import AxisNames
from keras_dist.distribution.plan import LayoutPlan, plan_variables
from keras_dist.distribution.process_rows import ReplicaGroup, all_replica_groups, replica_group_of, shard_dataset
from keras_dist.distribution.variables import PLANNED_BY_RULE, VariableSpec, describe_variables, tied_paths
from keras_dist.errors import (
    ConfigError,
    DataError,
    DistributionError,
    LayoutError,
    did_you_mean,
    nearest,
    unknown_name_error,
    with_type,
)
from keras_dist.jobs import job

BatchDimName = str | Sequence[str]


class Distribution:
    """Base class of strategies. Subclasses override `get_variable_layout` and `get_data_layout`.

    Compared by value: two distributions of one class with equal meshes and options are equal.

    Args:
        device_mesh: the devices.
        batch_dim_name: the mesh axis, or axes, over which the batch dim of data is sharded.
        auto_shard_dataset: whether all processes pass the same data; if not, each passes its own part, in batches.

    Raises:
        DistributionError: `device_mesh` is not a mesh, or has no such axis.

    Attributes:
        auto_shard_dataset: whether all processes pass the same data, of which each reads its part.
        layout_map: the layout rules; None for a strategy without rules.
        axis_names: mesh axes for the model's names of dims; empty for a strategy without rules.
        strict: whether a layout rule without effect is an error.
        sequence_axis: the mesh axis over which positions of sequences are sharded, or None.

    Source: `keras.src.distribution.distribution_lib.Distribution`.
    """

    is_searched: ClassVar[bool] = False
    """Whether the layout is searched for when the first batch of `fit` is known, as in `AutoParallel`."""

    auto_shard_dataset: bool = True
    layout_map: LayoutMap | None = None
    axis_names: AxisNames = MappingProxyType({})
    strict: bool = False
    sequence_axis: str | None = None

    def __init__(
        self, device_mesh: DeviceMesh, batch_dim_name: BatchDimName | None = None, auto_shard_dataset: bool = True
    ) -> None:
        self._device_mesh = check_mesh(device_mesh, DistributionError)
        self._batch_dim_name: str | tuple[str, ...] | None = None
        if batch_dim_name is not None:
            self._batch_dim_name = resolve_axes("batch_dim_name", batch_dim_name, self._device_mesh)
        self.auto_shard_dataset = check_flag("auto_shard_dataset", auto_shard_dataset, DistributionError)
        self._num_processes = job.process_count()
        self._process_id = job.process_index()
        self._is_multi_process = self._num_processes > 1

    @classmethod
    def from_config(cls, mesh: DeviceMesh, config: Any) -> Self:
        """Return the distribution of a config file.

        Args:
            mesh: the mesh of the table `mesh`.
            config: the table `distribution`, as the strategy's `keras_dist.config.DistributionConfig`.

        Raises:
            ConfigError: an option does not fit the mesh; names its key.
        """
        raise NotImplementedError(f"{cls.__name__} does not define from_config(cls, mesh, config)")

    @property
    def device_mesh(self) -> DeviceMesh:
        """The `DeviceMesh`."""
        return self._device_mesh

    @property
    def batch_dim_name(self) -> str | tuple[str, ...] | None:
        """The mesh axis, or axes, over which the batch dim of data is sharded."""
        return self._batch_dim_name

    @property
    def num_processes(self) -> int:
        """Number of processes in the job."""
        return self._num_processes

    @property
    def num_model_replicas(self) -> int:
        """Number of copies of the model that train in parallel."""
        raise NotImplementedError

    @property
    def num_data_shards(self) -> int:
        """Number of shards into which the processes divide a dataset.

        Raises:
            DataError: processes share some of their rows of a batch, but not all.
        """
        return self._replica_group().count

    @property
    def data_shard_id(self) -> int:
        """Index of the dataset shard that this process reads, in the order of the rows of a batch.

        Raises:
            DataError: this process has no device in the mesh; or see `num_data_shards`.

        Differs from Keras: depends on the devices of the process in the mesh, not on its number alone.
        """
        return self._replica_group().index

    def get_data_layout(self, data_shape: Sequence[int]) -> TensorLayout:
        """Return the layout of input data of `data_shape`."""
        raise NotImplementedError

    def get_variable_layout(self, variable: Any) -> TensorLayout | None:
        """Return the layout of `variable`, which has at least `path` and `shape`; None for replicated."""
        raise NotImplementedError

    def get_tensor_layout(self, path: str) -> TensorLayout | None:
        """Return the layout of the activation or input called `path`; with None, as here, XLA chooses."""
        return None

    def get_slot_layout(self, variable: Any) -> TensorLayout | None:
        """Return the layout of the optimizer slots of `variable`; by default the layout of the variable."""
        return self.get_variable_layout(variable)

    @property
    def gathered_axes(self) -> tuple[str, ...]:
        """The mesh axes over which compiled steps gather parameters where they are used.

        A parameter is gathered in the operation that uses it, in the forward and again in the backward pass, and is not
        kept between them; its gradient is scattered.
        """
        return ()

    @contextlib.contextmanager
    def scope(self) -> Generator[None]:
        """Make this the current distribution inside a `with` block; models that are made inside keep it."""
        with override(self):
            yield

    def distribute_dataset(self, dataset: Any) -> Any:
        """Return the shard of a global, batched dataset that this process reads.

        Args:
            dataset: in a job of one process, or without `auto_shard_dataset`, anything; else a batched
                `tf.data.Dataset`.

        Raises:
            DataError: the dataset cannot be sharded, or its batch size is unknown or not divisible.

        Source: `keras.distribution.Distribution.distribute_dataset` (Keras 3.15).
        """
        if not self._is_multi_process or not self.auto_shard_dataset:
            return dataset
        return shard_dataset(dataset, all_replica_groups(self), self._replica_group())

    def plan(self, tree: PyTree, tied: Sequence[Sequence[str]] = ()) -> LayoutPlan:
        """Return the layouts of all arrays of `tree`. Allocates nothing.

        Args:
            tree: any pytree of arrays or `jax.ShapeDtypeStruct`s, or a `flax.nnx.Module`.
            tied: groups of paths of one array or subtree, where the tree itself does not show it.

        Returns:
            The plan, with a row for each array.

        Raises:
            LayoutError: some rules cannot be applied; under `strict` also if rules have no effect.
            DeviceError: a device of the mesh does not exist.
        """
        specs, treedef = describe_variables(state_of(tree), [*tied_paths(tree), *tied])
        return self.plan_variables(specs, treedef)

    def plan_variables(self, specs: Sequence[VariableSpec], treedef: PyTreeDef) -> LayoutPlan:
        """Return the plan for arrays that are already described; see `plan`."""
        _ = self.device_mesh.backend_mesh  # raises for a device that does not exist
        errors: list[lint.Problem] = []
        layouts: list[tuple[TensorLayout, TensorLayout]] = []
        unknown: dict[str, tuple[str, str]] = {}
        for spec in specs:
            if spec.role in PLANNED_BY_RULE:
                layouts.append(self._decide(spec, errors, unknown))
            else:
                replicated = TensorLayout.replicated(len(spec.shape), self.device_mesh).because(spec.role)
                layouts.append((replicated, replicated))
        errors += lint.check_names(unknown, self.device_mesh, type(self).__name__)
        rules = self.layout_map
        without_effect = lint.check_rules(rules, specs) if rules is not None else []
        without_effect += self._check_whole(list(zip(specs, layouts, strict=True)))
        lint.report(errors, without_effect, self.device_mesh, strict=self.strict)
        snapshot = () if rules is None else tuple((rule, layout.axes) for rule, layout in rules.snapshot())
        gathered = self.gathered_axes
        return plan_variables(self.device_mesh, specs, layouts, treedef, without_effect, snapshot, gathered)

    def snapshot(self) -> Self:
        """Return a copy that is not affected by later changes."""
        return copy.copy(self)

    def _check_whole(self, decided: Sequence[tuple[VariableSpec, tuple[TensorLayout, TensorLayout]]]) -> list[Problem]:
        """Return problems of large weights that the strategy should shard, and cannot."""
        return []

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(self) is not type(other):
            return False
        mine, theirs = vars(self), vars(other)
        return mine.keys() == theirs.keys() and all(
            mine[name] is theirs[name] or bool(np.all(mine[name] == theirs[name])) for name in mine
        )

    def __hash__(self) -> int:
        return hash((type(self), self._device_mesh))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} device_mesh={self.device_mesh}>"

    def _decide(
        self, spec: VariableSpec, errors: list[lint.Problem], unknown: dict[str, tuple[str, str]]
    ) -> tuple[TensorLayout, TensorLayout]:
        own, is_own = spec.own, False
        replicated = TensorLayout.replicated(len(spec.shape), self.device_mesh)
        try:
            layout, slot_layout = self.get_variable_layout(spec), self.get_slot_layout(spec)
        except LayoutError as error:
            given = f"{spec.path!r} of shape {spec.shape}, mesh {self.device_mesh.describe()}; {error.given}"
            given += "" if own is None else f"; {own.reason}"
            errors.append(lint.Problem("ambiguous", spec.path, error.summary, given, error.expected, error.fix))
            return replicated, replicated
        layout, slot_layout = (self._layout_or_replicated(spec, decided) for decided in (layout, slot_layout))
        if own is not None:
            is_own = (layout.reason or "").startswith(own.reason)
            names = own.unknown_names(self.device_mesh, self.axis_names) if is_own else []
            if names:
                said = f"{spec.path!r} of shape {spec.shape}: {own.reason}"
                unknown.update({name: (spec.path, said) for name in names if name not in unknown})
                return replicated, replicated
        named = [self._called(spec, decided) for decided in (layout, slot_layout)]
        found = lint.check_layout(spec.path, spec.shape, layout, self.device_mesh, is_own=is_own, called=named[0])
        found = found or lint.check_layout(
            spec.path, spec.shape, slot_layout, self.device_mesh, "slots", called=named[1]
        )
        errors.extend(found)
        if found:
            return replicated, replicated
        if own is not None and not is_own:
            decided = layout.reason or type(self).__name__ + ("" if any(layout.axes) else " replicates")
            layout = layout.because(f"{decided}, overrides {own.reason}")
        return layout.on(self.device_mesh), slot_layout.on(self.device_mesh)

    def _called(self, spec: VariableSpec, layout: TensorLayout) -> str:
        """Return the name of a variable in errors about a layout, with the path that the rule matches."""
        rules, rule = self.layout_map, layout.reason
        if rules is None or rule not in rules:
            return repr(spec.path)
        return spec.called(lambda name: rule in rules.matching_rules(name))

    def _layout_or_replicated(self, spec: VariableSpec, layout: Any) -> TensorLayout:
        if layout is None:
            return TensorLayout.replicated(len(spec.shape), self.device_mesh)
        if not isinstance(layout, TensorLayout):
            summary = f"{type(self).__name__}: the layout of {spec.path!r} must be a TensorLayout or None"
            raise DistributionError(summary, given=with_type(layout), fix="return TensorLayout(axes, self.device_mesh)")
        return layout

    def _replica_group(self) -> ReplicaGroup:
        return replica_group_of(self, self._process_id)

    def _shard_batch(self, data_shape: Sequence[int]) -> TensorLayout:
        if not len(data_shape):
            fix = "stack the examples along a first dim"
            raise DataError("data without a batch dim cannot be sharded", given=f"shape {tuple(data_shape)}", fix=fix)
        return TensorLayout((self.batch_dim_name, *[None] * (len(data_shape) - 1)), self.device_mesh)


K = TypeVar("K", bound=type[Distribution])

_by_name: dict[str, type[Distribution]] = {}


def register_strategy(name: str) -> Callable[[K], K]:
    """Class decorator: config files with `strategy = name` create this class, by its `from_config`.

    Args:
        name: the name of the strategy in its `keras_dist.config.DistributionConfig`.

    Raises:
        ConfigError: the name is not a string, is empty, or is registered for another class.
    """
    if not isinstance(name, str) or not name:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise argument_error("name", name, "a string that is not empty", example="my_strategy", error=ConfigError)

    def register(kind: K) -> K:
        taken = _by_name.get(name, kind)
        if (taken.__module__, taken.__qualname__) != (kind.__module__, kind.__qualname__):
            summary = f"register_strategy: {name!r} is the name of {taken.__module__}.{taken.__qualname__}"
            given = f"{kind.__module__}.{kind.__qualname__}"
            raise ConfigError(summary, given=given, fix=f"for example @register_strategy({'my_' + name!r})")
        _by_name[name] = kind
        return kind

    return register


def strategy_named(name: str) -> type[Distribution]:
    """Return the class that is registered under a name."""
    if name not in _by_name:
        what, given = "distribution.strategy: no class is registered for", f'strategy = "{name}"'
        fix = f"put @register_strategy({name!r}) before the class, and import its module first"
        raise unknown_name_error(what, name, _by_name, given=given, fix=fix, error=ConfigError)
    return _by_name[name]


def distribution() -> Distribution | None:
    """Return the current distribution: of the innermost `scope()`, else of `set_distribution`, else None."""
    override_value = ambient.distribution.get()
    return ambient.process.distribution if override_value is None else override_value


def set_distribution(value: Distribution | None) -> None:
    """Make `value` the current distribution of the whole process; None for none.

    Raises:
        DistributionError: `value` is not a distribution.
    """
    ambient.process.distribution = None if value is None else check_distribution("value", value)


def check_distribution(argument: str, value: Any) -> Distribution:
    """Return `value`, or raise if it is not a distribution."""
    if isinstance(value, Distribution):
        return value
    expected = "a DataParallel, ModelParallel, FullySharded or your own Distribution of keras_dist"
    error = argument_error(argument, value, expected, error=DistributionError)
    error.fix = "for example keras_dist.DataParallel(), over all devices"
    name = type(value).__name__
    if name in _MADE_OF and (isinstance(value, LayoutMap | DeviceMesh) or is_keras_object(value, name)):
        error.fix = _MADE_OF[name]
    raise error


_OF_RULES = "make keras_dist.ModelParallel(layout_map=layout_map, batch_dim_name=...) of the LayoutMap"
_OF_MESH = "make keras_dist.DataParallel(device_mesh) of the DeviceMesh"
_MADE_OF = {
    "ModelParallel": f"{_OF_RULES}, also of Keras",
    "LayoutMap": _OF_RULES,
    "DataParallel": f"{_OF_MESH}, also of Keras",
    "DeviceMesh": f"{_OF_MESH}, or keras_dist.FullySharded(device_mesh)",
}
"""Fixes for classes, also of Keras, from which distributions are made."""


def override(value: Distribution) -> contextlib.AbstractContextManager[object]:
    """Make `value` the current distribution inside a `with` block of this thread or task."""
    return ambient.with_value(ambient.distribution, value)


def resolve_axes(argument: str, value: Any, mesh: DeviceMesh) -> str | tuple[str, ...]:
    """Return the axes of `mesh` that `value` names: one name, or several as a tuple."""
    names = tuple(cast("Sequence[Any]", value)) if isinstance(value, list | tuple) else (value,)
    unknown = [name for name in names if name not in mesh.axis_names]
    if unknown or not names or len(set(names)) != len(names):
        raise DistributionError(
            f"`{argument}` must be one of {list(mesh.axis_names)}, or a nonempty tuple of them"
            + "".join(did_you_mean(str(name), mesh.axis_names) for name in unknown),
            given=f"{argument}={value!r}, mesh {mesh.describe()}",
            fix=f"{argument}={nearest(str(cast('object', value)), mesh.axis_names) or mesh.axis_names[0]!r}",
        )
    return names[0] if len(names) == 1 else names
