"""Data sets for demos and tests that need no network."""

from keras_dist.datasets import digits

__all__ = ["digits"]
