"""Keras's names of NumPy."""

from __future__ import annotations

from keras_dist.ops.operation import names_in

__all__ = names_in(vars())  # pyright: ignore[reportUnsupportedDunderAll]
