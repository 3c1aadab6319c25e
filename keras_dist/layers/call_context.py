"""What holds during one call of a model, for all layers in it: training or not, masks, extra losses."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax


@dataclasses.dataclass
class CallContext:
    """What holds during one call of a model.

    Attributes:
        training: whether the model is being trained; None when the caller did not say.
        losses: what layers have added to the loss, scalars.
        masks: tensor and mask, by the id of the tensor, since arrays take no attributes. The tensor is kept so that no
            other one gets its id.
        compiled_loss: `(batch, y_pred) -> scalar`, the loss that `compile` chose, while a loss is computed.
    """

    training: bool | None = None
    losses: list[Any] = dataclasses.field(default_factory=list)
    masks: dict[int, tuple[Any, Any]] = dataclasses.field(default_factory=dict)
    compiled_loss: Callable[[Any, Any], Any] | None = None

    def mask_of(self, tensors: Any) -> Any:
        """The mask of a tensor, or None; of a pytree of tensors a pytree of masks."""
        return jax.tree.map(lambda tensor: self.masks.get(id(tensor), (None, None))[1], tensors)

    def set_mask(self, tensors: Any, masks: Any) -> None:
        """Note the masks of tensors: pytrees of one structure, or one mask for all; None for no mask."""
        if masks is None:
            return
        leaves = jax.tree.leaves(tensors)
        found = jax.tree.leaves(masks, is_leaf=lambda mask: mask is None)
        for tensor, mask in zip(leaves, found if len(found) == len(leaves) else found * len(leaves), strict=False):
            if mask is not None:
                self.masks[id(tensor)] = (tensor, mask)


_current: contextvars.ContextVar[CallContext | None] = contextvars.ContextVar("call", default=None)


def current() -> CallContext | None:
    """The context of the call that is running; None outside of calls."""
    return _current.get()


@contextlib.contextmanager
def entered(training: bool | None = None, *, anew: bool = False) -> Iterator[CallContext]:
    """Inside, a call is running, within the one around it unless `anew`.

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
