"""Models whose weights are saved and loaded, and those weights by their paths."""

import functools

from tests import layouts
from tests.networks import Noisy

model_on = functools.partial(layouts.model_on, factory=Noisy)


def weights_of(model):
    return dict(zip([weight.path for weight in model.weights], model.get_weights(), strict=True))
