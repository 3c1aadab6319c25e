"""`LayoutMap` of Keras 2, and the strategy that places the weights of a model by it."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

from keras_dist import distribution
from keras_dist._support.arguments import argument_error
from keras_dist._support.types import PyTreeDef
from keras_dist.distribution import DeviceMesh, LayoutPlan, ModelParallel, TensorLayout
from keras_dist.distribution.layout import Axis
from keras_dist.distribution.variables import VariableSpec
from keras_dist.dtensor.layout import Layout, Mesh
from keras_dist.errors import LayoutError

_BATCH = "batch"
"""The dim of the mesh over which DTensor programs shard the batch."""


class LayoutMap(distribution.LayoutMap):
    """An ordered mapping from rules to layouts, by which `scope` places the weights of models.

    A path is looked up as a key first; else the first rule, in the order in which they were added, decides that
    matches the beginning of the path as a regular expression. Where none does, a weight is whole on every device.

    Paths of weights are names with dots: of attributes in subclassed models (`feature.kernel`, `blocks.0.bias`), of
    layers in functional and sequential ones.

    Args:
        mesh: the mesh of all layouts; by default that of the first one. A `DeviceMesh` is converted.

    Raises:
        LayoutError: `mesh` is no mesh.

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

    Differs from Keras 2: layouts of another mesh are refused; tuples and lists of axes are layouts, too; rules that
    match no weight warn; `in`, `get`, `pop` and `setdefault` do what a mapping's should; matching has a time limit.

    Source: `tf.keras.dtensor.experimental.LayoutMap`.
    """

    _method: ClassVar[str] = "match"

    def __init__(self, mesh: DeviceMesh | None = None) -> None:
        if mesh is not None and not isinstance(mesh, DeviceMesh):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise argument_error("mesh", mesh, "a Mesh, as `create_mesh` gives", error=LayoutError)
        super().__init__(mesh if mesh is None or isinstance(mesh, Mesh) else Mesh.from_device_mesh(mesh))

    @property
    def mesh(self) -> Mesh | None:
        """The mesh of all layouts; None while it is not known."""
        return self._device_mesh  # pyright: ignore[reportReturnType]: there are no others

    def get_default_mesh(self) -> Mesh | None:
        """Return `mesh`, on which weights lie for which there is no rule."""
        return self.mesh

    def __setitem__(self, key: str, layout: TensorLayout | Sequence[Axis]) -> None:
        """Add a rule.

        Args:
            key: a path, or a regular expression for how paths begin.
            layout: a `Layout` or `TensorLayout`, or its axes as a tuple or list.

        Raises:
            LayoutError: the key exists, is not a string or regular expression, or the layout is of another mesh, of
                none, or names a dim that this mesh does not have.
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
        """Return the key that decides for `path`, in a list; an empty one where none does.

        Raises:
            LayoutError: `path` is not a string.
        """
        return super().matching_rules(path)[:1]

    def scope(self) -> contextlib.AbstractContextManager[None]:
        """Return a context: models that are made inside have their weights on `mesh`, as the rules say.

        It counts where the model is made, and not where its weights are created. The batch is sharded over the dim of
        the mesh that is called `batch`, else over the first.

        Raises:
            DistributionError: the mesh is not known.
        """
        return ByLayoutMap(self).scope()


class ByLayoutMap(ModelParallel):
    """Weights by the rules of a `LayoutMap` of Keras 2.

    As there, a layout that a layer was given for a weight comes before all rules, and nothing else has rules: no
    activations, and no statistics that follow a parameter.
    """

    layout_map: LayoutMap

    def __init__(self, layout_map: LayoutMap) -> None:
        mesh = layout_map.mesh
        super().__init__(layout_map, _BATCH if mesh is not None and _BATCH in mesh.dim_names else None)

    def get_variable_layout(self, variable: Any) -> TensorLayout:
        """Return the layout that the layer was given, else the one by the rules, else replicated."""
        rule, own = self.rule_of(variable), getattr(variable, "own", None)
        if rule is not None:
            return self.layout_map.rule_layout(rule).because(rule)
        if own is not None:
            return own.resolve(self.device_mesh)
        return TensorLayout.replicated(len(variable.shape), self.device_mesh)

    def get_tensor_layout(self, path: str) -> None:
        """Return None: rules are for weights."""

    def rule_of(self, variable: Any) -> str | None:
        """Return the rule that decides for a variable, if any does."""
        own = getattr(variable, "own", None)
        is_given = own is not None and own.layout is not None
        return None if is_given else self.layout_map.match(dotted(variable.path))

    def plan_variables(self, specs: Sequence[VariableSpec], treedef: PyTreeDef) -> LayoutPlan:
        """Return the plan; rules, and what is said about them, have the paths with dots and no others."""
        known = [dataclasses.replace(spec, path=dotted(spec.path), aliases=(), keras_path=None) for spec in specs]
        plan = super().plan_variables(known, treedef)
        pairs = zip(plan.rows, specs, strict=True)
        rows = tuple(
            dataclasses.replace(row, path=spec.path, aliases=spec.aliases, keras_path=spec.keras_path)
            for row, spec in pairs
        )
        return dataclasses.replace(plan, rows=rows)


def dotted(path: str) -> str:
    """Return the path of a variable as Keras 2 has it: `d1/kernel` as `d1.kernel`."""
    return path.replace("/", ".")
