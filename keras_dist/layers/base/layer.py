"""`Layer`: the base of all layers.

Its body is a table of its methods: functions in modules of this package, whose first parameter is `self`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
from flax import nnx

from keras_dist import regularizers
from keras_dist._support.arguments import argument_error
from keras_dist._support.raw_errors import explained
from keras_dist._support.stateless_scope import shapes_only
from keras_dist._support.types import DTypeLike, PyTree
from keras_dist._unstable.flax_internals import shown_as
from keras_dist.layers.base import attributes, building, calls, symbolic, weight_lists
from keras_dist.layers.base.layer_record import LayerRecord
from keras_dist.layers.base.remat_scope import RematScope, current_scope
from keras_dist.layers.base.weight_arguments import Identifier, defaults_of
from keras_dist.mixed_precision import DTypePolicy
from keras_dist.serialization import Configurable, not_initialised
from keras_dist.serialization.object_registry import snake_case
from keras_dist.variables import call_context


class Layer(Configurable, nnx.Module):
    """The base of all layers: an `nnx.Module` that creates its weights when it first sees an input.

    Subclasses define `call(self, inputs)`, and `build(self, input_shape)` to create weights with `add_weight`.

    A layer builds itself once, in its first call, also inside of a function that JAX traces. Its weights are variables
    without arrays: `layer.kernel` is a `kd.Variable`, and stays the same object. The model creates the arrays, sharded
    from the start. A value that is read before is created alone, and the model moves it to its mesh.

    Args:
        activity_regularizer: a function of the output that is added to the loss.
        trainable: whether gradients update the weights. A later change takes effect with the next `compile`.
        dtype: element type, `mixed_precision.DTypePolicy`, or name of a policy; by default the current policy.
        autocast: whether inputs of other floating types, and weights while `call` runs, are cast to `compute_dtype`.
        name: by default the name of the class, `dense`; a model numbers repeated names, `dense_1`.
        **kwargs: `input_shape` (without the batch) for the first layer of a `Sequential`.

    Attributes:
        supports_jit: unused; pass `jit_compile` to `compile`.
        supports_masking: whether the mask of the input is also the mask of the output.
        input_spec: requirements of the inputs: an `InputSpec`, a list of them, or None.
        weight_initializers: default initializers of weights, by name. The constructor accepts `<name>_initializer`,
            `<name>_regularizer`, `<name>_constraint` and `<name>_layout` for each; `add_weight(name=...)` uses them.

    Raises:
        ModelError: an argument is unknown or invalid.

    Example:
        >>> import jax.numpy as jnp
        >>> from keras_dist import layers
        >>> class Scale(layers.Layer):
        ...     def build(self, input_shape):
        ...         self.factor = self.add_weight(shape=(input_shape[-1],), initializer="ones", name="factor")
        ...
        ...     def call(self, inputs):
        ...         return inputs * self.factor
        >>> Scale()(jnp.ones((2, 3))).shape
        (2, 3)

    Differs from Keras: automatic names are numbered within each model, so that the same code gives the same paths. The
    path of a sublayer consists of the attributes that lead to it.
    """

    __slots__ = ("_arguments", "_record")

    _record: LayerRecord
    _record_type: ClassVar[type[LayerRecord]] = LayerRecord
    _never_called: ClassVar[dict[str, str]] = {
        "symbolic_call": "define `compute_output_spec`, or leave it out: shapes and dtypes follow from `call`"
    }
    _is_shared_in_configs: ClassVar[bool] = True
    _takes_keep: ClassVar[bool] = False
    """Whether the layer may hold parameters of `flax.nnx` modules, for which a policy has `keep`."""
    _remat: RematScope | None = None
    weight_initializers: ClassVar[Mapping[str, Identifier]] = {}
    supports_masking: bool = False
    supports_jit: bool = True
    quantization_mode: None = None
    input_spec: PyTree = None
    is_host_side: ClassVar[bool] = False
    """Whether the layer runs on the host, before data are sent to devices: a `HostLayer`."""

    # attributes
    path = property(attributes.path)
    trainable = property(weight_lists.trainable, weight_lists.set_trainable)
    _config_arguments = attributes.config_arguments

    # dtypes
    dtype = property(attributes.dtype)
    variable_dtype = property(attributes.dtype)
    compute_dtype = property(attributes.compute_dtype)
    input_dtype = property(attributes.compute_dtype)
    quantize = attributes.quantize

    # building
    built = property(building.built, building.set_built)
    build = building.build
    get_build_config = building.get_build_config
    build_from_config = building.build_from_config
    describe_weight = building.describe_weight
    identify = building.identify
    add_weight = building.add_weight
    add_variable = building.add_variable
    check_may_create = building.check_may_create

    # the call
    call = calls.call
    rematerialized_call = calls.rematerialized_call
    stateless_call = calls.stateless_call
    compute_mask = calls.compute_mask
    add_loss = calls.add_loss
    losses = property(calls.losses)

    # symbolic tensors
    compute_output_shape = symbolic.compute_output_shape
    compute_output_spec = symbolic.compute_output_spec
    input = property(symbolic.input)
    output = property(symbolic.output)

    # weights
    weights = property(weight_lists.weights)
    variables = property(weight_lists.variables)
    trainable_weights = property(weight_lists.trainable_weights)
    trainable_variables = property(weight_lists.trainable_variables)
    non_trainable_weights = property(weight_lists.non_trainable_weights)
    non_trainable_variables = property(weight_lists.non_trainable_variables)
    metrics = property(weight_lists.metrics)
    metrics_variables = property(weight_lists.metrics_variables)
    get_weights = weight_lists.get_weights
    set_weights = weight_lists.set_weights
    count_params = weight_lists.count_params
    save_own_variables = weight_lists.save_own_variables
    load_own_variables = weight_lists.load_own_variables
    _weights_so_far = weight_lists.weights
    _with_states = weight_lists.with_states

    def __init__(
        self,
        *,
        activity_regularizer: Identifier = None,
        trainable: bool = True,
        dtype: DTypeLike | DTypePolicy | None = None,
        autocast: bool = True,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        self._base_name = snake_case(type(self).__name__) if name is None else None  # None: a name was given
        self._name = self._base_name or attributes.check_name(name)
        if not isinstance(trainable, bool | np.bool_):
            raise argument_error("trainable", trainable, "True or False", layer=self._name, example=False)
        self._trainable = bool(trainable)
        self._trainable_was_set = False
        self._record.made_in_call = call_context.caller() is not None
        self._dtype_policy = attributes.policy_of(dtype, self._name, takes_keep=self._takes_keep)
        self.autocast = autocast
        if self._makes_masks():
            self.supports_masking = True  # as in Keras; a constructor may change it
        self.identify("activity_regularizer", regularizers.get, activity_regularizer)
        for weight, initializer in self.weight_initializers.items():
            described = defaults_of(weight, initializer)
            self.describe_weight(weight, *(kwargs.pop(argument, default) for argument, default in described.items()))
        self._own_input_shape = attributes.take_input_shape(kwargs)
        self._is_built = False
        if (scope := current_scope()) is not None:
            self._remat = scope
        for name in ("lora_alpha", "lora_rank", "quantization_config"):  # Keras writes them into configs
            if kwargs.get(name, name) is None:
                del kwargs[name]
        if kwargs:
            raise attributes.unknown_arguments(self, kwargs)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Wrap `build`, and show the arguments of weights in the constructor's signature."""
        super().__init_subclass__(**kwargs)
        building.prepare_subclass(cls)

    def __call__(self, *args: Any, **kwargs: Any) -> PyTree:
        """Return the output for arrays, or a symbolic output for symbolic inputs.

        Raises:
            ModelError: the inputs do not fit, or a weight cannot be created.
        """
        return calls.outputs_of(self, args, kwargs)

    @property
    def name(self) -> str:
        """The name of the layer."""
        return self._name

    @property
    def dtype_policy(self) -> DTypePolicy:
        """The policy for the dtypes of arithmetic and weights. Can be set until the layer is built.

        Source: `keras.layers.Layer.dtype_policy`.
        """
        return self._dtype_policy

    @dtype_policy.setter
    def dtype_policy(self, value: DTypeLike | DTypePolicy | None) -> None:
        attributes.set_policy(self, value)

    @classmethod
    def _needs_no_building(cls) -> bool:
        calls = [base for base in cls.__mro__ if "call" in vars(base) and base is not Layer]
        return cls.build is Layer.build and any(base.__module__.startswith("keras_dist.layers.") for base in calls)

    @classmethod
    def _creates_weights(cls) -> bool:
        """Return whether `build` creates the weights of the layers inside, as the `build` of a model does."""
        return hasattr(cls.build, "creates_weights")

    @classmethod
    def _makes_masks(cls) -> bool:
        return cls.compute_mask is not Layer.compute_mask

    @property
    def _casts_inputs(self) -> bool:
        return self.autocast

    def _check_initialised(self) -> None:
        if "_is_built" not in vars(self):
            raise not_initialised(self)

    @functools.partial(explained, kinds=(RecursionError,))
    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, attributes.checked(self, name, value))

    def __delattr__(self, name: str) -> None:
        attributes.check_removable(self, name)
        super().__delattr__(name)

    def __getattr__(self, name: str) -> Any:
        if name == "_record":
            object.__setattr__(self, name, self._record_type())  # bypasses NNX
            return self._record
        return attributes.missing(self, name)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} name={self.name}, built={self.built}>"

    __str__ = __repr__

    def __nnx_repr__(self) -> Iterator[Any]:
        yield shown_as(repr(self))  # in lists and dicts

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Any:
        with shapes_only():
            copied = super().__deepcopy__(memo)
        return attributes.complete_copy(self, copied)

    def __copy__(self) -> Any:
        return self.__deepcopy__()  # two layers must not share variables

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | ({"_arguments": self._arguments} if hasattr(self, "_arguments") else {})

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        state = dict(state)
        if "_arguments" in state:
            object.__setattr__(self, "_arguments", dict(state.pop("_arguments")))
        super().__setstate__(state)
