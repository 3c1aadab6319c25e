"""Batches of which only the first rows count: one program for many lengths, where the rest can be left out of all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from keras_dist.errors import ModelError
from keras_dist.layers import call_context
from keras_dist.layers.call_context import CountedRows
from keras_dist.training.tallies import Observation


class RowsCountError(ModelError):
    """Rows that fill a batch up would count in a step."""


def rows_of(arrays: Any, count: Any) -> Any:
    """Which rows of `(x, y, sample_weight)` count (traced); None for all.

    Args:
        arrays: with the rows first.
        count: how many count, the first ones; None for all.
    """
    return None if count is None else jnp.arange(len(jax.tree.leaves(arrays)[0])) < count


def masked_by_rows(mask: Any, y_pred: Any) -> Any:
    """The mask of outputs, for which only rows that count do.

    Args:
        mask: an array, or one for each output, or None, alone and in there.
        y_pred: the outputs.
    """
    rows = call_context.counted_rows()
    if rows is None or mask is None:
        return mask if rows is None else rows

    def both(found: Any, output: Any) -> Any:
        del output
        return rows if found is None else jnp.logical_and(found, rows.reshape(-1, *[1] * (jnp.ndim(found) - 1)))

    return jax.tree.map(both, mask, y_pred, is_leaf=lambda node: node is None)


def check_rows_can_be_left_out(module: Any, keeps_statistics: bool, added_losses: bool, has_loss: bool) -> None:
    """Check that rows that do not count are in nothing that a step computes; nothing where all rows count.

    Args:
        module: what the step runs.
        keeps_statistics: whether its call changes variables that are no random streams, as BatchNormalization does.
        added_losses: whether layers have added to the loss.
        has_loss: whether there is another loss.

    Raises:
        RowsCountError: they are, or may be.
    """
    if call_context.counted_rows() is None:
        return
    compute_loss = getattr(type(module), "compute_loss", None)
    reasons = {
        "the model keeps statistics of its batches": keeps_statistics,
        "layers add to the loss": added_losses or not has_loss,
        "compute_loss is the model's own": compute_loss is not None and not hasattr(compute_loss, "leaves_rows_out"),
    }
    for reason, holds in reasons.items():
        if holds:
            raise _cannot(reason)


def check_leaves_out(found: Mapping[str, Any], counted: CountedRows) -> None:
    """Check that what a step computed leaves out the rows that do not count.

    Args:
        found: observations of metrics, and losses, by name.
        counted: which rows count.

    Raises:
        RowsCountError: it does not ask which these are, as a `train_step` of the user's; or a metric sees all rows.
    """
    if counted.rows is None:
        return
    if not counted.were_asked_for:
        raise _cannot("a step that takes all rows of a batch")
    for name, value in found.items():
        if isinstance(value, Observation) and not value.leaves_out:
            raise _cannot(f"the metric {name!r} takes no weights, and sees all rows")


def _cannot(reason: str) -> RowsCountError:
    return RowsCountError(
        "rows that fill a batch up cannot be left out",
        given=reason,
        expected="a model and metrics that treat rows one by one",
        fix="use batches of a few lengths",
    )
