"""Options of `compile` that say how steps run: operation by operation, with donation, ahead."""

from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx
from jax.core import Tracer

import keras_dist as kd
from keras_dist.data import ArraySource
from tests import layouts
from tests.networks import LOSS, Plain, blobs
from tests.training.trained import Trained, assert_same

X, Y = blobs(107)  # 13 batches of 8 and one of 3


def test_operation_by_operation_gives_the_same():
    model = layouts.model_on("data=4,model=2", lambda rngs: nnx.Linear(8, 4, rngs=rngs), {})
    initial, found = model.get_weights(), []
    for options in ({}, {"run_eagerly": True}, {"jit_compile": False}):
        model.set_weights(initial)
        model.compile("sgd", loss="mse", **options)
        found.append([model.train_on_batch(X[:6], X[:6, :4]), *model.get_weights(), *model.predict(X[:6], verbose=0)])
    for values in found[1:]:
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), values, found[0])


def test_values_can_be_seen_operation_by_operation():
    seen = []

    class Seen(kd.layers.Layer):
        def call(self, x: Any) -> Any:
            seen.append(isinstance(x, Tracer))
            return x

    model = kd.Sequential([kd.Input((8,)), Seen(), kd.layers.Dense(4)])
    model.compile("sgd", loss=LOSS, run_eagerly=True)
    seen.clear()
    model.predict(X[:8], verbose=0)
    assert seen[-1] is False


@pytest.mark.parametrize("donate", [True, False])
def test_donation(donate):
    model = Trained("one device", Plain, donate=donate).model
    held = model._built.cell.arrays
    model.train_on_batch(X[:8], Y[:8])
    assert held[0].is_deleted() is donate


def test_prefetch(monkeypatch):
    drawn_now, batches = [0], ArraySource.batches
    ahead, are_ready, found = [], [], []

    def counted(*args: Any, **kwargs: Any) -> Any:
        is_compiled_for = len(kwargs.get("span") or ()) == 1  # one batch alone: its shapes are looked at
        for batch in batches(*args, **kwargs):
            drawn_now[0] += not is_compiled_for
            yield batch

    class Look(kd.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            drawn_now[0] = 0

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            ahead.append(drawn_now[0] - batch)
            are_ready.append(self.model._built.cell.arrays[0].is_ready())

    monkeypatch.setattr(ArraySource, "batches", counted)
    for prefetch, drawn in ((1, 1), (2, 1), (5, 4)):
        trained = Trained("data=4,model=2", Plain, steps_per_execution=1, prefetch=prefetch)
        ahead.clear(), are_ready.clear()
        found.append(trained.fit(X[:104], Y[:104], batch_size=8, callbacks=[Look()]))
        assert ahead[:10] == [drawn] * 10
        assert prefetch > 1 or all(are_ready)
    assert_same(found[1], found[0])
    assert_same(found[2], found[0])


@pytest.mark.parametrize(
    "options",
    [
        {"steps_per_execution": 0},
        {"steps_per_execution": True},
        {"steps_per_execution": 2.5},
        {"steps_per_execution": "fast"},
        {"run_eagerly": "yes"},
        {"jit_compile": "no"},
        {"donate": None},
        {"prefetch": 0},
    ],
    ids=str,
)
def test_others_are_refused(options):
    model = layouts.plain_on("one device")
    (name,) = options
    with pytest.raises(kd.errors.ModelError, match=f"`{name}`") as caught:
        model.compile("sgd", loss=LOSS, **options)
    assert f"{name}={options[name]!r}" in caught.value.given
