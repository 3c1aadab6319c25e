"""Pictures of trainings. They need matplotlib: `pip install 'keras_dist[plot]'`."""

from keras_dist.visualization.history import plot_history

__all__ = ["plot_history"]
