"""Normalizations against Keras."""

from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from flax import nnx

import keras_dist as kd
from keras_dist import layers
from tests.parity.compare import build, cases, compare, compare_layers, compare_masked, picked

shapes = st.sampled_from([(3, 4), (2, 3, 4), (2, 3, 2, 4)])


def draw(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(1, 2, size=shape).astype(np.float32)


@cases(
    shape=shapes,
    axis=st.sampled_from([-1, 1]),
    center=st.booleans(),
    scale=st.booleans(),
    momentum=st.sampled_from([0.0, 0.9]),
    renorm=st.sampled_from([None, {}, {"rmin": 0.8, "rmax": 1.2, "dmax": 0.1}]),
    training=st.booleans(),
    frozen=st.booleans(),
    masked=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_batch_normalization(keras, case):
    options = {**picked(case, "axis", "center", "scale", "momentum"), "epsilon": 0.01}
    options |= {} if case.renorm is None else {"renorm": True, "renorm_clipping": case.renorm, "renorm_momentum": 0.7}
    theirs, ours = keras.layers.BatchNormalization(**options), layers.BatchNormalization(**options)
    theirs.trainable = ours.trainable = not case.frozen
    call = {"mask": np.random.default_rng(case.seed).random(case.shape[:-1]) < 0.7} if case.masked else {}
    compare_layers(
        keras,
        theirs,
        ours,
        draw(case.shape, case.seed),
        weights_seed=case.seed,
        training=case.training,
        gradients=not case.frozen,
        **call,
    )


@hypothesis.given(
    shape=shapes,
    axis=st.sampled_from([-1, 1, [1], [-2, -1]]),
    center=st.booleans(),
    scale=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_layer_and_rms_normalization(keras, shape, axis, center, scale, seed):
    axis = axis if len(shape) > 2 else -1
    x = draw(shape, seed)
    options = {"axis": axis, "center": center, "scale": scale, "epsilon": 0.01}
    compare_layers(
        keras, keras.layers.LayerNormalization(**options), layers.LayerNormalization(**options), x, weights_seed=seed
    )
    if axis in (-1, [-2, -1]):  # others do not work in Keras
        options = {"axis": axis, "epsilon": 0.01}
        compare_layers(
            keras, keras.layers.RMSNormalization(**options), layers.RMSNormalization(**options), x, weights_seed=seed
        )


@cases(
    shape=st.sampled_from([(3, 4), (2, 4, 4), (2, 4, 2, 4)]),
    groups=st.sampled_from([-1, 1, 2, 4]),
    axis=st.sampled_from([-1, 1]),
    center=st.booleans(),
    scale=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_group_and_unit_normalization(keras, case):
    x = draw(case.shape, case.seed)
    options = {**picked(case, "groups", "axis", "center", "scale"), "epsilon": 0.01}
    compare_layers(
        keras,
        keras.layers.GroupNormalization(**options),
        layers.GroupNormalization(**options),
        x,
        weights_seed=case.seed,
    )
    compare_layers(keras, keras.layers.UnitNormalization(axis=case.axis), layers.UnitNormalization(axis=case.axis), x)


@pytest.mark.filterwarnings("ignore:You passed `rms_scaling:UserWarning")
@pytest.mark.parametrize("axis", [-1, [1, 2]])
def test_layer_normalization_that_keeps_the_mean(keras, axis):
    theirs = keras.layers.LayerNormalization(axis, rms_scaling=True)
    with pytest.warns(UserWarning, match="RMSNormalization"):
        ours = layers.LayerNormalization(axis, rms_scaling=True)
    compare_layers(keras, theirs, ours, draw((2, 3, 4), 0), weights_seed=1)
    assert [weight.name for weight in ours.weights] == ["gamma"]


def test_masks_reach_batch_normalization_and_go_on(keras):
    x = draw((2, 3, 4), 0)
    mask = np.array([[True, True, False], [True, False, False]])
    made = (package.BatchNormalization(momentum=0.0) for package in (keras.layers, layers))
    compare_masked(keras, *made, x, mask, training=True)


@hypothesis.given(kind=st.sampled_from(["Dense", "Conv1D"]), steps=st.integers(1, 3), seed=st.integers(0, 2**16))
def test_spectral_normalization_in_training(keras, kind, steps, seed):
    options = {"units": 5} if kind == "Dense" else {"filters": 5, "kernel_size": 2}
    theirs, ours = (
        package.SpectralNormalization(getattr(package, kind)(**options), power_iterations=steps)
        for package in (keras.layers, layers)
    )
    x = draw((2, 3, 4), seed)
    build(keras, theirs, ours, x.shape)
    random = np.random.default_rng(seed)
    for name in ("kernel", "bias"):
        values = random.normal(size=getattr(theirs.layer, name).shape).astype(np.float32)
        getattr(theirs.layer, name).assign(values)
        getattr(ours.layer, name)[...] = values
    vector = random.normal(size=theirs.vector_u.shape).astype(np.float32)
    theirs.vector_u.assign(vector)
    ours.vector_u[...] = vector
    trained, graph, state = [v.value for v in theirs.trainable_variables], *nnx.split(ours)

    def both(x: Any) -> Any:
        layer = nnx.merge(graph, state, copy=True)
        outputs, (moved,) = theirs.stateless_call(trained, [theirs.vector_u.value], x, training=True)
        return (layer(x, training=True), layer.vector_u[...]), (outputs, moved)

    compare(both, x)


def test_spectral_normalization_in_a_model(keras):
    x = draw((8, 6), 0)
    found = []
    for package in (keras, kd):
        of = package.layers
        model = package.Sequential([package.Input((6,)), of.SpectralNormalization(of.Dense(4)), of.Dense(2)])
        random = np.random.default_rng(7)
        model.set_weights([random.normal(size=weight.shape).astype("float32") for weight in model.weights])
        results = [model.predict(x, verbose=0), model(x, training=True), model(x, training=False)]
        model.compile(package.optimizers.SGD(0.01), "mse")
        results += [model.fit(x, x[:, :2], 4, 3, shuffle=False, verbose=0).history["loss"], *model.get_weights()]
        results += [model.evaluate(x, x[:, :2], verbose=0), model(x, training=True), *model.get_weights()]
        found.append(results)
    for theirs, ours in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
