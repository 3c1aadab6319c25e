"""Plots of training histories. They need matplotlib: `pip install 'keras_dist[plot]'`."""

from typing import TYPE_CHECKING

from keras_dist._not_here import missing_from
from keras_dist.visualization.history import plot_history

__all__ = ["plot_history"]

if not TYPE_CHECKING:
    __getattr__ = missing_from(__name__)
