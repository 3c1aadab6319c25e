"""Equal layers as one layer whose weights have a leading dim, called in a `jax.lax.scan`.

XLA then compiles one block for any number of them, and a gather of FSDP or the rematerialization of a block happens in
the loop. The weights are in an ordinary layer, so that paths, rules and LoRA work as without a stack.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import jax
from flax import nnx

from keras_dist import initializers
from keras_dist._support.types import DTypeLike, PyTree
from keras_dist._unstable.flax_internals import attribute_order, restore_order, without_eager_sharding
from keras_dist.layers.recurrent.loop_body import add_losses
from keras_dist.variables import call_context

if TYPE_CHECKING:
    from keras_dist.layers.layer import Layer

_stack_size: contextvars.ContextVar[int | None] = contextvars.ContextVar("stack_size", default=None)


@contextlib.contextmanager
def stacked_weights(count: int) -> Iterator[None]:
    """Create weights with a leading dim: one slice for each of `count` layers, with its own initial values."""
    token = _stack_size.set(count)
    try:
        yield
    finally:
        _stack_size.reset(token)


def stack_size() -> int | None:
    """Return the leading dim of weights that are created now; None for weights of one layer."""
    return _stack_size.get()


def each_slice(initializer: str | Mapping[str, Any] | Callable[..., Any] | None) -> Callable[..., jax.Array]:
    """Return an initializer of a stack, given the initializer of its slices."""
    draw = initializers.get(initializer)

    def draw_all(shape: tuple[int, ...], dtype: DTypeLike, key: jax.Array) -> jax.Array:
        return jax.vmap(lambda key: draw(shape[1:], dtype, key=key))(jax.random.split(key, shape[0]))

    return draw_all


def scan_layers(layer: Layer, call: Callable[[Any, PyTree, PyTree], PyTree], carry: PyTree, inputs: PyTree) -> PyTree:
    """Return the last carry of `carry = call(one, carry, input)`, for each layer `one` of a stack and its input.

    Random states, of Dropout, are not stacked: each layer continues the stream of the layer before.
    """
    context = call_context.current()
    training = None if context is None else context.training
    graphdef, streams, state = nnx.split(layer, nnx.RngState, ...)
    values, structure = jax.tree.flatten(state)
    order = attribute_order(layer)

    def body(carried: tuple[PyTree, PyTree], turn: tuple[list[jax.Array], PyTree]) -> tuple[PyTree, list[jax.Array]]:
        with without_eager_sharding():
            one = nnx.merge(graphdef, carried[1], structure.unflatten(turn[0]), copy=True)
        restore_order(one, order)
        with call_context.entered(training, anew=True) as inside:
            outputs = call(one, carried[0], turn[1])
            return (outputs, nnx.state(one, nnx.RngState)), inside.losses

    (carry, streams), losses = jax.lax.scan(body, (carry, streams), (values, inputs))
    nnx.update(layer, streams)
    add_losses(layer, losses)
    return carry
