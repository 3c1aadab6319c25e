"""Connectionist temporal classification (CTC): loss and decoding."""

# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from keras_dist._support.arguments import check_option
from keras_dist._support.types import ArrayLike
from keras_dist.ops.operation import as_array, operation

_NONE = -1
"""Fills paths after their last label."""


@operation
def ctc_loss(
    target: ArrayLike, output: ArrayLike, target_length: ArrayLike, output_length: ArrayLike, mask_index: int = 0
) -> jax.Array:
    """Return `-log(P(target | output))`, where P sums over all alignments, (batch,).

    Args:
        target: class indices (batch, length).
        output: logits (batch, steps, classes).
        target_length: number of valid indices, (batch,).
        output_length: number of valid steps, (batch,).
        mask_index: the blank class.
    """
    logits, labels = as_array(output), as_array(target, "int32")
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))

    def paddings(lengths: ArrayLike, size: int) -> Any:
        return (jnp.arange(size) >= as_array(lengths, "int32")[:, None]).astype(logits.dtype)

    of_steps, of_labels = paddings(output_length, logits.shape[1]), paddings(target_length, labels.shape[1])
    return jnp.asarray(optax.ctc_loss(logits, of_steps, labels, of_labels, blank_id=mask_index))


@operation
def ctc_decode(
    inputs: ArrayLike,
    sequence_lengths: ArrayLike,
    strategy: str = "greedy",
    beam_width: int = 100,
    top_paths: int = 1,
    merge_repeated: bool = True,
    mask_index: int | None = 0,
) -> tuple[jax.Array, jax.Array]:
    """Decode the outputs of a model that was trained with `ctc_loss`.

    Args:
        inputs: logits (batch, steps, classes).
        sequence_lengths: number of valid steps, (batch,).
        strategy: `"greedy"` for the most likely class of each step, `"beam_search"` for the most likely labels.
        beam_width: number of candidates of the beam search.
        top_paths: number of results of the beam search; greedy decoding gives one.
        merge_repeated: whether greedy decoding merges equal neighbours.
        mask_index: the blank class; None for the last class.

    Returns:
        Labels (top_paths, batch, steps), padded with -1, and scores (batch, top_paths): log-probabilities of the beam
        search, or the negative sum of the logits of greedy decoding.
    """
    logits, lengths = as_array(inputs), as_array(sequence_lengths, "int32")
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    blank = logits.shape[-1] - 1 if mask_index is None else mask_index
    if check_option("strategy", strategy, ("greedy", "beam_search"), "ctc_decode") == "greedy":
        return _likeliest_classes(logits, lengths, merge_repeated, blank)

    def searched(logits: jax.Array, length: jax.Array) -> tuple[jax.Array, jax.Array]:
        return _likeliest_labels(jax.nn.log_softmax(logits), length, beam_width, top_paths, blank)

    paths, scores = jax.vmap(searched)(logits, lengths)
    return jnp.swapaxes(paths, 0, 1), scores


def _likeliest_classes(
    logits: jax.Array, lengths: jax.Array, merge_repeated: bool, blank: int
) -> tuple[jax.Array, jax.Array]:
    counts = jnp.arange(logits.shape[1]) < lengths[:, None]
    scores = -jnp.sum(jnp.max(logits, -1), axis=1, where=counts, keepdims=True)
    classes = jnp.where(counts, jnp.argmax(logits, -1), blank)
    is_label = classes != blank
    if merge_repeated:
        is_label &= jnp.pad(classes[:, 1:] != classes[:, :-1], ((0, 0), (1, 0)), constant_values=True)
    order = jnp.argsort(~is_label, axis=1, stable=True)  # labels to the front
    return jnp.take_along_axis(jnp.where(is_label, classes, _NONE), order, axis=1)[None], scores


def _likeliest_labels(
    log_probabilities: jax.Array, length: jax.Array, beam_width: int, top_paths: int, blank: int
) -> tuple[jax.Array, jax.Array]:
    """Return the paths (top_paths, steps) of one sequence, and their log-probabilities."""
    # each path in the beam has two scores: of alignments that end with its last label, and that end with the blank
    steps, classes = log_probabilities.shape
    rows = jnp.arange(beam_width)
    impossible = jnp.full(beam_width, -jnp.inf, log_probabilities.dtype)
    beam = (jnp.full((beam_width, steps), _NONE), jnp.zeros(beam_width, jnp.int32), impossible, impossible.at[0].set(0))

    def step(beam: Any, at: Any) -> tuple[Any, None]:
        paths, sizes, labelled, blanked = beam
        time, scores = at
        total = jnp.logaddexp(labelled, blanked)
        last = jnp.where(sizes > 0, paths[rows, sizes - 1], _NONE)
        stay_blanked = total + scores[blank]
        stay_labelled = jnp.where(sizes > 0, labelled + scores[last], -jnp.inf)
        longer = jnp.where(jnp.arange(classes) == last[:, None], blanked[:, None], total[:, None]) + scores
        longer = longer.at[:, blank].set(-jnp.inf)
        # a path that becomes longer may be one that the beam has already
        before_last = jnp.where(jnp.arange(steps) == sizes[:, None] - 1, _NONE, paths)
        is_prefix = jnp.all(before_last[:, None] == paths[None], -1) & (sizes[:, None] == sizes[None] + 1)
        is_prefix &= jnp.isfinite(total)[:, None]
        joining = jnp.where(is_prefix, longer[:, last].T, -jnp.inf)
        stay_labelled = jnp.logaddexp(stay_labelled, jax.nn.logsumexp(joining, axis=1))
        is_there = jnp.zeros_like(longer, bool).at[rows[None], last[:, None]].max(is_prefix)
        longer = jnp.where(is_there, -jnp.inf, longer)

        everything = jnp.concatenate([jnp.logaddexp(stay_labelled, stay_blanked), longer.reshape(-1)])
        _, best = jax.lax.top_k(everything, beam_width)
        is_longer = best >= beam_width
        of, label = jnp.where(is_longer, (best - beam_width) // classes, best), (best - beam_width) % classes
        extended = paths[of].at[rows, sizes[of]].set(label, mode="drop")
        changed = (
            jnp.where(is_longer[:, None], extended, paths[of]),
            sizes[of] + is_longer,
            jnp.where(is_longer, everything[best], stay_labelled[of]),
            jnp.where(is_longer, -jnp.inf, stay_blanked[of]),
        )
        counts = (time < length) | (time == 0)
        return jax.tree.map(lambda new, old: jnp.where(counts, new, old), changed, beam), None

    (paths, _, labelled, blanked), _ = jax.lax.scan(step, beam, (jnp.arange(steps), log_probabilities))
    scores, best = jax.lax.top_k(jnp.logaddexp(labelled, blanked), top_paths)
    return paths[best], scores
