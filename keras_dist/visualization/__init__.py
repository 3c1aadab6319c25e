"""Plots of training histories, which need the extra `plot`, and graphs of models, which need `graph`."""

from typing import TYPE_CHECKING

from keras_dist._support.missing_names import missing_from
from keras_dist.visualization.history import plot_history
from keras_dist.visualization.model_graph import model_to_dot, plot_model

__all__ = ["model_to_dot", "plot_history", "plot_model"]

if not TYPE_CHECKING:
    __getattr__ = missing_from(__name__)
