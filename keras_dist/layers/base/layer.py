"""`Layer`: the base of all layers."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from keras_dist import regularizers
from keras_dist._support.arguments import argument_error
from keras_dist._support.array_operators import native, value_of, values_in
from keras_dist._support.located_warnings import warn
from keras_dist._support.signatures import takes_keyword
from keras_dist._support.stateless_scope import shapes_only
from keras_dist._support.traced_values import explaining_traced_values
from keras_dist._support.types import ArrayLike, DTypeLike, PyTree
from keras_dist._unstable.flax_internals import (
    PRIVATE_PREFIXES,
    attribute_order,
    is_data_attribute,
    restore_order,
    shown_as,
    trace_state_of,
)
from keras_dist.distribution.devices import check_not_forked
from keras_dist.errors import ArgumentTypeError, KerasDistError, ModelError, did_you_mean, shorten, unknown_name_error
from keras_dist.layers.base import symbolic
from keras_dist.layers.base.attributes import (
    Precision,
    as_nnx_containers,
    axes_of,
    check_name,
    policy_of,
    take_input_shape,
)
from keras_dist.layers.base.building import Building, shard_weights
from keras_dist.layers.base.call_arguments import (
    call_parameters,
    check_complete,
    check_inputs,
    check_numbers,
    takes_any,
    tensor_arguments,
    training_of,
    value_given,
)
from keras_dist.layers.base.layer_record import HasRecord
from keras_dist.layers.base.other_frameworks import check_is_ours, is_of_keras
from keras_dist.layers.base.remat_scope import RematScope, current_scope
from keras_dist.layers.base.weight_arguments import Identifier, defaults_of
from keras_dist.layers.base.weights import WeightOwner, direct_variables, has_deferred, walk, walk_owned
from keras_dist.mixed_precision import DTypePolicy
from keras_dist.serialization import Configurable, not_initialised
from keras_dist.serialization.object_registry import snake_case
from keras_dist.variables import call_context
from keras_dist.variables.variable import Variable


class Layer(HasRecord, Building, WeightOwner, Precision, Configurable, nnx.Module):
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

    __slots__ = ()

    _never_called: ClassVar[dict[str, str]] = {
        "symbolic_call": "define `compute_output_spec`, or leave it out: shapes and dtypes follow from `call`"
    }

    _is_shared_in_configs: ClassVar[bool] = True
    supports_masking: bool = False
    supports_jit: bool = True
    input_spec: PyTree = None
    _remat: RematScope | None = None
    is_host_side: ClassVar[bool] = False
    """Whether the layer runs on the host, before data are sent to devices: a `HostLayer`."""

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
        self._name = self._base_name or check_name(name)
        if not isinstance(trainable, bool | np.bool_):
            raise argument_error("trainable", trainable, "True or False", layer=self._name, example=False)
        self._trainable = bool(trainable)
        self._trainable_was_set = False
        self._record.made_in_call = call_context.caller() is not None
        self._dtype_policy = policy_of(dtype, self._name, takes_keep=self._takes_keep)
        self.autocast = autocast
        if self._makes_masks():
            self.supports_masking = True  # as in Keras; a constructor may change it
        self.identify("activity_regularizer", regularizers.get, activity_regularizer)
        self._describe_weights(kwargs)
        self._own_input_shape = take_input_shape(kwargs)
        self._is_built = False
        if (scope := current_scope()) is not None:
            self._remat = scope
        for name in ("lora_alpha", "lora_rank", "quantization_config"):  # Keras writes them into configs
            if kwargs.get(name, name) is None:
                del kwargs[name]
        if kwargs:
            raise self._unknown_arguments(kwargs)

    @property
    def name(self) -> str:
        """The name of the layer."""
        return self._name

    @property
    def path(self) -> str | None:
        """The path of the layer in its model, or its name outside of models; None before it is built."""
        membership = self._record.membership
        return (membership.prefix if membership is not None else "") or (self.name if self.built else None)

    @property
    def built(self) -> bool:
        """Whether the weights exist or can be created: there are none, or the layer was called on symbolic tensors."""
        return self._is_built or bool(self._record.nodes) or self._needs_no_building()

    @built.setter
    def built(self, value: bool) -> None:
        self._is_built = bool(value)

    @classmethod
    def _needs_no_building(cls) -> bool:
        calls = [base for base in cls.__mro__ if "call" in vars(base) and base is not Layer]
        return cls.build is Layer.build and any(base.__module__.startswith("keras_dist.layers.") for base in calls)

    @classmethod
    def _makes_masks(cls) -> bool:
        return cls.compute_mask is not Layer.compute_mask

    @property
    def trainable(self) -> bool:
        """Whether gradients update the weights. Setting it sets all sublayers; it takes effect with `compile`."""
        return self._trainable

    @trainable.setter
    def trainable(self, value: bool) -> None:
        for layer in self._owners():
            layer._trainable, layer._trainable_was_set = bool(value), True
        self._update_param_kinds()

    def _update_param_kinds(self) -> None:
        """Make weights `nnx.Param`s if all layers that contain them are trainable."""
        for _, variable, owners in walk_owned(self):
            if isinstance(variable, Variable):
                variable.follow(max(owners, variable._owners, key=len))

    def call(self, *args: Any, **kwargs: Any) -> PyTree:
        """Compute the output. Subclasses define it; `training` and `mask` are passed if it has such parameters."""
        raise NotImplementedError(f"{type(self).__name__} does not define call(self, inputs)")

    def __call__(self, *args: Any, **kwargs: Any) -> PyTree:
        """Return the output for arrays, or a symbolic output for symbolic inputs.

        Raises:
            ModelError: the inputs do not fit, or a weight cannot be created.
        """
        self._check_initialised()
        args, kwargs = values_in((args, kwargs))
        check_numbers(call_parameters(type(self)), args, kwargs, self.name)
        if symbolic.is_any_symbolic((args, kwargs)):
            if self._is_built and args:
                check_inputs(self.input_spec, args[0], self.name)
            return symbolic.connect(self, args, kwargs)
        is_alone = call_context.current() is None
        is_new = is_alone and (not self._is_built or has_deferred(self))
        if is_alone:
            check_not_forked()
            self.forget_losses()
        with call_context.entered(kwargs.get("training")) as context:
            outputs = self._run(args, kwargs, context)
        if is_new:
            shard_weights(self)
            self._update_param_kinds()
        return outputs

    def check_may_create(self) -> None:
        """Raise if the value of a weight may not be created alone."""

    def rematerialized_call(
        self, layer_call: Callable[..., PyTree], *args: Any, **kwargs: Any
    ) -> Callable[..., PyTree]:
        """Return `layer_call`, such as `call`, rematerialized if the `RematScope` of the layer selects it."""
        # not while weights are created: the checkpoint would lose them
        if self._remat is None or not all(layer.built for layer in self._owners()):
            return layer_call
        return self._remat.wrapped(self, layer_call)

    def add_loss(self, loss: ArrayLike | Sequence[ArrayLike]) -> None:
        """Add a scalar, or several, to the loss of the current call.

        Raises:
            ModelError: no call is running.
        """
        context = call_context.current()
        if context is None:
            given = "add_loss(...) while nothing is called"
            fix = "for a function of a weight use its regularizer: add_weight(..., regularizer=...)"
            raise ModelError(f"add_loss of layer {self.name!r} must be called inside of call()", given=given, fix=fix)
        terms = jax.tree.leaves(loss)
        context.losses.extend(terms)
        self._record.added += terms

    def compute_output_shape(self, *args: PyTree, **kwargs: PyTree) -> PyTree:
        """Return the shape of the output, including the batch; None stands for any size. Traces `call`.

        A subclass may define it, so that `call` is not traced on symbolic inputs.

        Args:
            *args: shapes of the inputs: tuples, or structures of them.
            **kwargs: shapes of inputs by name: `value_shape` for the argument `value`.
        """
        return symbolic.output_shape(self, args, kwargs)

    compute_output_shape.is_default = True  # type: ignore[attr-defined]

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> PyTree:
        """Return the symbolic outputs of a call, without adding it to a graph. Traces `call`.

        If a subclass defines this method or `compute_output_shape`, `call` is traced only for inputs with masks, and
        when a model creates the weights. Shapes alone give tensors of `compute_dtype`.
        """
        defines_shape = not hasattr(self.compute_output_shape, "is_default")
        return symbolic.output_spec(self, args, kwargs, defines_shape, self._makes_masks())

    compute_output_spec.is_default = True  # type: ignore[attr-defined]

    def compute_mask(self, inputs: PyTree, previous_mask: PyTree = None) -> PyTree:
        """Return the mask of the output; by default the mask of the inputs."""
        return previous_mask

    @property
    def input(self) -> PyTree:
        """The symbolic input of the first call."""
        return symbolic.first_node(self).inputs

    @property
    def output(self) -> PyTree:
        """The symbolic output of the first call."""
        return symbolic.first_node(self).outputs

    def _config_arguments(self) -> dict[str, Any]:
        """Return the arguments of the constructor, with layouts as lists of axes, and current values."""
        arguments = {
            name: axes_of(value) if name.endswith("_layout") else value
            for name, value in self._arguments.items()
            if value is not None or not name.endswith(("_layout", "activity_regularizer"))
        }
        own = {"name": self.name, "trainable": self._trainable, "dtype": self.dtype_policy.identifier}
        if "data_format" in arguments and arguments["data_format"] is None:  # another process may have another default
            own["data_format"] = getattr(self, "data_format", None)
        return arguments | {name: value for name, value in own.items() if takes_keyword(type(self), name)}

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_") and self._record.membership is not None:
            self._check_settable(name, value)
        with shapes_only():
            items = jax.tree.leaves(value) if isinstance(value, list | tuple | dict) else [value]
        for item in items:
            if is_of_keras(item):
                check_is_ours(f"attribute {name!r} of layer {vars(self).get('_name', type(self).__name__)!r}", item)
        value = as_nnx_containers(value)
        for _, variable in direct_variables(value) if isinstance(value, nnx.List | nnx.Dict) else [((), value)]:
            if isinstance(variable, Variable):
                self._number_weight(variable)
                if not variable._owners:
                    variable.belong_to((self,), variable._known_as)
        if name in vars(self) and nnx.is_data(value) and not is_data_attribute(self, name):
            value = nnx.data(value)  # `self.kernel = None` before
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        if self._record.membership is not None and isinstance(vars(self).get(name), nnx.Variable | nnx.Module):
            summary = f"`{name}` of layer {self.name!r} cannot be taken away: its model is built"
            raise ModelError(summary, given=f"del layer.{name}", fix="make the model anew without it")
        super().__delattr__(name)

    def __getattr__(self, name: str) -> Any:
        if name == "_record":
            return self._begin_record()
        if name.startswith(("__", *PRIVATE_PREFIXES)) or name == "_arguments":
            raise AttributeError(name)
        if isinstance(getattr(type(self), name, None), property):
            return getattr(type(self), name).__get__(self)  # its own error, again
        self._check_initialised()
        if vars(self).get("_is_built") and f"{name}_initializer" in vars(self):
            return None
        message = f"{type(self).__name__!r} object has no attribute {name!r}"
        if not vars(self).get("_is_built") and self._is_made_by_building(name):
            label = vars(self).get("_name", type(self).__name__)
            message += f"; layer {label!r} is not built: its weights are created when it is called on an array, "
            message += "or is in a model that knows its input"
        elif not name.startswith("_"):
            message += did_you_mean(name, (known for known in dir(self) if not known.startswith("_") and known != name))
        raise AttributeError(message)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} name={self.name}, built={self.built}>"

    __str__ = __repr__

    def __nnx_repr__(self) -> Iterator[Any]:
        yield shown_as(repr(self))  # in lists and dicts

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Any:
        with shapes_only():
            copied = super().__deepcopy__(memo)
        for (_, ours), (_, theirs) in zip(walk(self), walk(copied), strict=True):
            if isinstance(ours, Variable) and ours.is_deferred:
                theirs.begin_as(ours)
        restore_order(copied, attribute_order(self))
        return self._pass_arguments(copied)

    def __copy__(self) -> Any:
        return self.__deepcopy__()  # two layers must not share variables

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | ({"_arguments": self._arguments} if hasattr(self, "_arguments") else {})

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        state = dict(state)
        if "_arguments" in state:
            object.__setattr__(self, "_arguments", dict(state.pop("_arguments")))
        super().__setstate__(state)

    def _pass_arguments(self, copied: Any) -> Any:
        if hasattr(self, "_arguments"):
            object.__setattr__(copied, "_arguments", dict(self._arguments))
        return copied

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any], context: call_context.CallContext) -> PyTree:
        parameters = call_parameters(type(self))
        check_complete(parameters, args, kwargs, self.name)
        args, kwargs = jax.tree.map(functools.partial(_as_input, self, context), (args, kwargs))
        tensors = tensor_arguments(parameters, args, kwargs)
        first = next(iter(tensors.values()), args[0] if args else None)
        check_inputs(self.input_spec, first, self.name)
        masks = {name: value for name, value in kwargs.items() if name.endswith("mask") and _any(value)}
        if context.root is None:
            context.root = trace_state_of(self)
        self._build_once({**tensors, **masks}, context)
        if "training" in parameters and list(parameters).index("training") >= len(args):
            kwargs["training"] = value_given(parameters, args, kwargs, "training", training_of(parameters, context))
        elif not takes_any(parameters):
            kwargs.pop("training", None)
        masks = {name: context.mask_of(tensor) for name, tensor in tensors.items()}
        for name, mask in masks.items():
            wanted = "mask" if len(tensors) == 1 else f"{name}_mask"
            if wanted in parameters and value_given(parameters, args, kwargs, wanted, None) is None:
                kwargs[wanted] = mask if _any(mask) else None
        with call_context.calling(self.name, self._weights_dtype(context.weights_dtype)):
            is_again = self._remat is not None and not context.is_computed_again
            call = self.rematerialized_call(self.call, *args, **kwargs) if is_again else self.call
            with explaining_traced_values(f"`call` of layer {self.name!r}"):
                outputs = call(*args, **kwargs)
        if self.activity_regularizer is not None:
            for output in jax.tree.leaves(outputs):
                rows = max(output.shape[0], 1) if output.ndim else 1
                self.add_loss(self.activity_regularizer(output) / rows)
        previous = kwargs.get("mask", next(iter(masks.values()), None))
        if not self.supports_masking and _any(previous):
            warn(
                f"layer {self.name!r} ({type(self).__name__}) gets a mask and does not support masking: the layers "
                "after it do not see the mask. Set supports_masking = True in its __init__, if the mask of the input "
                "is also one of the output, and define compute_mask, if it is another"
            )
        if self.supports_masking and (_any(previous) or self._makes_masks()):
            context.set_mask(outputs, self.compute_mask(first, previous))
        return outputs

    def _check_settable(self, name: str, value: Any) -> None:
        """Refuse to change an attribute in a built model: compiled steps contain its value."""
        if isinstance(getattr(type(self), name, None), property):
            return
        weight = isinstance(vars(self).get(name), nnx.Variable)
        is_known = name in vars(self) or hasattr(type(self), name)
        if weight or (is_known and not np.array_equal(getattr(self, name), value)):
            summary = f"`{name}` of layer {self.name!r} cannot change any more: its model is built"
            fix = f"change it before, or keep it in a weight: self.{name} = self.add_weight(shape=(), trainable=False)"
            fix = f"layer.{name}.assign(value)" if weight else fix
            raise ModelError(summary, given=f"{name} = {shorten(value)}", fix=fix)

    def _check_initialised(self) -> None:
        if "_is_built" not in vars(self):
            raise not_initialised(self)

    def _unknown_arguments(self, kwargs: Mapping[str, Any]) -> KerasDistError:
        known = [name for name in inspect.signature(type(self).__init__).parameters if name not in ("self", "kwargs")]
        known += [name for weight in self.weight_initializers for name in defaults_of(weight, None)]
        known += ["activity_regularizer", "trainable", "dtype", "autocast", "name", "input_shape"]
        known, first = list(dict.fromkeys(known)), next(iter(kwargs))
        summary = f"`{type(self).__name__}` has no argument"
        given = ", ".join(f"{name}={shorten(value)}" for name, value in kwargs.items())
        return unknown_name_error(summary, first, known, given=given, fix="leave it out", error=ArgumentTypeError)


def _as_input(layer: Layer, context: call_context.CallContext, value: PyTree) -> PyTree:
    """Cast a floating array to the input type of the layer; return other values as they are."""
    if isinstance(value, np.ndarray | np.generic):
        value = jnp.asarray(native(value))
    value = value_of(value)
    if is_of_keras(value):
        check_is_ours(f"layer {layer.name!r}: its input", value)
    if not isinstance(value, jax.Array) or not layer._casts_inputs:
        return value
    if not jnp.issubdtype(value.dtype, jnp.floating) or value.dtype == jnp.dtype(layer.input_dtype):
        return value
    cast = value.astype(layer.input_dtype)
    context.set_mask(cast, context.mask_of(value))
    return cast


def _any(masks: PyTree) -> bool:
    return any(mask is not None for mask in jax.tree.leaves(masks))
