"""Creation of the objects that a config names. Import paths run the modules they name.

Configs name code by import path, `"module:Thing"`. Only this package imports it: `config` reads files of strangers and
runs nothing.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import importlib
import inspect
import re
from collections.abc import Callable, Generator, Sequence
from typing import Any

from keras_dist import (
    callbacks,
    constraints,
    datasets,
    initializers,
    layers,
    losses,
    metrics,
    mixed_precision,
    models,
    optimizers,
    pretrained,
    regularizers,
)
from keras_dist._support.signatures import takes
from keras_dist.callbacks import Callback
from keras_dist.config import Component, RunConfig
from keras_dist.errors import ConfigError, KerasDistError, did_you_mean, shorten, unknown_name_error, with_type
from keras_dist.files.buckets import folder_path, in_bucket
from keras_dist.metrics.identifiers import as_metric
from keras_dist.models import Model
from keras_dist.optimizers import schedules
from keras_dist.serialization import custom_object_scope, deserialize_keras_object, get_registered_object

Examples = tuple[Any, ...]
"""Arguments of `fit`: `(x, y)`, `(x, y, sample_weight)` or `(dataset,)`."""


@contextlib.contextmanager
def error_context(place: str) -> Generator[None]:
    """Add the key or file to the summary of errors, unless it begins with a key."""
    try:
        yield
    except KerasDistError as error:
        is_named = _is_below_a_key(place) and _is_below_a_key(error.summary)
        if not (is_named or error.summary.startswith(f"{place}: ")):
            error.summary = f"{place}: {error.summary}"
        raise


def _is_below_a_key(text: str) -> bool:
    return re.split(r"[.\[:]", text, maxsplit=1)[0] in RunConfig.model_fields


def compiled_model(run: RunConfig, remat: str | None, is_planned: bool = False) -> Model:
    """Return the compiled model, under the current distribution. No file of weights is read for a plan."""
    with contextlib.ExitStack() as stack:
        with error_context("training.dtype_policy"):
            stack.enter_context(mixed_precision.under_policy(run.training.dtype_policy))
        made = _model_or_factory(run, is_planned)
        model = made if isinstance(made, Model) else Model.from_nnx(made)
        if run.save.pretrained is not None and not isinstance(model, pretrained.Decoder | pretrained.Encoder):
            fix = 'load it: model = {name = "pretrained", folder = "..."}; or save with the callback ModelCheckpoint'
            summary = "save.pretrained: the model must be a network of kd.pretrained"
            raise ConfigError(summary, given=with_type(model), fix=fix)
        if run.lora is not None:
            with error_context("lora"):
                model.enable_lora(**run.lora.model_dump())
        model.compile(
            optimizer_of(run),
            loss=loss_of(run),
            metrics=[metric_of(one, number) for number, one in enumerate(run.training.metrics)],
            steps_per_execution=run.training.steps_per_execution,
            remat=remat,
            slot_memory=run.training.slot_memory,
            micro_batches=run.training.micro_batches,
        )
    return model


def _model_or_factory(run: RunConfig, is_planned: bool) -> Any:
    """Return the model, a module of `flax.nnx`, or `factory(rngs=rngs)` of a module."""
    component, key = needed(run.model, "model"), "model"
    arguments = component.arguments
    with error_context(key), custom_object_scope(_objects()):
        if component.name == "pretrained":
            read = {name: value for name, value in arguments.items() if not (is_planned and name == "ignore")}
            described = Component(name=component.name, config=read)
            return _called(pretrained.describe if is_planned else pretrained.load, described, key)
        if not _is_path(component):
            known = {name: getattr(models, name) for name in models.__all__}
            _named(component.name, key, known)
            described = {"class_name": component.name, "config": arguments}
            return deserialize_keras_object(described, module_objects=known)
        found = imported(component.name, key)
        is_model = isinstance(found, type) and issubclass(found, Model)  # models take any keyword
        if callable(found) and not is_model and takes(found, **arguments, rngs=None):
            return functools.partial(found, **deserialize_keras_object(arguments))
        return _called(found, component, key)


def data_of(run: RunConfig) -> tuple[tuple[Any, ...], tuple[Any, ...] | None]:
    """Return the training data and the test data, as arguments of `fit` and `evaluate`."""
    component, key = needed(run.data, "data"), "data"
    ours = {name: f"keras_dist.datasets.{name}:load_data" for name in datasets.__all__}
    found = component.name if _is_path(component) else _named(component.name, key, ours)
    with error_context(key):
        parts = _called(imported(found, key) if isinstance(found, str) else found, component, key)
    if not isinstance(parts, tuple) or len(parts) != 2 or parts[0] is None or hasattr(parts[0], "shape"):
        summary = f"{key}: {component.name} must return (x, y), (x_test, y_test), or a dataset for each pair"
        raise ConfigError(summary, given=with_type(parts), fix="return (x, y), None without test data")
    examples, held_out = (part if isinstance(part, tuple) else (part,) for part in parts)
    return examples, None if parts[1] is None else held_out


def optimizer_of(run: RunConfig) -> Any:
    """Return a new optimizer."""
    return _made(run.optimizer, "optimizer", optimizers.get, is_factory=True)


def loss_of(run: RunConfig) -> Any:
    """Return the loss, or None."""
    return None if run.training.loss is None else _made(run.training.loss, "training.loss", losses.get)


def metric_of(component: Component, number: int) -> Any:
    """Return the metric at an index of `metrics`."""
    return _made(component, f"training.metrics[{number}]", as_metric)


def callback_of(component: Component, number: int) -> Callback:
    """Return the callback at an index of `[[callbacks]]`."""
    key, classes = f"callbacks[{number}]", vars(callbacks).items()
    known = {name: kind for name, kind in classes if isinstance(kind, type) and issubclass(kind, Callback)}
    found = imported(component.name, key) if _is_path(component) else _named(component.name, key, known)
    with error_context(key):
        made = _called(found, component, key)
    if isinstance(made, Callback):
        return made
    fix = "name a keras_dist.callbacks.Callback, or a function that returns one, for example EarlyStopping"
    raise ConfigError(f"{key}: {component.name} must be a callback", given=with_type(made), fix=fix)


def check_run(run: Any) -> None:
    """Check that `run` is a `RunConfig`."""
    if not isinstance(run, RunConfig):
        fix = 'kd.config.load("run.toml") reads a file; kd.config.RunConfig.model_validate(settings) takes a dict'
        raise ConfigError("`run` must be a RunConfig", given=with_type(run), fix=fix)


def joined_error(errors: Sequence[KerasDistError]) -> KerasDistError:
    """Combine errors that do not depend on each other."""
    listed = "\n".join(f"({number}) {error}" for number, error in enumerate(errors, 1)).replace("\n", "\n  ")
    return errors[0] if len(errors) == 1 else ConfigError(f"{len(errors)} mistakes\n  {listed}")


def with_nested(run: RunConfig, errors: Sequence[KerasDistError]) -> list[KerasDistError]:
    """Return the errors; errors of objects within the arguments of a component replace its own."""
    nested, found = _nested_errors(run.model_dump(), ""), dict[KerasDistError, None]()
    for error in errors:
        key = error.summary.partition(":")[0]
        within = [one for one in nested if one.summary.startswith((f"{key}.", f"{key}["))]
        found.update(dict.fromkeys(within or [error]))
    return list(found)


def _nested_errors(value: Any, place: str) -> list[KerasDistError]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    named = [(f"{place}[{name}]" if isinstance(name, int) else f"{place}.{name}", item) for name, item in items]
    inner = [error for name, item in named for error in _nested_errors(item, name.lstrip("."))]
    if not inner and isinstance(value, dict) and "class_name" in value:
        try:
            with custom_object_scope(_objects()), error_context(place):
                deserialize_keras_object(value)
        except KerasDistError as error:
            return [error]
    return inner


def check_directory(run: RunConfig) -> None:
    """Check the checkpoint directory of a run. Nothing is written."""
    if run.checkpoint is None:
        return
    with error_context("checkpoint.directory"):
        place = folder_path(run.checkpoint.directory)
    there = None if in_bucket(place) else next((one for one in (place, *place.parents) if one.exists()), None)
    if there is not None and not there.is_dir():
        given, fix = f"{run.checkpoint.directory!r}", "name another path, or move the file away"
        raise ConfigError(f"checkpoint.directory: {str(there)!r} must be a folder", given=given, fix=fix)


def needed(component: Component | None, key: str) -> Component:
    """Return a component; raise if the config does not contain it."""
    if component is None:
        fix = f'for example {key} = "my_package.my_module:{"MyModel" if key == "model" else "load_data"}"'
        raise ConfigError(f"{key}: is missing", given=f"a config without [{key}]", fix=fix)
    return component


def _made(component: Component, key: str, get: Callable[[Any], Any], is_factory: bool = False) -> Any:
    """Return the object that `get` finds for a component; factories by import path are called."""
    with error_context(key):
        if not _is_path(component):
            described = {"class_name": component.name, "config": component.arguments}
            with custom_object_scope(_objects()):
                return get(described if component.arguments else component.name)
        found = imported(component.name, key)
        makes = is_factory or component.arguments or isinstance(found, type)
        return get(_called(found, component, key) if makes and callable(found) else found)


def _is_path(component: Component) -> bool:
    return ":" in component.name and get_registered_object(component.name) is None


def _named(name: str, key: str, known: dict[str, Any]) -> Any:
    found = get_registered_object(name, module_objects=known)
    if found is None:
        given, fix = f'name = "{name}"', 'a registered name, or an import path: "my_package.my_module:Thing"'
        raise unknown_name_error(f"{key}: unknown name", name, known, given=given, fix=fix, error=ConfigError)
    return found


def imported(path: str, key: str) -> Any:
    """Return the object at an import path, `"module:Thing"`. The module is run.

    Args:
        path: the import path.
        key: name of the setting in errors.

    Raises:
        ConfigError: the module does not exist, or has no such name.
    """
    module_name, _, names = path.partition(":")
    try:
        if not module_name or module_name.startswith("."):
            raise ModuleNotFoundError(name=module_name)
        found = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if not module_name.startswith(str(error.name)):
            raise  # a module that is imported there
        fix = "correct it, install the package, or put its folder into PYTHONPATH"
        raise ConfigError(f"{key}: module {module_name!r} does not exist", given=f'"{path}"', fix=fix) from error
    for name in names.split("."):
        if not hasattr(found, name):
            summary = f"{key}: {path.partition(':')[0]} has no {names!r}{did_you_mean(name, vars(found))}"
            raise ConfigError(summary, given=f'"{path}"', fix="correct the name behind the colon")
        found = getattr(found, name)
    return found


def _called(found: Any, component: Component, key: str) -> Any:
    made_by = found.__init__ if isinstance(found, type) else found
    if not callable(found) or not takes(found, **component.arguments):
        given = ", ".join(f"{name}={shorten(value)}" for name, value in component.arguments.items()) or "none"
        fix = (
            f"correct them: {inspect.signature(made_by)}"
            if callable(found)
            else "correct it: name a class or a function"
        )
        raise ConfigError(f"{key}: {component.name} does not take these arguments", given=given, fix=fix)
    with custom_object_scope(_objects()):
        arguments = deserialize_keras_object(component.arguments)
    return found(**arguments)


@functools.cache
def _objects() -> dict[str, Any]:
    """Return the classes for objects within arguments, by name, without names that two packages have."""
    packages = (constraints, initializers, layers, losses, metrics, optimizers, regularizers, schedules)
    named = [(name, getattr(package, name)) for package in packages for name in package.__all__]
    counts = collections.Counter(name for name, found in set(named) if isinstance(found, type))
    return {name: found for name, found in named if counts[name] == 1}
