"""Batches of many lengths: after some, programs are shared, and the numbers are those of programs of their own."""

import copy
import re
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import keras_dist as kd
from keras_dist import layers
from keras_dist.layers import row_watch
from keras_dist.training import compiled
from keras_dist.training.counted_rows import new_watch
from tests import layouts

LENGTHS = [3, 5, 7]
generator = np.random.default_rng(0)
BATCHES: list[Any] = [
    (
        generator.integers(0, 6, (rows, 4), np.int32),
        generator.integers(0, 5, (rows, 4)),
        generator.uniform(0.5, 2, rows).astype(np.float32),
    )
    for rows in LENGTHS
]
LOSS = kd.losses.SparseCategoricalCrossentropy(from_logits=True)
METRICS = {"metrics": ["accuracy"], "weighted_metrics": ["sparse_categorical_crossentropy"]}

pytestmark = pytest.mark.filterwarnings("ignore::keras_dist.errors.RecompileWarning")


def masked(*more: Any) -> kd.Model:
    """Masks of an embedding, noise, a price of weights."""
    embedding = layers.Embedding(6, 3, mask_zero=True)
    hidden = layers.Dense(4, "relu", kernel_regularizer="l2", name="hidden")
    return kd.Sequential(
        [kd.Input((4,), dtype="int32"), embedding, hidden, layers.Dropout(0.4), *more, layers.Dense(5)]
    )


def of_two() -> kd.Model:
    """Two outputs, one with a mask."""
    tokens = kd.Input((4,), dtype="int32")
    hidden = layers.Embedding(6, 3, mask_zero=True)(tokens)
    place = layers.Dense(5, name="place")(hidden)
    return kd.Model(tokens, {"place": place, "all": layers.Dense(2, name="all")(layers.GRU(4)(hidden))})


def trained(make: Callable[[], kd.Model], mesh: str, own: int, monkeypatch: Any, batches: Any, **options: Any) -> Any:
    """Weights, logs and the kinds of programs, with programs shared after so many lengths."""
    monkeypatch.setattr(compiled, "OWN_LENGTHS", own)
    kd.set_random_seed(3)
    with layouts.on(mesh, {}).scope():
        model = make()
    options = {"optimizer": kd.optimizers.SGD(0.1), "loss": LOSS} | options
    model.compile(**(options | {"optimizer": copy.deepcopy(options["optimizer"])}))  # one for each model
    logs = [model.fit(iter(batches), verbose=0).history]
    logs += [model.evaluate(iter(batches), verbose=0, return_dict=True)]
    return model.get_weights(), logs, kinds(model)


def kinds(model: kd.Model) -> dict[str, list[str]]:
    keys = model._session.trainer._compiled._programs
    return {mode: [key[2] for key in keys if key[0] == mode] for mode in ("train", "test", "predict")}


def assert_same(found: Any, expected: Any) -> None:
    for mine, other in zip(found[0], expected[0], strict=True):
        np.testing.assert_allclose(mine, other, rtol=2e-6, atol=1e-6)
    for mine, other in zip(found[1], expected[1], strict=True):
        assert mine.keys() == other.keys()
        for name in other:
            np.testing.assert_allclose(mine[name], other[name], rtol=2e-6, atol=2e-6, err_msg=name)


