"""`TensorBoard`: logs, weights, the layout table and a profile, for TensorBoard."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist._support.arguments import argument_error, check_int, check_path, is_int
from keras_dist._support.extras import import_extra
from keras_dist._support.types import ArrayLike
from keras_dist.callbacks.callback import Callback, Logs, Mode
from keras_dist.callbacks.learning_rates import log_rates
from keras_dist.errors import ModelError, shorten
from keras_dist.files.drafts import writing_to
from keras_dist.jobs.job import is_chief

_TRAIN, _VALIDATION = "train", "validation"


class TensorBoard(Callback):
    """Writes logs and learning rates, weights, the layout table and a profile for TensorBoard.

    Needs `pip install tensorboardX`. In a job of several processes, the first process writes. Show the results by
    `tensorboard --logdir=logs`.

    Args:
        log_dir: the folder; created if missing. Training is written to `train` in it, validation to `validation`.
        histogram_freq: number of epochs between histograms of the weights; 0 for none.
        write_graph: whether to write the layout table of the model, as text.
        write_images: not supported.
        write_steps_per_second: whether to write the steps of training per second, for each epoch.
        update_freq: `"epoch"`, or also after this number of batches; `"batch"` for every batch. Writing waits for the
            step.
        profile_batch: steps to profile: a number, counted from 1, or the first and the last one; 0 for none. With
            several steps per execution, whole executions are profiled.
        embeddings_freq, embeddings_metadata: not supported.

    Raises:
        MissingExtraError: tensorboardX is not installed.
        ModelError: an argument is not supported, or invalid.

    Differs from Keras: `write_graph` writes the layout table; images and embeddings are not supported. Evaluations are
    counted in steps of training that the callback has seen.
    """

    counts_batches = True
    in_every_process = True
    state_names = ("_epoch", "_steps", "_steps_before_epoch")

    def __init__(
        self,
        log_dir: str | os.PathLike[str] = "logs",
        histogram_freq: int = 0,
        write_graph: bool = True,
        write_images: bool = False,
        write_steps_per_second: bool = False,
        update_freq: int | str = "epoch",
        profile_batch: int | str | tuple[int, int] = 0,
        embeddings_freq: int = 0,
        embeddings_metadata: Any = None,
    ) -> None:
        super().__init__()
        _refuse(write_images=write_images, embeddings_freq=embeddings_freq, embeddings_metadata=embeddings_metadata)
        check_int("histogram_freq", histogram_freq, 0)
        self.log_dir = check_path("log_dir", log_dir, "logs")
        self.histogram_freq = histogram_freq
        self.write_graph = write_graph
        self.write_images, self.embeddings_freq, self.embeddings_metadata = False, 0, None  # the only valid values
        self.write_steps_per_second = write_steps_per_second
        self.update_freq = checked_frequency(update_freq)
        self._first_profiled, self._last_profiled = _checked_window(profile_batch)
        self._make_writer = import_extra("tensorboardX", "tensorboard", "TensorBoard").SummaryWriter
        self._writers: dict[str, Any] = {}
        self._is_training = self._is_profiling = self._has_profiled = False
        self._steps = self._steps_before_epoch = 0
        self._epoch = -1
        self._epoch_began = 0.0

    def sees_every_batch(self, mode: Mode) -> bool:
        """Return whether logs are written or steps are profiled by batch."""
        return mode == "train" and bool(self.update_freq or self._first_profiled)

    def on_train_begin(self, logs: Logs | None = None) -> None:
        self._close()
        self._steps = self._steps_before_epoch = 0
        self._epoch = -1
        self._is_training = True
        self._has_profiled = False
        if self.write_graph and is_chief():
            self.write_text("layout", str(self.model.layout_plan))

    def on_train_end(self, logs: Logs | None = None) -> None:
        self._is_training = False
        self._close()

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        if epoch != self._epoch:  # otherwise it is resumed
            self._epoch, self._steps_before_epoch = epoch, self._steps
        self._epoch_began = time.monotonic()

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        train = {name: value for name, value in (logs or {}).items() if not name.startswith("val_")}
        if self.write_steps_per_second:
            seconds = time.monotonic() - self._epoch_began
            train["steps_per_second"] = (self._steps - self._steps_before_epoch) / seconds
        with contextlib.suppress(ModelError):  # the rate of a plain optax optimizer is not known
            log_rates(self.model, train)
        if is_chief():
            self.write({**(logs or {}), **train}, epoch, "epoch_{}")
        if self.histogram_freq and epoch % self.histogram_freq == 0:
            self._write_weights(epoch)
        self._flush()

    def on_train_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """Start the profile at its first step."""
        step = self._steps_before_epoch + batch + 1
        is_time = 0 < self._first_profiled <= step and not self._has_profiled
        if is_time and is_chief():
            self._has_profiled = True
            self._writer(_TRAIN)  # raises before the profile begins
            jax.profiler.start_trace(os.path.join(self.log_dir, _TRAIN))
            self._is_profiling = True

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Write the logs if they are due, and end the profile after its last step."""
        before, self._steps = self._steps, self._steps_before_epoch + batch + 1
        is_time = self.update_freq and before // self.update_freq < self._steps // self.update_freq
        if is_time and is_chief():
            self._write(_TRAIN, "batch_{}", logs or {}, self._steps)
        if self._is_profiling and self._steps >= self._last_profiled:
            dict(logs or {})  # waits for the step
            self._end_profile()

    def on_test_end(self, logs: Logs | None = None) -> None:
        if is_chief():
            self._write(_VALIDATION, "evaluation_{}_vs_iterations", logs or {}, self._steps)
            if not self._is_training:
                self._close()

    def write(self, values: Mapping[str, ArrayLike], step: int, tag: str = "{}") -> None:
        """Write scalars and arrays; values of validation, `val_...`, without this prefix to their own folder."""
        validation = {name.removeprefix("val_"): value for name, value in values.items() if name.startswith("val_")}
        train = {name: value for name, value in values.items() if not name.startswith("val_")}
        self._write(_TRAIN, tag, train, step)
        self._write(_VALIDATION, tag, validation, step)
        self._flush()

    def write_text(self, name: str, text: str) -> None:
        """Write text as it is."""
        self._writer(_TRAIN).add_text(name, "\n".join(f"    {line}" for line in text.splitlines()), 0)

    def _flush(self) -> None:
        for writer in self._writers.values():
            writer.flush()

    def _writer(self, name: str) -> Any:
        if name not in self._writers:
            path = os.path.join(self.log_dir, name)
            with writing_to(path):
                self._writers[name] = self._make_writer(path)
        return self._writers[name]

    def _write(self, writer: str, tag: str, values: Mapping[str, ArrayLike], step: int) -> None:
        """Write scalars, and arrays element by element."""
        for name, value in values.items():
            array = np.asarray(value)
            for index in np.ndindex(array.shape):
                element = "".join(f"_{number}" for number in index)
                self._writer(writer).add_scalar(tag.format(name + element), float(array[index]), step)

    def _write_weights(self, epoch: int) -> None:
        for weight in self.model.weights:
            if jnp.issubdtype(weight.dtype, jnp.floating):
                values = weight.numpy().astype(np.float32)  # in all processes: each may hold a part
                finite = values[np.isfinite(values)]
                if finite.size and is_chief():
                    self._writer(_TRAIN).add_histogram(f"{weight.path}/histogram", finite, epoch)

    def _end_profile(self) -> None:
        self._is_profiling = False
        jax.profiler.stop_trace()

    def _close(self) -> None:
        if self._is_profiling:
            self._end_profile()
        for writer in self._writers.values():
            writer.close()
        self._writers = {}


