"""From config to objects, and runs of them: the only room that knows both.

What a config names by import path is imported here, and so run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import inspect
import os
from collections.abc import Callable, Generator, Sequence
from typing import Any

import jax

from keras_dist import (
    callbacks,
    config,
    constraints,
    datasets,
    initializers,
    layers,
    losses,
    metrics,
    mixed_precision,
    models,
    optimizers,
    random,
    regularizers,
)
from keras_dist._signatures import takes
from keras_dist.callbacks import BackupAndRestore, Callback, History
from keras_dist.config import Component, MeshConfig, RunConfig, parse_mesh_shape
from keras_dist.config.mesh_shape import MESH_VARIABLE
from keras_dist.data import DataLoader
from keras_dist.distribution import CommunicationOptions, initialize, job
from keras_dist.distribution.mesh import DeviceMesh
from keras_dist.distribution.strategy import Distribution, strategy_named
from keras_dist.errors import ConfigError, KerasDistError, MeshError, did_you_mean, shorten
from keras_dist.metrics.identifiers import as_metric
from keras_dist.models import Model
from keras_dist.optimizers import schedules
from keras_dist.saving import custom_object_scope, deserialize_keras_object, get_registered_object
from keras_dist.saving.buckets import folder_path
from keras_dist.saving.drafts import writing_to

__all__ = ["PlanInputs", "Run", "build", "distribution_from_config", "distribution_of", "plan_inputs", "train"]

RESOLVED_CONFIG = "run.json"
"""The name of the resolved config beside checkpoints."""


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
    """A compiled model on its distribution, with its data; `build` makes it.

    Attributes:
        config: what it was made from.
        distribution: where variables and data live.
        model: the compiled model.
        examples: what is trained on: the arguments `(x, y)` of `fit`, or `(x, y, sample_weight)`, or `(dataset,)`.
        held_out: what is tested on, in the same form; None if there is nothing.
    """

    config: RunConfig
    distribution: Distribution
    model: Model
    examples: tuple[Any, ...]
    held_out: tuple[Any, ...] | None

    def train(self) -> History:
        """Train as the config says; with `[checkpoint]`, go on where an earlier run in the same directory was ended.

        The resolved config is saved beside the states, as `run.json`: `config.load` reads it, and the same run can be
        repeated with another `checkpoint.directory`.
        """
        told, chosen = self.config.training, [_callback(one, n) for n, one in enumerate(self.config.callbacks)]
        if self.config.checkpoint is not None:
            options = self.config.checkpoint.model_dump(exclude={"directory", "delete"})
            place, delete = self.config.checkpoint.directory, self.config.checkpoint.delete
            chosen += [BackupAndRestore(place, delete_checkpoint=delete, **options), _SavedConfig(self.config)]
        examples = dict(zip(("x", "y", "sample_weight"), self.examples, strict=False))
        validated = self.held_out if told.validation and not told.validation_split else None
        with self.distribution.scope():
            return self.model.fit(
                **examples,
                batch_size=told.batch_size,
                epochs=told.epochs,
                verbose=told.verbose,
                callbacks=chosen,
                validation_split=told.validation_split,
                validation_data=validated if validated is None or len(validated) > 1 else validated[0],
                shuffle=told.shuffle,
                steps_per_epoch=told.steps_per_epoch,
                validation_freq=told.validation_freq,
            )

    def evaluate(self) -> dict[str, float]:
        """Return loss and metrics by name over the examples that are held out.

        Raises:
            ConfigError: the data hold none out.
        """
        if self.held_out is None:
            raise ConfigError(
                "data: there are no examples to test on",
                given="data without a second part",
                expected="(x, y), (x_test, y_test)",
                fix="return both from the function that [data] names",
            )
        examples = dict(zip(("x", "y", "sample_weight"), self.held_out, strict=False))
        with self.distribution.scope():
            batch_size = self.config.training.batch_size
            return self.model.evaluate(**examples, batch_size=batch_size, verbose=0, return_dict=True)


class _SavedConfig(Callback):
    """Saves the resolved config beside the states, once `BackupAndRestore` has the directory for itself."""

    def __init__(self, run: RunConfig) -> None:
        super().__init__()
        self._run: RunConfig | None = run

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Write the file, before the first epoch."""
        if self._run is not None and self._run.checkpoint is not None and job.process_index() == 0:
            place = folder_path(self._run.checkpoint.directory) / RESOLVED_CONFIG
            with writing_to(place):
                place.write_text(self._run.to_json())
        self._run = None


