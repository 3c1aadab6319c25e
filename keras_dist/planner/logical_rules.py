"""Maps of layout rules from layouts: for classes of dims, `LogicalRules`, and from other rules, `edited_rules`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from keras_dist._support.arguments import argument_error
from keras_dist._support.located_warnings import warn
from keras_dist._support.types import PyTree
from keras_dist.distribution.layout import Axis
from keras_dist.distribution.layout_map import LayoutMap
from keras_dist.distribution.lint import names_tensor
from keras_dist.distribution.mesh import DeviceMesh, check_mesh
from keras_dist.distribution.model_parallel import ModelParallel
from keras_dist.distribution.plan import FOLLOWS, Row
from keras_dist.distribution.strategy import resolve_axes
from keras_dist.errors import DistributionError, LayoutError, LayoutWarning
from keras_dist.planner.dim_classes import INPUTS, DimClasses, Unsharded, dim_classes

BATCH = "batch"


class LogicalRules:
    """Mesh axes for classes of dims: `{"mlp": "model", "batch": "data"}`; see `dim_classes`.

    A class that contains a dim with a name from the model, by `nnx.with_partitioning` or `sharding_names=`, has this
    name.

    Args:
        rules: for names of classes a mesh axis, several, or None for unsharded. Other classes are unsharded.

    Raises:
        DistributionError: `rules` is not such a dict.

    Example:
        >>> import keras_dist as kd, numpy as np
        >>> mlp = lambda: kd.Sequential(
        ...     [kd.Input((16,)), kd.layers.Dense(64, "relu", name="up"), kd.layers.Dense(16, name="down")]
        ... )
        >>> rules = kd.planner.LogicalRules({"mlp": "model", "batch": "data"})
        >>> parallel = rules.distribution(mlp, np.zeros((8, 16), "float32"), kd.DeviceMesh("data=2,model=4"))
        >>> parallel.layout_map["up/kernel"].axes, parallel.layout_map["down/kernel"].axes
        ((None, 'model'), ('model', None))

    Source: `flax.linen.logical_axis_rules`; https://docs.jax.dev/en/latest/sharded-computation.html
    """

    def __init__(self, rules: Mapping[str, Axis | list[str]]) -> None:
        if not isinstance(rules, Mapping) or not all(isinstance(name, str) for name in rules):  # pyright: ignore[reportUnnecessaryIsInstance]
            expected, example = "a dict from class names to a mesh axis, a tuple of axes, or None", {"mlp": "model"}
            raise argument_error("rules", rules, expected, example=example, error=DistributionError)
        self.rules: dict[str, Axis] = {
            name: tuple(axes) if isinstance(axes, list) else axes for name, axes in rules.items()
        }

    def distribution(
        self, model_or_factory: Any, batch: PyTree, mesh: DeviceMesh, optimizer: Any = None, loss: Any = None
    ) -> ModelParallel:
        """Return the distribution for a model. Its `layout_map` has one regular expression for repeated blocks.

        Args:
            model_or_factory: as for `kd.plan`.
            batch: as for `kd.plan`.
            mesh: the mesh; without a rule for `batch`, the first axis shards the batch.
            optimizer: replaces the optimizer of `compile`.
            loss: replaces the loss of `compile`.

        Raises:
            DistributionError: a rule names an axis that the mesh does not have.
            LayoutError: a rule names a class that the model does not have.

        Warns:
            LayoutWarning: the axes do not divide a dim of a class; the dim stays unsharded.
        """
        mesh = check_mesh(mesh, DistributionError)
        return self.applied(dim_classes(model_or_factory, batch, optimizer, loss), mesh)

    def applied(self, classes: DimClasses, mesh: DeviceMesh) -> ModelParallel:
        """Return the distribution for a model with known classes of dims; see `distribution`."""
        for name, axes in self.rules.items():
            if name not in classes.logical_names:
                _ = classes[name]
            if axes is not None:
                resolve_axes(f"rules[{name!r}]", axes, mesh)
        layouts, left = classes.layouts({BATCH: mesh.axis_names[0], **self.rules}, mesh.axis_sizes)
        warn_of_unsharded(left)
        rules = layout_map_of(layouts, classes, mesh)
        batch_axes = self.rules.get(BATCH, mesh.axis_names[0])
        return ModelParallel(rules, batch_axes or (), axis_names=axis_names_of(self.rules, classes))


def axis_names_of(rules: Mapping[str, Axis], classes: DimClasses) -> dict[str, Axis]:
    """Return the axes of the names that the model gives to dims."""
    return {name: rules.get(name) for name in classes.logical_names}


def layout_map_of(layouts: Mapping[str, Sequence[Axis]], classes: DimClasses, mesh: DeviceMesh) -> LayoutMap:
    """Return rules for the layouts of weights and inputs; other arrays have defaults, and factors of LoRA follow."""
    rows = [row for row in classes.program.state.rows if row.role in ("parameter", "statistic")]
    weights = [row.path for row in rows if not (row.rule or "").startswith(FOLLOWS)]
    rules = LayoutMap(mesh)
    for rule, axes in folded({path: layouts[path] for path in weights if path in layouts}, weights).items():
        rules[rule] = tuple(axes)
    for row in classes.program.batch.rows:
        axes = layouts.get(row.path, ())
        if row.path.startswith(INPUTS) and any(axes[1:]):
            rules[row.path] = tuple(axes)
    return rules


def folded(layouts: Mapping[str, Sequence[Axis]], paths: Iterable[str]) -> dict[str, Sequence[Axis]]:
    r"""Return rules for layouts by path, with one regular expression for all blocks: `blocks/\d+/kernel`.

    Paths without a layout match none of the rules.
    """
    alike: dict[str, list[str]] = {}
    for path in paths:
        rule = "/".join(r"\d+" if part.isdecimal() else re.escape(part) for part in path.split("/"))
        alike.setdefault(rule, []).append(path)
    rules: dict[str, Sequence[Axis]] = {}
    for rule, members in alike.items():
        found = {tuple(layouts[path]) if path in layouts else None for path in members}
        if len(members) > 1 and len(found) == 1 and None not in found:
            rules[rule] = layouts[members[0]]
        else:
            rules |= {re.escape(path): layouts[path] for path in members if path in layouts}
    return rules


def warn_of_unsharded(left: Sequence[Unsharded]) -> None:
    """Warn of dims that stay unsharded although their class is sharded."""
    if left:
        listed = "; ".join(str(each) for each in left[:5]) + (f"; and {len(left) - 5} more" if len(left) > 5 else "")
        warn(f"not sharded: {listed}", LayoutWarning)


Layouts = Mapping[str, Sequence[Axis]]

_NUMBERS = re.compile(r"[\d|()\[\]-]*\d[\d|()\[\]-]*")
"""Part of a rule that matches only some numbers of blocks: `3`, `[0-2]`, `(0|1)`."""


def edited_rules(rules: LayoutMap, rows: Sequence[Row], layouts: Layouts) -> LayoutMap:
    """Return rules that give weights these layouts, with as few changes and rules as possible.

    A rule is kept, or gets other axes, or matches all blocks, if all weights that it then matches have one layout; else
    new rules replace it. If fewer rules are the result, all are new. Rules for activations and inputs are kept, unless
    they are in `layouts`, too.
    """
    rows = [row for row in rows if not (row.rule or "").startswith(FOLLOWS)]
    wanted = {row.path: tuple(layouts.get(row.path, row.axes)) for row in rows}
    kept: dict[str, tuple[Axis, ...]] = {}
    for rule, layout in rules.snapshot():
        if names_tensor(rule):
            kept |= {} if rule in layouts and rule not in wanted else {rule: layout.axes}
            continue
        for text in _variants(rule, is_path=any(rule in row.names for row in rows)):
            matched = [row for row in rows if any(text == name or LayoutMap.matches(text, name) for name in row.names)]
            found = {wanted[row.path] for row in matched}
            if len(found) == 1:
                is_needed = found == {layout.axes} or any({_unruled(row, rules)} != found for row in matched)
                kept |= {text: found.pop()} if is_needed else {}
                break
    tried: list[LayoutMap] = []
    for each in (kept, {rule: axes for rule, axes in kept.items() if names_tensor(rule)}):
        edited = type(rules)(rules.device_mesh)
        for rule, axes in each.items():
            edited[rule] = axes
        left = {row.path: wanted[row.path] for row in rows if _axes_by(edited, row, rules) != wanted[row.path]}
        for rule, axes in folded(left, wanted).items():
            if rule not in edited:
                edited[rule] = tuple(axes)
        tried.append(edited)
    fitting = (each for each in tried if all(_axes_by(each, row, rules) == wanted[row.path] for row in rows))
    return min(fitting, key=len, default=tried[-1])


def _unruled(row: Row, rules: LayoutMap) -> tuple[Axis, ...]:
    """Return the layout of a weight that no rule matches: often the model has one."""
    by_rule = row.rule is not None and row.rule.partition(", ")[0] in rules
    return (None,) * len(row.shape) if by_rule else row.compute_axes


def _axes_by(edited: LayoutMap, row: Row, rules: LayoutMap) -> tuple[Axis, ...] | None:
    """Return the layout of a weight by edited rules; None if they disagree."""
    try:
        rule = edited.match(row.path, row.names[1:])
    except LayoutError:
        return None
    return _unruled(row, rules) if rule is None else edited.rule_layout(rule).axes


def _variants(rule: str, is_path: bool) -> Iterator[str]:
    rule = re.escape(rule) if is_path else rule
    widened = "/".join(r"\d+" if _NUMBERS.fullmatch(part) else part for part in rule.split("/"))
    yield from dict.fromkeys((widened, rule))
