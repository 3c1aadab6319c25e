"""Pictures of meshes, plans and trainings as SVG and as text.

`plot_history` needs matplotlib, of the extra `plot`; graphs of models need the extra `graph`.
"""

from typing import TYPE_CHECKING

from keras_dist._support.missing_names import missing_from
from keras_dist._support.raw_errors import explain_functions
from keras_dist.visualization.history import plot_history
from keras_dist.visualization.model_graph import model_to_dot, plot_model
from keras_dist.visualization.picture import Picture
from keras_dist.visualization.plots import (
    plot_bars,
    plot_collectives,
    plot_curves,
    plot_memory,
    plot_mesh,
    plot_plan,
    plot_shards,
)

__all__ = [
    "Picture",
    "model_to_dot",
    "plot_bars",
    "plot_collectives",
    "plot_curves",
    "plot_history",
    "plot_memory",
    "plot_mesh",
    "plot_model",
    "plot_plan",
    "plot_shards",
]

explain_functions(vars())
if not TYPE_CHECKING:
    __getattr__ = missing_from(__name__)