@dataclasses.dataclass(frozen=True, eq=False)
class PlanInputs:
    """The arguments of `kd.plan` for a run: `kd.plan(**vars(plan_inputs(config)))`.

    Attributes:
        model_or_factory: what makes the model or the module.
        batch: the shapes of a batch.
        distribution: where variables and data live.
        optimizer: the optimizer.
        loss: the loss; None where the model adds its own.
    """

    model_or_factory: Callable[..., Any]
    batch: tuple[Any, ...]
    distribution: Distribution
    optimizer: Any
    loss: Any


def build(run: RunConfig) -> Run:
    """Return the run that a config describes: a compiled model with its data, nothing trained.

    With `[cluster]`, this process joins its job first.

    Raises:
        ConfigError: something that the run needs is missing, a component does not exist or does not take its
            arguments, or the mesh does not fit the devices; names the key.

    Example:
        >>> import keras_dist as kd
        >>> settings = {
        ...     "mesh": {"shape": {"data": -1}},
        ...     "model": {"name": "Sequential", "layers": [{"class_name": "Dense", "config": {"units": 10}}]},
        ...     "data": "digits",
        ...     "training": {"loss": "mse"},
        ... }
        >>> run = kd.assembly.build(kd.config.RunConfig.model_validate(settings))
        >>> [layer.name for layer in run.model.layers], [len(part) for part in run.examples]
        (['dense'], [1437, 1437])
    """
    if run.cluster is not None:
        told = run.cluster.model_dump(exclude={"communication"})
        initialize(**told, communication_options=CommunicationOptions(run.cluster.communication))
    training = run.training
    random.set_random_seed(training.seed)
    distribution, (examples, held_out) = distribution_of(run), _data(run)
    with distribution.scope(), _policy(training.dtype_policy):
        factory, is_module = _factory(run)
        model = Model.from_nnx(factory) if is_module else factory()
        if not isinstance(model, Model):
            model = Model.from_nnx(model)
        model.compile(
            _optimizer(run),
            loss=_loss(run),
            metrics=[_made(one, f"training.metrics[{n}]", as_metric) for n, one in enumerate(training.metrics)],
            steps_per_execution=training.steps_per_execution,
            remat=training.remat,
        )
    return Run(run, distribution, model, examples, held_out)


def train(run: RunConfig) -> History:
    """Train what a config describes, and return the `History`; see `build` and `Run.train`."""
    return build(run).train()


def plan_inputs(run: RunConfig, devices: Sequence[Any] | None = None) -> PlanInputs:
    """Return what `kd.plan` needs for a run. Nothing is allocated on devices; the data are looked at.

    Args:
        run: the config.
        devices: the devices of the mesh, which need not exist, as names or objects; by default those of this machine.

    Raises:
        ConfigError: as of `build`.
    """
    random.set_random_seed(run.training.seed)
    examples, _ = _data(run)
    size = {"batch_size": run.training.batch_size} if len(examples) > 1 else {}
    first = next(iter(DataLoader(*examples, **size)))
    batch = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), first)
    factory, is_module = _factory(run)

    def made_under_the_policy() -> Any:
        with _policy(run.training.dtype_policy):
            return factory()

    distribution = distribution_of(run, devices)
    return PlanInputs(factory if is_module else made_under_the_policy, batch, distribution, _optimizer(run), _loss(run))


def distribution_of(run: RunConfig, devices: Sequence[Any] | None = None) -> Distribution:
    """Return the distribution that a config describes.

    Args:
        run: the config.
        devices: the devices of the mesh, by default those of this machine.

    Raises:
        ConfigError: the mesh does not fit the devices, or the strategy does not fit the mesh.
    """
    return strategy_named(run.distribution.strategy).from_config(_mesh(run.mesh, devices), run.distribution)


