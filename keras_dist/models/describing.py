"""Descriptions of models for files: configs, arguments of `compile`, and dtype policies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from keras_dist._support.located_warnings import warn
from keras_dist.errors import CheckpointWarning, ConfigError
from keras_dist.models.adapters import written
from keras_dist.models.config import check_described, check_not_of_keras
from keras_dist.saving import serialize_keras_object
from keras_dist.saving.serialization import is_lambda
from keras_dist.saving.shared_objects import one_config_written
from keras_dist.storage.keras_files import Description
from keras_dist.storage.model_state import COMPILE, CONFIG, LORA, POLICY

if TYPE_CHECKING:
    from keras_dist.models.saving_methods import SavingMethods


def described(model: SavingMethods) -> Description:
    """Return the description of a model of layers."""
    check_described(model)
    model._with_weights()
    return Description(_written_model(model), written_compile(model), model.dtype_policy.identifier)


def documents_of(model: SavingMethods) -> dict[str, Any]:
    """Return the JSON documents, beside the arrays, from which `load_model` recreates the model."""
    check_not_of_keras(model)
    documents: dict[str, Any] = {COMPILE: written_compile(model), POLICY: model.dtype_policy.identifier}
    if not model._with_weights().cell.graph.is_foreign:
        documents = {CONFIG: _written_model(model), **documents}
    lora = written(model._runtime.adapters)
    return documents if lora is None else {**documents, LORA: lora}


def _written_model(model: SavingMethods) -> dict[str, Any]:
    """Return the config of a model; warn of lambdas, whose code no file holds."""
    with one_config_written():
        written = serialize_keras_object(model)
    lambdas = dict(_lambdas_in(written))
    if lambdas:
        functions = ", ".join(f"{layer!r}: function" for layer in lambdas.values())
        way = f"to load it, load_model needs custom_objects={{{functions}}}"
        warn(
            f"the model is saved without the code of {', '.join(lambdas)}: "
            f"{'load_model will refuse it' if None in lambdas.values() else way}. Register a named function instead: "
            "@saving.register_keras_serializable()",
            CheckpointWarning,
        )
    return written


def _lambdas_in(written: Any, place: str = "", layer: str | None = None) -> Iterator[tuple[str, str | None]]:
    """Yield the lambdas in a config, each with the name of its layer if it is the function of a `Lambda`."""
    if is_lambda(written):
        yield f"{place} ({written['config']['name']})", layer
        return
    config, kind = (written.get("config"), str(written.get("class_name"))) if isinstance(written, Mapping) else (0, "_")
    if isinstance(config, Mapping) and not kind.startswith("_"):
        owner = f"{kind} {config['name']!r}" if "name" in config else kind
        for name, value in config.items():
            is_function = (kind, name) == ("Lambda", "function")
            yield from _lambdas_in(value, f"`{name}` of {owner}", config.get("name") if is_function else None)
    elif isinstance(written, Mapping | list):
        for part in written.values() if isinstance(written, Mapping) else written:
            yield from _lambdas_in(part, place)


def written_compile(model: SavingMethods) -> dict[str, Any]:
    """Return the arguments of `compile` as plain values; empty, with a warning, if they have none."""
    try:
        return model.get_compile_config()
    except ConfigError as error:
        warn(
            f"the model is saved without what `compile` was given, so that it is loaded uncompiled: {error}",
            CheckpointWarning,
        )
        return {}
