"""`trace_step`: a train step, traced and lowered for devices that need not exist. Nothing is allocated.

Without a loss the mean square of the outputs is planned: the gradient of a mean is a constant without a layout, and
Shardy then gathers what the backward pass of a loop reads.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Generator, Iterable, Mapping
from typing import Any, Literal, Protocol, get_args, runtime_checkable

import jax
import jax.numpy as jnp
from flax import nnx

from keras_dist._support.arguments import argument_error, check_option
from keras_dist._support.dim_names import LAYERS
from keras_dist._support.signatures import takes
from keras_dist._support.types import PyTree
from keras_dist._unstable import jaxprs
from keras_dist.data.adapters import is_data_set
from keras_dist.data.arrays import ShapeSource
from keras_dist.data.batch import unpack
from keras_dist.distribution.abstract import abstract_meshes
from keras_dist.distribution.data_parallel import DataParallel
from keras_dist.distribution.devices import list_devices
from keras_dist.distribution.layout import TensorLayout
from keras_dist.distribution.pipelining import Pipeline, pipelines_noted
from keras_dist.distribution.plan import LayoutPlan, make_row
from keras_dist.distribution.strategy import Distribution, check_distribution
from keras_dist.distribution.strategy import distribution as current_distribution
from keras_dist.distribution.tracing import kernels_noted, traced_in
from keras_dist.distribution.variables import VariableSpec, leaf_paths
from keras_dist.errors import DataError, ModelError, shorten, with_type
from keras_dist.layers.base.module_precision import precision_of_modules
from keras_dist.losses import Loss
from keras_dist.mixed_precision import dtype_policy
from keras_dist.random.seeds import unchanged_seeds
from keras_dist.training.activations import input_names, naming_scopes, resolve_remat
from keras_dist.training.compile_config import CompileConfig
from keras_dist.training.executions import data_layouts
from keras_dist.training.graph import ModuleGraph, as_factory, split_module, trace_factory
from keras_dist.training.objective import resolve_objective
from keras_dist.training.optimization import DEFAULT, as_optimizer, kinds_of_updates, resolve_optimizers
from keras_dist.training.rowwise import resolve_tables
from keras_dist.training.state_cell import StateCell
from keras_dist.training.step import Forward
from keras_dist.training.step_runner import StepRunner
from keras_dist.training.uneven_rows import rows_multiple

Mode = Literal["train", "test"]

OPTIMIZER = "adam"
"""The optimizer of steps of models that were not compiled."""


@dataclasses.dataclass(frozen=True, eq=False)
class StepProgram:
    r"""A train step, lowered for a mesh.

    Attributes:
        lowered: the program.
        state: layouts of the state.
        batch: layouts of the batch, with the padded number of rows that the program takes.
        arguments: for each argument of the program its path in `state` or `batch`; empty for states of metrics.
        assumed: assumptions about the step, such as a default optimizer.
        distribution: the distribution of the step.
        kernels: kernels that layers chose for the platform.
        ahead_nbytes: bytes per device that `fit` adds to a step: the batches of further executions, of which
            `prefetch` are on the devices; and where the state is not donated, the results of a second step in flight.
        keeps_data: whether `fit` may keep a small dataset on the devices.
        pipelines: schedules of stacks of layers.
        stages: stacks of layers that are sharded over stages and, without `micro_batches`, not pipelined.
        blocks: a `remat` for the blocks that the model repeats, such as `blocks/\d+`; None without any.
        updates: how each weight is updated, by its path.
    """

    lowered: jax.stages.Lowered
    state: LayoutPlan
    batch: LayoutPlan
    arguments: tuple[str, ...]
    assumed: tuple[str, ...]
    distribution: Distribution
    kernels: tuple[str, ...] = ()
    pipelines: tuple[Pipeline, ...] = ()
    ahead_nbytes: int = 0
    keeps_data: bool = True
    stages: tuple[Pipeline, ...] = ()
    blocks: str | None = None
    updates: Mapping[str, str] = dataclasses.field(default_factory=dict)


@runtime_checkable
class Traceable(Protocol):
    """A model whose call can be traced without its weights, as `keras_dist.Model`."""

    def _forward_on(self, x: PyTree, distribution: Distribution | None) -> Forward: ...

    @property
    def _compile_config(self) -> CompileConfig: ...


def trace_step(
    model_or_factory: Any,
    batch: PyTree,
    distribution: Distribution | None = None,
    optimizer: Any = None,
    loss: Any = None,
    *,
    platform: str | None = None,
    remat: str | None = None,
    slot_memory: str | None = None,
    mode: Mode = "train",
) -> StepProgram:
    """Trace and lower the train step of a model. Nothing is allocated, and the devices of the mesh need not exist.

    Args:
        model_or_factory: a model, a module or a factory of one, as for `plan`.
        batch: `x`, `(x, y)` or `(x, y, sample_weight)`: arrays or `jax.ShapeDtypeStruct`s, or pytrees of them.
        distribution: by default the distribution of the model, else the current one.
        optimizer: replaces the optimizer of `compile`. Default without `compile`: `"adam"`.
        loss: replaces the loss of `compile`. Default without `compile`: mean square of the outputs, without targets.
        platform: platform to lower for: `"cpu"`, `"tpu"`, `"cuda"`. By default the platform of the mesh.
        remat: replaces `remat` of `compile`.
        slot_memory: replaces `slot_memory` of `compile`.
        mode: "train", or "test" for the step of `evaluate`.

    Raises:
        DataError: the arrays of the batch have different lengths, or the targets of the loss are missing.
        LayoutError: the layout rules cannot be applied.
        ModelError: `model_or_factory` is not a model, or does not accept the batch.
    """
    if distribution is not None:
        check_distribution("distribution", distribution)
    if is_data_set(batch):
        fix = "pass one of its batches: next(iter(kd.data.DataLoader(dataset)))"
        raise argument_error("batch", batch, "arrays, or shapes of arrays", fix=fix, error=DataError)
    _check_has_arrays(batch)
    x, y, sample_weight = unpack(batch, "batch")
    source = ShapeSource(x, y, sample_weight)
    distribution = distribution or (None if isinstance(model_or_factory, Traceable) else current_distribution())
    with planning(platform), distribution.scope() if distribution else contextlib.nullcontext():
        forward, config = forward_of(model_or_factory, source.x, distribution)
        if remat is not None:
            forward = dataclasses.replace(forward, remat=resolve_remat(remat))
            if forward.remat is not None:
                forward.remat.check(forward.graph.described())
        if slot_memory is not None:
            kind = check_option("slot_memory", slot_memory, ("pinned_host",))
            config = dataclasses.replace(config, options=dataclasses.replace(config.options, slot_memory=kind))
        return _lowered(source, forward, config, optimizer, loss, check_option("mode", mode, get_args(Mode)))


def _check_has_arrays(batch: PyTree) -> None:
    """Check that no tuple of sizes is given for an array: it would be a vector of numbers."""
    found = [
        (f"batch{jax.tree_util.keystr(path)}", leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(batch, is_leaf=_is_shape)
        if _is_shape(leaf)
    ]
    if found:
        shape = tuple(size or 32 for size in found[0][1])
        raise DataError(
            "`batch` must hold arrays, or shapes with a dtype",
            given="; ".join(f"{name} = {shorten(leaf)}" for name, leaf in found),
            fix=f"for example jax.ShapeDtypeStruct({shape}, 'float32'), or 'int32' for tokens",
        )


def _is_shape(given: Any) -> bool:
    sizes = given if isinstance(given, tuple) else ()
    return int in map(type, sizes) and all(size is None or type(size) is int for size in sizes)


@contextlib.contextmanager
def planning(platform: str | None = None) -> Generator[None]:
    """Make meshes abstract, and keep the seeds of later models, inside the context."""
    with abstract_meshes(platform), unchanged_seeds():
        yield


def forward_of(given: Any, x: PyTree, distribution: Distribution | None) -> tuple[Forward, CompileConfig]:
    """Return the call of a model, and its `compile` options."""
    if isinstance(given, type) and hasattr(given, "_forward_on"):
        given = given()
    if isinstance(given, Traceable):
        return given._forward_on(x, distribution), given._compile_config
    placed = distribution or DataParallel(devices=list_devices()[:1])
    if isinstance(given, nnx.Module):
        graph, _ = split_module(given, None, needs_values=False)
    elif callable(given) and as_factory(given) is not None:
        graph, _ = traced_in(placed, None, lambda: trace_factory(given, None))
    elif callable(given) and takes(given):
        return forward_of(given(), x, distribution)
    else:
        summary = "the planner needs a keras_dist.Model, a flax.nnx.Module, or factory() or factory(rngs=rngs)"
        fix = "for example kd.plan(lambda: kd.Sequential([...]), batch, distribution)"
        raise ModelError(summary, given=with_type(given), fix=fix)
    precision = precision_of_modules(dtype_policy())
    return Forward(graph=graph, distribution=placed, seed=0, precision=precision), CompileConfig()


def _lowered(
    source: ShapeSource, forward: Forward, config: CompileConfig, optimizer: Any, loss: Any, mode: Mode
) -> StepProgram:
    graph, distribution = forward.graph, forward.distribution
    plan = distribution.plan_variables(graph.specs, graph.treedef)
    cell, _ = StateCell.of_own_module(graph, plan, plan.shapes)
    config, assumed = _completed(config, optimizer, loss, graph)
    tables = resolve_tables(config.rowwise, graph, config.optimizers, config.options.slot_memory)
    config = dataclasses.replace(config, tables=tables)
    cell.add_slots(config.optimizers, config.options.slot_memory)
    options = {"pads": config.options.pads, "micro_batches": config.options.micro_batches}
    forward = dataclasses.replace(forward, plan=plan, tables=config.tables, **options)
    step_runner = StepRunner(cell, forward, config)
    with naming_scopes(), kernels_noted() as kernels, pipelines_noted() as pipelines:
        lowered = step_runner.lower(source, mode)
    state, batch = cell.state_plan, _plan_of_batch(source, distribution)
    rows = batch.rows[0].shape[0]
    if rows != source.length:
        assumed = (*assumed, f"{rows} rows: the {source.length} rows of the batch, padded to what the mesh divides")
    others = [""] * (len(jax.tree.leaves(lowered.in_avals)) - len(state.rows) - len(batch.rows))
    paths = [*(row.path for row in state.rows), *others, *(row.path for row in batch.rows)]
    named = tuple(paths[index] for index in jaxprs.arguments_kept(lowered))
    options = config.options
    ahead = (options.prefetch * (options.steps_per_execution or 1) - 1) * batch.nbytes_per_device
    ahead += 0 if options.donate or mode == "test" else state.nbytes_per_device
    run = tuple(each for each in pipelines if each.micro_batches)
    stages = tuple(each for each in pipelines if not each.micro_batches)
    notes = tuple(kernels), run, ahead, options.steps_per_execution != 1, stages, _blocks_of(graph.specs)
    notes = *notes, kinds_of_updates(config.optimizers, graph)
    return StepProgram(lowered, state, batch, named, assumed, distribution, *notes)


def _blocks_of(specs: Iterable[VariableSpec]) -> str | None:
    """Return a `remat` for modules of modules that a model repeats, numbered or in stacks."""
    numbered, stacked = dict[str, set[str]](), set[str]()
    for spec in specs:
        *parts, _ = spec.path.split("/")
        number = next((index for index, part in enumerate(parts) if part.isdecimal()), None)
        if spec.dim_names[:1] == (LAYERS,):
            stacked.add("/".join(parts[:-1]))
        elif number is not None and len(parts) > number + 1:
            numbered.setdefault("/".join([*map(re.escape, parts[:number]), r"\d+"]), set()).add(parts[number])
    found = [rule for rule, blocks in numbered.items() if len(blocks) > 1]
    found += [re.escape(one) for one in sorted(stacked) if one and not any(one.startswith(f"{of}/") for of in stacked)]
    return "|".join(found) or None


def _completed(
    config: CompileConfig, optimizer: Any, loss: Any, graph: ModuleGraph
) -> tuple[CompileConfig, tuple[str, ...]]:
    """Return the options with loss and optimizer, and the assumptions made."""
    assumed: list[str] = []
    chosen = config.optimizer if optimizer is None else optimizer
    if chosen is None:
        chosen = OPTIMIZER
        assumed.append(f"optimizer {OPTIMIZER!r}")
    if not isinstance(chosen, Mapping):
        chosen = as_optimizer(chosen, DEFAULT)
    objective = config.objective
    if loss is not None:
        objective = resolve_objective(loss)
    elif objective is None and config.train_step is None:
        objective = resolve_objective(_MeanSquareOfOutputs())
        assumed.append("loss: the mean square of the outputs")
    named = resolve_optimizers(chosen, graph)
    return dataclasses.replace(config, optimizer=chosen, objective=objective, optimizers=named), tuple(assumed)


class _MeanSquareOfOutputs(Loss):
    """Placeholder for an unknown loss; its gradient has the layout of the outputs."""

    needs_targets = False

    def call(self, y_true: Any, y_pred: Any) -> jax.Array:
        return sum((jnp.mean(jnp.square(leaf.astype(jnp.float32))) for leaf in jax.tree.leaves(y_pred)), jnp.zeros(()))


def _plan_of_batch(source: ShapeSource, distribution: Distribution) -> LayoutPlan:
    arrays = source.whole(rows_multiple(source.x, distribution)).arrays
    layouts: list[TensorLayout] = jax.tree.leaves(data_layouts(arrays, distribution))
    x, y, sample_weight = arrays
    named = [("target", y), ("sample_weight", sample_weight)]
    names = [*input_names(x), *(f"{name}/{path}".rstrip("/") for name, tree in named for path in leaf_paths(tree))]
    rows = [
        make_row(name, leaf.shape, leaf.dtype, "batch", layout, layout.reason or "the batch dim")
        for name, leaf, layout in zip(names, jax.tree.leaves(arrays), layouts, strict=True)
    ]
    return LayoutPlan(distribution.device_mesh, tuple(rows), jax.tree.structure(arrays))
