"""The part of a `tf.data.Dataset` that one process of a job reads, as Keras 3.15 divides it."""

from __future__ import annotations

import sys
from typing import Any

from keras_dist.errors import DataError


def shard_dataset(
    dataset: Any, num_model_replicas: int, num_processes: int, process_id: int, data_shard_id: int
) -> Any:
    """The batches of this process, from a data set of global batches.

    Args:
        dataset: a batched `tf.data.Dataset`.
        num_model_replicas: copies of the model in the job.
        num_processes: processes in the job.
        process_id: index of this process.
        data_shard_id: index of its part when a replica spans processes.

    Raises:
        DataError: `dataset` is of another type, its batch size is unknown or does not divide.

    Source: `keras.distribution.Distribution.distribute_tf_dataset` (Keras 3.15).
    """
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is None or not isinstance(dataset, tensorflow.data.Dataset):
        raise DataError(
            f"The dataset type {type(dataset)} is not supported for auto-sharding in multi-process setting.",
            given=f"{type(dataset).__name__}",
            expected="a batched tf.data.Dataset",
            fix="shard the data yourself and pass auto_shard_dataset=False to the distribution",
        )
    batch_size = _batch_size(dataset, tensorflow)
    if num_model_replicas == 1:
        return dataset.prefetch(tensorflow.data.AUTOTUNE)
    whole_replicas = num_model_replicas >= num_processes
    shards, index = (num_processes, process_id) if whole_replicas else (num_model_replicas, data_shard_id)
    if batch_size % shards:
        what = "processes" if whole_replicas else "replicas"
        raise DataError(
            f"Global batch size must be divisible by the number of {what}",
            given=f"global_batch_size={batch_size}, number of {what}={shards}",
            expected=f"a multiple of {shards}",
            fix=f"dataset.batch({-(-batch_size // shards) * shards})",
        )
    return dataset.rebatch(batch_size // shards).shard(shards, index).prefetch(tensorflow.data.AUTOTUNE)


def _batch_size(dataset: Any, tensorflow: Any) -> int:
    # an optional extra, imported only for a data set that is one of its own
    from tensorflow.python.data.experimental.ops import distribute  # noqa: PLC0415  # pyright: ignore[reportMissingImports]

    specs = tensorflow.nest.flatten(dataset.element_spec)
    batched = all(hasattr(spec, "shape") and spec.shape.rank for spec in specs)
    size = int(distribute.compute_batch_size(dataset).numpy()) if batched else -1
    if size < 0:
        raise DataError(
            "The batch size of the input dataset is unknown.",
            given=f"element_spec {dataset.element_spec}",
            expected="a batched data set",
            fix="dataset.batch(batch_size)",
        )
    return size
