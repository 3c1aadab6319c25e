"""`TerminateOnNaN`: ends training when the loss is not finite."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp

from keras_dist.callbacks.callback import Callback, Logs
from keras_dist.callbacks.first_process import print_message


class TerminateOnNaN(Callback):
    """Ends training when the loss is NaN or infinite, and says at which batch and which variables are not finite.

    It reads the loss of every batch, so that no step is dispatched before the one before it is done.

    Args:
        raise_error: whether to raise an error at once, instead of ending training in order.

    Raises:
        RuntimeError: in training, with `raise_error=True`.

    Source: `keras.callbacks.TerminateOnNaN`.
    """

    def __init__(self, raise_error: bool = False) -> None:
        super().__init__()
        self.raise_error = raise_error

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Look at the loss."""
        loss: Any = (logs or {}).get("loss")
        if loss is None or math.isfinite(loss):
            return
        where = _not_finite(self.model)
        if self.raise_error:
            raise RuntimeError(
                f"NaN or Inf loss encountered at batch {batch}. Loss value: {loss}. "
                f"Terminating training immediately. {where}"
            )
        print_message(f"Batch {batch}: Invalid loss, terminating training. {where}")
        self.model.stop_training = True


def _not_finite(model: Any) -> str:
    """Which variables are not finite after the step."""
    numbers = [variable for variable in model.variables if jnp.issubdtype(variable.dtype, jnp.inexact)]
    paths = [variable.path for variable in numbers if not jnp.isfinite(variable.value).all()]
    if not paths:
        return "All variables are finite after it: the loss of this batch is not; look at its rows."
    others = f" and {len(paths) - 1} of {len(numbers) - 1} others" if len(paths) > 1 else ""
    return f"After it the variable {paths[0]!r}{others} had values that are not finite."
