"""The context of one call of a model, for all layers in it: training or not, masks, added losses."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import jax

from keras_dist._support.types import ArrayLike, PyTree
from keras_dist._unstable.jax_internals import is_traced
from keras_dist.errors import ModelError

if TYPE_CHECKING:
    from keras_dist.variables.variable import Variable


@dataclasses.dataclass
class CallContext:
    """The context of one call of a model.

    Attributes:
        training: whether the model is being trained; None when the caller did not say.
        losses: what layers have added to the loss, scalars.
        masks: traced tensor and mask, by the id of the tensor, which is kept so that no other one gets its id. Arrays
            have their mask as `_keras_mask`, from one call to the next, as in Keras.
        compiled_loss: `(batch, y_pred) -> scalar`, the loss that `compile` chose, while a loss is computed.
        created: the weights that were created, with their first values.
        caller: the name of the layer whose `call` runs; None outside of one, and while a layer builds.
        weights_dtype: what float weights are read as in it; None for as they are.
        is_of_shapes: whether nothing is asked of it but shapes, so that initial values need not be drawn.
        root: the trace state of the outermost layer that is called; None before there is one.
        is_computed_again: whether the backward pass computes it again, so that no layer in it needs to see to that.
    """

    training: bool | None = None
    losses: list[jax.Array] = dataclasses.field(default_factory=list)
    masks: dict[int, tuple[jax.Array, jax.Array]] = dataclasses.field(default_factory=dict)
    compiled_loss: Callable[[PyTree, PyTree], ArrayLike | None] | None = None
    caller: str | None = None
    created: list[tuple[Variable, jax.Array]] = dataclasses.field(default_factory=list)
    weights_dtype: str | None = None
    is_of_shapes: bool = False
    root: Any = None
    is_computed_again: bool = False

    def mask_of(self, tensors: PyTree) -> PyTree:
        """Return the mask of a tensor, or None; for a pytree of tensors a pytree of masks."""
        return jax.tree.map(
            lambda tensor: self.masks.get(id(tensor), (None, getattr(tensor, "_keras_mask", None)))[1], tensors
        )

    def set_mask(self, tensors: PyTree, masks: PyTree) -> None:
        """Set the masks of tensors: pytrees of one structure, or one mask for all; None for no mask."""
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


_current: contextvars.ContextVar[CallContext | None] = contextvars.ContextVar("call", default=None)


def current() -> CallContext | None:
    """Return the context of the current call; None outside of calls."""
    return _current.get()


@contextlib.contextmanager
def entered(training: bool | None = None, *, anew: bool = False) -> Iterator[CallContext]:
    """Enter a call, within the one around it unless `anew`.

    Args:
        training: whether it trains; None for what holds around it.
        anew: whether to start without the losses and masks of the call around it.
    """
    around = None if anew else _current.get()
    if around is None:
        context = CallContext(training)
    else:
        context = around if training is None else dataclasses.replace(around, training=training)
    token = _current.set(context)
    try:
        yield context
    finally:
        _current.reset(token)


def caller() -> str | None:
    """Return the name of the layer whose `call` runs; None outside of one, and while a layer builds."""
    context = current()
    return None if context is None else context.caller


@contextlib.contextmanager
def calling(name: str | None, weights_dtype: str | None = None) -> Iterator[None]:
    """Enter the `call` of the layer of this name, which reads float weights as `weights_dtype`; None for a build."""
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
    """Return the element type that the current `call` reads float weights as; None for their own."""
    context = current()
    return None if context is None else context.weights_dtype


def is_of_shapes() -> bool:
    """Return whether nothing is asked of the current call but shapes."""
    context = current()
    return context is not None and context.is_of_shapes


def note_created(variable: Variable, value: jax.Array) -> None:
    """Store a new weight and its first value."""
    context = current()
    if context is not None:
        context.created.append((variable, value))


def refuse_in_call(what: str) -> None:
    """Check that no layer's `call` runs: what it creates would be made anew in each call, and be lost."""
    name = caller()
    if name is not None:
        given = f"{what} that call makes: they would be made anew in each call, and never trained"
        fix = "create it in build(self, input_shape) or __init__, and keep it: self.kernel = self.add_weight(...)"
        raise ModelError(f"layer {name!r} creates {what} inside of call", given=given, fix=fix)
