"""Data: what holds examples -> batches of rows that are ready for the mesh."""

from keras_dist.data.arrays import ArraySource, Batch
from keras_dist.data.preprocessing import normalize, pad_sequences, to_categorical

__all__ = ["ArraySource", "Batch", "normalize", "pad_sequences", "to_categorical"]
