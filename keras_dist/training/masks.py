"""Masks of outputs between the call of a model and its loss, in steps that users write."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

import jax

from keras_dist._support.types import PyTree

_masks: contextvars.ContextVar[list[tuple[Any, Any]] | None] = contextvars.ContextVar("masks", default=None)


@contextlib.contextmanager
def noting_masks() -> Iterator[None]:
    """Let `note_masks` note masks inside."""
    token = _masks.set([])
    try:
        yield
    finally:
        _masks.reset(token)


def note_masks(outputs: PyTree, masks: PyTree) -> None:
    """Note the masks of outputs for a loss in the same step."""
    noted = _masks.get()
    if noted is not None and jax.tree.leaves(masks):
        flat = jax.tree.leaves(masks, is_leaf=lambda mask: mask is None)
        noted.extend(zip(jax.tree.leaves(outputs), flat, strict=True))


def mask_noted(outputs: PyTree) -> PyTree:
    """Return the noted masks of these outputs; None without any."""
    noted = _masks.get() or []
    masks = jax.tree.map(lambda one: next((mask for output, mask in noted if output is one), None), outputs)
    return masks if jax.tree.leaves(masks) else None
