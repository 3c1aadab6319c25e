"""Models whose weights are saved and loaded, and those weights by their paths."""

import keras_dist as kd
from tests import layouts
from tests.networks import Noisy


def model_on(name, seed=0):
    with layouts.on(name).scope():
        return kd.Model.from_nnx(Noisy, seed=seed)


def weights_of(model):
    return dict(zip([weight.path for weight in model.weights], model.get_weights(), strict=True))