def _refuse(**arguments: Any) -> None:
    for name, value in arguments.items():
        if not (value is None or value is False or is_int(value, 0, 0)):
            fix = f"leave out {name}; histogram_freq=1 writes histograms of weights"
            raise ModelError(f"`{name}` is not supported", given=f"{name}={shorten(value)}", fix=fix)


def checked_frequency(update_freq: int | str) -> int:
    """Return the number of batches between two writes of logs; 0 for never."""
    if isinstance(update_freq, str) and update_freq in ("epoch", "batch"):
        return int(update_freq == "batch")
    return check_int("update_freq", update_freq, 1, alternative="'epoch' or 'batch'")


def _checked_window(profile_batch: int | str | Sequence[int]) -> tuple[int, int]:
    """Return the first and the last profiled step; 0 and 0 for none."""
    given = profile_batch.split(",") if isinstance(profile_batch, str) else profile_batch
    numbers: list[Any] = list(given) if isinstance(given, tuple | list) else [given]
    if isinstance(profile_batch, str) and all(number.strip().isdecimal() for number in numbers):
        numbers = [int(number) for number in numbers]
    are_numbers = len(numbers) in (1, 2) and all(map(is_int, numbers))
    if not are_numbers or not (numbers in ([0], [0, 0]) or 0 < numbers[0] <= numbers[-1]):
        expected = "0, the number of a step, or the numbers of the first and the last step, counted from 1"
        raise argument_error("profile_batch", profile_batch, expected, example=(10, 20))
    return int(numbers[0]), int(numbers[-1])
