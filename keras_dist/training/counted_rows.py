"""Batches of which only the first rows count: one program for many lengths, where all treats each row by itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from keras_dist import _jax
from keras_dist.errors import ModelError
from keras_dist.layers import Layer, call_context, row_watch
from keras_dist.layers.row_by_row import keeps_rows_apart, unknown_in
from keras_dist.layers.row_watch import RowWatch
from keras_dist.losses.row_by_row import goes_row_by_row as is_rowwise_loss
from keras_dist.metrics.row_by_row import goes_row_by_row as is_rowwise_metric
from keras_dist.training.objective import Objective


def new_watch() -> RowWatch:
    """What notes whether a step treats each row by itself."""
    watch = RowWatch(keeps_rows_apart)
    if not _jax.draws_rows_alike():
        watch.note("random numbers, with jax_threefry_partitionable=False")
    return watch


def rows_of(arrays: Any, count: Any) -> Any:
    """Which rows of `(x, y, sample_weight)` count (traced); None for all.

    Args:
        arrays: with the rows first.
        count: how many count, the first ones; None for all.
    """
    return None if count is None else jnp.arange(len(jax.tree.leaves(arrays)[0])) < count


def mask_of_counted(mask: Any, y_pred: Any) -> Any:
    """The mask of outputs, for which only rows that count do.

    Args:
        mask: an array, or one for each output, or None, alone and in there.
        y_pred: the outputs.
    """
    watch = row_watch.current()
    rows = None if watch is None else watch.counted
    if rows is None or mask is None:
        return mask if rows is None else rows

    def both(found: Any, output: Any) -> Any:
        del output
        return rows if found is None else jnp.logical_and(found, rows.reshape(-1, *[1] * (jnp.ndim(found) - 1)))

    return jax.tree.map(both, mask, y_pred, is_leaf=lambda node: node is None)


def watch_outputs(module: Any) -> None:
    """Note, if anybody wants to know, what in a module may mix rows. Its calls have noted what they do.

    Args:
        module: a layer; None for what is called in a way of the user's own.
    """
    watch = row_watch.current()
    if watch is None:
        return
    watch.saw_all = True
    for mixer in unknown_in(module) if isinstance(module, Layer) else ["a model of `from_nnx`"]:
        watch.note(mixer)


def watch_measures(module: Any, objective: Objective, y_pred: Any) -> None:
    """Note, if anybody wants to know, what in a loss and metrics may mix rows.

    Args:
        module: what gave the outputs, with a `compute_loss`.
        objective: what is measured of them.
        y_pred: the outputs.
    """
    watch = row_watch.current()
    if watch is None:
        return
    for mixer in _mixers(module, objective, y_pred):
        watch.note(mixer)


def check_kept_apart(watch: RowWatch) -> None:
    """Check that rows that do not count are in nothing that a step computes.

    Raises:
        ModelError: they may be.
    """
    if watch.mixer is not None or not watch.saw_all:
        raise ModelError(
            "rows that fill a batch up cannot be left out",
            given=watch.mixer or "a step of your own",
            expected="a model, loss and metrics that treat each row by itself",
            fix="use batches of a few lengths",
        )


def _mixers(module: Any, objective: Objective, y_pred: Any) -> Iterator[str]:
    losses = jax.tree.leaves(objective.loss)
    context = call_context.current()
    if not losses or (context is not None and context.losses):
        yield "what layers add to the loss"
    if not getattr(getattr(type(module), "compute_loss", None), "leaves_rows_out", False):
        yield "compute_loss of the model"
    if any(jnp.ndim(output) < 2 for output in jax.tree.leaves(y_pred)):
        yield "an output that is one number for each row, without a dim for it"
    for loss in losses:
        if not is_rowwise_loss(loss):
            yield f"loss {loss.name!r} ({type(loss).__name__})"
    for metric in objective.all_metrics:
        if not is_rowwise_metric(metric):
            yield f"metric {metric.name!r} ({type(metric).__name__})"
