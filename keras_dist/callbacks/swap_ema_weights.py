"""`SwapEMAWeights`: evaluates, and saves, averages of the weights."""

from __future__ import annotations

from typing import Any

from keras_dist.callbacks.callback import Callback, EpochLogs, Logs
from keras_dist.errors import ModelError


class SwapEMAWeights(Callback):
    """Replaces weights by the averages that the optimizer keeps with `use_ema=True` while the model is evaluated.

    Args:
        swap_on_epoch: whether the averages also replace the weights from the end of each epoch to the beginning of the
            next one, for later callbacks such as `ModelCheckpoint`. A callback that ends training early, such as
            `EarlyStopping`, must be before it.

    Raises:
        ModelError: no optimizer of the model keeps averages.

    Differs from Keras: `predict` restores the weights afterwards.
    """

    def __init__(self, swap_on_epoch: bool = False) -> None:
        super().__init__()
        self.swap_on_epoch = swap_on_epoch
        self._is_swapped = False

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        if self.swap_on_epoch:
            self._swap(False)

    def on_epoch_end(self, epoch: int, logs: EpochLogs | None = None) -> None:
        """Use the averages; after the last epoch permanently."""
        if self.swap_on_epoch:
            self._swap(True)
            if epoch == self.params["epochs"] - 1 or self.model.stop_training:
                for variable, average in self._pairs():
                    average.assign(variable.value)
                self._is_swapped = False

    def on_train_exit(self, error: BaseException | None) -> None:
        if error is not None:
            self._swap(False)

    def on_test_begin(self, logs: Logs | None = None) -> None:
        self._swap(True)

    def on_test_end(self, logs: Logs | None = None) -> None:
        self._swap(False)

    on_predict_begin, on_predict_end = on_test_begin, on_test_end

    def _swap(self, to_averages: bool) -> None:
        if self._is_swapped == to_averages:
            return
        for variable, average in self._pairs():
            weight = variable.value
            variable.assign(average.value)
            average.assign(weight)
        self._is_swapped = to_averages

    def _pairs(self) -> list[tuple[Any, Any]]:
        """Return the variables of the model with the variables of their averages."""
        optimizers = [optimizer for optimizer in self.model.optimizers.values() if hasattr(optimizer, "averaged")]
        pairs = [pair for optimizer in optimizers for pair in optimizer.averaged()]
        if not pairs:
            given = f"{', '.join(map(repr, self.model.optimizers.values()))} without use_ema"
            fix = "for example compile(SGD(0.1, use_ema=True), ...)"
            raise ModelError("SwapEMAWeights: no optimizer of the model keeps averages", given=given, fix=fix)
        return pairs