def distribution_from_config(path: str | os.PathLike[str]) -> Distribution:
    """The distribution that a config file describes.

    Args:
        path: a TOML, YAML or JSON file with a table `mesh` and, if wanted, a table `distribution`. The environment
            variable `KERAS_DIST_MESH="data=4,model=2"` overrides the mesh's shape.

    Raises:
        ConfigError: the file cannot be read, says something that is not allowed, or describes a mesh that the devices
            do not fill; names file and key, or the variable.

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
    with _told_of(os.fspath(path)):
        return distribution_of(run)


def _mesh(mesh: MeshConfig, devices: Sequence[Any] | None) -> DeviceMesh:
    try:
        return DeviceMesh(mesh.shape, devices=devices, dcn_shape=mesh.dcn_shape)
    except MeshError as error:
        variable = os.environ.get(MESH_VARIABLE, "")
        is_its = variable.strip() and parse_mesh_shape(variable) == mesh.shape
        raise ConfigError(
            f"{f'environment variable {MESH_VARIABLE}={variable!r}' if is_its else 'mesh.shape'}: {error.summary}",
            given=error.given,
            expected=error.expected,
            fix="change a size, write -1 for one of them, or make more fake CPU devices with kd.use_cpu_devices(n)",
        ) from error


@contextlib.contextmanager
def _told_of(place: str) -> Generator[None]:
    """Make errors say which key or file they are about."""
    try:
        yield
    except KerasDistError as error:
        if error.summary.startswith(f"{place}: "):
            raise
        summary = f"{place}: {error.summary}"
        raise type(error)(summary, given=error.given, expected=error.expected, fix=error.fix) from error


@contextlib.contextmanager
def _policy(name: str | None) -> Generator[None]:
    """Make layers under a dtype policy; None for the current one."""
    before = mixed_precision.dtype_policy()
    with _told_of("training.dtype_policy"):
        mixed_precision.set_dtype_policy(before if name is None else name)
    try:
        yield
    finally:
        mixed_precision.set_dtype_policy(before)


def _factory(run: RunConfig) -> tuple[Callable[..., Any], bool]:
    """What makes the model, and whether that is `factory(rngs=rngs)`, which makes a module of `flax.nnx`."""
    component, key = _needed(run.model, "model"), "model"
    arguments = component.arguments
    found = _imported(component.name, key) if _is_path(component) else None
    if found is None:
        described = {"class_name": component.name, "config": arguments}
        known = {name: getattr(models, name) for name in models.__all__}

        def deserialized() -> Any:
            with _told_of(key), custom_object_scope(_objects()):
                return deserialize_keras_object(described, module_objects=known)

        return deserialized, False
    is_model = isinstance(found, type) and issubclass(found, Model)  # which takes any keyword
    if callable(found) and not is_model and takes(found, **arguments, rngs=None):
        with custom_object_scope(_objects()):
            return functools.partial(found, **deserialize_keras_object(arguments)), True
    return lambda: _called(found, component, key), False


def _data(run: RunConfig) -> tuple[tuple[Any, ...], tuple[Any, ...] | None]:
    """What is trained on and what is tested on, as arguments of `fit`."""
    component, key = _needed(run.data, "data"), "data"
    ours = {name: f"keras_dist.datasets.{name}:load_data" for name in datasets.__all__}
    found = component.name if _is_path(component) else _named(component.name, key, ours)
    parts = _called(_imported(found, key) if isinstance(found, str) else found, component, key)
    if not isinstance(parts, tuple) or len(parts) != 2 or hasattr(parts[0], "shape"):
        raise ConfigError(
            f"{key}: {component.name} does not return two parts",
            given=f"{shorten(parts)} of type {type(parts).__name__}",
            expected="(x, y), (x_test, y_test); a data set in the place of each pair, or None for the second",
            fix="return (x, y), None where there is nothing to test on",
        )
    examples, held_out = (part if part is None or isinstance(part, tuple) else (part,) for part in parts)
    return examples, held_out


def _optimizer(run: RunConfig) -> Any:
    return _made(run.optimizer, "optimizer", optimizers.get, is_factory=True)


def _loss(run: RunConfig) -> Any:
    return None if run.training.loss is None else _made(run.training.loss, "training.loss", losses.get)


def _callback(component: Component, number: int) -> Callback:
    key = f"callbacks[{number}]"
    known = {
        name: kind for name, kind in vars(callbacks).items() if isinstance(kind, type) and issubclass(kind, Callback)
    }
    found = _imported(component.name, key) if _is_path(component) else _named(component.name, key, known)
    made = _called(found, component, key)
    if isinstance(made, Callback):
        return made
    raise ConfigError(
        f"{key}: {component.name} is no callback",
        given=f"{shorten(made)} of type {type(made).__name__}",
        expected="a keras_dist.callbacks.Callback, or a function that returns one",
        fix="for example EarlyStopping",
    )


def _needed(component: Component | None, key: str) -> Component:
    if component is None:
        raise ConfigError(
            f"{key}: is missing",
            given=f"a config without [{key}]",
            expected="a name or an import path: a run needs a model and data",
            fix=f'for example {key} = "my_package.my_module:{"MyModel" if key == "model" else "load_data"}"',
        )
    return component


def _made(component: Component, key: str, get: Callable[[Any], Any], is_factory: bool = False) -> Any:
    """The object that `get` finds for a component; functions by import path are called if they are factories."""
    with _told_of(key):
        if not _is_path(component):
            described = {"class_name": component.name, "config": component.arguments}
            with custom_object_scope(_objects()):
                return get(described if component.arguments else component.name)
        found = _imported(component.name, key)
        makes = is_factory or component.arguments or isinstance(found, type)
        return get(_called(found, component, key) if makes and callable(found) else found)


def _is_path(component: Component) -> bool:
    return ":" in component.name and get_registered_object(component.name) is None


def _named(name: str, key: str, known: dict[str, Any]) -> Any:
    """The object that is registered under a name, or known by it."""
    found = get_registered_object(name, module_objects=known)
    if found is None:
        raise ConfigError(
            f"{key}: unknown name {name!r}{did_you_mean(name, known)}",
            given=f'name = "{name}"',
            expected=f"one of {', '.join(known)}; a registered name; or an import path",
            fix='correct the name, or write an import path: "my_package.my_module:Thing"',
        )
    return found


def _imported(path: str, key: str) -> Any:
    """What an import path `"module:Thing"` names. Its module is run."""
    module_name, _, names = path.partition(":")
    try:
        found = importlib.import_module(module_name)
    except (ModuleNotFoundError, ValueError, TypeError) as error:
        missing = getattr(error, "name", None) or module_name
        if not (module_name or ".").startswith(missing) and not module_name.startswith("."):
            raise  # a module that this one imports
        raise ConfigError(
            f"{key}: there is no module {module_name!r}",
            given=f'"{path}"',
            expected='an import path, "package.module:Thing"',
            fix="correct it, install the package, or put its folder into PYTHONPATH",
        ) from error
    for name in names.split("."):
        if not hasattr(found, name):
            raise ConfigError(
                f"{key}: {path.partition(':')[0]} has no {names!r}{did_you_mean(name, vars(found))}",
                given=f'"{path}"',
                expected="a class or function of the module",
                fix="correct the name behind the colon",
            )
        found = getattr(found, name)
    return found


def _called(found: Any, component: Component, key: str) -> Any:
    made_by = found.__init__ if isinstance(found, type) else found
    if not callable(found) or not takes(found, **component.arguments):
        raise ConfigError(
            f"{key}: {component.name} does not take these arguments",
            given=", ".join(f"{name}={shorten(value)}" for name, value in component.arguments.items()) or "none",
            expected=f"{component.name}{inspect.signature(made_by)}" if callable(found) else "a class or a function",
            fix="correct the names of the arguments",
        )
    with custom_object_scope(_objects()):
        arguments = deserialize_keras_object(component.arguments)
    return found(**arguments)


@functools.cache
def _objects() -> dict[str, Any]:
    """The classes that objects within arguments may be of, by name."""
    packages = (constraints, initializers, layers, losses, metrics, optimizers, regularizers, schedules)
    return {name: found for one in packages for name, found in vars(one).items() if isinstance(found, type)}
