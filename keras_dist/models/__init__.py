"""Models of Keras, which delegate arithmetic and state to lower packages.

Source: names, arguments and defaults as in `keras.models`.
"""

from typing import TYPE_CHECKING

from keras_dist._support.missing_names import missing_from
from keras_dist._support.raw_errors import explain_functions
from keras_dist.formats.load_report import LoadReport
from keras_dist.models.cloning import clone_model
from keras_dist.models.loading import load_model, model_from_json, save_model
from keras_dist.models.model import Model
from keras_dist.models.sequential import Sequential

__all__ = ["LoadReport", "Model", "Sequential", "clone_model", "load_model", "model_from_json", "save_model"]

explain_functions(vars())
if not TYPE_CHECKING:
    __getattr__ = missing_from(__name__)
