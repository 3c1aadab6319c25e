"""`DVariable`: a variable outside of models; `Module`: an object that holds variables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from keras_dist._support.stateless_scope import current_scope, trace_error
from keras_dist._support.types import ArrayLike, DTypeLike
from keras_dist._unstable import flax_internals
from keras_dist._unstable.flax_internals import TraceError
from keras_dist._unstable.jax_internals import is_traced
from keras_dist.distribution import distribute_tensor
from keras_dist.distribution.layout import TensorLayout
from keras_dist.distribution.placement import place_copy
from keras_dist.dtensor.layout import Layout, is_dtensor, layout_of
from keras_dist.dtensor.tensors import copy_to_mesh, get_default_mesh, not_addressable
from keras_dist.variables.variable import Parameter, Statistic, Variable


class DVariable(Variable):
    """A `keras_dist.Variable` outside of models: an array with a layout, assigned in place.

    It can be used as an array in arithmetic and functions of `jax.numpy`. It is an `nnx.Param` if trainable, else an
    `nnx.Variable`. A `dtensor.function` takes the variables that it reads as inputs, and returns those it assigns.

    Args:
        initial_value: an array, such as `call_with_layout` returns; or a function of no arguments that returns one.
        trainable: whether gradients train the variable.
        name: name of the variable. By default the name of the attribute.
        dtype: element type. By default the element type of the value.
        layout: layout of the variable. By default the value's; a value without a mesh is replicated on the default
            mesh.

    Raises:
        LayoutError: the layout does not fit the value.

    Example:
        >>> import jax.numpy as jnp
        >>> from keras_dist import dtensor
        >>> mesh = dtensor.create_mesh([("batch", 8)])
        >>> w = dtensor.DVariable(jnp.ones(16), layout=dtensor.Layout(["batch"], mesh))
        >>> w.assign_sub(w / 2)[:2].tolist(), w.layout.sharding_specs
        ([0.5, 0.5], ['batch'])

    Differs from DTensor: takes `layout`; `save_as_bf16` is not available.
    """

    def __new__(cls, initial_value: Any = None, trainable: bool = True, *_: Any, **__: Any) -> DVariable:
        """Create an `nnx.Param`, or a plain `nnx.Variable`."""
        kind: Any = (_TrainedDVariable if trainable else _OtherDVariable) if cls is DVariable else cls
        return super().__new__(kind)  # pyright: ignore[reportReturnType]

    def __init__(
        self,
        initial_value: ArrayLike | Callable[[], ArrayLike],
        trainable: bool = True,
        name: str | None = None,
        dtype: DTypeLike | None = None,
        layout: TensorLayout | None = None,
    ) -> None:
        value: Any = initial_value() if callable(initial_value) else initial_value
        if layout is not None or (get_default_mesh() is not None and not is_dtensor(value)):
            value = copy_to_mesh(value, layout)
        super().__init__(value, dtype=dtype, trainable=trainable, autocast=False, name=name, layout=layout)

    @property
    def layout(self) -> Layout:
        """Layout of the array."""
        return layout_of(self._array())

    @property
    def shape(self) -> tuple[int, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Sizes of the dims."""
        return self._array().shape

    @property
    def dtype(self) -> np.dtype:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Element type."""
        return self._array().dtype

    def _array(self) -> jax.Array:
        return flax_internals.raw_value.__get__(self)

    def _read(self) -> jax.Array:
        with self._lock:
            return _copied(self._array())

    def _store(self, array: jax.Array) -> None:
        flax_internals.raw_value.__set__(self, array)

    def _read_raw(self) -> jax.Array:
        # JAX reads it where the variable itself is an argument of a function such as `jnp.matmul`
        scope = current_scope()
        return self._read() if scope is None else scope.get(self, self._read)

    def _write_raw(self, value: jax.Array) -> None:
        self._store(_copied(value))

    def numpy(self) -> np.ndarray:
        """Return the value as a NumPy array.

        Raises:
            LayoutError: other processes of the job hold parts of the value.
        """
        if current_scope() is not None:
            return super().numpy()
        array = self._array()
        if not (is_traced(array) or array.is_fully_addressable or array.is_fully_replicated):
            summary = f"the value of {self.path or 'a DVariable'} cannot be read here"
            raise not_addressable(summary, self.layout, "variable")
        return np.array(array)

    def __reduce__(self) -> tuple[Any, ...]:
        layout = self.layout if is_dtensor(self) else None
        return DVariable, (self.numpy(), self.trainable, self.name, self.dtype, layout)

    def __deepcopy__(self, memo: dict[int, Any]) -> DVariable:
        kind, arguments = self.__reduce__()
        return memo.setdefault(id(self), kind(*arguments))

    def _write(self, value: jax.Array) -> jax.Array:
        if is_traced(value):
            try:
                return super()._write(value)
            except TraceError as error:
                raise trace_error(self.path) from error
        self._store(_copied(distribute_tensor(value, self.layout) if is_dtensor(self) else value))
        return self._read()


def _copied(value: Any) -> Any:
    """Copy an array; return anything else, and traced arrays, as they are."""
    if not isinstance(value, jax.Array) or is_traced(value):
        return value
    return place_copy(value, value.sharding) if value.committed else jnp.array(value, copy=True)


class _TrainedDVariable(DVariable, Parameter):
    pass


class _OtherDVariable(DVariable, Statistic):
    pass


class Module(nnx.Module):
    """An `nnx.Module` with the properties of `tf.Module`.

    Its attributes may be variables, modules, and lists and dicts of these.

    Example:
        >>> import jax.numpy as jnp
        >>> from keras_dist import dtensor
        >>> class Scale(dtensor.Module):
        ...     def __init__(self):
        ...         self.factor = dtensor.DVariable(jnp.ones(()))
        >>> len(Scale().trainable_variables)
        1

    Source: `tf.Module`.
    """

    def __init_subclass__(cls, pytree: bool = False, **options: Any) -> None:
        super().__init_subclass__(pytree=pytree, **options)  # pytrees of Flax refuse modules in plain lists

    @property
    def variables(self) -> list[nnx.Variable]:
        """All variables, also of modules among the attributes."""
        return [variable for _, variable in nnx.iter_graph(self) if isinstance(variable, nnx.Variable)]

    @property
    def trainable_variables(self) -> list[nnx.Variable]:
        """The trainable variables."""
        return [variable for variable in self.variables if isinstance(variable, nnx.Param)]
