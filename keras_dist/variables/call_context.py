"""The context of a call of a model, shared by its layers: training, masks, added losses.

Masks, added losses and the mode of a call are in a context variable: traced values take no attributes, and arguments
would have to pass through the code of users. Between eager calls a mask is the `_keras_mask` of its array.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax

from keras_dist._support import ambient
from keras_dist._support.types import ArrayLike, PyTree
from keras_dist._unstable.jax_internals import is_traced
from keras_dist.errors import ModelError
from keras_dist.losses.vocabulary import Projection


@dataclasses.dataclass
class CallContext:
    """The context of a call of a model."""

    training: bool | None = None  # None if the caller did not set it
    losses: list[jax.Array] = dataclasses.field(default_factory=list)  # scalars added by layers
    # traced tensor and mask by the id of the tensor, which must live; arrays have `_keras_mask`, as in Keras
    masks: dict[int, tuple[jax.Array, jax.Array]] = dataclasses.field(default_factory=dict)
    # in steps with a loss: number of shards of a dim of a weight, by its path, where it is used; None if not known
    shards_of: Callable[[str, int], int | None] = lambda path, dim: None
    # traced logits and their projection by the id of the logits, which must live
    projections: dict[int, tuple[jax.Array, Projection]] = dataclasses.field(default_factory=dict)
    compiled_loss: Callable[[PyTree, PyTree], ArrayLike | None] | None = None  # while a loss is computed
    caller: str | None = None  # name of the layer whose `call` runs; None while a layer builds
    weights_dtype: str | None = None  # dtype in which `call` reads float weights; None for their own
    sizes_of_unknown: frozenset[int] = frozenset()  # in a call for shapes: sizes that stand for dims of unknown size
    root: Any = None  # trace state of the outermost layer that is called
    is_computed_again: bool = False  # the backward pass recomputes it, so that its layers need not do so

    def mask_of(self, tensors: PyTree) -> PyTree:
        """Return the mask of a tensor or None; for a pytree of tensors, a pytree of masks."""
        return jax.tree.map(
            lambda tensor: self.masks.get(id(tensor), (None, getattr(tensor, "_keras_mask", None)))[1], tensors
        )

    def set_mask(self, tensors: PyTree, masks: PyTree) -> None:
        """Set the masks of tensors: a pytree, one mask for all, or None."""
        if masks is None:
            return
        leaves = jax.tree.leaves(tensors)
        found = jax.tree.leaves(masks, is_leaf=lambda mask: mask is None)
        for tensor, mask in zip(leaves, found if len(found) == len(leaves) else found * len(leaves), strict=False):
            if mask is None:
                continue
            if is_traced(tensor) or is_traced(mask) or not isinstance(tensor, jax.Array):
                self.masks[id(tensor)] = (tensor, mask)
            else:
                tensor._keras_mask = mask  # pyright: ignore[reportAttributeAccessIssue]

    def pass_on(self, tensors: PyTree, constrained: PyTree) -> None:
        """Set masks and projections of tensors for the same tensors after a constraint."""
        self.set_mask(constrained, self.mask_of(tensors))
        for before, after in zip(jax.tree.leaves(tensors), jax.tree.leaves(constrained), strict=True):
            projection = self.projection_of(before)
            if projection is not None:
                self.projections[id(after)] = after, projection

    def projection_of(self, logits: PyTree) -> Projection | None:
        """Return the projection that computes traced logits, if it is known."""
        return self.projections.get(id(logits), (None, None))[1]

    def note_projection(self, logits: jax.Array, projection: Projection, weight: str) -> None:
        """Store the projection that computes logits; `weight` is the path of its kernel."""
        shards = self.shards_of(weight, projection.vocabulary_dim) if is_traced(logits) else None
        if shards is not None:
            self.projections[id(logits)] = logits, dataclasses.replace(projection, shards=shards)


def current() -> CallContext | None:
    """Return the context of the current call; None outside of calls."""
    return ambient.call.get()


def entered(training: bool | None = None, *, anew: bool = False) -> contextlib.AbstractContextManager[CallContext]:
    """Context manager of a call.

    Shares losses, masks and, by default, `training` with the outer call unless `anew`.
    """
    around = None if anew else current()
    if around is None:
        context = CallContext(training)
    else:
        context = around if training is None else dataclasses.replace(around, training=training)
    return ambient.with_value(ambient.call, context)


def caller() -> str | None:
    """Return the name of the layer whose `call` runs; None outside of calls, and while a layer builds."""
    context = current()
    return None if context is None else context.caller


@contextlib.contextmanager
def calling(name: str | None, weights_dtype: str | None = None) -> Iterator[None]:
    """Context manager of the `call` of a layer, which reads float weights as `weights_dtype`; None for a build."""
    context = current()
    if context is None:
        yield
        return
    around = context.caller, context.weights_dtype
    context.caller, context.weights_dtype = name, weights_dtype
    try:
        yield
    finally:
        context.caller, context.weights_dtype = around


def weights_dtype() -> str | None:
    """Return the dtype in which the current `call` reads float weights; None for their stored dtype."""
    context = current()
    return None if context is None else context.weights_dtype


def refuse_in_call(what: str) -> None:
    """Raise if a layer's `call` is running: each call would create `what` again, and nothing would keep it."""
    name = caller()
    if name is not None:
        given = f"{what} that call creates: each call would create new ones, which are never trained"
        fix = "create it in build(self, input_shape) or __init__, and keep it: self.kernel = self.add_weight(...)"
        raise ModelError(f"layer {name!r} creates {what} inside of call", given=given, fix=fix)
