"""Descriptions of models for files and copies: configs, arguments of `build` and `compile`, dtype policies, values.

A copy goes through config, arguments of `compile` and arrays on the host, as in Keras: the arrays of a model have one
owner, and a copy is a model of its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, SupportsIndex

import jax
import numpy as np
from flax import traverse_util

from keras_dist._support.located_warnings import warn
from keras_dist._support.types import PyTree
from keras_dist._unstable.jax_internals import is_key_dtype, key_impl
from keras_dist.adapters.quantizing import modes_of, quantize_unread
from keras_dist.distribution.placement import host_copy, place_copy
from keras_dist.errors import CheckpointWarning, ConfigError, ModelError, shorten
from keras_dist.formats.keras_files import Description
from keras_dist.formats.model_state import COMPILE, CONFIG, LORA, POLICY, QUANTIZED, names_of
from keras_dist.layers.base.layer_record import layers_inside
from keras_dist.mixed_precision import under_policy
from keras_dist.models.config import check_described, check_not_of_keras
from keras_dist.models.model_base import ModelBase
from keras_dist.models.model_distribution import on_mesh_of
from keras_dist.models.weight_creation import create_weights
from keras_dist.serialization import deserialize_keras_object, serialize_keras_object
from keras_dist.serialization.object_configs import is_lambda, lambdas_kept
from keras_dist.serialization.shared_objects import one_config_read, one_config_written
from keras_dist.symbolic.tensors import KerasTensor


def described(model: ModelBase) -> Description:
    """Return the description of a model of layers."""
    check_described(model)
    model._with_weights()
    return Description(_written_model(model), written_compile(model), model.dtype_policy.identifier)


def documents_of(model: ModelBase) -> dict[str, Any]:
    """Return the JSON documents, beside the arrays, from which `load_model` recreates the model."""
    check_not_of_keras(model)
    documents: dict[str, Any] = {COMPILE: written_compile(model), POLICY: model.dtype_policy.identifier}
    if not model._with_weights().cell.graph.is_foreign:
        documents = {CONFIG: _written_model(model), **documents}
    modes, adapters = _modes(model), model._record.adapters
    documents |= {QUANTIZED: modes} if modes else {}
    return documents if adapters is None else {**documents, LORA: adapters.arguments()}


def _modes(model: ModelBase) -> dict[str, str]:
    """Return the modes of quantized weights by path."""
    built = model._with_weights()
    modes = modes_of(built)
    shared = [path for path in modes if len(getattr(built.cell.held(path), "keepers", ())) > 1]
    if shared:
        fix = "save_weights; then make and quantize the models again, and load_weights"
        given = f"{shared[0]!r}, which a model inside has, too"
        raise ModelError("a quantized model inside of another cannot be saved with its config", given=given, fix=fix)
    return modes


def _written_model(model: ModelBase) -> dict[str, Any]:
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


def written_compile(model: ModelBase) -> dict[str, Any]:
    """Return the arguments of `compile` as plain values; empty, with a warning, if they have none."""
    try:
        return model.get_compile_config()
    except ConfigError as error:
        warn(
            f"the model is saved without what `compile` was given, so that it is loaded uncompiled: {error}",
            CheckpointWarning,
        )
        return {}


_END = "_shape"


def get_build_config(model: ModelBase) -> dict[str, Any] | None:
    """Return the argument of `build_from_config`; None without weights, or if none is needed."""
    record = model._record
    if model._graph is not None or (record.built_for is None and not record.built_by_name):
        return None
    if record.built_for is not None:
        return {"input_shape": _shapes(record.built_for), "input_dtype": _dtypes(record.built_for)}
    return {
        "shapes_dict": {f"{name}{_END}": _shapes(tensors) for name, tensors in record.built_by_name.items()},
        "input_dtype": {name: _dtypes(tensors) for name, tensors in record.built_by_name.items()},
    }


def build_from_config(model: ModelBase, config: Mapping[str, Any]) -> None:
    """Create the weights for the inputs that `get_build_config` described."""
    dtypes = config.get("input_dtype")
    if "shapes_dict" in config:
        shapes = {name.removesuffix(_END): shape for name, shape in config["shapes_dict"].items()}
        tensors = {
            name: KerasTensor(shape, model.dtype) if dtypes is None else _tensors(shape, dtypes[name])
            for name, shape in shapes.items()
        }
        if model._built is None:
            create_weights(model, (), tensors)
    elif dtypes is None:
        model.build(config["input_shape"])
    elif model._built is None:
        create_weights(model, (_tensors(config["input_shape"], dtypes),), {})


def _shapes(tensors: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: list(leaf.shape), tensors)


def _dtypes(tensors: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: leaf.dtype, tensors)


def _tensors(shapes: PyTree, dtypes: PyTree) -> PyTree:
    flat, structure = jax.tree.flatten(dtypes)
    pairs = zip(structure.flatten_up_to(shapes), flat, strict=True)
    return structure.unflatten([KerasTensor(shape, dtype) for shape, dtype in pairs])


def reduced(model: ModelBase, protocol: SupportsIndex = 4) -> tuple[Any, ...]:
    """Return the arguments with which `pickle` and `copy` recreate the model, on the then current distribution.

    Raises:
        ConfigError: the model cannot be serialized.
        ModelError: the job has several processes.

    Source: `keras.src.saving.keras_saveable.KerasSaveable.__reduce__`.
    """
    if jax.process_count() > 1:
        summary = f"model {model.name!r} cannot be pickled or copied in a job of several processes"
        given = f"{jax.process_count()} processes, each of which holds a part of the weights"
        raise ModelError(summary, given=given, fix="model.save(path) in all of them, then kd.models.load_model(path)")
    check_described(model)
    own = {type(owner) for owner in layers_inside(model) if not type(owner).__module__.startswith("keras_dist.")}
    custom_objects = {cls.__name__: cls for cls in own}
    with lambdas_kept(), one_config_written():  # `pickle` refuses them itself, and `cloudpickle` takes them
        documents = (serialize_keras_object(model), written_compile(model), model.dtype_policy.identifier)
    state = None
    if model._built is not None or model._is_built:
        built = model._with_weights()
        with model.at_rest():
            arrays = [host_copy(array) for array in built.cell.arrays]
        state = (built.seed, built.fits, dict(zip(names_of(built), arrays, strict=True)))
    adapters, modes = model._record.adapters, {} if state is None else _modes(model)
    return _unpickled, (custom_objects, *documents, state, adapters and adapters.arguments(), modes)


def copied(model: ModelBase, memo: Any = None) -> Any:
    """Return a copy of the model on the same distribution."""
    make, arguments = reduced(model)
    made_under = model._record.made_under if arguments[4] is None else model._with_weights().distribution
    with contextlib.nullcontext() if made_under is None else made_under.scope(), on_mesh_of(model):
        return make(*arguments)


def _unpickled(
    custom_objects: Any, config: Any, compiled: Any, policy: Any, state: Any, lora: Any = None, modes: Any = None
) -> Any:
    with under_policy(policy):
        with one_config_read():
            model = deserialize_keras_object(config, custom_objects)
        if compiled:
            model.compile_from_config(compiled)
    if state is not None:
        seed, fits, values = state
        built = model._with_weights()
        if modes:
            quantize_unread(model, modes)
        if lora:
            model.enable_lora(**lora)
        built.use_seed(seed)
        built.fits = fits
        cell = built.cell
        if missing := [name for name in names_of(built) if name not in values]:
            summary = f"a copy of model {model.name!r} that is made from its config has other weights"
            given = f"{', '.join(map(repr, missing[:6]))} in the copy, not in the model"
            fix = "let get_config and from_config of its layers describe all layers inside of them"
            raise ModelError(summary, given=given, fix=fix)
        places = zip(names_of(built), cell.arrays, jax.tree.leaves(cell.state_plan.shardings), strict=True)
        cell.arrays = [place_copy(_like(array, values[name]), sharding) for name, array, sharding in places]
    return model


def _like(array: Any, value: Any) -> Any:
    if not is_key_dtype(array.dtype):
        return value
    return jax.random.wrap_key_data(value, impl=key_impl(array.dtype))


_KINDS = ("trainable_variables", "non_trainable_variables", "optimizer_variables", "metrics_variables")


def variables_of(model: Any, kind: str) -> list[tuple[str, Any]]:
    """Return the variables of one kind by path, below the name of their optimizer or metric."""
    if kind == "metrics_variables":
        return [(one.path, one) for one in model.metrics_variables]
    if kind != "optimizer_variables":
        return [(one.path, one) for one in getattr(model, kind)]
    found = []
    for one in model.optimizer.variables:
        inner = one.path.removeprefix(f"{model.optimizer.name}/").removeprefix("optimizer/").removeprefix("inner/")
        found.append((f"{model.optimizer.name}/{inner}", one))
    return found


def get_state_tree(model: ModelBase, value_format: str = "backend_tensor") -> dict[str, Any]:
    """Return the values of all variables, as nested dicts by the names in their paths.

    Args:
        value_format: `"backend_tensor"` for arrays of JAX, `"numpy_array"` for arrays on the host.

    Returns:
        A dict with `"trainable_variables"`, `"non_trainable_variables"`, `"optimizer_variables"` and
        `"metrics_variables"`.

    Raises:
        ModelError: two variables of a kind have the same path, or `value_format` is none of these.
    """
    if value_format not in ("backend_tensor", "numpy_array"):
        summary = "get_state_tree: invalid `value_format` argument"
        raise ModelError(summary, given=shorten(value_format), fix='"backend_tensor" or "numpy_array"')
    return {kind: _nested(variables_of(model, kind), value_format == "numpy_array") for kind in _KINDS}


def set_state_tree(model: ModelBase, state_tree: Mapping[str, Any]) -> None:
    """Set the variables whose paths are in nested dicts, such as `get_state_tree` returns.

    Args:
        state_tree: values by kind of variable, then by path. Variables without a value stay unchanged; paths that
            the model does not have are ignored.

    Raises:
        ModelError: `state_tree` contains another kind.
    """
    unknown = [kind for kind in state_tree if kind not in _KINDS]
    if unknown:
        fix = f"take the form that get_state_tree() returns: {', '.join(_KINDS)}"
        raise ModelError("set_state_tree: unknown variable name", given=", ".join(map(repr, unknown)), fix=fix)
    for kind, tree in state_tree.items():
        values = traverse_util.flatten_dict(tree, sep="/")
        for path, variable in variables_of(model, kind):
            if path in values:
                variable.assign(values[path])


def _nested(variables: Iterable[tuple[str, Any]], is_numpy: bool) -> dict[str, Any]:
    flat: dict[tuple[str, ...], Any] = {}
    for path, variable in variables:
        parts = tuple(path.split("/"))
        if parts in flat:
            summary = f"The following variable path is found twice in the model: {path!r}"
            fix = "give layers and metrics names of their own"
            raise ModelError(summary, given="two variables of one path", fix=fix)
        flat[parts] = np.asarray(variable.value) if is_numpy else variable.value
    return traverse_util.unflatten_dict(flat)
