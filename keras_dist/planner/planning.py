"""`plan`: figures of a train step that has not run; `check`: problems of layout rules."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any, overload

from keras_dist._support.types import PyTree
from keras_dist.data.arrays import ShapeSource
from keras_dist.data.batch import unpack
from keras_dist.distribution import lint
from keras_dist.distribution.data_parallel import DataParallel
from keras_dist.distribution.mesh import DeviceMesh
from keras_dist.distribution.strategy import Distribution, check_distribution
from keras_dist.distribution.strategy import distribution as current_distribution
from keras_dist.distribution.variables import PLANNED_BY_RULE
from keras_dist.errors import KerasDistError, LayoutError, LayoutWarning, ModelError
from keras_dist.planner.costly_layouts import costly_layouts
from keras_dist.planner.explanation import activations
from keras_dist.planner.frontier import Frontier, find_frontier
from keras_dist.planner.generation import GenerationReport, plan_generation
from keras_dist.planner.propagation import propagate
from keras_dist.planner.report import PlanReport
from keras_dist.planner.search_result import ConfigPart, code_of
from keras_dist.planner.targets import Target, as_target, devices
from keras_dist.planner.tracing import Mode, StepProgram, Traceable, forward_of, planning, trace_step
from keras_dist.planner.verdict import judge
from keras_dist.training.activations import tensor_names


@overload
def plan(
    model_or_factory: Any,
    batch: PyTree,
    distribution: Distribution | None = None,
    optimizer: Any = None,
    loss: Any = None,
    target: str | Target | None = None,
    *,
    remat: str | None = None,
    slot_memory: str | None = None,
    compiles: bool = True,
    timeout_seconds: float = 600,
    flash_attention: bool = False,
    mode: Mode = "train",
    config_lines: Callable[[ConfigPart], str] | None = None,
) -> PlanReport: ...
@overload
def plan(
    model_or_factory: Any,
    *,
    distribution: Distribution | None = None,
    target: str | Target | None = None,
    compiles: bool = True,
    timeout_seconds: float = 600,
    generate: tuple[int, int, int],
) -> GenerationReport: ...
@overload
def plan(
    model_or_factory: Any,
    batch: PyTree,
    distribution: Distribution | None = None,
    optimizer: Any = None,
    loss: Any = None,
    *,
    target: str | Target,
    remat: str | None = None,
    slot_memory: str | None = None,
    compiles: bool = True,
    timeout_seconds: float = 600,
    flash_attention: bool = False,
    mode: Mode = "train",
    search: Sequence[str],
) -> Frontier: ...
def plan(
    model_or_factory: Any,
    batch: PyTree = None,
    distribution: Distribution | None = None,
    optimizer: Any = None,
    loss: Any = None,
    target: str | Target | None = None,
    *,
    remat: str | None = None,
    slot_memory: str | None = None,
    compiles: bool = True,
    timeout_seconds: float = 600,
    flash_attention: bool = False,
    mode: Mode = "train",
    generate: tuple[int, int, int] | None = None,
    search: Sequence[str] = (),
    config_lines: Callable[[ConfigPart], str] | None = None,
) -> PlanReport | GenerationReport | Frontier:
    """Report the layouts of a train step, its communication, and its costs; or of `kd.generate`.

    Nothing is allocated or run, and the devices of the mesh need not exist: a model may be far larger than this
    machine. The report labels each figure with one of three tiers: *exact*, from the layout plan; *propagated*, from
    JAX's partitioner Shardy, applied to the lowered step; *compiled*, from XLA's program for a target.

    Args:
        model_or_factory: a `keras_dist.Model` or a `flax.nnx.Module`, whose weights are not read; or a factory:
            `factory()`, which is called under the distribution, or `factory(rngs=rngs)`.
        batch: `x`, `(x, y)` or `(x, y, sample_weight)`: arrays or `jax.ShapeDtypeStruct`s, or pytrees of them.
        distribution: by default the distribution of the model, else the current one.
        optimizer: replaces the optimizer of `compile`. Default without `compile`: `"adam"`, as the report notes.
        loss: replaces the loss of `compile`. Default without `compile`: the mean square of the outputs, as the report
            notes.
        target: the machine to plan for, such as `"v5p:4x4x4"`; see `planner.target`. The report then has the least time
            of a step, and whether it fits. The default distribution is data parallel on all devices of the target.
        remat: replaces `remat` of `compile`.
        slot_memory: replaces `slot_memory` of `compile`: "pinned_host" for optimizer slots in the memory of the hosts.
        compiles: whether the step is compiled for the target, in a separate process. This needs the extra `tpu` or
            `cuda`; without it the report has the other tiers.
        timeout_seconds: longest compilation; then the report has the other tiers [s].
        flash_attention: whether the machine will compute attention by a kernel that does not store scores. The least
            time then leaves out the traffic of scores that the lowered step stores. Kernels in the step, such as those
            of `kd.pretrained`, need no such promise.
        mode: "test" for a step of `evaluate`. The state is the same as in training, with slots.
        generate: prompts, tokens of a prompt and new tokens: the report is then a `GenerationReport` of `kd.generate`,
            with the bytes of the cache, and the least times of reading the prompts and of each new token.
        search: some of "batch", "remat" and "offload": the report is then a `Frontier` of memory and time, of batches
            that are halved until one fits and doubled until none does, at most to 1,024 times as many rows, with and
            without `remat`, and with slots on the host. Those that no other beats are compiled.
        config_lines: returns the lines of a config for a distribution, or for tables such as
            `{"training": {"micro_batches": 8}}`. Remedies are then such lines, and not Python.

    Raises:
        ConfigError: `target` is not a machine, or `search` is given without a target with memory of its own.
        DataError: the arrays of the batch have different lengths, or the targets of the loss are missing.
        LayoutError: the layout rules cannot be applied; under `strict` also if they have no effect, or if large
            weights stay whole.
        MeshError: the mesh and the target have different numbers of devices.
        ModelError: `model_or_factory` is not a model, or does not accept the batch; arguments of a step are given
            beside `generate`.

    Example:
        >>> import jax, keras_dist as kd
        >>> devices = [f"tpu:{index}" for index in range(1024)]
        >>> mesh = kd.DeviceMesh("data=64,model=16", devices=devices)
        >>> rules = kd.LayoutMap(mesh)
        >>> rules["up/kernel"], rules["down/kernel"] = (None, "model"), ("model", None)
        >>> def factory():
        ...     up = kd.layers.Dense(65536, "relu", use_bias=False, name="up")
        ...     return kd.Sequential([kd.Input((16384,)), up, kd.layers.Dense(16384, use_bias=False, name="down")])
        >>> x = jax.ShapeDtypeStruct((4096, 16384), "float32")
        >>> report = kd.plan(factory, (x, x), kd.ModelParallel(rules), "adam", "mse")
        >>> report.nbytes_by_role["parameter"] == 4 * 2 * 16384 * 65536 // 16
        True
    """
    machine = None if target is None else as_target(target)
    is_placed = isinstance(model_or_factory, Traceable) or current_distribution() is not None
    if machine is not None and distribution is None and not is_placed:
        distribution = DataParallel(DeviceMesh({"batch": machine.device_count}, devices=devices(machine)))
    platform = None if machine is None else machine.platform
    compiling: Any = {"compiles": compiles, "timeout_seconds": timeout_seconds}
    if generate is not None:
        others = {"batch": batch, "optimizer": optimizer, "loss": loss, "remat": remat, "slot_memory": slot_memory}
        given = [name for name, value in {**others, "search": search or None}.items() if value is not None]
        if given or mode != "train":
            given = ", ".join([*given, *["mode"] * (mode != "train")])
            raise ModelError("plan(generate=...) plans `kd.generate` alone", given=given, fix="leave it out")
        return plan_generation(model_or_factory, generate, distribution, machine, **compiling)
    chosen: Any = {"platform": platform, "remat": remat, "slot_memory": slot_memory, "mode": mode}

    def trace(distribution: Distribution | None, batch: PyTree = batch, **options: Any) -> StepProgram:
        return trace_step(model_or_factory, batch, distribution, optimizer, loss, **{**chosen, **options})

    if search:
        kept: Any = {"remat": remat, "slot_memory": slot_memory, "flash_attention": flash_attention, **compiling}
        return find_frontier(functools.partial(trace, distribution), batch, search, machine, **kept)
    program = trace(distribution)
    step = propagate(program.lowered)
    costly = costly_layouts(program, step, trace, config_lines or code_of) if mode == "train" else ()
    problems = (*program.state.problems, *costly)
    verdict = None
    if machine is not None:
        advice: Any = {"flash_attention": flash_attention, "in_config": config_lines is not None}
        verdict = judge(program, step, machine, **compiling, **advice)
    flash = ("flash attention: scores are not stored, and their traffic does not count",) * flash_attention
    notes = (*program.assumed, *flash), verdict, program.kernels, program.pipelines, program.updates
    return PlanReport(program.state, program.batch, step, activations(program), problems, *notes)


@dataclasses.dataclass(frozen=True)
class CheckReport:
    """Problems of the layout rules of a run. Printing it lists them.

    Attributes:
        mesh: the mesh, as text.
        rules: the rules.
        problems: rules that cannot be applied, and rules without effect; beside them an error of the step.
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
    model_or_factory: Any, batch: PyTree, distribution: Distribution, optimizer: Any = None, loss: Any = None
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
    found, failed = list[lint.Problem](), None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LayoutWarning)  # `check_rules` finds the same problems
        try:
            trace_step(model_or_factory, batch, distribution, optimizer, loss)
        except LayoutError as error:
            if not error.problems:
                raise
            found += error.problems
        except KerasDistError as error:
            failed = error
        source = ShapeSource(*unpack(batch, "batch"))
        replicated = DataParallel(distribution.device_mesh)  # without rules that could raise
        with planning(), replicated.scope():
            forward, _ = forward_of(model_or_factory, source.x, replicated)
    specs, rules = forward.graph.specs, distribution.layout_map
    tensors = tensor_names(forward.graph.module_paths, source.x)
    if rules is not None:
        found += lint.check_rules(rules, specs, tensors)
    if failed is not None and not found:
        raise failed
    if failed is not None:
        found.append(lint.Problem("step", "", failed.summary, failed.given, failed.expected, failed.fix))
    weights = {spec.path: spec.names for spec in specs if spec.role in PLANNED_BY_RULE}
    mesh = distribution.device_mesh.describe()
    return CheckReport(mesh, tuple(rules or ()), tuple(dict.fromkeys(found)), weights, tuple(tensors))
