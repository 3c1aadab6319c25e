"""`TerminateOnNaN`: ends training when the loss is not finite."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from keras_dist._support.located_warnings import warn
from keras_dist.callbacks.callback import Callback, Logs
from keras_dist.jobs.job import is_chief, print_message
from keras_dist.training.state_cell import StateCell


@dataclasses.dataclass(frozen=True)
class _Execution:
    """One or more steps, run together, whose loss is not read yet."""

    first: int  # batch
    last: int
    flags: jax.Array  # on the devices: whether variables were finite before it
    logs: Logs

    @property
    def batches(self) -> str:
        """Description of its batches."""
        return f"batch {self.last}" if self.first == self.last else f"batches {self.first} to {self.last}"


class TerminateOnNaN(Callback):
    """Ends training when the loss is NaN or infinite, and names the cause: a batch, or variables that were not finite.

    The loss of a step is read when the next one has been dispatched, so that the devices never wait: training ends one
    step later, or with the epoch. To find the cause, the devices check the variables before each step, in one pass.

    Args:
        raise_error: whether to raise an error at once, instead of ending training normally.

    Raises:
        RuntimeError: in training, with `raise_error=True`.

    Example:
        >>> import numpy as np
        >>> import keras_dist as kd
        >>> model = kd.Sequential([kd.Input((3,)), kd.layers.Dense(1, name="d1")])
        >>> model.compile("sgd", loss="mse")
        >>> x, y = np.full((8, 3), np.nan), np.ones((8, 1))
        >>> history = model.fit(x, y, batch_size=2, verbose=0, callbacks=[kd.callbacks.TerminateOnNaN()])
        Batch 0: Invalid loss, terminating training. All variables were finite before that: look at the rows.
        compile(check=True) names a label or token that is out of range.
    """

    counts_batches = True
    in_every_process = True

    def __init__(self, raise_error: bool = False) -> None:
        super().__init__()
        self.raise_error = raise_error
        self._finite: _FiniteFlags | None = None
        self._unread: _Execution | None = None
        self._begun: tuple[int, Any] = (0, None)

    def on_train_begin(self, logs: Logs | None = None) -> None:
        self._finite = _FiniteFlags(self.model._with_weights().cell)
        self._unread = None

    def on_train_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """Check the variables on the devices."""
        if self._finite is not None:
            self._begun = (batch, self._finite.dispatch())

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Read the loss of the execution before this one."""
        first, flags = self._begun
        self._read()
        if self._finite is not None and logs is not None and "loss" in logs:
            self._unread = _Execution(first, batch, flags, logs)

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        self._read()

    def _read(self) -> None:
        execution, self._unread = self._unread, None
        if execution is None or self._finite is None:
            return
        loss = execution.logs["loss"]
        if math.isfinite(loss):
            return
        paths = self._finite.not_finite(execution.flags)
        where = _listed(paths) + ("" if paths else index_hint(self.model, "\n"))
        self._finite = None  # reported once
        if self.raise_error:
            raise RuntimeError(
                f"NaN or Inf loss encountered at {execution.batches}. Loss value: {loss}. "
                f"Terminating training immediately. {where}"
            )
        print_message(f"{execution.batches.capitalize()}: Invalid loss, terminating training. {where}")
        self.model.stop_training = True


def index_hint(model: Any, before: str) -> str:
    """Return, after `before`, how to find indices that make a loss NaN; nothing where the steps check them."""
    config = model._with_weights().compile_config
    is_checked = config is not None and config.options.check
    return "" if is_checked else f"{before}compile(check=True) names a label or token that is out of range."


def warns_of_nan(model: Any, logs: Mapping[str, Any], where: str, hint: str = "") -> bool:
    """Warn if the loss or `val_loss` is NaN; return whether one is."""
    losses = {name: logs.get(name) for name in ("loss", "val_loss")}
    wrong = [name for name, loss in losses.items() if isinstance(loss, float) and math.isnan(loss)]
    if wrong and is_chief():
        warn(f"the {wrong[0]} is nan in {where}.{index_hint(model, ' ')}{hint}")
    return bool(wrong)


def _listed(paths: list[str]) -> str:
    """Describe what was not finite first: these variables or, if there are none, the loss."""
    if not paths:
        return "All variables were finite before that: look at the rows."
    others = f" and {len(paths) - 1} others" if len(paths) > 1 else ""
    return f"The variable {paths[0]!r}{others} had values that are not finite before that."


class _FiniteFlags:
    """Checks whether variables of a model are finite: each device checks its own shards, without a collective."""

    def __init__(self, cell: StateCell) -> None:
        self._cell = cell
        specs, shardings = cell.graph.specs, jax.tree.leaves(cell.plan.shardings)
        self._indices = [index for index, spec in enumerate(specs) if jnp.issubdtype(spec.dtype, jnp.inexact)]
        self.paths = [specs[index].path for index in self._indices]
        self._program = _compile_flags(shardings[0].mesh, tuple(shardings[index].spec for index in self._indices))

    def dispatch(self) -> jax.Array:
        """Check the current values: flags (devices, variables), which later steps do not consume."""
        with self._cell.lock:
            leaves = self._cell.leaves()
            return self._program([leaves[index] for index in self._indices])

    def not_finite(self, flags: jax.Array) -> list[str]:
        """Return the paths of variables that were not finite, by flags. Waits for the step before them."""
        found = np.concatenate([np.asarray(shard.data) for shard in flags.addressable_shards])
        return [path for path, on_devices in zip(self.paths, found.T, strict=True) if not on_devices.all()]


@functools.lru_cache(maxsize=16)
def _compile_flags(mesh: Mesh, specs: tuple[PartitionSpec, ...]) -> Callable[[Sequence[jax.Array]], jax.Array]:
    def flags(parts: Sequence[jax.Array]) -> jax.Array:
        return jnp.asarray([jnp.isfinite(part).all() for part in parts], bool)[None]

    return jax.jit(jax.shard_map(flags, mesh=mesh, in_specs=(list(specs),), out_specs=PartitionSpec(mesh.axis_names)))
