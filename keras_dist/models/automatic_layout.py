"""The layout of a model that is made under `AutoParallel`: found when its first batch is known."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from keras_dist.data.batching import Batching
from keras_dist.distribution.strategy import distribution as current_distribution
from keras_dist.errors import DistributionError
from keras_dist.training.placement import Examples
from keras_dist.training.rematerialisation import resolve_remat

if TYPE_CHECKING:
    from keras_dist.models.trainer import Trainer


def find_layout(model: Trainer, examples: Examples) -> None:
    """Find the layout of a model without weights that was made under `AutoParallel`, from its examples."""
    asked: Any = model._runtime.made_under or current_distribution()
    if model._session is not None or asked is None or not asked.is_searched:
        return
    if not isinstance(examples, Batching):
        summary = "AutoParallel: the shapes of the batches are not known before they come"
        fix = "pass arrays; or make the model under distribution.search(factory, (x, y), optimizer, loss).distribution"
        raise DistributionError(summary, given=f"{examples.source.title}", fix=fix)
    rows = min(examples.batch_size, examples.source.length)
    batch = examples.source.gather(np.arange(rows), rows).arrays
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), batch)
    found, runtime = asked.search(model, shapes), model._runtime
    runtime.made_under = found.distribution
    if found.best.remat is not None and runtime.choices is not None:
        runtime.choices = dataclasses.replace(runtime.choices, remat=resolve_remat(found.best.remat))
