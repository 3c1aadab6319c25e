"""`check`: finds layout rules that cannot be applied to a model, or have no effect."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

from keras_dist._support.types import PyTree
from keras_dist.data.arrays import ShapeSource
from keras_dist.data.batch import unpack
from keras_dist.distribution import lint
from keras_dist.distribution.data_parallel import DataParallel
from keras_dist.distribution.strategy import Distribution, check_distribution
from keras_dist.distribution.variables import PLANNED_BY_RULE
from keras_dist.errors import LayoutError, LayoutWarning
from keras_dist.planner.tracing import forward_of, planning, trace_step
from keras_dist.training.activations import tensor_names


@dataclasses.dataclass(frozen=True)
class CheckReport:
    """Problems of the layout rules of a run. Printing it lists them.

    Attributes:
        mesh: the mesh, as text.
        rules: the rules.
        problems: rules that cannot be applied, and rules without effect.
        weights: for the path of each weight all paths that rules can match.
        tensors: paths of the outputs of layers, and of the inputs.
    """

    mesh: str
    rules: tuple[str, ...]
    problems: tuple[lint.Problem, ...]
    weights: dict[str, tuple[str, ...]]
    tensors: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values for JSON."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        what = f"{len(self.rules)} layout rules, {len(self.weights)} weights, mesh {self.mesh}"
        if not self.problems:
            return f"no problems: {what}"
        listed = [f"({index}) {problem}" for index, problem in enumerate(self.problems, 1)]
        return "\n\n".join([f"{len(listed)} problem{'s' * (len(listed) > 1)}: {what}", *listed])


def check(
    model_or_factory: Any,
    batch: PyTree,
    distribution: Distribution,
    optimizer: Any = None,
    loss: Any = None,
) -> CheckReport:
    """Find all problems of layout rules. The step is traced, and the model is not created.

    Args:
        model_or_factory: see `plan`.
        batch: see `plan`.
        distribution: a distribution with rules.
        optimizer: see `plan`.
        loss: see `plan`.

    Raises:
        DataError: the arrays of the batch have different lengths, or the targets of the loss are missing.
        LayoutError: the distribution cannot make layouts for the model.
        ModelError: `model_or_factory` is not a model, or does not accept the batch.

    Example:
        >>> import keras_dist as kd, numpy as np
        >>> rules = kd.LayoutMap(kd.DeviceMesh("data=2,model=4"))
        >>> rules["d1/kernal"] = (None, "model")
        >>> factory = lambda: kd.Sequential([kd.Input((8,)), kd.layers.Dense(16, name="d1")])
        >>> report = kd.planner.check(factory, np.zeros((4, 8)), kd.ModelParallel(rules))
        >>> [problem.summary for problem in report.problems]
        ["rule 'd1/kernal' matched nothing"]
    """
    check_distribution("distribution", distribution)
    found: list[lint.Problem] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LayoutWarning)  # `check_rules` finds the same problems
        try:
            trace_step(model_or_factory, batch, distribution, optimizer, loss)
        except LayoutError as error:
            if not error.problems:
                raise
            found += error.problems
        source = ShapeSource(*unpack(batch, "batch"))
        replicated = DataParallel(distribution.device_mesh)  # without rules that could raise
        with planning(), replicated.scope():
            forward, _ = forward_of(model_or_factory, source.x, replicated)
    specs, rules = forward.graph.specs, distribution.layout_map
    tensors = tensor_names(forward.graph.module_paths, source.x)
    if rules is not None:
        found += lint.check_rules(rules, specs, tensors)
    weights = {spec.path: spec.names for spec in specs if spec.role in PLANNED_BY_RULE}
    mesh = distribution.device_mesh.describe()
    return CheckReport(mesh, tuple(rules or ()), tuple(dict.fromkeys(found)), weights, tuple(tensors))
