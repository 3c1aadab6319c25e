"""Data loading: arrays, data sets and iterables as batches that can be placed on the mesh.

Source: names that Keras has, with arguments and defaults as in `keras.utils`.
"""

from typing import TYPE_CHECKING

from keras_dist._support.missing_names import missing_from
from keras_dist._support.raw_errors import explain_functions
from keras_dist.data.arrays import ArraySource
from keras_dist.data.batch import Batch
from keras_dist.data.batched import BatchedDataset, PyDataset, split_dataset, timeseries_dataset_from_array
from keras_dist.data.chat import chat
from keras_dist.data.cursor import Cursor
from keras_dist.data.directories import image_dataset_from_directory, text_dataset_from_directory
from keras_dist.data.global_arrays import global_batch, prefetch_to_mesh
from keras_dist.data.image_files import array_to_img, img_to_array, load_img, save_img
from keras_dist.data.loader import DataLoader
from keras_dist.data.lookup import LookupSource
from keras_dist.data.mixing import mix
from keras_dist.data.packing import pack
from keras_dist.data.preferences import preferences
from keras_dist.data.preprocessing import normalize, pad_batch, pad_sequences, to_categorical
from keras_dist.data.sharding import ShardPolicy, ShareRows, auto_shard_dataset, replica_group, shard_batch, share_rows
from keras_dist.data.source import RowSource, register_source
from keras_dist.data.streams import StreamSource
from keras_dist.distribution.process_rows import ReplicaGroup, process_rows, replica_groups

__all__ = [
    "ArraySource",
    "Batch",
    "BatchedDataset",
    "Cursor",
    "DataLoader",
    "LookupSource",
    "PyDataset",
    "ReplicaGroup",
    "RowSource",
    "ShardPolicy",
    "ShareRows",
    "StreamSource",
    "array_to_img",
    "auto_shard_dataset",
    "chat",
    "global_batch",
    "image_dataset_from_directory",
    "img_to_array",
    "load_img",
    "mix",
    "normalize",
    "pack",
    "pad_batch",
    "pad_sequences",
    "preferences",
    "prefetch_to_mesh",
    "process_rows",
    "register_source",
    "replica_group",
    "replica_groups",
    "save_img",
    "shard_batch",
    "share_rows",
    "split_dataset",
    "text_dataset_from_directory",
    "timeseries_dataset_from_array",
    "to_categorical",
]

explain_functions(vars())
if not TYPE_CHECKING:
    __getattr__ = missing_from(__name__)
