"""Data: what holds examples -> batches of rows that are ready for the mesh."""

from keras_dist.data.arrays import ArraySource, Batch

__all__ = ["ArraySource", "Batch"]
