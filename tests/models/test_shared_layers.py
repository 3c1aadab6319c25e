"""A layer inside of two others stays one layer in files, copies and clones, as in Keras."""

import copy
import json
import pickle

import numpy as np
import pytest

import keras_dist as kd
from keras_dist import layers, models, saving
from keras_dist.errors import ConfigError

X = np.random.default_rng(0).normal(size=(16, 8)).astype("float32")


@saving.register_keras_serializable("shared")
class Transposed(layers.Layer):
    """The kernel of another layer, transposed."""

    def __init__(self, source, **kwargs):
        super().__init__(**kwargs)
        self.source = source

    def call(self, inputs):
        return inputs @ kd.ops.transpose(self.source.kernel)

    def get_config(self):
        return {**super().get_config(), "source": saving.serialize_keras_object(self.source)}

    @classmethod
    def from_config(cls, config):
        return cls(**{**config, "source": saving.deserialize_keras_object(config["source"])})


@saving.register_keras_serializable("shared")
class Around(layers.Layer):
    """A layer that calls another; its config is the default one."""

    def __init__(self, inner, **kwargs):
        super().__init__(**kwargs)
        self.inner = inner

    def build(self, input_shape):
        if not self.inner.built:
            self.inner.build(input_shape)

    def call(self, inputs):
        return self.inner(inputs)


@saving.register_keras_serializable("shared")
class Coder(kd.Model):
    """A model of two layers, of which the second may use weights of the first."""

    def __init__(self, first, second, **kwargs):
        super().__init__(**kwargs)
        self.first, self.second = first, second

    def call(self, inputs):
        return self.second(self.first(inputs))


def tied():
    dense = layers.Dense(4, use_bias=False)
    inputs = kd.Input((8,))
    return kd.Model(inputs, Transposed(dense)(dense(layers.Dense(8)(inputs)))), ["dense", "dense_1"]


def wrapped_twice():
    dense = layers.Dense(8, use_bias=False)
    return kd.Sequential([kd.Input((8,)), Around(dense, name="p"), Around(dense, name="q")]), ["p/inner"]


def wrapped_before():
    dense, inputs = layers.Dense(8, use_bias=False), kd.Input((8,))
    return kd.Model(inputs, dense(Around(dense, name="p")(layers.Dense(8)(inputs)))), ["dense", "dense_1"]


def subclassed():
    dense = layers.Dense(4, use_bias=False)
    return Coder(dense, Transposed(dense)), ["first"]


def saved(model, path):
    model.save(path)
    return models.load_model(path)


COPIES = {
    "keras": lambda model, folder: saved(model, folder / "model.keras"),
    "folder": lambda model, folder: saved(model, folder / "model"),
    "deepcopy": lambda model, folder: copy.deepcopy(model),
    "pickle": lambda model, folder: pickle.loads(pickle.dumps(model)),
    "json": lambda model, folder: models.model_from_json(model.to_json()),
    "clone": lambda model, folder: models.clone_model(model),
}


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("make", [tied, wrapped_twice, wrapped_before, subclassed])
def test_shared_layers_stay_shared_in_files_copies_and_clones(make, tmp_path):
    model, paths = make()
    expected = np.asarray(model(X))
    kernels = [f"{path}/kernel" for path in paths]
    assert {weight.path for weight in model.weights} - {"dense/bias"} == {*kernels}
    for name, copied in COPIES.items():
        again = copied(model, tmp_path)
        if name in ("json", "clone"):
            again(X)
            again.set_weights(model.get_weights())
        assert [weight.path for weight in again.weights] == [weight.path for weight in model.weights], name
        np.testing.assert_allclose(again(X), expected, rtol=1e-5, atol=1e-5, err_msg=name)


def test_layers_that_occur_once_have_no_numbers_and_others_that_of_the_first():
    model, _ = tied()
    text = model.to_json()
    config = json.loads(text)["config"]["layers"]
    assert text.count("shared_object_id") == 2
    assert config[2]["shared_object_id"] == config[3]["config"]["source"]["shared_object_id"] == 1
    config[2]["shared_object_id"] = [1]  # forged: the layers are two, so that one is never built
    with pytest.raises((AttributeError, ConfigError), match="is not built"):
        kd.Model.from_config(json.loads(text)["config"] | {"layers": config})


def test_a_layer_that_is_copied_by_its_config_while_a_model_is_read_is_another():
    @saving.register_keras_serializable("shared")
    class Twins(layers.Layer):
        def __init__(self, inner, **kwargs):
            super().__init__(**kwargs)
            self.inner = inner
            self.twins = [saving.deserialize_keras_object(saving.serialize_keras_object(inner)) for _ in range(3)]

        def call(self, inputs):
            return sum(twin(inputs) for twin in self.twins) + self.inner(inputs)

    inputs, dense = kd.Input((8,)), layers.Dense(8)
    model = kd.Model(inputs, dense(Twins(dense, name="t")(inputs)))
    for again in (kd.Model.from_config(model.get_config()), models.clone_model(model), copy.deepcopy(model)):
        layer = again.get_layer("t")
        assert len({id(one) for one in (layer.inner, *layer.twins)}) == 4
        assert layer.inner is again.get_layer("dense")
