"""`Variable`: an array that a layer owns, as `add_weight` creates it."""

from __future__ import annotations

import dataclasses
import itertools
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NoReturn, Self, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from keras_dist._support.arguments import check_flag
from keras_dist._support.raw_errors import explained
from keras_dist._support.stateless_scope import current_scope, shapes_only, trace_error
from keras_dist._support.types import ArrayLike, DTypeLike, Shape
from keras_dist._unstable import flax_internals
from keras_dist._unstable.flax_internals import TraceError
from keras_dist._unstable.jax_internals import hide_mesh_in, is_traced, is_tracing, outside_of_traces
from keras_dist.distribution.devices import check_not_forked
from keras_dist.distribution.layout import TensorLayout, from_keras, layout_on
from keras_dist.distribution.placement import distribute_tensor, is_abstract, place_copy
from keras_dist.distribution.strategy import distribution as current_distribution
from keras_dist.distribution.variables import describe_variables
from keras_dist.errors import DistributionError, ModelError, shorten
from keras_dist.variables import call_context, new_variables
from keras_dist.variables.initial_values import Drawn, Given, InitialValue, Wanted, create
from keras_dist.variables.lending import Lendable, switching
from keras_dist.variables.values import checked_value, initial_array

Identifier: TypeAlias = str | Mapping[str, Any] | Callable[..., Any] | None
"""The name of an object, its config, or the object itself."""

Layout: TypeAlias = TensorLayout | Sequence[str | tuple[str, ...] | None] | None
"""The layout of a weight: a `TensorLayout`, or an axis or several for each dim."""

Owners = tuple[Any, ...]
"""The layers around a weight, innermost first."""


_serials = itertools.count(1)


def is_trained_by(owners: Owners) -> bool:
    """Return whether these layers train a weight; the innermost layer whose `trainable` was set decides."""
    for layer in owners:
        if not layer._trainable:
            return False
        if layer._trainable_was_set:
            break
    return True


