"""Options of `compile` that say how steps run: operation by operation, with donation, ahead."""

import jax
import numpy as np
import pytest
from flax import nnx

import keras_dist as kd
from tests import layouts
from tests.networks import LOSS, Plain, blobs
from tests.training.trained import Trained

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


@pytest.mark.parametrize("donate", [True, False])
def test_donation(donate):
    model = Trained("one device", Plain, donate=donate).model
    held = model._built.cell.arrays
    model.train_on_batch(X[:8], Y[:8])
    assert held[0].is_deleted() is donate


@pytest.mark.parametrize(
    "options",
    [
        {"steps_per_execution": 0},
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
