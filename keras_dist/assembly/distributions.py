"""Distributions of configs, and the arguments of their plans."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax

from keras_dist import config, random
from keras_dist.assembly.components import (
    Examples,
    callback_of,
    check_directory,
    check_run,
    compiled_model,
    data_of,
    error_context,
    joined_error,
    loss_of,
    metric_of,
    needed,
    optimizer_of,
)
from keras_dist.config import (
    AutoConfig,
    Component,
    DataParallelConfig,
    DistributionConfig,
    FoundConfig,
    FullyShardedConfig,
    MeshConfig,
    ModelParallelConfig,
    RunConfig,
    Zero1Config,
    parse_mesh_shape,
)
from keras_dist.config.mesh_shape import MESH_VARIABLE
from keras_dist.data import DataLoader
from keras_dist.data.resumable import is_numbered
from keras_dist.distribution.data_parallel import DataParallel
from keras_dist.distribution.devices import list_devices
from keras_dist.distribution.fully_sharded import FullySharded
from keras_dist.distribution.mesh import DeviceMesh, fitting_sizes
from keras_dist.distribution.strategy import Distribution, strategy_named
from keras_dist.errors import ConfigError, KerasDistError, MeshError
from keras_dist.planner import AutoParallel, Target, devices, presets
from keras_dist.planner.tracing import planning


@dataclasses.dataclass(frozen=True, eq=False)
class PlanInputs:
    """The arguments of `kd.plan` for a run: `kd.plan(**vars(plan_inputs(config)))`.

    Attributes:
        model_or_factory: factory of the compiled model.
        batch: shapes of a batch.
        distribution: the distribution.
        optimizer: the optimizer.
        loss: the loss; None if the model adds losses itself.
    """

    model_or_factory: Callable[..., Any]
    batch: tuple[Any, ...]
    distribution: Distribution
    optimizer: Any
    loss: Any


def plan_inputs(run: RunConfig, target: str | Target | None = None) -> PlanInputs:
    """Return the arguments of `kd.plan` for a run. The data are loaded; nothing is allocated on devices.

    Args:
        run: the config.
        target: the machine to plan for, which need not exist here. By default this machine, with as many devices as the
            mesh has.

    Raises:
        ConfigError: as for `build` and `train`; or the target is not a machine, or has another number of devices than
            the mesh.
    """
    inputs, errors = valid_inputs(run, target)
    if inputs is None or errors:
        raise joined_error(errors)
    return inputs


def valid_inputs(run: RunConfig, target: str | Target | None = None) -> tuple[PlanInputs | None, list[KerasDistError]]:
    """Return `plan_inputs` and all errors; what has an error has a substitute in them, or there are none."""
    check_run(run)
    errors: list[KerasDistError] = []

    def tried(make: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return make(*arguments)
        except KerasDistError as error:
            errors.append(error)

    for number, component in enumerate(run.callbacks):
        tried(callback_of, component, number)
    tried(check_directory, run)
    data, optimizer, loss = tried(data_of, run), tried(optimizer_of, run), tried(loss_of, run)
    for number, component in enumerate(run.training.metrics):
        tried(metric_of, component, number)
    if errors:
        training = run.training.model_copy(update={"metrics": ()})
        if data is None or (loss is None and run.training.loss is not None):
            training, loss = training.model_copy(update={"loss": Component(name=f"{__name__}:any_loss")}), any_loss
        chosen = DataParallelConfig() if isinstance(run.distribution, FoundConfig) else run.distribution
        changes = {"optimizer": Component(name="sgd"), "training": training, "distribution": chosen}
        run = run.model_copy(update=changes)
    examples = None if data is None else data[0]
    place = tried(lambda: placed(run, examples, _planned_devices(run.mesh, target)))
    step = tried(_step, run, examples, None if place is None else place[1])
    return None if place is None or step is None else PlanInputs(step[0], step[1], place[0], optimizer, loss), errors


def any_loss(y_true: Any, y_pred: Any) -> Any:
    """Stand for a loss with an error, for targets of any shape."""
    return y_pred.reshape(len(y_pred), -1).sum(-1)


def distribution_of(run: RunConfig, devices: Sequence[Any] | None = None) -> Distribution:
    """Return the distribution of a config. `"auto"` and most presets derive it from the model's train step.

    Args:
        run: the config.
        devices: devices of the mesh. By default all devices of this machine.

    Raises:
        ConfigError: the mesh does not fit the devices, or the strategy does not fit the mesh.
    """
    check_run(run)
    return placed(run, None, devices)[0]


def placed(
    run: RunConfig, examples: Examples | None, devices: Sequence[Any] | None = None
) -> tuple[Distribution, str | None]:
    """Return the distribution of a config, and its `remat`."""
    chosen, mesh = run.distribution, _mesh(run.mesh, devices)
    if isinstance(chosen, Zero1Config):
        with error_context("distribution"):
            return presets.zero1(mesh), run.training.remat
    is_found_later = isinstance(chosen, AutoConfig) and run.model is None  # by `fit`
    if is_found_later or not isinstance(chosen, FoundConfig):
        return strategy_named(chosen.strategy).from_config(mesh, chosen), run.training.remat
    factory, batch = _step(run, data_of(run)[0] if examples is None else examples, run.training.remat)
    step = {"optimizer": optimizer_of(run), "loss": loss_of(run)}
    with error_context("distribution"):
        if isinstance(chosen, AutoConfig):
            found = AutoParallel.from_config(mesh, chosen).search(factory, batch, **step)
            return found.distribution, run.training.remat or found.best.remat
        options = chosen.model_dump(exclude={"strategy", "batch_axis"})
        return getattr(presets, chosen.strategy)(factory, batch, mesh, **options, **step), run.training.remat


def resolved(run: RunConfig, distribution: Distribution, remat: str | None) -> RunConfig:
    """Return a config with the inferred sizes of the mesh, layouts and `remat`."""
    mesh = distribution.device_mesh
    changes: dict[str, Any] = {}
    spans = dict(zip(mesh.axis_names, mesh.dcn_shape or (), strict=False))
    shape = {axis: size // spans.get(axis, 1) for axis, size in mesh.axis_sizes.items()}
    changes["mesh"] = run.mesh.model_copy(update={"shape": shape, "dcn_shape": spans or None})
    if isinstance(run.distribution, FoundConfig) and not distribution.axis_names:
        changes["distribution"] = _config_of(distribution)
    changes["training"] = run.training.model_copy(update={"remat": remat})
    return run.model_copy(update=changes)


def _config_of(distribution: Distribution) -> DistributionConfig:
    options: dict[str, Any] = {"batch_axis": distribution.batch_dim_name or None}
    if isinstance(distribution, DataParallel):
        return DataParallelConfig(shard_optimizer=distribution.shard_optimizer)
    rules = () if distribution.layout_map is None else distribution.layout_map.snapshot()
    options["layout"] = {rule: layout.axes for rule, layout in rules} or None
    if isinstance(distribution, FullySharded):
        return FullyShardedConfig(axis=distribution.axis, **options)
    return ModelParallelConfig(**options)


def distribution_from_config(path: str | os.PathLike[str]) -> Distribution:
    """Return the distribution of a config file.

    Args:
        path: a TOML, YAML or JSON file with a table `mesh` and optionally a table `distribution`. The environment
            variable `KERAS_DIST_MESH="data=4,model=2"` replaces the shape of the mesh. `"auto"` finds a layout for the
            table `model`; without this table `fit` finds it.

    Raises:
        ConfigError: the file cannot be read, a setting is not allowed, or the mesh does not fit the devices. The error
            names file and key, or the variable.

    Example: ``run.toml``::

        [mesh]
        shape = {data = 2, model = 4}

        [distribution]
        strategy = "model_parallel"
        batch_axis = "data"

        [distribution.layout]
        "d1/kernel" = ["-", "model"]
    """
    run = config.load(path)
    with error_context(os.fspath(path)):
        return distribution_of(run)


def _planned_devices(mesh: MeshConfig, target: str | Target | None) -> list[str] | None:
    """Return names of the devices of a plan; None for the devices of this machine."""
    if target is not None:
        return devices(target, _mesh(mesh, devices(target)).shape)
    sizes = (*mesh.shape.values(), *(mesh.dcn_shape or {}).values())
    here, count = list_devices(), math.prod(sizes)
    if -1 in sizes or len(here) == count:
        return None
    kind = here[0].partition(":")[0]
    return [f"{kind}:{number}" for number in range(count)]


def _mesh(mesh: MeshConfig, devices: Sequence[Any] | None) -> DeviceMesh:
    shape, spans = mesh.shape, mesh.dcn_shape
    if devices is not None and spans and -1 not in (*shape.values(), *spans.values()):  # their slices are not known
        shape, spans = {axis: size * spans.get(axis, 1) for axis, size in shape.items()}, None
    try:
        return DeviceMesh(shape, devices=devices, dcn_shape=spans)
    except MeshError as error:
        variable, source = os.environ.get(MESH_VARIABLE, ""), "mesh.shape"
        with contextlib.suppress(MeshError):  # an override may have replaced the variable
            if parse_mesh_shape(variable) == mesh.shape:
                source = f"environment variable {MESH_VARIABLE}={variable!r}"
        fix = _fix_of_shape(mesh, devices) if devices is None or hasattr(devices, "__len__") else error.fix
        raise ConfigError(f"{source}: {error.summary}", given=error.given, expected=error.expected, fix=fix) from error


def _fix_of_shape(mesh: MeshConfig, devices: Sequence[Any] | None) -> str:
    """Suggest a shape for these devices, and on CPUs fake devices for the mesh."""
    here = list_devices() if devices is None else devices
    sizes = dict(zip(mesh.shape, fitting_sizes(tuple(mesh.shape.values()), len(here)), strict=True))
    text = ",".join(f"{name}={size}" for name, size in sizes.items())
    ways = [f'--mesh {text}, or shape = "{text}" in the config' if mesh.dcn_shape is None else "change a size"]
    count = math.prod((*mesh.shape.values(), *(mesh.dcn_shape or {}).values()))
    if devices is None and count > 0 and here[0].startswith("cpu:"):
        ways.append(f"make fake CPU devices: `keras-dist train --fake {count}`, or kd.use_cpu_devices({count})")
    return "; or ".join(ways)


def _step(run: RunConfig, examples: Examples | None, remat: str | None) -> Any:
    """Return a factory of the compiled model, and the shapes of a batch; without examples the shapes of its inputs."""
    needed(run.model, "model")
    random.set_random_seed(run.training.seed)
    factory = functools.partial(compiled_model, run, remat, is_planned=True)
    if examples is None:
        with planning():
            model = factory()
        if model.output_names is None or any(None in each.shape[1:] for each in model.inputs):
            return None
        rows, tensors = run.training.batch_size or 32, (model.input, model.output)
        return factory, jax.tree.map(lambda one: jax.ShapeDtypeStruct((rows, *one.shape[1:]), one.dtype), tensors)
    takes_size = len(examples) > 1 or is_numbered(*examples)
    first = next(iter(DataLoader(*examples, batch_size=run.training.batch_size if takes_size else None)))
    batch = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), first)
    return factory, batch
