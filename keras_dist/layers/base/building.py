"""Methods of `Layer` that describe its weights, and create them for the first input."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec

import jax
import jax.numpy as jnp
from flax import nnx

from keras_dist import constraints, initializers, random, regularizers
from keras_dist._support import dim_names as dims
from keras_dist._support import tree_paths
from keras_dist._support.arguments import argument_error
from keras_dist._support.raw_errors import explained
from keras_dist._support.types import DTypeLike, PyTree, Shape
from keras_dist._unstable.flax_internals import in_trace_of, trace_state_of
from keras_dist._unstable.jax_internals import is_tracing
from keras_dist.distribution.layout import from_keras
from keras_dist.distribution.strategy import distribution as current_distribution
from keras_dist.distribution.variables import describe_variables
from keras_dist.errors import ArgumentTypeError, DistributionError, KerasDistError, ModelError, shorten
from keras_dist.layers.base.call_arguments import as_shapes, called_with_shapes
from keras_dist.layers.base.names import keras_paths
from keras_dist.layers.base.shape_calls import build_original, note_stacked, stacked_dims
from keras_dist.layers.base.weight_arguments import (
    Identifier,
    Layout,
    defaults_of,
    hands_on_keywords,
    keyword_defaults,
    show_keywords,
)
from keras_dist.layers.base.weights import direct_variables, walk
from keras_dist.variables import call_context
from keras_dist.variables.initial_values import EachSlice, initial_of
from keras_dist.variables.values import check_shape, drawn
from keras_dist.variables.variable import Variable


def _counted(build: Callable[..., None]) -> Callable[..., None]:
    """Return `build` followed by the bookkeeping of a built layer; nested `super().build()` calls do it only once."""

    @functools.wraps(build)
    def counted(self: Any, *args: Any, **kwargs: Any) -> None:
        if self._record.original is not None:
            build_original(self, *args, **kwargs)
            return
        if self._record.made is not None:
            build(self, *args, **kwargs)
            return
        self._record.made = []
        shapes = inspect.signature(build).bind(self, *args, **kwargs).arguments
        self._record.shapes = dict([*shapes.items()][1:])
        # a layer made in a call must not create weights, not even in its own `build`
        around = call_context.caller() if self._record.made_in_call else None
        try:
            with call_context.calling(around):
                build(self, *args, **kwargs)
                _finish(self)
        finally:
            self._record.made = None

    return counted


_Arguments = ParamSpec("_Arguments")


def _named_by_keyword(add_weight: Callable[_Arguments, Variable]) -> Callable[_Arguments, Variable]:
    """Return `add_weight`; refuse a name as its first argument, as in Keras 2, and a second shape."""

    @functools.wraps(add_weight)
    def checked(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> Variable:
        layer, *given = args
        if given and (isinstance(given[0], str) or "shape" in kwargs):
            is_name = isinstance(given[0], str)
            what = "`name` is" if is_name else "`shape` was passed both positionally and as"
            options = "".join(f", {name}={shorten(value)}" for name, value in kwargs.items())
            summary = f"add_weight of layer {getattr(layer, 'name', '')!r}: {what} a keyword argument"
            fix = 'for example self.add_weight((3, 4), name="kernel")'
            raise ModelError(summary, given=f"add_weight({', '.join(map(shorten, given))}{options})", fix=fix)
        if len(given) > 3 and not isinstance(given[3], bool):
            expected, example = "True or False; a name is a keyword argument", True
            raise argument_error("trainable", given[3], expected, example=example, error=ArgumentTypeError)
        return add_weight(*args, **kwargs)

    return checked


def shard_weights(layer: Any) -> None:
    """Shard the weights of a layer outside of a model as the current distribution assigns."""
    distribution = current_distribution()
    if distribution is None or distribution.device_mesh.size == 1 or layer._record.membership is not None:
        return
    specs = {spec.path: spec for spec in describe_variables(nnx.state(layer))[0]}
    in_keras = keras_paths(layer).weights
    for parts, weight in walk(layer):
        spec = specs.get(tree_paths.join(parts))
        if spec is None or spec.role == "rng" or not isinstance(weight, Variable) or weight.keepers or weight.is_traced:
            continue
        try:
            layout = distribution.get_variable_layout(dataclasses.replace(spec, keras_path=in_keras.get(spec.path)))
        except DistributionError:  # from an AutoParallel that has not searched yet
            return
        if layout is not None:
            with in_trace_of(layer):
                weight.reshard(layout)


def built(self: Any) -> bool:
    """Whether the weights exist or can be created: there are none, or the layer was called on symbolic tensors."""
    return self._is_built or bool(self._record.nodes) or self._needs_no_building()


def set_built(self: Any, value: bool) -> None:
    """Set whether the weights exist."""
    self._is_built = bool(value)


@_counted
def build(self: Any, input_shape: PyTree) -> None:
    """Create the weights for inputs of this shape, including the batch. By default there are none."""


def check_may_create(self: Any) -> None:
    """Raise if the value of a weight may not be created alone."""


def get_build_config(self: Any) -> dict[str, Any] | None:
    """Return the shapes that the layer was built for; None before it is built.

    The result is `{"input_shape": shape}`, or for several inputs `{"shapes_dict": shapes}`.
    """
    record = self._record
    shapes = record.shapes
    if not shapes and record.nodes:
        shapes = {"input_shape": jax.tree.map(lambda tensor: tensor.shape, record.nodes[0].inputs)}
    if not shapes:
        return None
    return {"input_shape": next(iter(shapes.values()))} if len(shapes) == 1 else {"shapes_dict": shapes}


def build_from_config(self: Any, config: Mapping[str, Any] | None) -> None:
    """Create the weights for the shapes in `config`, as returned by `get_build_config`, unless they exist."""
    if not config or self.built:
        return
    if "input_shape" in config:
        self.build(as_shapes(config["input_shape"]))
    elif "shapes_dict" in config:
        self.build(**{name: as_shapes(shape) for name, shape in config["shapes_dict"].items()})


get_build_config.is_default = build_from_config.is_default = True  # type: ignore[attr-defined]


def describe_weight(
    self: Any,
    name: str,
    initializer: Identifier,
    regularizer: Identifier = None,
    constraint: Identifier = None,
    layout: Layout = None,
) -> None:
    """Store the description of a weight in attributes such as `kernel_initializer`, which `add_weight` reads.

    Args:
        name: the name of the weight.
        initializer: a name, a config or a function.
        regularizer: a name, a config, a function or None.
        constraint: a name, a config, a function or None.
        layout: a `TensorLayout`, mesh axes, or None.

    Raises:
        UnknownNameError: a name is unknown.
        ModelError: an identifier is neither a name nor a function.
    """
    self.identify(f"{name}_initializer", initializers.get, initializer)
    self.identify(f"{name}_regularizer", regularizers.get, regularizer)
    self.identify(f"{name}_constraint", constraints.get, constraint)
    setattr(self, f"{name}_layout", from_keras(layout))


def identify(self: Any, argument: str, get: Callable[[Any], Any], identifier: Identifier) -> None:
    """Set the attribute `argument` to `get(identifier)`; errors name the layer and the argument.

    Args:
        argument: the name of the constructor's argument.
        get: resolves an identifier, such as `activations.get`.
        identifier: a name, a config, an object, or None.

    Raises:
        KerasDistError: the identifier is unknown.
    """
    try:
        setattr(self, argument, get(identifier))
    except KerasDistError as error:
        error.add_note(f"for `{argument}` of layer {self.name!r}")
        raise


@_named_by_keyword
def add_weight(
    self: Any,
    shape: Shape | int | None = None,
    initializer: Identifier = None,
    dtype: DTypeLike | None = None,
    trainable: bool = True,
    autocast: bool = True,
    regularizer: Identifier = None,
    constraint: Identifier = None,
    aggregation: str = "none",
    overwrite_with_gradient: bool = False,
    name: str | None = None,
    *,
    layout: Layout = None,
    dim_names: Sequence[str | None] | None = None,
) -> Variable:
    """Create a weight. Assign it to an attribute: `self.kernel = self.add_weight(...)`.

    Args:
        shape: shape of the weight; a scalar by default.
        initializer: initial values. The default of this argument, and of `regularizer`, `constraint` and `layout`,
            is the one stored by `describe_weight`; then `"glorot_uniform"`, or `"zeros"` for integers and bools.
        dtype: element type; by default the layer's.
        trainable: whether gradients update the weight.
        autocast: whether `call` reads it in `compute_dtype`.
        regularizer: a function of its value that is added to the loss.
        constraint: a function applied to its value after each update.
        aggregation: unused: arrays are global.
        overwrite_with_gradient: unused.
        name: by default the name of the attribute.
        layout: a `TensorLayout`, or mesh axes of the dims; layout rules take precedence.
        dim_names: a name for each dim, or None: `"inputs"` and `"outputs"` of a matrix, a leading `"experts"`,
            whose slices are initialized, regularized, constrained and updated as separate weights, or a name for
            `axis_names`.

    Raises:
        ModelError: the shape is invalid, the initializer returns another one, or a layer's `call` is running.
    """
    del overwrite_with_gradient
    label = name or "weight"
    call_context.refuse_in_call(f"weight {label!r} of layer {self.name!r}")
    dtype = jnp.dtype(dtype or self.variable_dtype)
    described = vars(self)
    if initializer is None:
        default = "glorot_uniform" if jnp.issubdtype(dtype, jnp.floating) else "zeros"
        initializer = described.get(f"{name}_initializer", default)
    layout = described.get(f"{name}_layout") if layout is None else layout
    stacked, what = stacked_dims(), f"{label!r} in layer {self.name!r}"
    shape = check_shape(() if shape is None else shape, what)
    names = (*[dims.LAYERS] * len(stacked), *(dim_names or [None] * len(shape)))
    if stacked:
        shape = (*stacked, *shape)
        axes: Any = getattr(layout, "axes", layout)
        layout = None if layout is None else (*[None] * len(stacked), *axes)
    if len(names) != len(shape):
        given = f"dim_names={dim_names} for shape {shape[len(stacked) :]}"
        raise ModelError(f"`dim_names` of weight {label!r} must have a name or None for each dim", given=given)
    leading, draw = dims.leading(names), initializers.get(initializer)
    draw = EachSlice(draw, leading) if leading else draw
    with in_trace_of(self):
        whole: Any = jax.ShapeDtypeStruct(shape, dtype)
        initial: Any = initial_of(draw, what)
        if is_tracing():  # made in a trace, which computes the values
            whole = drawn(draw, shape, dtype, what)
            initial = whole[(0,) * len(stacked)] if stacked else whole
        kind: Any = {"trainable": trainable, "autocast": autocast, "layout": layout}
        variable = Variable.of_layer(initial, shape[len(stacked) :], dtype, name, **kind)
    penalty = regularizers.get(regularizer) or described.get(f"{name}_regularizer")
    rule = constraints.get(constraint) or described.get(f"{name}_constraint")
    if leading:
        each, rule = (one and dims.over_slices(one, leading) for one in (penalty, rule))
        penalty = each and (lambda value: jnp.sum(each(value)))
    variable.set_metadata(regularizer=penalty, constraint=rule)
    if any(names):
        variable.set_metadata(dim_names=names)
    if stacked:
        note_stacked(variable, whole)
    number_weight(self, variable)
    if self._record.made is not None:
        self._record.made.append((label, variable))
    else:
        variable.set_metadata(made_early=True)
    return variable


def add_variable(
    self: Any,
    shape: Shape | int,
    initializer: Identifier,
    dtype: DTypeLike | None = None,
    trainable: bool = True,
    autocast: bool = True,
    regularizer: Identifier = None,
    constraint: Identifier = None,
    name: str | None = None,
) -> Variable:
    """Alias of `add_weight` with `shape` and `initializer` first."""
    options = {"regularizer": regularizer, "constraint": constraint, "name": name}
    return self.add_weight(shape, initializer, dtype, trainable, autocast, **options)


def prepare_subclass(cls: Any) -> None:
    """Wrap `build` of a class of layers, and show the arguments of weights in the constructor's signature."""
    if "_unquantized_type" in vars(cls):  # of qwix 0.1, which would replace weights beside the table
        fix = 'model.quantize("int8"), then model.enable_lora(rank=8, layers=...): the numbers are of qwix'
        given = f"quantize_model, or apply_lora_to_model, of a {cls.__name__}"
        raise ModelError("qwix cannot replace the weights of layers", given=given, fix=fix)
    constructor, above = cls.__init__, super(cls, cls).__init__
    if "__init__" in vars(cls) and hands_on_keywords(constructor):
        show_keywords(constructor, keyword_defaults(above) if hands_on_keywords(above) else {})
        for weight, initializer in cls.weight_initializers.items():
            show_keywords(constructor, defaults_of(weight, initializer) | {"activity_regularizer": None})
    if "build" in vars(cls) and not cls._creates_weights():
        cls.build = _counted(explained(vars(cls)["build"]))


