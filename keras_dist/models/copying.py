"""Copies and pickles of models.

A copy goes through config, arguments of `compile` and arrays on the host, as in Keras: the arrays of a model have one
owner, and a copy is a model of its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax

from keras_dist._unstable.jax_internals import is_key_dtype, key_impl
from keras_dist.distribution.placement import host_copy, place_copy
from keras_dist.errors import ModelError
from keras_dist.mixed_precision import under_policy
from keras_dist.models.adapters import written
from keras_dist.models.config import check_described
from keras_dist.models.describing import written_compile
from keras_dist.models.model_distribution import in_place_of
from keras_dist.saving import deserialize_keras_object, serialize_keras_object
from keras_dist.saving.serialization import lambdas_kept
from keras_dist.saving.shared_objects import one_config_read, one_config_written
from keras_dist.storage.model_state import names_of

if TYPE_CHECKING:
    from keras_dist.models.saving_methods import SavingMethods


def reduced(model: SavingMethods) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return the `__reduce__` value of a model: it is recreated on the current distribution, with optimizer state."""
    if jax.process_count() > 1:
        summary = f"model {model.name!r} cannot be pickled or copied in a job of several processes"
        given = f"{jax.process_count()} processes, each of which holds a part of the weights"
        raise ModelError(summary, given=given, fix="model.save(path) in all of them, then kd.models.load_model(path)")
    check_described(model)
    own = {type(owner) for owner in model._owners() if not type(owner).__module__.startswith("keras_dist.")}
    custom_objects = {cls.__name__: cls for cls in own}
    with lambdas_kept(), one_config_written():  # `pickle` refuses them itself, and `cloudpickle` takes them
        documents = (serialize_keras_object(model), written_compile(model), model.dtype_policy.identifier)
    state = None
    if model._session is not None or model._is_built:
        session = model._with_weights()
        with model.at_rest():
            arrays = [host_copy(array) for array in session.cell.arrays]
        state = (session.seed, session.fits, dict(zip(names_of(session), arrays, strict=True)))
    return _unpickled, (custom_objects, *documents, state, written(model._runtime.adapters))


def copied(model: SavingMethods) -> Any:
    """Return a copy of the model with copied arrays, on the same distribution."""
    make, arguments = reduced(model)
    made_under = model._runtime.made_under if arguments[4] is None else model._with_weights().distribution
    with contextlib.nullcontext() if made_under is None else made_under.scope(), in_place_of(model):
        return make(*arguments)


def _unpickled(custom_objects: Any, config: Any, compiled: Any, policy: Any, state: Any, lora: Any = None) -> Any:
    with under_policy(policy):
        with one_config_read():
            model = deserialize_keras_object(config, custom_objects)
        if compiled:
            model.compile_from_config(compiled)
    if state is not None:
        seed, fits, values = state
        session = model._with_weights()
        if lora:
            model.enable_lora(**lora)
        session.use_seed(seed)
        session.fits = fits
        cell = session.cell
        if missing := [name for name in names_of(session) if name not in values]:
            summary = f"a copy of model {model.name!r} that is made from its config has other weights"
            given = f"{', '.join(map(repr, missing[:6]))} in the copy, not in the model"
            fix = "let get_config and from_config of its layers describe all layers inside of them"
            raise ModelError(summary, given=given, fix=fix)
        places = zip(names_of(session), cell.arrays, jax.tree.leaves(cell.state_plan.shardings), strict=True)
        cell.arrays = [place_copy(_like(array, values[name]), sharding) for name, array, sharding in places]
    return model


def _like(array: Any, value: Any) -> Any:
    if not is_key_dtype(array.dtype):
        return value
    return jax.random.wrap_key_data(value, impl=key_impl(array.dtype))