TWO = {
    "loss": {"place": LOSS, "all": "mse"},
    "metrics": {"all": ["mae"]},
    "loss_weights": {"place": 0.5, "all": 2.0},
}
CASES: dict[str, Any] = {
    "recurrent": (lambda: masked(layers.LSTM(4, return_sequences=True)), "one device", BATCHES, METRICS),
    "a mesh": (masked, "data=4,model=2", BATCHES, METRICS),
    "weights by place": (masked, "one device", [(x, y, np.tile(w[:, None], (1, 4))) for x, y, w in BATCHES], METRICS),
    "accumulated": (
        masked,
        "one device",
        [batch[:2] for batch in BATCHES],
        {"optimizer": kd.optimizers.SGD(0.1, gradient_accumulation_steps=5)},
    ),
    "computed again": (masked, "one device", BATCHES, {"remat": "hidden"}),
    "several outputs": (
        of_two,
        "one device",
        [(x, {"place": y, "all": np.ones((len(x), 2), np.float32)}) for x, y, _ in BATCHES],
        TWO,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_programs_are_shared_and_the_numbers_are_the_same(case: str, monkeypatch: Any) -> None:
    make, mesh, batches, options = CASES[case]
    expected = trained(make, mesh, 1000, monkeypatch, batches, **options)
    found = trained(make, mesh, 1, monkeypatch, batches, **options)
    assert_same(found, expected)
    for mode in ("train", "test"):
        assert expected[2][mode] == ["single"] * len(LENGTHS)
        assert found[2][mode] == ["single", "counted"]


def test_stacks_of_steps_share_programs(monkeypatch: Any) -> None:
    batches = [batch for batch in BATCHES for _ in range(2)]
    expected = trained(masked, "one device", 1000, monkeypatch, batches, steps_per_execution=2)
    found = trained(masked, "one device", 1, monkeypatch, batches, steps_per_execution=2)
    assert_same(found, expected)
    assert expected[2]["train"] == ["stacked"] * len(LENGTHS)
    assert found[2]["train"] == ["stacked", "counted stack"]


def test_predictions_share_programs(monkeypatch: Any) -> None:
    monkeypatch.setattr(compiled, "OWN_LENGTHS", 2)
    with layouts.one_device().scope():
        model = masked(layers.BatchNormalization())
    x = BATCHES[2][0]
    expected = model.predict(x, verbose=0)
    for rows in range(2, 7):
        np.testing.assert_allclose(model.predict(x[:rows], verbose=0), expected[:rows], rtol=2e-6, atol=1e-6)
    assert kinds(model)["predict"] == ["single"] * 4  # of 7, 2, 4 and 8 rows


def test_batches_of_one_length_are_not_filled_up(monkeypatch: Any) -> None:
    monkeypatch.setattr(compiled, "OWN_LENGTHS", 2)
    with layouts.one_device().scope():
        model = kd.Sequential([layers.Dense(2)])
    for steps in (1, 2, 3):
        model.predict(np.ones((3, steps, 2), np.float32), verbose=0)
    assert [key[3][0] for key in model._session.trainer._compiled._programs] == [3, 3, 3]  # rows


def test_it_is_said_once(monkeypatch: Any) -> None:
    monkeypatch.setattr(compiled, "OWN_LENGTHS", 2)
    with layouts.one_device().scope():
        model = masked()
    with warnings.catch_warnings(record=True, action="always") as caught:
        for rows in range(1, 6):
            model.predict(BATCHES[2][0][:rows], verbose=0)
    assert [str(warning.message).splitlines()[0] for warning in caught] == [
        "the predict step was compiled for batches of 2 lengths since compile(): from now on batches of other lengths "
        "are filled up to a power of two of rows, such as x int32(4, 4)"
    ]


def test_what_keeps_programs_from_being_shared_is_named(monkeypatch: Any) -> None:
    monkeypatch.setattr(compiled, "OWN_LENGTHS", 2)
    with layouts.one_device().scope():
        model = functional(layers.Lambda(lambda x: x - jnp.mean(x, 0), name="centre"))
    model.compile("sgd", loss="mse")
    for rows in (1, 2):
        model.train_on_batch(X[:rows], X[:rows])
    with pytest.warns(kd.errors.RecompileWarning, match=r"rows may be mixed by layer 'centre' \(Lambda\)"):
        model.train_on_batch(X[:3], X[:3])
    assert kinds(model)["train"] == ["single"] * 3


def test_where_a_shared_program_fails_each_length_has_its_own(monkeypatch: Any) -> None:
    def filled(*_: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(compiled, "OWN_LENGTHS", 1)
    monkeypatch.setattr(compiled, "filled", filled)
    with layouts.one_device().scope():
        model = masked()
    for x, *_ in BATCHES[:3]:
        assert len(model.predict(x, verbose=0)) == len(x)
    assert kinds(model)["predict"] == ["single"] * 3


def test_random_numbers_that_depend_on_the_number_of_rows_are_refused() -> None:
    with jax.threefry_partitionable(False):
        assert new_watch().mixer == "random numbers, with jax_threefry_partitionable=False"


class OwnLoss(kd.Model):
    """Computes its loss itself, from all rows; says that it does not."""

    keeps_rows_apart = True

    def compute_loss(self, x: Any, y: Any, y_pred: Any, sample_weight: Any) -> Any:
        return jnp.mean(y_pred**2)


class Subclassed(kd.Model):
    """Does what it likes."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = layers.Dense(3)

    def call(self, inputs: Any) -> Any:
        return self.dense(inputs - jnp.mean(inputs, 0))


class AddsLoss(layers.Layer):
    """Adds to the loss what depends on all rows; says that it does not."""

    keeps_rows_apart = True

    def call(self, inputs: Any) -> Any:
        self.add_loss(jnp.mean(inputs) ** 2)
        return inputs


class Plus(layers.Layer):
    """The sum of two arrays."""

    keeps_rows_apart = True

    def call(self, inputs: Any, other: Any) -> Any:
        return inputs + other


X = np.ones((4, 3), np.float32)


def functional(last: Callable[[Any], Any], cls: Any = kd.Model) -> kd.Model:
    inputs = kd.Input((3,))
    return cls(inputs, last(layers.Dense(3)(inputs)))


REFUSED: dict[str, Any] = {
    "operation 'getitem' between": (lambda: functional(lambda x: x - x[:1]), {}),
    "which is called with a constant array": (lambda: functional(lambda x: Plus()(x, np.ones((1, 3)))), {}),
    r"layer 'subclassed' \(Subclassed\)": (Subclassed, {}),
    r"a model of `from_nnx`": (lambda: kd.Model.from_nnx(lambda rngs: nnx.Linear(3, 3, rngs=rngs)), {}),
    "compute_loss of the model": (lambda: functional(layers.Dense(3), OwnLoss), {}),
    "what layers add to the loss": (lambda: functional(AddsLoss()), {}),
    r"loss 'circle' \(Circle\)": (lambda: functional(layers.Dense(3)), {"loss": kd.losses.Circle()}),
    r"loss '<lambda>' \(LossFunctionWrapper\)": (lambda: functional(layers.Dense(3)), {"loss": lambda y, z: z.mean()}),
    r"metric 'r2_score' \(R2Score\)": (lambda: functional(layers.Dense(3)), {"metrics": [kd.metrics.R2Score()]}),
    "an output that is one number for each row": (
        lambda: functional(lambda x: layers.Reshape(())(layers.Dense(1)(x))),
        {},
    ),
    r"layer 'batch_normalization' \(BatchNormalization\)": (lambda: functional(layers.BatchNormalization()), {}),
}


@pytest.mark.parametrize("mixer", REFUSED)
def test_steps_that_may_mix_rows_are_refused(mixer: str) -> None:
    make, options = REFUSED[mixer]
    with layouts.one_device().scope():
        model = make()
    model.compile(**({"optimizer": "sgd", "loss": "mse"} | options))
    model._born(X)
    step, state = model._session.trainer._train_step, model.state
    y = X[:, 0] if "loss" in options or "number for each row" in mixer else X
    with row_watch.entered(new_watch()) as watch:
        jax.eval_shape(lambda state, batch: step(state, batch, nnx.Rngs(0))[0], state, (X, y, None))
    assert watch.mixer is not None
    assert re.search(mixer, watch.mixer)


def test_a_step_of_ones_own_sees_every_row_that_exists_and_no_other(monkeypatch: Any) -> None:
    def train_step(state: Any, batch: Any, rngs: Any) -> Any:
        seen.append(len(batch[0]))
        return state, {"loss": jnp.mean(batch[1])}

    monkeypatch.setattr(compiled, "OWN_LENGTHS", 1)
    with layouts.one_device().scope():
        model = masked()
    model.compile("sgd", train_step=train_step)
    seen: list[int] = []
    model.fit(iter(BATCHES), verbose=0)
    assert set(seen) == set(LENGTHS)
    assert kinds(model)["train"] == ["single"] * len(LENGTHS)
