"""compile(remat=...): the same numbers, and less that is kept for the way back."""

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import keras_dist as kd
from keras_dist import errors, layers, optimizers
from tests.soak import LARGE, repeated

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(8, 5, 6)).astype("float32")
X[2:, 3:] = 0.0
Y = RANDOM.normal(size=(8, 3)).astype("float32")
BARRIER = "stablehlo.optimization_barrier"
"""What a checkpoint leaves in the program, once where it is differentiated."""


class Penalized(layers.Layer):
    """Has a sublayer, adds to the loss, and gives its mask on."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.inner = layers.Dense(6, activation="tanh", activity_regularizer="l2")
        self.supports_masking = True

    def call(self, inputs: Any) -> Any:
        outputs = self.inner(inputs)
        self.add_loss(0.1 * jnp.mean(outputs**2))
        return outputs


def network(remat: str | None) -> kd.Model:
    kd.set_random_seed(1)
    inputs = kd.Input((5, 6))
    hidden = layers.Masking(name="masking")(inputs)
    hidden = layers.Dropout(0.4, seed=0, name="dropout")(Penalized(name="block_0")(hidden))
    hidden = layers.BatchNormalization(name="norm")(hidden)
    model = kd.Model(inputs, layers.Dense(3, name="head")(layers.LSTM(4, name="lstm")(hidden)))
    model.compile(optimizers.SGD(0.1), "mse", remat=remat)
    return model


def numbers(model: kd.Model) -> list[Any]:
    losses = [model.train_on_batch(X, Y) for _ in range(2)]
    return [*losses, *model.get_weights()]


@pytest.fixture(scope="module")
def plain() -> kd.Model:
    return network(None)


@pytest.fixture(scope="module")
def expected(plain: kd.Model) -> list[Any]:
    return numbers(plain)


@pytest.mark.first_cases(1)
@repeated
@pytest.mark.parametrize("remat", ["full", "block_.*|dropout|norm|lstm", *["dots_saveable"] * LARGE])
def test_losses_weights_and_statistics_are_the_same(remat: str, expected: list[Any]) -> None:
    for a, b in zip(numbers(network(remat)), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


@pytest.fixture(scope="module")
def program() -> Any:
    """The train step of one model, by what is computed again."""
    model = kd.Sequential([kd.Input((6,)), *(layers.Dense(6, "tanh", name=f"d{i}") for i in range(4))])

    @functools.cache
    def lowered(remat: str | None) -> str:
        model.compile("sgd", "mse", remat=remat)
        return model.lower_train_step(X[:, 0], X[:, 1]).as_text()

    return lowered


@pytest.mark.parametrize(
    ("remat", "checkpoints"), [(None, 0), ("full", 1), ("dots_saveable", 1), ("d[12]", 2), ("d3", 1), (".*", 4)]
)
def test_there_is_a_checkpoint_for_each_layer_that_is_named(program: Any, remat: str | None, checkpoints: int) -> None:
    assert program(remat).count(BARRIER) == checkpoints


@pytest.mark.parametrize(("remat", "checkpoints"), [(None, 0), ("full", 1), ("d[12]", 2)])
def test_steps_in_the_form_of_keras_compute_again_too(remat: str | None, checkpoints: int) -> None:
    class Stepped(kd.Sequential):
        def train_step(self, state: Any, data: Any) -> Any:
            return super().train_step(state, data)

    model = Stepped([kd.Input((6,)), *(layers.Dense(6, "tanh", name=f"d{i}") for i in range(3))])
    model.compile("sgd", "mse", remat=remat)
    assert model.lower_train_step(X[:, 0], X[:, 1]).as_text().count(BARRIER) == checkpoints


def test_a_policy_says_what_is_computed_again(program: Any) -> None:
    products = {remat: program(remat).count("stablehlo.dot_general") for remat in (None, "full", "dots_saveable")}
    assert products["full"] > products["dots_saveable"] == products[None]


def test_none_has_a_name(program: Any) -> None:
    assert program("none") == program(None)


@pytest.mark.slow
def test_modules_of_flax_keep_their_statistics() -> None:
    class Net(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.norm, self.dropout = nnx.BatchNorm(6, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)
            self.head = nnx.Linear(6, 3, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return self.head(self.dropout(self.norm(x)))

    found = []
    for remat in (None, "norm|dropout"):
        model = kd.Model.from_nnx(Net, seed=0)
        model.compile(optimizers.SGD(0.1), "mse", remat=remat)
        found.append([model.train_on_batch(X[:, 0], Y), model.train_on_batch(X[:, 0], Y), *model.get_weights()])
        assert model.lower_train_step(X[:, 0], Y).as_text().count(BARRIER) == (0 if remat is None else 2)
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("remat", "message"),
    [
        ("ful", r"did you mean 'full'"),
        ("dots_savable", r"did you mean 'dots_saveable'"),
        ("heed", r"(?s)did you mean 'head'.*remat='heed'.*block_0"),
        ("(", "`remat` is not a regular expression"),
        (True, "remat=True"),
    ],
)
def test_what_names_nothing_is_refused(remat: Any, message: str, plain: kd.Model) -> None:
    with pytest.raises(errors.ModelError, match=message):
        plain.compile("sgd", "mse", remat=remat)