@hide_mesh_in
class Variable(Lendable):
    """An array that a layer owns; assigned to an attribute of a layer, it is a weight of the layer.

    A variable represents its value in arithmetic, comparisons and functions of `jax.numpy`. Values that `call` assigns
    to it are kept, also in compiled steps, unless it is trained.

    Args:
        initializer: the initial value, or the name, config or function of an initializer.
        shape: the shape; by default the shape of the value.
        dtype: the dtype; by default the dtype of the value, or float32.
        trainable: whether gradients train the variable, which is then an `nnx.Param`.
        autocast: whether the `call` of a layer reads it in the compute dtype of the layer.
        aggregation, synchronization: unused, because arrays are global.
        name: the name; by default the name of the attribute.
        layout: a `TensorLayout`, or the axes; layout rules take precedence.

    Raises:
        ModelError: the initializer returns another shape, or a layer's `call` creates the variable.

    Example:
        >>> import keras_dist as kd
        >>> count = kd.Variable(0, dtype="int32", trainable=False, name="count")
        >>> int(count.assign_add(2))
        2

    Source: `keras.Variable`.
    """

    __slots__ = ("_belonging", "_made_under", "_serial")

    is_parameter: ClassVar[bool] = False
    """Whether gradients train the variable, unless `trainable` of its layers is False."""

    def __new__(
        cls,
        initializer: Identifier | ArrayLike = None,
        shape: Shape | int | None = None,
        dtype: DTypeLike | None = None,
        trainable: bool = True,
        *_: Any,
        **__: Any,
    ) -> Variable:
        """Make a `Parameter` or a `Statistic`."""
        is_trained = trainable is not None and check_flag("trainable", trainable)
        kind: Any = (Parameter if is_trained else Statistic) if cls is Variable else cls
        return super().__new__(kind)

    @explained
    def __init__(
        self,
        initializer: Identifier | ArrayLike,
        shape: Shape | int | None = None,
        dtype: DTypeLike | None = None,
        trainable: bool = True,
        autocast: bool = True,
        aggregation: str = "none",
        synchronization: str = "auto",
        name: str | None = None,
        layout: Layout = None,
    ) -> None:
        del trainable, aggregation, synchronization
        label = name or "variable"
        call_context.refuse_in_call(f"weight {label!r}")
        value = initial_array(initializer, shape, dtype, repr(label))
        path = "/".join((*new_variables.current().names, label))
        self._begin(value, path, name, layout=from_keras(layout), autocast=autocast)
        if (layout := self._layout_as_distributed()) is not None:
            self.reshard(layout)

    def _begin(
        self,
        value: jax.Array | jax.ShapeDtypeStruct,
        path: str,
        name: str | None,
        layout: TensorLayout | None = None,
        autocast: bool = False,
    ) -> None:
        super().__init__(
            value,
            keras_name=name,
            keras_path=path,
            number=None,
            layout=layout,
            regularizer=None,
            constraint=None,
            autocast=autocast,
        )

    @classmethod
    def holding(cls, value: jax.Array | jax.ShapeDtypeStruct, path: str, name: str | None = None) -> Self:
        """Create a variable of an array, without a copy, or of a shape, whose array a borrower has."""
        kind: Any = Statistic if cls is Variable else cls
        variable = kind.__new__(kind)
        variable._begin(value, path, name or path.rpartition("/")[2])
        return variable

    @classmethod
    def view(
        cls, value: jax.ShapeDtypeStruct, path: str, name: str | None, role: str, constraint: Any = None
    ) -> Variable:
        """Create a variable for an array in a foreign module, before `lend_to` sets its owner."""
        variable = Statistic.__new__(Statistic)
        variable._begin(value, path, name)
        variable.constraint = constraint
        variable.become(role)
        return variable

    def become(self, role: str) -> None:
        """Take the class of a role; for views of arrays in foreign modules."""
        kind = {"parameter": Parameter, "rng": Key}.get(role, Statistic)
        object.__setattr__(self, "__class__", kind)

    @classmethod
    def of_layer(
        cls,
        initial: InitialValue | jax.Array,
        shape: tuple[int, ...],
        dtype: Any,
        name: str | None,
        *,
        trainable: bool = True,
        autocast: bool = True,
        layout: Layout = None,
    ) -> Variable:
        """Create a weight of a layer, without an array; or of an array that a trace computes."""
        kind: Any = (Parameter if trainable else Statistic) if cls is Variable else cls
        variable = kind.__new__(kind)
        is_value = isinstance(initial, jax.Array)
        path = "/".join((*new_variables.current().names, name or "variable"))
        value = initial if is_value else jax.ShapeDtypeStruct(shape, dtype)
        variable._begin(value, path, name, layout=from_keras(layout), autocast=autocast)
        object.__setattr__(variable, "_serial", next(_serials))
        if not is_value:
            variable.begin_with(initial)
            object.__setattr__(variable, "_made_under", current_distribution())
        return variable

    @property
    def serial(self) -> int:
        """The number of the variable among those that layers of this process have made; 0 for others."""
        return self._slot("_serial", 0)

    def create_alone(self) -> None:
        """Create the array of this variable alone, as the plan of its model says, or the current distribution."""
        check_not_forked()
        for owner in self._owners:
            owner.check_may_create()
        raw = flax_internals.raw_value.__get__(self)
        layout = None if self.keepers else self._layout_as_distributed()
        sharding = raw.sharding if layout is None else layout.backend_layout
        if is_abstract(sharding):  # in planning
            return
        while (initial := self.initial) is not None and self.is_deferred:  # again, if a thread sets a value meanwhile
            numbered = initial.numbered(initial.numbers) if isinstance(initial, Drawn) else initial
            (value,) = create([Wanted(numbered, raw.shape, raw.dtype, sharding)])
            self.keep_created(value, initial)

    def _layout_as_distributed(self) -> TensorLayout | None:
        """Return the layout that the current distribution assigns to the path; in a model the plan does so."""
        distribution = self._slot("_made_under", None) or current_distribution()
        if distribution is None or distribution.device_mesh.size == 1 or self.is_traced or isinstance(self, Key):
            return None
        with shapes_only():
            (spec,), _ = describe_variables({"variable": self})
        names = [owner.name for owner in reversed(self._owners)]
        in_keras = "/".join((*names, self.name)) if names else None
        try:
            spec = dataclasses.replace(spec, path=self.path, aliases=(), keras_path=in_keras)
            return distribution.get_variable_layout(spec)
        except DistributionError:  # an AutoParallel without a result
            return None

    @property
    def name(self) -> str:
        """The name of the variable."""
        return self.get_metadata("keras_name") or (self.path.rpartition("/")[2])

    @property
    def path(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Path in the model; outside of models, path in the outermost layer whose weights were accessed."""
        return self._known_as or self.get_metadata("keras_path") or "variable"

    @property
    def trainable(self) -> bool:
        """Whether gradients train the variable; set by its layers, from the next `compile` on."""
        return self.is_parameter and not self.get_metadata("is_frozen", False) and is_trained_by(self._owners)

    @trainable.setter
    def trainable(self, value: bool) -> NoReturn:
        kinds = getattr(self.borrower, "kinds", "")
        given = f"variable.trainable = {shorten(value)}{f' in a module with {kinds}' if kinds else ''}"
        fix = "layer.trainable = False, then compile; for a foreign module trainable='head/.*' in Model.from_nnx"
        raise ModelError(f"cannot set `trainable` of {self.path!r}", given=given, fix=fix)

    @property
    def constraint(self) -> Any:
        """The function that is applied to the value after each update, or None."""
        return self.get_metadata("constraint")

    @constraint.setter
    def constraint(self, value: Any) -> None:
        self.set_metadata("constraint", value)

    @explained
    def freeze(self, is_frozen: bool = True) -> None:
        """Make the weight non-trainable, or trainable again; it keeps its layout, and its place among the weights."""
        self.set_metadata(is_frozen=is_frozen)
        self.follow(self._owners)

    @property
    def dim_names(self) -> tuple[str | None, ...]:
        """The names of the dims that its layer gave to `add_weight`; empty if it gave none."""
        return self.get_metadata("dim_names", ())

    @property
    def layout(self) -> TensorLayout | None:
        """The layout of the array on the mesh of the model; outside of a model the given layout, or None."""
        if self.borrower is not None:
            return self.borrower.layout_of(self)
        sharding = getattr(flax_internals.raw_value.__get__(self), "sharding", None)
        if self.mesh is not None and isinstance(sharding, jax.sharding.NamedSharding):
            return layout_on((*sharding.spec, *[None] * (self.ndim - len(sharding.spec))), self.mesh)
        keeper = next(iter(self.keepers), None)
        return self.get_metadata("layout") if keeper is None else keeper.layout_of(self)

    def belong_to(self, owners: Owners, path: str) -> None:
        """Store the layers that contain the variable, innermost first, and its path in the outermost."""
        # weakly: tracers must not wait for the garbage collector
        object.__setattr__(self, "_belonging", (tuple(map(weakref.ref, owners)), path))
        self.follow(owners)

    def follow(self, owners: Owners) -> None:
        """Become an `nnx.Param` if the layers around it are trained, for filters of NNX."""
        kind = Parameter if is_trained_by(owners) and not self.get_metadata("is_frozen", False) else Frozen
        if type(self) in (Parameter, Frozen) and type(self) is not kind:
            object.__setattr__(self, "__class__", kind)  # also inside a trace, where Flax raises an error

    @property
    def _owners(self) -> Owners:
        found = (reference() for reference in self._layers_and_path[0])
        return tuple(owner for owner in found if owner is not None)

    @property
    def _known_as(self) -> str:
        return self._layers_and_path[1]

    @property
    def _layers_and_path(self) -> tuple[tuple[weakref.ref[Any], ...], str]:
        return self._slot("_belonging", ((), ""))

    @property
    def shape(self) -> tuple[int, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The shape of the array."""
        return flax_internals.raw_value.__get__(self).shape

    @property
    def dtype(self) -> np.dtype:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The dtype; in the `call` of a layer the dtype in which it is read."""
        own, wanted = self._own_dtype, call_context.weights_dtype()
        is_cast = wanted is not None and self.get_metadata("autocast") and jnp.issubdtype(own, jnp.floating)
        return jnp.dtype(wanted) if is_cast else own

    @property
    def _own_dtype(self) -> Any:
        return flax_internals.raw_value.__get__(self).dtype

    def _read(self) -> jax.Array:
        return self._cast(self.get_value())

    def __getitem__(self, index: Any) -> jax.Array:
        if current_scope() is not None:
            return self.value[index]
        return self._cast(self.get_value(index=index))

    def _cast(self, value: jax.Array) -> jax.Array:
        """Cast a value for mixed precision; no other place casts weights."""
        dtype = self.dtype
        return value if value.dtype == dtype else value.astype(dtype)

    @explained
    def __setitem__(self, index: Any, value: ArrayLike) -> None:
        own = self._own_dtype
        if jnp.issubdtype(own, jnp.floating) and jnp.issubdtype(jnp.result_type(value), jnp.floating):
            value = jnp.asarray(value, own)  # may be in half precision
        if current_scope() is None:
            super().__setitem__(index, value)
        else:
            self.assign(self.value.at[index].set(value))

    def _checked(self, value: ArrayLike) -> ArrayLike:
        check_not_forked()
        with call_context.calling(call_context.caller()):  # in its own dtype
            value = checked_value(value, self)
            is_on_host = isinstance(value, np.ndarray | np.generic) and current_scope() is None
            return value if is_on_host else jnp.asarray(value, self.dtype)  # only shards are sent to devices

    def _write(self, value: ArrayLike) -> jax.Array:
        if self.borrower is not None:
            self.borrower.set_to_copy(self, value)
            return self._read()
        try:
            return self._write_own(value)
        except TraceError as error:
            raise trace_error(self.path) from error

    def _write_own(self, value: ArrayLike) -> jax.Array:
        name, initial = f"variable {self.path!r}", self.initial
        if self.is_deferred and not is_tracing():
            sharding = flax_internals.raw_value.__get__(self).sharding
            if sharding is not None and not is_abstract(sharding) and sharding.is_fully_addressable:  # planned
                with outside_of_traces():
                    placed = place_copy(value, sharding, name)
                return self[...] if self.keep_created(placed, initial) else self._write_own(value)
            with outside_of_traces():
                given = Given(np.array(value) if isinstance(value, np.ndarray) else jnp.array(value, copy=True))
            with switching:
                if self.is_deferred:  # no thread has created the array meanwhile
                    self.begin_with(given)
                    return self._cast(jnp.asarray(value, self._own_dtype))
        before = self.peek()
        is_placed = not any(map(is_traced, (before, value))) and isinstance(before.sharding, jax.sharding.NamedSharding)
        value = place_copy(value, before.sharding, name) if is_placed else jnp.asarray(value)
        with call_context.calling(call_context.caller()):
            self[...] = value
        if is_placed:
            self.keep(value)
        return self[...]

    @explained
    def reshard(self, layout: TensorLayout) -> None:
        """Reshard the value to `layout`.

        Raises:
            LayoutError: `layout` does not divide a dim.
        """
        self.set_raw_value(distribute_tensor(self.peek(), layout))

    def __repr__(self) -> str:
        axes = "" if (layout := self.layout) is None else f"axes={getattr(layout, 'axes', layout)}, "
        return f"<Variable path={self.path}, shape={self.shape}, dtype={self.dtype}, {axes}value={self._shown}>"

    __str__ = __repr__


class Parameter(Variable, nnx.Param):
    """A trainable weight."""

    is_parameter = True


class Frozen(Variable):
    """A parameter that is not trained now: adapters are, or `trainable` of its layer is False."""

    is_parameter = True


class Quantized(Frozen):
    """The stored values of a quantized weight. In a call its layer alone reads them, dequantized."""

    def stored(self) -> jax.Array:
        """Return the stored values."""
        scope = current_scope()
        return self.get_value() if scope is None else scope.get(self, self.get_value)

    def __getitem__(self, index: Any) -> jax.Array:
        self._check_not_in_call()
        return super().__getitem__(index)

    @property
    def value(self) -> jax.Array:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The stored values."""
        self._check_not_in_call()
        return self.stored()

    def _check_not_in_call(self) -> None:
        if call_context.current() is not None:
            given = "a call that reads the stored values, which are codes: only its layer dequantizes them"
            fix = "quantize other layers: model.quantize(mode, layers=...)"
            raise ModelError(f"the weight {self.path!r} is quantized", given=given, fix=fix)

    def _checked(self, value: ArrayLike) -> ArrayLike:
        if not jnp.issubdtype(jnp.result_type(value), jnp.integer):
            fix = "model.load_weights quantizes what it reads; or quantize the model after the assignment"
            raise ModelError(f"cannot assign numbers to {self.path!r}: it is quantized", given=shorten(value), fix=fix)
        return super()._checked(value)


class Key(Variable, nnx.RngState):
    """The state of a random generator."""


class Statistic(Variable):
    """A weight that is not trained by gradients, such as a moving mean."""
