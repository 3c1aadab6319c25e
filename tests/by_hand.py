"""A training loop written by hand with Flax and optax, on one device: what `fit` is compared with."""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx


def cross_entropy(y_true: Any, y_pred: Any) -> Any:
    """A value for each example."""
    return optax.softmax_cross_entropy_with_integer_labels(y_pred, y_true)


def batches_in_order(batch_size: int, *arrays: Any) -> list[tuple[Any, ...]]:
    """The rows in their own order; the last batch may be shorter."""
    rows = len(arrays[0])
    return [tuple(a[i : i + batch_size] for a in arrays) for i in range(0, rows, batch_size)]


def train(
    module: nnx.Module,
    transformation: optax.GradientTransformation,
    batches: Iterable[tuple[Any, ...]],
    loss: Callable[[Any, Any], Any] = cross_entropy,
) -> list[float]:
    """The loss of each step on `(x, y)` or `(x, y, weight)`. Changes `module`."""
    module.train()
    graphdef, params, rest = nnx.split(module, nnx.Param, ...)
    transformation = optax.with_extra_args_support(transformation)

    @jax.jit
    def step(values: Any, rest: Any, slots: Any, x: Any, y: Any, weight: Any) -> Any:
        def loss_of(values: Any) -> Any:
            state = jax.tree.map(lambda leaf: leaf, params)
            nnx.replace_by_pure_dict(state, values)
            copy = nnx.merge(graphdef, state, rest, copy=True)
            value = jnp.mean(weight * loss(y, copy(x)))
            return value, nnx.state(copy, nnx.Not(nnx.Param))

        (value, rest), grads = jax.value_and_grad(loss_of, has_aux=True)(values)
        extra = {"value": value, "grad": grads, "value_fn": lambda values: loss_of(values)[0]}
        updates, slots = transformation.update(grads, slots, values, **extra)
        return optax.apply_updates(values, updates), rest, slots, value

    values = nnx.to_pure_dict(params)
    slots = jax.jit(transformation.init)(values)
    losses = []
    for x, y, *weight in batches:
        values, rest, slots, value = step(values, rest, slots, x, y, weight[0] if weight else 1.0)
        losses.append(float(value))
    nnx.replace_by_pure_dict(params, values)
    nnx.update(module, params, rest)
    return losses


def predict(module: nnx.Module, x: Any) -> Any:
    """What the module gives in evaluation, compiled as one program."""
    module.eval()
    graphdef, state = nnx.split(module)
    return jax.jit(lambda state, x: nnx.merge(graphdef, state)(x))(state, x)
