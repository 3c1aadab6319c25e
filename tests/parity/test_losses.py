"""Losses beside those of Keras: values, gradients, weights, masks, reductions, names, configs."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_dist import losses
from tests.parity.compare import compare

TOLERANCE = 1e-5
REDUCTIONS = ["sum_over_batch_size", "mean", "sum", "mean_with_sample_weight", "none", None]
SEEDS = st.integers(0, 2**31)
# few of them: each is compiled once
SHAPES = st.sampled_from([(1, 3), (4, 3), (3, 3), (2, 5, 3)])


def numbers(rng, shape, **_):
    return rng.normal(size=shape), rng.normal(size=shape) * 2


def positive(rng, shape, **_):
    return rng.uniform(0, 5, shape), rng.uniform(0.1, 5, shape)


def relative(rng, shape, **_):
    return rng.uniform(0.2, 3, shape) * rng.choice([-1, 1], shape), rng.normal(size=shape)


def binary(rng, shape, from_logits=False, **_):
    y_true = rng.choice([rng.integers(0, 2, shape), rng.uniform(0, 1, shape)])
    return y_true, rng.uniform(-3, 3, shape) if from_logits else rng.uniform(0.02, 0.98, shape)


def signs(rng, shape, **_):
    return rng.choice([rng.integers(0, 2, shape), rng.choice([-1, 1], shape)]), rng.normal(size=shape)


def distributions(rng, shape, from_logits=False, axis=-1, **_):
    hot = np.moveaxis(np.eye(shape[axis])[rng.integers(0, shape[axis], np.delete(shape, axis))], -1, axis)
    soft = rng.uniform(0.1, 1, shape)
    y_true = rng.choice([hot, soft / soft.sum(axis, keepdims=True)])
    return y_true, rng.uniform(-3, 3, shape) if from_logits else rng.uniform(0.1, 1, shape)


def labels(rng, shape, from_logits=False, ignore_class=None, **_):
    y_true = rng.integers(-1 if ignore_class == -1 else 0, shape[-1], shape[:-1] + ((1,) if rng.integers(2) else ()))
    return y_true, rng.uniform(-3, 3, shape) if from_logits else rng.uniform(0.1, 1, shape)


def flat_labels(rng, shape, **_):
    return rng.integers(0, shape[-1], shape[:-1]), rng.uniform(0.1, 1, shape)


def embeddings(rng, shape, **_):
    vectors = rng.normal(size=(6, shape[-1]))
    return rng.integers(0, 3, 6), vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


class Case(NamedTuple):
    function: str
    arguments: Any
    options: dict[str, Any] = {}  # noqa: RUF012


BOOLEANS = st.booleans()
SMOOTHING = st.sampled_from([0.0, 0.1])
CASES = {
    "MeanSquaredError": Case("mean_squared_error", numbers),
    "MeanAbsoluteError": Case("mean_absolute_error", numbers),
    "MeanAbsolutePercentageError": Case("mean_absolute_percentage_error", relative),
    "MeanSquaredLogarithmicError": Case("mean_squared_logarithmic_error", positive),
    "Huber": Case("huber", numbers, {"delta": st.sampled_from([0.3, 1.0, 2.0])}),
    "LogCosh": Case("log_cosh", numbers),
    "CosineSimilarity": Case("cosine_similarity", numbers, {"axis": st.sampled_from([-1, 0, 1])}),
    "Poisson": Case("poisson", positive),
    "KLDivergence": Case("kl_divergence", distributions),
    "BinaryCrossentropy": Case(
        "binary_crossentropy",
        binary,
        {"from_logits": BOOLEANS, "label_smoothing": SMOOTHING, "axis": st.sampled_from([-1, 1])},
    ),
    "BinaryFocalCrossentropy": Case(
        "binary_focal_crossentropy",
        binary,
        {
            "from_logits": BOOLEANS,
            "label_smoothing": SMOOTHING,
            "axis": st.sampled_from([-1, 1]),
            "apply_class_balancing": BOOLEANS,
            "alpha": st.sampled_from([0.25, 0.6]),
            "gamma": st.sampled_from([0.0, 1.5, 2.0]),
        },
    ),
    "CategoricalCrossentropy": Case(
        "categorical_crossentropy", distributions, {"from_logits": BOOLEANS, "label_smoothing": SMOOTHING}
    ),
    "CategoricalFocalCrossentropy": Case(
        "categorical_focal_crossentropy",
        distributions,
        {
            "from_logits": BOOLEANS,
            "label_smoothing": SMOOTHING,
            "alpha": st.sampled_from([0.25, 0.6]),
            "gamma": st.sampled_from([1.5, 2.0]),
        },
    ),
    "SparseCategoricalCrossentropy": Case(
        "sparse_categorical_crossentropy",
        labels,
        {"from_logits": BOOLEANS, "ignore_class": st.sampled_from([None, 0, -1])},
    ),
    "CategoricalGeneralizedCrossEntropy": Case(
        "categorical_generalized_cross_entropy", flat_labels, {"q": st.sampled_from([0.3, 0.5, 0.9])}
    ),
    "Hinge": Case("hinge", signs),
    "SquaredHinge": Case("squared_hinge", signs),
    "CategoricalHinge": Case("categorical_hinge", distributions),
    "Dice": Case("dice", binary, {"axis": st.sampled_from([None, 1, -1, 0, (0, 1)])}),
    "Tversky": Case(
        "tversky",
        binary,
        {
            "axis": st.sampled_from([None, 1, -1, 0]),
            "alpha": st.sampled_from([0.5, 0.2]),
            "beta": st.sampled_from([0.5, 0.9]),
        },
    ),
    "Circle": Case(
        "circle",
        embeddings,
        {"gamma": st.sampled_from([8.0, 80.0]), "margin": st.sampled_from([0.2, 0.4]), "remove_diagonal": BOOLEANS},
    ),
}
"""Each loss with what it is given and the options it takes; CTC has a test of its own."""


def draw_case(data, name):
    """Options, targets and predictions."""
    case = CASES[name]
    options = {key: data.draw(values, key) for key, values in case.options.items()}
    y_true, y_pred = case.arguments(
        np.random.default_rng(data.draw(SEEDS, "seed")), data.draw(SHAPES, "shape"), **options
    )
    return options, y_true.astype("int32" if y_true.dtype.kind == "i" else "float32"), y_pred.astype("float32")


def weights_for(data, shape):
    """Weights as Keras takes them for values of this shape: one each, one for each example, or none."""
    rng = np.random.default_rng(data.draw(SEEDS, "seed of weights"))
    shapes = [shape, (*shape, 1), shape[:1] + (1,) * (len(shape) - 1)]
    chosen = data.draw(st.sampled_from([None, *shapes]), "shape of weights") if shape else None
    return None if chosen is None else (rng.integers(0, 4, chosen) / 2).astype("float32")


def mask_for(data, shape):
    rng = np.random.default_rng(data.draw(SEEDS, "seed of mask"))
    return rng.integers(0, 2, shape).astype(bool) if shape and data.draw(BOOLEANS, "mask") else None


def assert_near(found, expected):
    """Up to a last dim of 1, and relative to the largest."""
    found, expected = np.asarray(found), np.asarray(expected)
    atol = TOLERANCE * max(1.0, float(np.max(np.abs(expected), initial=0)))
    np.testing.assert_allclose(found.reshape(-1), expected.reshape(-1), rtol=TOLERANCE, atol=atol)


def assert_same(keras, ours, theirs, y_true, y_pred, sample_weight=None, mask=None, functions=()):
    """Equal values, and equal gradients of their sum, of two losses and of further pairs of functions of `y_pred`."""

    def with_mask(y_pred):
        y_pred = y_pred + 0
        if mask is not None:
            keras.src.backend.set_keras_mask(y_pred, jnp.asarray(mask))
        return theirs(y_true, y_pred, sample_weight=sample_weight)

    pairs = [(lambda z: ours(y_true, z, sample_weight=sample_weight, mask=mask), with_mask), *functions]

    def all_of_them(y_pred):
        return [[value_and_gradient(function, y_pred) for function in pair] for pair in pairs]

    def check(*found):
        for found_pair, expected_pair in found:
            for one, other in zip(found_pair, expected_pair, strict=True):
                assert_near(one, other)
        for (one, _), (other, _) in found[1:]:  # of functions
            assert one.shape == other.shape

    compare(all_of_them, y_pred, check=check, note=f"{ours!r} {vars(ours)}")


def value_and_gradient(loss, y_pred):
    value, pullback = jax.vjp(loss, y_pred)
    return value, pullback(jnp.ones_like(value))[0]


@pytest.mark.parametrize("name", CASES)
@given(st.data())
def test_values_and_gradients_of_functions_and_losses(keras, name, data):
    options, y_true, y_pred = draw_case(data, name)
    labels = y_true
    if options.get("ignore_class") is not None:  # Keras's function takes no column of them
        labels = y_true.reshape(y_pred.shape[:-1])
    ours, theirs = (
        functools.partial(getattr(module, CASES[name].function), targets, **options)
        for module, targets in ((losses, labels), (keras.losses, labels.astype("float32")))
    )
    shape = jax.eval_shape(ours, y_pred).shape

    reduction = data.draw(st.sampled_from(["mean", "sum", "mean_with_sample_weight", None]), "reduction")
    made = [getattr(module, name)(**options, reduction=reduction) for module in (losses, keras.losses)]
    weights, mask = weights_for(data, shape), mask_for(data, shape)
    assert_same(keras, *made, y_true, y_pred, weights, mask, functions=[(ours, theirs)])


@pytest.mark.parametrize("name", ["CategoricalCrossentropy", "CategoricalFocalCrossentropy"])
@given(SEEDS, st.sampled_from([1, -2]), BOOLEANS, st.sampled_from([(3, 3), (2, 5, 3)]))
def test_axis_of_the_classes(keras, name, seed, axis, from_logits, shape):
    options = {"from_logits": from_logits, "axis": axis, "reduction": "sum"}
    rng = np.random.default_rng(seed)
    y_true, y_pred = (array.astype("float32") for array in distributions(rng, shape, from_logits, axis))
    weight = rng.uniform(0, 2, np.delete(shape, axis)).astype("float32")
    assert_same(keras, getattr(losses, name)(**options), getattr(keras.losses, name)(**options), y_true, y_pred, weight)


@pytest.mark.parametrize("name", ["MeanSquaredError", "BinaryCrossentropy", "Hinge", "LogCosh", "Poisson"])
@given(st.data())
def test_ranks_that_differ_by_one(keras, name, data):
    rng = np.random.default_rng(data.draw(SEEDS))
    shapes = data.draw(st.sampled_from([((4,), (4, 1)), ((4, 1), (4,)), ((2, 3), (2, 3, 1)), ((2, 3, 1), (2, 3))]))
    y_true, y_pred = (rng.uniform(0.1, 0.9, shape).astype("float32") for shape in shapes)
    assert_same(keras, getattr(losses, name)(), getattr(keras.losses, name)(), y_true, y_pred)


@functools.cache
def ctc_of_both(keras, reduction):
    ours, theirs = losses.CTC(reduction=reduction), keras.losses.CTC(reduction=reduction)

    def with_mask(y_true, y_pred, weight, mask):
        y_pred = y_pred + 0
        keras.src.backend.set_keras_mask(y_pred, mask)
        return theirs(y_true, y_pred, sample_weight=weight)

    def both(y_true, y_pred, weight, mask):
        return [
            value_and_gradient(lambda z: ours(y_true, z, sample_weight=weight, mask=mask), y_pred),
            value_and_gradient(lambda z: with_mask(y_true, z, weight, mask), y_pred),
        ]

    return jax.jit(both)


@given(SEEDS, st.sampled_from(["mean", None]))
def test_ctc(keras, seed, reduction):
    rng = np.random.default_rng(seed)
    y_true = rng.integers(1, 4, (3, 4)) * (np.arange(4) < rng.integers(0, 5, (3, 1)))
    y_pred, weight, mask = rng.normal(size=(3, 9, 4)), rng.uniform(0, 2, 3), rng.integers(0, 2, 3).astype(bool)
    ours, theirs = ctc_of_both(keras, reduction)(y_true, y_pred.astype("float32"), weight, mask)
    for found, expected in zip(ours, theirs, strict=True):
        assert_near(found, expected)


@given(st.data())
def test_weights_masks_and_reductions(keras, data):
    class Ours(losses.Loss):
        def call(self, y_true, y_pred):
            return y_pred - y_true

    class Theirs(keras.losses.Loss):
        def call(self, y_true, y_pred):
            return y_pred - y_true

    shape = data.draw(st.sampled_from([(), (1,), (4,), (4, 1), (4, 3), (3, 3), (2, 3, 2)]))
    rng = np.random.default_rng(data.draw(SEEDS))
    y_true, y_pred = (np.asarray(rng.normal(size=shape), "float32") for _ in range(2))
    reduction = data.draw(st.sampled_from(REDUCTIONS))
    sample_weight, mask = weights_for(data, shape), mask_for(data, shape)
    assert_same(keras, Ours(reduction=reduction), Theirs(reduction=reduction), y_true, y_pred, sample_weight, mask)


@given(SEEDS, st.sampled_from(REDUCTIONS))
def test_trees_of_targets_and_predictions(keras, seed, reduction):
    def distance(y_true, y_pred, factor):
        return factor * abs(y_true["a"] - y_pred["a"]).mean(-1) + abs(y_true["b"] - y_pred["b"]).mean(-1)

    rng = np.random.default_rng(seed)
    y_true, y_pred = (
        {"a": rng.normal(size=shape).astype("float32"), "b": rng.normal(size=(4, 2)).astype("float32")}
        for shape in ((4,), (4, 1))
    )
    wrappers = losses.LossFunctionWrapper, keras.src.losses.losses.LossFunctionWrapper
    made = [wrapper(distance, reduction, factor=3.0) for wrapper in wrappers]
    compare(lambda *given: [one(*given) for one in made], y_true, y_pred, check=assert_near)


def test_every_name_means_the_same(keras):
    names = set(keras.src.losses.ALL_OBJECTS_DICT) - {"Loss", "LossFunctionWrapper"}
    assert {"mse", "MSE", "kld", "huber", "Huber", "ctc"} < names
    for name in names:
        ours, theirs = losses.get(name), keras.losses.get(name)
        if isinstance(theirs, keras.losses.Loss):
            assert type(ours).__name__ == type(theirs).__name__, name
            ours, theirs = losses.deserialize(name), keras.losses.deserialize(name)
            assert ours.name == theirs.name, name
        else:
            assert ours is losses.deserialize(name) and ours.__name__ == theirs.__name__, name
    assert (
        losses.get(None) is keras.losses.get(None) is losses.deserialize(None) is keras.losses.deserialize(None) is None
    )


@pytest.mark.parametrize("name", [*CASES, "CTC"])
@given(st.data())
def test_configs_go_both_ways(keras, name, data):
    options = {key: data.draw(values, key) for key, values in CASES[name].options.items()} if name in CASES else {}
    options |= {"reduction": data.draw(st.sampled_from(REDUCTIONS)), "name": "it"}
    theirs = getattr(keras.losses, name)(**options)
    ours = losses.deserialize(keras.losses.serialize(theirs))
    assert type(ours) is getattr(losses, name)
    config = theirs.get_config()
    assert {key: getattr(ours, key) for key in config} == config
    assert getattr(keras.losses, name).from_config(losses.deserialize(losses.serialize(ours)).get_config())
