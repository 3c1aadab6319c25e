"""Symbolic tensors, and the graph of calls between them."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Protocol

import jax
import jax.numpy as jnp

from keras_dist import random
from keras_dist._support.array_operators import Operators, values_in
from keras_dist._support.raw_errors import explain_methods
from keras_dist._support.types import DTypeLike, PyTree
from keras_dist._unstable.flax_internals import is_variable
from keras_dist._unstable.jax_internals import refuse_as_array
from keras_dist.distribution.strategy import distribution as current_distribution
from keras_dist.distribution.tracing import traced_in, without_kernels
from keras_dist.errors import ModelError, shorten
from keras_dist.symbolic import shape_tracing

_counter = itertools.count()

TEXT = "string"
"""The element type of text, for layers on the host."""

OPERATIONS: dict[str, Callable[..., PyTree]] = {
    **{name: getattr(operator, name) for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul")},
    **{name: getattr(operator, name) for name in ("neg", "getitem")},
    **{name: getattr(jnp, name) for name in ("abs", "reshape", "round", "squeeze")},
    **{name: getattr(jnp, name) for name in ("logical_and", "logical_not", "logical_or", "logical_xor")},
    "equal": operator.eq,
    "not_equal": operator.ne,
    "greater": operator.gt,
    "greater_equal": operator.ge,
    "less": operator.lt,
    "less_equal": operator.le,
}
"""Functions of arrays by name: operators and methods of symbolic tensors, and operations of `keras_dist.ops`."""


TracedCall = Callable[[Any, Any, list[tuple[jax.Array, jax.Array]]], tuple[PyTree, list[jax.Array | None]]]
"""Calls a step with args, kwargs and pairs (array, mask); returns the outputs, and a mask or None for each."""


class GraphCall(Protocol):
    """A call in the graph: a layer, or an `Operation`."""

    @property
    def name(self) -> str: ...  # noqa: D102

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> PyTree: ...  # noqa: D102


@dataclasses.dataclass(frozen=True, eq=False)
class Operation:
    """A function of `OPERATIONS`, by name, as a step of a model."""

    name: str

    def __call__(self, *args: Any, **kwargs: Any) -> PyTree:
        """Return the result for arrays, or a symbolic result for symbolic tensors."""
        if is_any_symbolic((args, kwargs)):
            return connect(self, args, kwargs).outputs
        args, kwargs = values_in((args, kwargs))
        return OPERATIONS[self.name](*args, **kwargs)

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> PyTree:
        """Return the symbolic outputs of a call, without adding it to the graph."""

        def run(args: Any, kwargs: Any, masks: list[tuple[jax.Array, jax.Array]]) -> tuple[PyTree, list[Any]]:
            outputs = self(*args, **kwargs)
            known = {id(array): mask for array, mask in masks}
            return outputs, [known.get(id(leaf)) for leaf in jax.tree.leaves(outputs)]

        return traced_outputs(self, run, args, kwargs)


@dataclasses.dataclass(eq=False)
class Node:
    """A call of a layer or `Operation` in the graph; `number` counts the calls of the process."""

    operation: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: PyTree = None
    number: int = dataclasses.field(default_factory=lambda: next(_counter))

    @property
    def inputs(self) -> PyTree:
        """The first argument, or the output of an `InputLayer`."""
        return self.args[0] if self.args else self.outputs

    def output(self, shape: Sequence[int | None], dtype: DTypeLike, name: str) -> KerasTensor:
        """Create a symbolic tensor that this call computes."""
        tensor = KerasTensor(shape, dtype, name=name)
        tensor.node = self
        return tensor

    @property
    def parents(self) -> list[KerasTensor]:
        """The symbolic tensors among the arguments."""
        return [leaf for leaf in jax.tree.leaves((self.args, self.kwargs)) if isinstance(leaf, KerasTensor)]


@explain_methods
class KerasTensor:
    """Shape and element type of an array that a model will compute.

    Args:
        shape: sizes of the dims; None for any size.
        dtype: element type.
        sparse: must be False.
        ragged: must be False.
        record_history: unused.
        name: name in error messages.

    Attributes:
        name: name in error messages.
        node: the call that computes the tensor, if any.
        mask: the symbolic mask, if any.

    Raises:
        ModelError: `sparse` or `ragged` is set.

    Source: `keras.KerasTensor`.
    """

    sparse = ragged = False

    def __init__(
        self,
        shape: Sequence[int | None],
        dtype: DTypeLike = "float32",
        sparse: bool = False,
        ragged: bool = False,
        record_history: bool = True,
        name: str | None = None,
    ) -> None:
        del record_history
        if sparse or ragged:
            given = f"sparse={sparse}, ragged={ragged}"
            raise ModelError("KerasTensor cannot be sparse or ragged", given=given, fix="leave these arguments out")
        self._shape = tuple(None if size is None else int(size) for size in shape)
        self._dtype = TEXT if is_text(dtype) else jnp.dtype(dtype).name
        self.name = name or "keras_tensor"
        self.node: Node | None = None
        self.mask: KerasTensor | None = None

    @property
    def shape(self) -> tuple[int | None, ...]:
        """The sizes of the dims; None for any size."""
        return self._shape

    @property
    def dtype(self) -> str:
        """The name of the element type."""
        return self._dtype

    @property
    def ndim(self) -> int:
        """The number of dims."""
        return len(self.shape)

    @property
    def _keras_mask(self) -> KerasTensor | None:
        return self.mask

    def reshape(self, newshape: int | Sequence[int]) -> KerasTensor:
        """Reshape the tensor, including the batch; one size may be -1."""
        return Operation("reshape")(self, newshape)

    def squeeze(self, axis: int | Sequence[int] | None = None) -> KerasTensor:
        """Remove dims of size 1; by default all of them."""
        return Operation("squeeze")(self, axis)

    def __round__(self, ndigits: int | None = None) -> KerasTensor:
        return Operation("round")(self, ndigits or 0)

    def __repr__(self) -> str:
        return f"<KerasTensor shape={self.shape}, dtype={self.dtype}, name={self.name}>"

    def __bool__(self) -> bool:
        raise self._no_value("a symbolic KerasTensor cannot be used as a boolean", "bool()")

    def __iter__(self) -> NoReturn:
        raise self._no_value("iterating over a symbolic KerasTensor is not supported", "iter()")

    def __int__(self) -> int:
        raise self._no_value("a KerasTensor has no value that could become an int", "int()")

    def __float__(self) -> float:
        raise self._no_value("a KerasTensor has no value that could become a float", "float()")

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NoReturn:
        raise self._no_value("a KerasTensor has no values that could become a NumPy array", "numpy")

    @property
    def __jax_array__(self) -> NoReturn:
        # JAX looks for this attribute before it raises its own error
        raise self._no_jax_array()

    def _no_jax_array(self) -> ModelError:
        return self._no_value("a KerasTensor cannot be used as input to a JAX function", "a function of jax")

    def _no_value(self, summary: str, what: str) -> ModelError:
        given = f"{what} on {self!r}"
        fix = "use layers, keras_dist.ops or operators; layers.NNXLayer(module)(tensor) for a flax.nnx module, or "
        fix += "layers.Lambda(lambda x: jnp.sum(x, axis=1))(tensor) for a function of jax"
        return ModelError(f"{summary}: it stands for an array that a model will compute", given=given, fix=fix)


refuse_as_array(KerasTensor, KerasTensor._no_jax_array)


def _install_operators() -> None:
    binary = {name: name for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul")}
    binary |= {"and": "logical_and", "or": "logical_or", "xor": "logical_xor"}
    compared = {"lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal", "ne": "not_equal"}
    unary = {"neg": "neg", "abs": "abs", "invert": "logical_not", "getitem": "getitem"}

    def method(name: str, swapped: bool = False) -> Callable[..., KerasTensor]:
        def apply(*args: Any) -> KerasTensor:
            return connect(Operation(name), args[::-1] if swapped else args, {}).outputs

        return apply

    for python, name in binary.items():
        setattr(KerasTensor, f"__r{python}__", method(name, swapped=True))
    for python, name in (binary | compared | unary).items():
        setattr(KerasTensor, f"__{python}__", method(name))


_install_operators()


def is_text(dtype: Any) -> bool:
    """Return whether an element type is text: `"string"`, `str`, or the dtype of an array of text."""
    return dtype is str or getattr(dtype, "name", dtype) == TEXT or getattr(dtype, "kind", None) in ("S", "U", "O")


def is_keras_tensor(x: Any) -> bool:
    """Return whether `x` is a symbolic tensor, as returned by `Input`.

    Source: `keras.utils.is_keras_tensor`.
    """
    return isinstance(x, KerasTensor)


def get_source_inputs(tensor: KerasTensor) -> list[KerasTensor]:
    """Return the symbolic inputs from which a tensor is computed, each once; for an input, itself.

    Source: `keras.utils.get_source_inputs`.
    """
    found, seen, waiting = [], set[int](), [tensor]
    while waiting:  # each tensor once: every residual block doubles the number of paths
        one = waiting.pop()
        if id(one) not in seen:
            seen.add(id(one))
            parents = [] if one.node is None else one.node.parents
            waiting += reversed(parents)
            found += [] if parents else [one]
    return found


def is_any_symbolic(tree: PyTree) -> bool:
    """Return whether a leaf is a symbolic tensor."""
    return any(isinstance(leaf, KerasTensor) for leaf in jax.tree.leaves(tree))


def connect(step: GraphCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Node:
    """Return a call of a layer or operation on symbolic inputs, with its symbolic outputs."""
    leaves = jax.tree.leaves((args, kwargs), is_leaf=is_variable)
    if foreign := [leaf for leaf in leaves if is_variable(leaf) and not isinstance(leaf, Operators)]:
        summary = f"{step.name!r} of a variable of flax.nnx: the model would not train the variable"
        fix = "layers.NNXLayer(module)(tensor) for the module that owns the variable"
        raise ModelError(summary, given=f"{type(foreign[0]).__name__} of shape {foreign[0].shape}", fix=fix)
    node = Node(step, args, kwargs)
    on_host = runs_on_host(step)
    for tensor in node.parents:
        if on_host and tensor.node is not None and tensor.node.parents and not runs_on_host(tensor.node.operation):
            raise _after_devices(step, tensor)
        if not on_host and tensor.dtype == TEXT:
            raise _text_on_devices(step, tensor)
    called: Any = step
    node.outputs = called.output_like(*args, **kwargs) if on_host else infer(step, args, kwargs)
    for tensor in jax.tree.leaves(node.outputs):
        tensor.node, tensor.name = node, f"{step.name}/output"
    return node


def runs_on_host(step: GraphCall) -> bool:
    """Return whether a step of a model runs on the host."""
    return getattr(step, "is_host_side", False) is True


def infer(step: GraphCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> PyTree:
    """Return the symbolic outputs of a call, with their masks, without adding it to the graph."""
    outputs = step.compute_output_spec(*args, **kwargs)
    given = {id(leaf) for leaf in jax.tree.leaves((args, kwargs))}
    return jax.tree.map(lambda leaf: KerasTensor(leaf.shape, leaf.dtype) if id(leaf) in given else leaf, outputs)


def traced_outputs(step: GraphCall, run: TracedCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> PyTree:
    """Return the symbolic outputs of a call, with their masks, by tracing `run`."""
    call, tensors = _abstract_call(run, args, kwargs)
    try:
        found = jax.tree.map(_as_keras_tensor, _traced(step, call, tensors, shape_tracing.symbolic_dim()))
    except Exception:  # of any class: the code of a layer may need integers
        found = _traced_with_sizes(step, call, tensors)
    outputs, masks = found
    for tensor, mask in zip(jax.tree.leaves(outputs), masks, strict=True):
        tensor.mask = mask
    return outputs


def _traced_with_sizes(
    step: GraphCall, call: Callable[[list[jax.Array]], PyTree], tensors: list[KerasTensor]
) -> PyTree:
    """Return the outputs of a call, and their masks, by tracing it with two sizes for dims of unknown size."""
    # JAX's symbolic dims do not suffice where a dim becomes an integer (a loop, `int(x.shape[1])`), where a number must
    # divide a dim (a reshape to `(-1, 2, 4)`), where an unknown size must equal a known one (the sum of shapes
    # (None, 3) and (4, 3)), and where a weight has the size of such a dim
    first = second = _traced(step, call, tensors, shape_tracing.SIZES[0])
    if any(size is None for tensor in tensors for size in tensor.shape):
        second = _traced(step, call, tensors, shape_tracing.SIZES[1])
    if jax.tree.structure(first) != jax.tree.structure(second):
        summary = f"the number of outputs of {step.name!r} must not depend on a dim of unknown size"
        fix = "another axis, or an Input with batch_size="
        raise ModelError(summary, given=str([tensor.shape for tensor in tensors]), fix=fix)
    return jax.tree.map(_common_shape, first, second)


def _after_devices(operation: Any, tensor: KerasTensor) -> ModelError:
    summary = f"layer {operation.name!r} runs on the host, and cannot follow a layer that runs on devices"
    given = f"{type(operation).__name__} called on {tensor.name!r}, which a layer on devices computes"
    fix = "begin the model with it: call it on an Input, or apply it to the data: dataset.map"
    return ModelError(summary, given=given, fix=fix)


def _text_on_devices(operation: Any, tensor: KerasTensor) -> ModelError:
    given = f"text: {tensor.name!r}, of dtype {TEXT!r}"
    fix = "turn text into numbers first: layers.TextVectorization, StringLookup or Hashing"
    return ModelError(f"{operation.name!r} must get numbers: it runs on devices", given=given, fix=fix)


def _traced(
    step: GraphCall, call: Callable[[list[jax.Array]], PyTree], tensors: list[KerasTensor], size: int
) -> PyTree:
    current = current_distribution()
    traced = functools.partial(shape_tracing.trace, functools.partial(jax.eval_shape, call), tensors, size)
    try:
        with without_kernels():  # they need sizes
            return traced() if current is None else traced_in(current, None, traced)
    except ModelError:
        raise
    except Exception as error:
        error.add_note(f"in {shorten(step)} called on {[tensor.shape for tensor in tensors]}")
        raise


def _abstract_call(
    run: TracedCall, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Callable[[list[jax.Array]], PyTree], list[KerasTensor]]:
    """Return the call as a function of arrays, and the symbolic tensors and masks that the arrays stand for."""
    leaves, treedef = jax.tree.flatten((args, kwargs))
    symbolic = [index for index, leaf in enumerate(leaves) if isinstance(leaf, KerasTensor)]
    masked = [index for index in symbolic if mask_of(leaves[index]) is not None]

    def call(values: list[jax.Array]) -> PyTree:
        filled = list(leaves)
        for index, value in zip(symbolic, values, strict=False):
            filled[index] = value
        arguments, options = treedef.unflatten(filled)
        masks = [(filled[index], mask) for index, mask in zip(masked, values[len(symbolic) :], strict=True)]
        with random.key_stream(jax.random.key(0)):
            return run(arguments, options, masks)

    return call, [*(leaves[index] for index in symbolic), *(leaves[index].mask for index in masked)]


def mask_of(leaf: Any) -> KerasTensor | None:
    """Return the mask of a symbolic tensor, or None."""
    return leaf.mask if isinstance(leaf, KerasTensor) else None


def _as_keras_tensor(traced: jax.ShapeDtypeStruct) -> KerasTensor:
    return KerasTensor([size if isinstance(size, int) else None for size in traced.shape], traced.dtype)


def _common_shape(first: KerasTensor, second: KerasTensor) -> KerasTensor:
    """Return the shape of two traces of a call, with None for sizes that differ."""
    return KerasTensor([m if m == n else None for m, n in zip(first.shape, second.shape, strict=True)], first.dtype)
