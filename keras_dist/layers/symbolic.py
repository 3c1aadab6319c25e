"""Symbolic tensors, and the graph of calls between them: `outputs = layers.Dense(10)(Input((8,)))`."""

from __future__ import annotations

import dataclasses
import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from keras_dist import random
from keras_dist.errors import ModelError, shorten
from keras_dist.layers import call_context
from keras_dist.layers.blueprint import fresh_copy

_STAND_INS = (3360, 6720)
"""Two sizes for dims of unknown size: large enough for strides and pools, and divisible by what reshapes divide by.
Nothing of these sizes is ever allocated. The dims of an output that differ between them are unknown, too."""

_counter = itertools.count()

OPERATIONS: dict[str, Callable[..., Any]] = {
    "abs": jnp.abs,
    "add": operator.add,
    "equal": operator.eq,
    "floordiv": operator.floordiv,
    "getitem": operator.getitem,
    "greater": operator.gt,
    "greater_equal": operator.ge,
    "less": operator.lt,
    "less_equal": operator.le,
    "matmul": operator.matmul,
    "mod": operator.mod,
    "mul": operator.mul,
    "neg": operator.neg,
    "not_equal": operator.ne,
    "pow": operator.pow,
    "sub": operator.sub,
    "truediv": operator.truediv,
}
"""What Python's operators do on symbolic tensors, by name."""


@dataclasses.dataclass(frozen=True, eq=False)
class Operation:
    """One of Python's operators as a step of a model.

    Attributes:
        name: one of `OPERATIONS`.
    """

    name: str

    def __call__(self, *args: Any) -> Any:
        """The result for arrays and numbers; a symbolic one where there is a symbolic tensor among them."""
        if is_any_symbolic(args):
            return connect(self, args, {})
        return OPERATIONS[self.name](*args)


@dataclasses.dataclass(eq=False)
class Node:
    """One call in the graph.

    Attributes:
        operation: the layer that was called, or an `Operation`.
        args: its positional arguments, symbolic tensors among them.
        kwargs: its arguments by name.
        outputs: what it returned.
        number: counts the calls of the process.
    """

    operation: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: Any = None
    number: int = dataclasses.field(default_factory=lambda: next(_counter))

    @property
    def inputs(self) -> Any:
        """Its first argument; its output when it has none, as of an `InputLayer`."""
        return self.args[0] if self.args else self.outputs

    @property
    def parents(self) -> list[KerasTensor]:
        """The symbolic tensors it was called with."""
        return [leaf for leaf in jax.tree.leaves((self.args, self.kwargs)) if isinstance(leaf, KerasTensor)]


class KerasTensor:
    """The shape and element type of an array that a model will compute.

    Attributes:
        shape: its dims; None for any size.
        dtype: its element type, by name.
        name: how errors call it.
        node: the call that computes it.

    Source: `keras.KerasTensor`.
    """

    def __init__(
        self, shape: Sequence[int | None], dtype: Any = "float32", name: str | None = None, node: Node | None = None
    ) -> None:
        self.shape = tuple(None if size is None else int(size) for size in shape)
        self.dtype = jnp.dtype(dtype).name
        self.name = name or "keras_tensor"
        self.node = node

    @property
    def ndim(self) -> int:
        """Its number of dims."""
        return len(self.shape)

    def __repr__(self) -> str:
        return f"<KerasTensor shape={self.shape}, dtype={self.dtype}, name={self.name}>"

    def __bool__(self) -> bool:
        raise self._no_value("bool()")

    def __iter__(self) -> Any:
        raise self._no_value("iterating over it")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        raise self._no_value("numpy")

    @property
    def __jax_array__(self) -> Any:
        # JAX asks whether there is one, before it says in its own words that it cannot use this
        raise self._no_value("a function of jax")

    def _no_value(self, what: str) -> ModelError:
        return ModelError(
            "a symbolic tensor has no values",
            given=f"{what} on {self!r}",
            expected="layers, and Python's operators",
            fix="wrap the function: layers.Lambda(lambda x: jnp.sum(x, axis=1))(tensor)",
        )


def _install_operators() -> None:
    binary = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"]
    compared = {"lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal"}

    def method(name: str, swapped: bool = False) -> Callable[..., Any]:
        def apply(*args: Any) -> Any:
            return connect(Operation(name), args[::-1] if swapped else args, {})

        return apply

    for name in binary:
        setattr(KerasTensor, f"__{name}__", method(name))
        setattr(KerasTensor, f"__r{name}__", method(name, swapped=True))
    for python, name in compared.items():
        setattr(KerasTensor, f"__{python}__", method(name))
    for name in ("neg", "abs", "getitem"):
        setattr(KerasTensor, f"__{name}__", method(name))


