"""Errors for objects of Keras, Linen and Equinox, recognized by class name, which suggest a conversion."""

from __future__ import annotations

import inspect
from typing import Any

from keras_dist._support.signatures import takes
from keras_dist.errors import ModelError, shorten, with_type

_KERAS = "of keras, which keras_dist does not use"
_LINEN = (
    "a module of flax.linen",
    "wrap it: Model.from_nnx(lambda rngs: flax.nnx.bridge.ToNNX(module, rngs=rngs).lazy_init(x)), where x is a batch; "
    "among layers: layers.NNXLayer(flax.nnx.bridge.ToNNX(module, rngs=flax.nnx.Rngs(0)).lazy_init(x))",
)
_EQUINOX = (
    "a module of equinox",
    "keep your loop, and ask for layouts: kd.distribution.distribution().plan(jax.eval_shape(make, key)), as README "
    "does for any pytree; or hold its arrays in a flax.nnx.Module as nnx.Param",
)
_FUNCTIONS = (
    "keep your loop, and ask for layouts: kd.distribution.distribution().plan(jax.eval_shape(init, key)), as README "
    "does for any pytree; or write a flax.nnx.Module that holds the weights as nnx.Param"
)


def is_of_keras(value: Any) -> bool:
    """Return whether `value` is an object of a class of Keras."""
    return any(cls.__module__.partition(".")[0] in ("keras", "tf_keras") for cls in type(value).__mro__)


def check_is_ours(caller: str, value: Any) -> None:
    """Check that a value, or class, is not a layer, model or module of another library; errors begin with `caller`."""
    found = _described(value)
    if found is not None:
        what, fix = found
        raise ModelError(f"{caller} {what}", given=with_type(value), fix=fix)


def _described(value: Any) -> tuple[str, str] | None:
    cls = value if isinstance(value, type) else type(value)
    bases = {(base.__module__.partition(".")[0], base.__name__) for base in cls.__mro__}
    for library in ("keras", "tf_keras"):
        if (library, "Model") in bases:
            return f"is a model {_KERAS}", (
                "train it as it is: model = kd.Model.from_keras(keras_model); or make it anew: "
                "model = kd.models.model_from_json(keras_model.to_json()), then "
                "model.set_weights(keras_model.get_weights())"
            )
        if (library, "Layer") in bases:
            is_own = cls.__module__.partition(".")[0] == library
            return f"is a layer {_KERAS}", (
                f"keras_dist.layers.{cls.__name__}(...), with the same arguments"
                if is_own
                else f"derive {cls.__name__} from keras_dist.layers.Layer instead"
            )
        if (library, "KerasTensor") in bases:
            return f"is a symbolic tensor {_KERAS}", "keras_dist.Input(shape), and layers of keras_dist"
    if any(base.__module__.startswith("flax.linen.") and base.__name__ == "Module" for base in cls.__mro__):
        return f"is {_LINEN[0]}", _LINEN[1]
    if ("equinox", "Module") in bases:
        return f"is {_EQUINOX[0]}", _EQUINOX[1]
    return None


def check_is_no_function(value: Any) -> None:
    """Check that a value is neither a function of weights and inputs nor a pair `(init, apply)`."""
    if isinstance(value, tuple) and len(value) == 2 and all(map(callable, value)):
        what = "a pair of functions, init and apply"
    elif callable(value) and not isinstance(value, type | tuple) and not _asks_for_rngs(value):
        what = "a function of weights and inputs" if takes(value, None, None) else ""
    else:
        what = ""
    if what:
        summary = f"from_nnx: what was given is {what}, not a flax.nnx.Module or a factory(rngs=rngs)"
        raise ModelError(summary, given=shorten(value), fix=_FUNCTIONS)


def _asks_for_rngs(function: Any) -> bool:
    """Return whether a function requires `rngs`, as a factory does."""
    try:
        parameter = inspect.signature(function).parameters.get("rngs")
    except (TypeError, ValueError):
        return False
    return takes(function, rngs=None) or (parameter is not None and parameter.default is parameter.empty)
