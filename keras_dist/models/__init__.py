"""The Keras face: models that delegate to the rooms below and own no arithmetic."""

from keras_dist.models.cloning import clone_model
from keras_dist.models.from_json import model_from_json
from keras_dist.models.loading import load_model
from keras_dist.models.model import Model
from keras_dist.models.sequential import Sequential
from keras_dist.models.variable import ModelVariable
from keras_dist.models.weights_file import LoadReport

__all__ = ["LoadReport", "Model", "ModelVariable", "Sequential", "clone_model", "load_model", "model_from_json"]