_install_operators()


def is_any_symbolic(tree: Any) -> bool:
    """Whether there is a symbolic tensor among the leaves."""
    return any(isinstance(leaf, KerasTensor) for leaf in jax.tree.leaves(tree))


def connect(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The symbolic outputs of a layer or operation for symbolic inputs; the call is noted.

    Raises:
        ModelError: the layer does not take such inputs.
    """
    node = Node(operation, args, kwargs)
    described = infer(operation, args, kwargs)
    name = f"{operation.name}/output"
    node.outputs = jax.tree.map(lambda leaf: KerasTensor(leaf.shape, leaf.dtype, name, node), described)
    if not isinstance(operation, Operation):
        nodes = getattr(operation, "_nodes", None)
        object.__setattr__(operation, "_nodes", [*(nodes or []), node])
    return node.outputs


def infer(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The symbolic outputs, connected with nothing, of a layer or operation for symbolic inputs."""
    first = _abstract_call(operation, args, kwargs, _STAND_INS[0])
    tensors = [leaf for leaf in jax.tree.leaves((args, kwargs)) if isinstance(leaf, KerasTensor)]
    if all(size is not None for tensor in tensors for size in tensor.shape):
        second = first
    else:
        second = _abstract_call(operation, args, kwargs, _STAND_INS[1])
    return jax.tree.map(
        lambda a, b: KerasTensor([m if m == n else None for m, n in zip(a.shape, b.shape, strict=True)], a.dtype),
        first,
        second,
    )


def output_shape(layer: Any, input_shape: Any) -> Any:
    """The shape, or structure of shapes, of what a layer gives for inputs of this shape."""
    tensors = jax.tree.map(lambda shape: KerasTensor(shape, layer.compute_dtype), input_shape, is_leaf=_is_shape)
    return jax.tree.map(lambda tensor: tensor.shape, infer(layer, (tensors,), {}))


def first_node(layer: Any) -> Node:
    """The first call of a layer on symbolic tensors.

    Raises:
        ModelError: there was none.
    """
    nodes = getattr(layer, "_nodes", None)
    if not nodes:
        raise ModelError(
            f"layer {layer.name!r} has no symbolic input and output",
            given="a layer that was not called on symbolic tensors",
            expected="a layer of a functional model, or of a Sequential that starts with Input",
            fix="x = Input(shape); y = layer(x)",
        )
    return nodes[0]


def _abstract_call(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any], stand_in: int) -> Any:
    leaves, treedef = jax.tree.flatten((args, kwargs))
    symbolic = [index for index, leaf in enumerate(leaves) if isinstance(leaf, KerasTensor)]

    def call(values: list[Any]) -> Any:
        filled = list(leaves)
        for index, value in zip(symbolic, values, strict=True):
            filled[index] = value
        arguments, options = treedef.unflatten(filled)
        if isinstance(operation, Operation):
            return operation(*arguments)
        copy, _ = fresh_copy(operation)
        with random.key_stream(0), call_context.entered(anew=True):
            return copy(*arguments, **options)

    try:
        return jax.eval_shape(call, [stand_in_for(leaves[index], stand_in) for index in symbolic])
    except ModelError:
        raise
    except Exception as error:
        shapes = [leaves[index].shape for index in symbolic]
        error.add_note(f"in {shorten(operation)} called on {shapes}")
        raise


def other_stand_in_for(tensor: KerasTensor) -> jax.ShapeDtypeStruct:
    """As `stand_in_for`, with another size: what differs between the two depends on a dim of unknown size."""
    return stand_in_for(tensor, _STAND_INS[1])


def stand_in_for(tensor: KerasTensor, size: int = _STAND_INS[0]) -> jax.ShapeDtypeStruct:
    """A shape like that of `tensor`, with `size` for the dims of unknown size."""
    shape = tuple(size if dim is None else dim for dim in tensor.shape)
    return jax.ShapeDtypeStruct(shape, jax.dtypes.canonicalize_dtype(tensor.dtype))


def _is_shape(value: Any) -> bool:
    return isinstance(value, tuple) and all(size is None or isinstance(size, int) for size in value)
