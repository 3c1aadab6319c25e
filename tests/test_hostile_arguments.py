"""Each argument of public constructors with values that nobody expects: accepted, or an error of keras_dist."""

import inspect
import random

import jax.numpy as jnp
import numpy as np
import pytest

import keras_dist as kd
from keras_dist.errors import ArgumentTypeError, DataError, KerasDistError, ModelError
from tests import hostile

CHECKED = ("optimizers", "callbacks", "losses", "initializers", "regularizers", "constraints", "pretrained")
CLASSES = {
    name: target for name, target in hostile.public(CHECKED) if inspect.isclass(target) and hostile.has_base(target)
}
PLACES = [place for name, target in CLASSES.items() for place in hostile.cases(name, target)]


def leaks(places):
    found = {place: hostile.leak(CLASSES[place[0]], *place[1:]) for place in places}
    return {place: f"{type(error).__name__}" for place, error in found.items() if error is not None}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("seed", range(4))
def test_what_raises_is_an_error_of_keras_dist(seed):
    assert leaks(random.Random(seed).sample(PLACES, 150)) == {}


@pytest.mark.slow
@pytest.mark.parametrize("value", hostile.VALUES)
def test_what_raises_is_an_error_of_keras_dist_for_all_arguments(value):
    assert leaks([place for place in PLACES if place[2] == value]) == {}


SCALARS = {float: (np.float32, np.float64, np.array, jnp.float32), int: (np.int64, np.int32, np.array, jnp.int32)}


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_numbers_of_numpy_and_jax_are_numbers(name):
    target = CLASSES[name]
    for parameter in hostile.parameters(target):
        given = parameter.default
        if given is parameter.empty and parameter.name in hostile.ARGUMENTS:
            given = hostile.ARGUMENTS[parameter.name]()
        for kind in SCALARS.get(type(given), ()):
            hostile.call(target, parameter.name, kind(given))


@pytest.mark.parametrize("name", kd.presets.__all__)
def test_presets_name_the_arguments_that_they_need(name):
    with pytest.raises(ArgumentTypeError, match=f"`{name}` needs .*`mesh`"):
        getattr(kd.presets, name)()


@pytest.mark.parametrize("weights", [(np.float32(1), 2), np.array([1, 2]), (np.array(1.0), np.int64(2)), (0.5, 1)])
def test_weights_of_a_mixture_are_any_numbers(weights):
    mixed = kd.data.mix({"a": [1, 2, 3], "b": [4, 5, 6]}, weights=weights, seed=None)
    assert mixed.counts == {"a": 2, "b": 3}


@pytest.mark.parametrize("length", [2**31, 2**63, 10**400, np.ones(2)])
def test_rows_have_a_longest_length(length):
    with pytest.raises(DataError, match="`length` must be an integer from 2 to 16777216"):
        kd.data.pack([[1, 2, 3]], length)


@pytest.mark.parametrize("mask", ["abc", ["a", "b", "c"], [None] * 3, [[1], [2, 3], 1], {"a": 1}, b"abc", 1j])
def test_a_loss_mask_has_numbers(mask):
    with pytest.raises(DataError, match="'weights' must have a finite number for each token"):
        kd.data.pack([{"tokens": [1, 2, 3], "weights": mask}], 4, loss_mask="weights")


@pytest.mark.parametrize(
    "use",
    [
        lambda model, name: model.save(f"{name}.keras"),
        lambda model, name: model.save(name),
        lambda model, name: model.save_weights(f"{name}.safetensors"),
        lambda model, name: model.load_weights(f"{name}.weights.h5"),
        lambda model, name: kd.saving.load_model(name),
        lambda model, name: kd.callbacks.ModelCheckpoint(f"a/{name}.keras"),
        lambda model, name: kd.callbacks.BackupAndRestore(name),
        lambda model, name: kd.pretrained.load(name),
    ],
)
@pytest.mark.parametrize("name", ["n" * 300, "é" * 128, "\ud800"], ids=["letters", "bytes", "surrogate"])
def test_names_that_no_file_can_have_are_errors(use, name):
    model = kd.Sequential([kd.Input((2,)), kd.layers.Dense(1, name="n" * 300)], name="n" * 300)
    with pytest.raises(KerasDistError, match="must be a path whose names have at most 255 bytes"):
        use(model, name)


@pytest.mark.parametrize("ignore", [5, [5], None, {"a": 1}, np.ones(2)])
def test_ignored_names_are_expressions(ignore):
    with pytest.raises(ModelError, match="`ignore` must be a regular expression"):
        kd.pretrained.load("nowhere", ignore=ignore)
