"""The part of a `tf.data.Dataset` that one process reads, as in Keras 3.15 (`Distribution.distribute_tf_dataset`)."""

from __future__ import annotations

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import sys
from collections.abc import Sequence
from typing import Any

from keras_dist.distribution.jobs.process_rows import ReplicaGroup
from keras_dist.errors import DataError


def shard_dataset(dataset: Any, groups: Sequence[ReplicaGroup], group: ReplicaGroup) -> Any:
    """Return the batches of this process from a dataset of global batches."""
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is None or not isinstance(dataset, tensorflow.data.Dataset):
        summary = f"The dataset type {type(dataset)} is not supported for auto-sharding in multi-process setting."
        fix = "shard the data yourself and pass auto_shard_dataset=False to the distribution"
        raise DataError(summary, given=f"{type(dataset).__name__}, not a batched tf.data.Dataset", fix=fix)
    batch_size = _batch_size(dataset, tensorflow)
    if group.count == 1:
        return dataset.prefetch(tensorflow.data.AUTOTUNE)
    sizes = [len(each.shards) for each in groups]
    if len(set(sizes)) > 1:
        given = "; ".join(f"processes {list(each.processes)}: {len(each.shards)} shards" for each in groups)
        fix = "put equally many devices of each process into the mesh, or use auto_shard_dataset=False"
        raise DataError("the processes must own equal parts of a batch", given=given, fix=fix)
    if batch_size % group.count:
        what = "processes" if all(len(each.processes) == 1 for each in groups) else "replicas"
        given = f"global_batch_size={batch_size}, number of {what}={group.count}"
        fix = f"dataset.batch({-(-batch_size // group.count) * group.count})"
        raise DataError(f"Global batch size must be divisible by the number of {what}", given=given, fix=fix)
    return dataset.rebatch(batch_size // group.count).shard(group.count, group.index).prefetch(tensorflow.data.AUTOTUNE)


def _batch_size(dataset: Any, tensorflow: Any) -> int:
    # an optional extra, imported only for its own datasets
    from tensorflow.python.data.experimental.ops import distribute  # noqa: PLC0415  # pyright: ignore[reportMissingImports]

    specs = tensorflow.nest.flatten(dataset.element_spec)
    batched = all(hasattr(spec, "shape") and spec.shape.rank for spec in specs)
    size = int(distribute.compute_batch_size(dataset).numpy()) if batched else -1
    if size < 0:
        given = f"element_spec {dataset.element_spec}"
        raise DataError("The batch size of the input dataset is unknown.", given=given, fix="dataset.batch(batch_size)")
    return size
