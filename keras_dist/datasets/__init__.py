"""Data sets for demos and tests: `digits` needs no network, `mnist` needs one once."""

from typing import TYPE_CHECKING

from keras_dist._not_here import missing_from
from keras_dist.datasets import digits, mnist

__all__ = ["digits", "mnist"]

if not TYPE_CHECKING:
    __getattr__ = missing_from(__name__)