def build_once(layer: Any, tensors: Mapping[str, PyTree], context: call_context.CallContext) -> None:
    """Build a layer for the tensors of a call, by name, unless it is built."""
    is_copy = layer._record.original is not None
    is_valid = trace_state_of(layer).is_valid()
    is_apart = not (is_copy or is_valid) and trace_state_of(layer) != context.root
    if is_apart and (not layer._is_built or any(True for _ in walk(layer))):  # weights would be constants of this trace
        summary = f"layer {layer.name!r} is called inside of a model that it is not part of"
        given = f"{type(layer).__name__} made outside, called in a function or layer of the model"
        fix = "make it an attribute of the model or layer that calls it, or call it on symbolic tensors"
        raise ModelError(summary, given=given, fix=fix)
    if layer._is_built:
        return
    if layer._needs_no_building() and not is_valid:
        return  # made outside of this trace, where it cannot be marked as built, and there is nothing to create
    with contextlib.nullcontext() if is_copy else in_trace_of(layer):
        if layer._creates_weights():  # in a call each of its layers builds itself
            layer._record.made = []
            _finish(layer)
        else:
            called_with_shapes(layer.build, tensors)


def _finish(layer: Any) -> None:
    for name, value in list(vars(layer).items()):
        if isinstance(value, random.SeedGenerator):
            if layer._record.made_in_call:
                call_context.refuse_in_call(f"random state {name!r} of layer {layer.name!r}")
            _ = value.state  # created here, not in the first step that draws
    kept = {id(variable) for _, variable in walk(layer)}
    lost = [label for label, variable in layer._record.made or () if id(variable) not in kept]
    layer._record.made = None
    if lost:
        summary = f"layer {layer.name!r} has weights that no attribute holds: {', '.join(map(repr, lost))}"
        fix = "self.kernel = self.add_weight(...)"
        raise ModelError(summary, given="the result of add_weight, not assigned", fix=fix)
    layer._is_built = True


def number_weight(layer: Any, variable: Variable) -> None:
    """Give a weight without a number the next one of its layer."""
    if variable.get_metadata("number") is None:
        taken = [other.get_metadata().get("number") or 0 for _, other in direct_variables(layer)]
        taken += [other.get_metadata("number") for _, other in layer._record.made or ()]
        variable.set_metadata("number", 1 + max(taken, default=0))


def is_made_by_building(layer: Any, name: str) -> bool:
    """Return whether a weight of this name is described, or `build` refers to such an attribute."""
    builds = (inspect.unwrap(vars(cls)["build"]) for cls in type(layer).__mro__ if "build" in vars(cls))
    return f"{name}_initializer" in vars(layer) or any(name in build.__code__.co_names for build in builds)
