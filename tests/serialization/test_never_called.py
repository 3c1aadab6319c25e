"""What Keras calls of a subclass and keras_dist does not is refused when the class is made."""

from typing import Any

import pytest

import keras_dist as kd
from keras_dist.errors import ModelError


class Mixin:
    """Of the user's, beside the class of the package."""

    def symbolic_call(self, x: Any) -> None:
        """Would never run."""


@pytest.mark.parametrize(
    ("base", "name"),
    [
        (kd.layers.Layer, "symbolic_call"),
        (kd.Sequential, "stateless_call"),
        (kd.Model, "trainable_variables"),
        (kd.Model, "make_train_function"),
        (kd.metrics.Mean, "reset_states"),
        (kd.optimizers.Adam, "update_step"),
    ],
)
def test_it_is_refused_by_name(base: type, name: str) -> None:
    with pytest.raises(ModelError, match=rf"Mine\.{name} would not be called") as caught:
        type("Mine", (base,), {name: lambda self: None})
    assert caught.value.fix


def test_a_mixin_counts_and_what_is_called_may_be_there() -> None:
    with pytest.raises(ModelError, match=r"Both\.symbolic_call would not be called"):
        type("Both", (Mixin, kd.layers.Layer), {})
    called = ("call", "build", "compute_mask", "get_config", "get_build_config", "build_from_config")
    type("Fine", (kd.layers.Layer,), dict.fromkeys(called, lambda self, *args: None))
    type("Model", (kd.Model,), {"compute_loss": lambda self, y, y_pred: 0, "train_step": lambda self: None})
