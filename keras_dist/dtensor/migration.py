"""`to_layout_map`: from a `LayoutMap` of Keras 2 to one of Keras 3."""

from __future__ import annotations

from collections.abc import Callable

from keras_dist._support.arguments import argument_error
from keras_dist.config.migration import migrate_layout_map
from keras_dist.distribution import LayoutMap, ModelParallel
from keras_dist.distribution.variables import PLANNED_BY_RULE
from keras_dist.dtensor import keras
from keras_dist.dtensor.keras.layout_map import ByLayoutMap
from keras_dist.errors import LayoutError
from keras_dist.models import Model


def to_layout_map(
    old_map: keras.LayoutMap, model: Model, print_fn: Callable[[str], object] | None = print
) -> LayoutMap:
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
    if not isinstance(old_map, keras.LayoutMap):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise argument_error("old_map", old_map, "a dtensor.keras.LayoutMap", error=LayoutError)
    graph = model._with_weights().cell.graph
    strategy = ByLayoutMap(old_map)
    old = strategy.plan_variables(graph.specs, graph.treedef)
    specs = [spec for spec in graph.specs if spec.role in PLANNED_BY_RULE]
    weights = {spec.path: spec.names for spec in specs if strategy.rule_of(spec) is not None}
    others = [name for spec in specs if spec.path not in weights for name in spec.names]
    outputs = ["/".join(filter(None, (path, "output"))) for path in graph.module_paths]
    found = migrate_layout_map(old_map, "match", weights, ["input", *outputs, *others])
    rules = LayoutMap(old_map.mesh)
    for rule, axes in found.layout.items():
        rules[rule] = axes
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
        print_fn(str(found))
    return rules
