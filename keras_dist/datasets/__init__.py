"""Data sets for demos and tests: `digits` needs no network, `mnist` needs one once."""

from keras_dist.datasets import digits, mnist

__all__ = ["digits", "mnist"]
