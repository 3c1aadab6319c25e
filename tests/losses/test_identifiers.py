"""Losses by name, config, class and function."""

import jax.numpy as jnp
import pytest

from keras_dist import losses, saving
from keras_dist.errors import ConfigError, ModelError, UnknownNameError
from keras_dist.losses.identifiers import as_loss

CLASSES = [
    value
    for value in vars(losses).values()
    if isinstance(value, type) and value not in (losses.Loss, losses.LossFunctionWrapper)
]


@pytest.mark.parametrize("name", ["mse", "MSE", "mean_squared_error", "MeanSquaredError", losses.mean_squared_error])
def test_many_names_mean_one_loss(name):
    loss = as_loss(name)
    assert isinstance(loss, losses.MeanSquaredError) and loss.name == "mean_squared_error"
    assert as_loss(loss) is loss


@pytest.mark.parametrize("cls", CLASSES)
def test_every_loss_is_found_and_survives_its_config(cls):
    loss = losses.get(cls)
    assert type(loss) is type(losses.get(cls.__name__)) is cls
    assert losses.get(loss) is loss
    again = losses.get(losses.serialize(cls(reduction="sum", name="it")))
    assert type(again) is cls
    assert again.get_config() == loss.get_config() | {"reduction": "sum", "name": "it"}
    assert again.needs_targets


def test_custom_losses_are_found_by_their_names():
    @saving.register_keras_serializable("tests")
    class Custom(losses.Loss):
        def call(self, y_true, y_pred):
            return y_pred

    assert isinstance(losses.get("tests>Custom"), Custom)
    assert isinstance(losses.get(losses.serialize(Custom())), Custom)
    with saving.custom_object_scope({"ones": lambda y_true, y_pred: jnp.ones(len(y_pred))}):
        assert as_loss("ones")(None, jnp.zeros(3)) == 1.0
    config = {"class_name": "Another", "config": {"name": "it"}}
    assert losses.deserialize(config, {"Another": Custom}).name == "it"


def test_a_callable_is_wrapped_and_may_do_without_targets():
    loss = as_loss(lambda y_true, y_pred: y_pred)
    assert isinstance(loss, losses.LossFunctionWrapper) and not loss.needs_targets


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (3, ModelError, "`loss` must be a name, a config, a Loss"),
        (None, ModelError, "`loss` must be a name, a config, a Loss"),
        (["mse"], ModelError, "`loss` must be a name, a config, a Loss"),
        ({"a": "mse"}, ModelError, "`loss` must be a name, a config, a Loss"),
        (lambda y: y, ModelError, "cannot be called"),
        (losses.LossFunctionWrapper, ConfigError, "needs arguments"),
        ({"class_name": "Nothing", "config": {}}, UnknownNameError, "unknown loss 'Nothing'"),
    ],
)
def test_what_is_no_loss_is_refused(given, error, message):
    with pytest.raises(error, match=message) as caught:
        as_loss(given)
    assert caught.value.given and caught.value.fix
