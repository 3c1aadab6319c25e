"""`LayoutMap` of Keras 2, the strategy that shards the weights of a model by its rules, and its form in Keras 3."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar

from keras_dist import distribution
from keras_dist._support.arguments import argument_error
from keras_dist._support.safe_patterns import pattern
from keras_dist._support.types import PyTreeDef
from keras_dist.distribution import DeviceMesh, LayoutPlan, ModelParallel, TensorLayout
from keras_dist.distribution.layout import Axis
from keras_dist.distribution.variables import PLANNED_BY_RULE, VariableSpec
from keras_dist.dtensor.layout import Layout, Mesh
from keras_dist.errors import LayoutError
from keras_dist.models import Model

_SEPARATOR = re.compile(r"\\\.|\[\.\]|(?<=[\w+)\]}])\.(?=[\w\\(])")
"""A dot between names: `\\.`, `[.]`, or a dot that stands where names meet."""
_SHOWN = 3
_BATCH = "batch"  # the dim of the mesh over which DTensor programs shard the batch


class LayoutMap(distribution.LayoutMap):
    """An ordered mapping from rules to layouts for the weights of models that are created under `scope`.

    A key that equals the path of a weight decides; else the first key, in the order of insertion, that matches the
    beginning of the path as a regular expression. A weight without a rule is replicated.

    Paths of weights are names with dots: of attributes in subclassed models (`feature.kernel`, `blocks.0.bias`), of
    layers in functional and sequential models.

    Args:
        mesh: the mesh of all layouts. By default the mesh of the first layout. A `DeviceMesh` is converted.

    Raises:
        LayoutError: `mesh` is not a mesh.

    Example:
        >>> import keras_dist as kd
        >>> from keras_dist import dtensor
        >>> mesh = dtensor.create_mesh([("batch", 8)])
        >>> layout_map = dtensor.keras.LayoutMap(mesh=mesh)
        >>> layout_map["feature.*kernel"] = dtensor.Layout.batch_sharded(mesh, "batch", rank=2)
        >>> layout_map["feature_2.kernel"].sharding_specs
        ['batch', 'unsharded']
        >>> with layout_map.scope():
        ...     model = kd.Sequential([kd.Input((16,)), kd.layers.Dense(4, name="feature")])
        >>> model.layers[0].kernel.layout == layout_map["feature.kernel"]
        True

    Differs from Keras 2: layouts on another mesh raise. Tuples and lists of axes are accepted as layouts. Rules that
    match no weight warn. `in`, `get`, `pop` and `setdefault` work on keys, as in any mapping. Matching has a time
    limit.

    Source: `tf.keras.dtensor.experimental.LayoutMap`.
    """

    _method: ClassVar[str] = "match"

    def __init__(self, mesh: DeviceMesh | None = None) -> None:
        if mesh is not None and not isinstance(mesh, DeviceMesh):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise argument_error("mesh", mesh, "a Mesh, as `create_mesh` returns", error=LayoutError)
        super().__init__(mesh if mesh is None or isinstance(mesh, Mesh) else Mesh.from_device_mesh(mesh))

    @property
    def mesh(self) -> Mesh | None:
        """The mesh of all layouts; None while it is not known."""
        return self._device_mesh  # pyright: ignore[reportReturnType]: `__init__` converts all others

    def get_default_mesh(self) -> Mesh | None:
        """Return `mesh`, on which weights without a rule are replicated."""
        return self.mesh

    def __setitem__(self, key: str, layout: TensorLayout | Sequence[Axis]) -> None:
        """Add a rule.

        Args:
            key: a path, or a regular expression for the beginning of paths.
            layout: a `Layout` or `TensorLayout`, or its axes as a tuple or list.

        Raises:
            LayoutError: the key exists, or is not a string or regular expression; or the layout has no mesh, another
                mesh, or an entry that is not a dim of the mesh.
        """
        if isinstance(layout, TensorLayout | list | tuple):
            axes, mesh = (layout.axes, layout.device_mesh) if isinstance(layout, TensorLayout) else (layout, None)
            mesh = mesh or self.mesh
            if mesh is None:
                expected = "a Layout, which carries its mesh, in a LayoutMap without one"
                raise argument_error("layout", layout, expected, error=LayoutError)
            layout = Layout(axes, mesh)
        super().__setitem__(key, layout)
        self._device_mesh = self._device_mesh or layout.mesh  # pyright: ignore[reportAttributeAccessIssue]

    def matching_rules(self, path: str) -> list[str]:
        """Return a list of the one rule that applies to `path`; empty without a rule.

        Raises:
            LayoutError: `path` is not a string.
        """
        return super().matching_rules(path)[:1]

    def scope(self) -> contextlib.AbstractContextManager[None]:
        """Return a context manager: weights of models that are made inside are sharded by the rules.

        The model must be made inside; its weights may be created later. The batch is sharded over the dim of the mesh
        that is called `batch`, else over the first.

        Raises:
            DistributionError: the mesh is not known.
        """
        return ByLayoutMap(self).scope()


class ByLayoutMap(ModelParallel):
    """Strategy of a `LayoutMap` of Keras 2: rules for weights alone; a layout that a layer was given comes first."""

    layout_map: LayoutMap

    def __init__(self, layout_map: LayoutMap) -> None:
        mesh = layout_map.mesh
        super().__init__(layout_map, _BATCH if mesh is not None and _BATCH in mesh.dim_names else None)

    def get_variable_layout(self, variable: Any) -> TensorLayout:
        """Return the layout that the layer was given, else the layout of the rule, else replicated."""
        rule, own = self.rule_of(variable), getattr(variable, "own", None)
        if rule is not None:
            return self.layout_map.rule_layout(rule).because(rule)
        if own is not None:
            return own.resolve(self.device_mesh)
        return TensorLayout.replicated(len(variable.shape), self.device_mesh)

    def get_tensor_layout(self, path: str) -> None:
        """Return None: rules are for weights."""

    def rule_of(self, variable: Any) -> str | None:
        """Return the rule that decides for a variable, or None."""
        own = getattr(variable, "own", None)
        is_given = own is not None and own.layout is not None
        return None if is_given else self.layout_map.match(dotted(variable.path))

    def plan_variables(self, specs: Sequence[VariableSpec], treedef: PyTreeDef) -> LayoutPlan:
        """Return the plan; rules, and warnings about them, have paths with dots alone."""
        known = [dataclasses.replace(spec, path=dotted(spec.path), aliases=(), keras_path=None) for spec in specs]
        plan = super().plan_variables(known, treedef)
        pairs = zip(plan.rows, specs, strict=True)
        rows = tuple(
            dataclasses.replace(row, path=spec.path, aliases=spec.aliases, keras_path=spec.keras_path)
            for row, spec in pairs
        )
        return dataclasses.replace(plan, rows=rows)


def dotted(path: str) -> str:
    """Return the path of a variable in Keras 2: `d1.kernel` for `d1/kernel`."""
    return path.replace("/", ".")


def to_layout_map(
    old_map: LayoutMap, model: Model, print_fn: Callable[[str], object] | None = print
) -> distribution.LayoutMap:
    """Return rules for `ModelParallel` that shard a model's weights as a Keras 2 map does.

    Rules of Keras 3 match whole paths, with slashes, and no two of them may match one path. A rule is kept, or gets
    `.*` at its end, if it decides for the same weights then; else each of its weights gets a separate rule. The
    layouts of all weights are compared at the end.

    The report lists each old rule with its new form and the weights that it decides for.

    Args:
        old_map: the rules, with their mesh.
        model: the model that the rules are for. Its weights are created if they do not exist yet.
        print_fn: called with the report, as text; None for no report.

    Raises:
        LayoutError: `old_map` is not such a map, or cannot be applied to the model.
        ModelError: the weights of the model do not exist yet, and its inputs are not known.

    Example:
        >>> import keras_dist as kd
        >>> from keras_dist import dtensor
        >>> mesh = dtensor.create_mesh([("batch", 2), ("model", 4)])
        >>> old = dtensor.keras.LayoutMap(mesh=mesh)
        >>> old["d1.k"] = dtensor.Layout.inner_sharded(mesh, "model", rank=2)
        >>> model = kd.Sequential([kd.Input((8,)), kd.layers.Dense(4, name="d1")])
        >>> list(dtensor.to_layout_map(old, model, print_fn=None))
        ['d1/k.*']
    """
    if not isinstance(old_map, LayoutMap):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise argument_error("old_map", old_map, "a dtensor.keras.LayoutMap", error=LayoutError)
    graph = model._with_weights().cell.graph
    strategy = ByLayoutMap(old_map)
    old = strategy.plan_variables(graph.specs, graph.treedef)
    specs = [spec for spec in graph.specs if spec.role in PLANNED_BY_RULE]
    outputs = ("/".join(filter(None, (path, "output"))) for path in graph.module_paths)
    others = [name for spec in specs if strategy.rule_of(spec) is None for name in spec.names]
    names = {spec.path: spec.names for spec in specs if strategy.rule_of(spec) is not None}
    names |= {name: (name,) for name in ("input", *outputs, *others)}
    decided: dict[str, list[str]] = {rule: [] for rule in old_map}
    for spec in specs:
        if (rule := strategy.rule_of(spec)) is not None:
            decided[rule].append(spec.path)
    exact = {path for path in names if dotted(path) in old_map}
    found = {rule: _equivalent_rules(rule, paths, names, exact) for rule, paths in decided.items()}
    rules = distribution.LayoutMap(old_map.mesh)
    for rule, new_rules in found.items():
        for new_rule in new_rules:
            rules[new_rule] = old_map.rule_layout(rule).axes
    for row in ModelParallel(rules).plan_variables(graph.specs, graph.treedef).rows:
        axes = old.row(row.path).axes
        if row.axes != axes:  # without a rule a statistic follows its parameter
            rules[row.path] = axes
    new = ModelParallel(rules).plan_variables(graph.specs, graph.treedef)
    moved = [row for row, before in zip(new.rows, old.rows, strict=True) if row.axes != before.axes]
    if moved:
        given = f"{moved[0].path!r} along {old.row(moved[0].path).axes}, then along {moved[0].axes}"
        fix = "write rules for the paths of model.layout_plan, and compare the two tables"
        raise LayoutError("the rules cannot be translated", given=given, fix=fix)
    if print_fn is not None:
        print_fn("\n".join(_described(rule, found[rule], paths) for rule, paths in decided.items()))
    return rules


def _equivalent_rules(
    rule: str, paths: Sequence[str], names: Mapping[str, Sequence[str]], exact: Collection[str]
) -> list[str]:
    """Return one rule for whole paths that decides for these paths alone, else the paths themselves.

    `names` are all names of each path that rules can match, `exact` the paths that are keys themselves.
    """
    if not {*paths} <= {*exact}:
        for form in (text := _SEPARATOR.sub("/", rule), rule, f"{text}.*", f"{rule}.*"):
            match = pattern(form).fullmatch
            if {path for path, known in names.items() if any(map(match, known))} - {*exact} == {*paths} - {*exact}:
                return [form]
    return [*paths]


def _described(rule: str, new: Sequence[str], paths: Sequence[str]) -> str:
    shown = ", ".join(paths[:_SHOWN]) + (f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else "")
    return f"{rule!r} -> {', '.join(map(repr, new)) or 'left out'}; decides for {shown or 'nothing'}"
