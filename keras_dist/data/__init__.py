"""Data: what holds examples -> batches of rows that are ready for the mesh."""

from keras_dist.data.arrays import ArraySource
from keras_dist.data.batch import Batch
from keras_dist.data.preprocessing import normalize, pad_sequences, to_categorical
from keras_dist.data.py_dataset import PyDataset

__all__ = ["ArraySource", "Batch", "PyDataset", "normalize", "pad_sequences", "to_categorical"]
