"""Models of foreign modules: of `flax.nnx`, and of Keras."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from flax import nnx

from keras_dist._support.types import DTypeLike
from keras_dist.errors import ModelError
from keras_dist.mixed_precision import DTypePolicy
from keras_dist.models.model_base import ModelBase
from keras_dist.models.module_source import ModuleSource, held_on_host
from keras_dist.training.graph import Trainable
from keras_dist.training.step import ModuleCall

Made = TypeVar("Made", bound=ModelBase)


def from_nnx(
    cls: type[Made],
    factory_or_module: nnx.Module | Callable[..., nnx.Module],
    call: ModuleCall | None = None,
    *,
    trainable: Trainable = None,
    seed: int | None = None,
    dtype: DTypeLike | DTypePolicy | None = None,
) -> Made:
    """Create a model from any `flax.nnx.Module`, on the current distribution, by default on the first device.

    Under a mixed policy, steps cast floating inputs and parameters (`nnx.Param`) to half precision. Values,
    gradients, slots, statistics, outputs, losses and metrics stay float32. Each module that owns parameters casts
    its floating inputs, as a layer does. Values that a call assigns to a parameter are dropped. A module with an
    attribute `dtype` computes in that dtype, on its float32 parameters. A warning names such modules, and modules
    in which other float32 arrays promote half precision.

    Args:
        factory_or_module: a function of `flax.nnx.Rngs` that makes the module; its arrays are created sharded,
            never whole on one device. Its only required argument is called `rngs`, or is positional. Or an
            existing module, which is copied and never changed. `model.module` is the module that is trained: pass
            it, not the model, to functions of NNX and to other models.
        call: `call(module, x, training, rngs) -> y_pred` for modules that are not called as `module(x)`; by default
            `module.train()` or `module.eval()`, then `module(x)`.
        trainable: filter of the trained variables: an NNX filter, or a regular expression for whole paths of
            parameters; by default every `nnx.Param`.
        seed: fixes initial values and Dropout; by default the seed of `kd.set_random_seed`, else a fresh seed.
        dtype: a policy: `"mixed_bfloat16"`, `"mixed_float16"`, or with parameters that stay float32
            `DTypePolicy("mixed_bfloat16", keep=".*norm.*|router/.*")`; by default the current policy.

    Raises:
        ModelError: the factory does not return an NNX module, or `trainable` selects nothing.
        LayoutError: the layout rules cannot be applied.

    Example:
        >>> import keras_dist as kd
        >>> from flax import nnx
        >>> model = kd.Model.from_nnx(lambda rngs: nnx.Linear(8, 2, rngs=rngs), seed=0)
        >>> [variable.path for variable in model.variables]
        ['bias', 'kernel']
    """
    model = cls()
    model._has_module = True
    if dtype is not None:
        model.dtype_policy = dtype
    model._record.source = ModuleSource(factory_or_module, call, trainable, seed, model.dtype_policy)
    return _with_its_module(model)


def from_keras(cls: type[Made], model: Any, *, seed: int | None = None) -> Made:
    """Create a model from a Keras model object, on the current distribution, by default on the first device.

    Any built `keras.Model` on Keras's JAX backend is accepted: functional, `Sequential`, subclassed, of KerasHub.
    It is called through its `stateless_call`. Layout rules match Keras's `variable.path`. Losses of layers and
    regularizers, masks, statistics and the seeds of Dropout work as in Keras's `fit`. The variables that Keras
    trains now are trained: set `trainable` of its layers before.

    The Keras object keeps its values on the host: no device has a whole copy beside the shards. It does not change
    while this model is trained; `to_keras` writes the weights into it.

    Args:
        model: a built `keras.Model`. `compile()` without arguments uses the arguments with which it was compiled.
        seed: fixes the order of rows; by default the seed of `kd.set_random_seed`, else a fresh seed.

    Raises:
        LayoutError: the layout rules cannot be applied.
        ModelError: `model` is not a Keras model, runs on another backend, is not built, or has a distribution of
            Keras.
    """
    source = held_on_host(model)
    made = cls(name=model.name, dtype=model.dtype_policy.name)
    made._has_module = True
    made._record.source = ModuleSource.of_keras(source, seed)
    made._record.keras_model = source
    return _with_its_module(made)


def _with_its_module(model: Made) -> Made:
    """Create the weights, unless `fit` has to find their layout."""
    if model._awaits_layout is None:
        model._with_weights()
    return model


def to_keras(model: ModelBase) -> Any:
    """Write the weights to the Keras model object that was passed to `from_keras`, and return this object.

    Its `predict`, `evaluate` and `save` then use them. It keeps them until the next call of `to_keras`. The
    variables are gathered on the host one at a time. The state of the optimizer is not written. In a job all
    processes must call it.

    Raises:
        ModelError: the model was not made by `from_keras`.
    """
    source = model._record.keras_model
    if source is None:
        summary = "to_keras: the model was not made by from_keras"
        fix = "model.save(path), or keras_model.set_weights(model.get_weights()) with a Keras model like it"
        raise ModelError(summary, given=f"a {type(model).__name__} of keras_dist", fix=fix)
    for variable in model.variables:
        source.take(variable.path, variable.numpy())
    return source.model
