"""Any optax transformation trains, and takes the steps of a loop written by hand."""

from typing import Any

import jax
import numpy as np
import optax
import pytest
from flax import nnx

import keras_dist as kd
from tests import by_hand, layouts
from tests.networks import Noisy, Plain, blobs
from tests.soak import repeated

X, Y = blobs(96)


def by_layer(params):
    return {layer: jax.tree.map(lambda _, layer=layer: layer, subtree) for layer, subtree in params.items()}


def kernels(params):
    return jax.tree.map(lambda leaf: leaf.ndim > 1, params)


CHAINS = {
    "adamw with a schedule": lambda: optax.adamw(optax.cosine_decay_schedule(0.01, 6), weight_decay=0.1),
    "clipped": lambda: optax.chain(optax.clip_by_global_norm(0.1), optax.sgd(0.5, momentum=0.9, nesterov=True)),
    "multi_transform": lambda: optax.multi_transform({"d1": optax.adam(0.01), "d2": optax.sgd(0.1)}, by_layer),
    "masked": lambda: optax.chain(optax.masked(optax.add_decayed_weights(0.1), kernels), optax.sgd(0.1)),
    "adafactor": lambda: optax.adafactor(0.05, min_dim_size_to_factor=4),
    "MultiSteps": lambda: optax.MultiSteps(optax.adam(0.01), every_k_schedule=2),
    "inject_hyperparams": lambda: optax.inject_hyperparams(optax.adam)(learning_rate=0.01),
    "noise": lambda: optax.chain(optax.add_noise(0.01, 0.55, jax.random.key(3)), optax.sgd(0.05)),
    "lbfgs": lambda: optax.lbfgs(),
    "plateau": lambda: optax.chain(optax.sgd(0.1), optax.contrib.reduce_on_plateau(patience=1)),
}


FULLY = "clipped", "adafactor", "MultiSteps"


def expected(name):
    module = Plain(nnx.Rngs(4))
    transformation = CHAINS[name]()
    if isinstance(transformation, optax.MultiSteps):
        transformation = transformation.gradient_transformation()
    losses = by_hand.train(module, transformation, by_hand.batches_in_order(32, X, Y))
    return losses, {path: np.asarray(leaf[...]) for path, leaf in nnx.to_flat_state(nnx.state(module, nnx.Param))}


class Losses(kd.callbacks.Callback):
    """The loss of each step, from the means so far."""

    def __init__(self):
        super().__init__()
        self.totals = [0.0]

    def on_train_batch_end(self, batch, logs: Any = None):
        self.totals.append(logs["loss"] * (batch + 1))


@pytest.mark.filterwarnings("ignore:.*weights all batches alike")  # of equal batches
@pytest.mark.first_cases(1)
@repeated
@pytest.mark.parametrize("name", CHAINS)
def test_fit_takes_the_steps_of_a_loop_by_hand(name):
    losses, values = expected(name)
    model = layouts.plain_on("fully data=8" if name in FULLY else "data=2,model=4", seed=4)
    model.compile(CHAINS[name](), loss=by_hand.cross_entropy)
    recorded = Losses()
    model.fit(X, Y, batch_size=32, shuffle=False, verbose=0, callbacks=[recorded])
    np.testing.assert_allclose(np.diff(recorded.totals), losses, atol=2e-5)
    for path, value in values.items():
        found = next(v for v in model.variables if v.path == "/".join(map(str, path)))
        np.testing.assert_allclose(found.numpy(), value, atol=1e-4, err_msg=found.path)
    assert_all_live_where_planned(model)


def assert_all_live_where_planned(model):
    state = model._built.cell.state
    shardings = model.state_plan.shardings
    assert jax.tree.structure(shardings) == jax.tree.structure(state)
    for leaf, sharding, row in zip(
        jax.tree.leaves(state), jax.tree.leaves(shardings), model.state_plan.rows, strict=True
    ):
        assert leaf.sharding.is_equivalent_to(sharding, leaf.ndim), row.path
        assert (leaf.shape, leaf.dtype) == (row.shape, row.dtype), row.path
        assert leaf.addressable_shards[0].data.nbytes == row.nbytes_per_device, row.path


def test_statistics_and_dropout_are_carried_as_by_hand():
    module: Any = Noisy(nnx.Rngs(4))
    losses = by_hand.train(module, optax.sgd(0.1), by_hand.batches_in_order(32, X, Y) * 2)
    model = layouts.model_on("data=4,model=2", Noisy, seed=4)
    model.compile(optax.sgd(0.1), loss=by_hand.cross_entropy)
    recorded = Losses()
    model.fit(X, Y, batch_size=32, epochs=1, shuffle=False, verbose=0, callbacks=[recorded])
    np.testing.assert_allclose(np.diff(recorded.totals), losses[:3], atol=3e-6)
    assert [model.train_on_batch(*batch) for batch in by_hand.batches_in_order(32, X, Y)] == pytest.approx(
        losses[3:], abs=3e-6
    )
    trained: Any = model.module
    np.testing.assert_allclose(trained.norm.mean[...], module.norm.mean[...], atol=1e-5)
    np.testing.assert_allclose(trained.norm.var[...], module.norm.var[...], atol=1e-5)
    assert trained.drop.rngs.count[...] == module.drop.rngs.count[...] == 6
    before = [v.numpy().tobytes() for v in model.variables]
    np.testing.assert_allclose(model.predict(X, verbose=0), by_hand.predict(module, X), atol=1e-4)
    scores = [model.evaluate(X, Y, verbose=0) for _ in range(2)]
    assert scores[0] == scores[1]
    assert [v.numpy().tobytes() for v in model.variables] == before, "neither statistics nor random streams have moved"


class TestZero1:
    """`DataParallel(shard_optimizer=True)`."""

    @staticmethod
    def trained(**options):
        model = layouts.model_on(kd.DataParallel(**options), Noisy, seed=4)
        model.compile("adam", loss=by_hand.cross_entropy)
        history = model.fit(X, Y, batch_size=24, epochs=2, verbose=0).history["loss"]
        return model, history

    def test_it_gives_the_same_numbers_from_sharded_slots(self):
        model, history = self.trained(shard_optimizer=True)
        _, expected = self.trained()
        np.testing.assert_allclose(history, expected, atol=1e-5)
        state = model._built.cell.state
        by_kind = {
            kind: {len(leaf.addressable_shards) * leaf.addressable_shards[0].data.size // leaf.size for leaf in leaves}
            for kind, leaves in {
                "weights": jax.tree.leaves(state.trainable),
                "slots": [leaf for leaf in jax.tree.leaves(state.slots) if leaf.size % 8 == 0],
            }.items()
        }
        assert by_kind == {"weights": {8}, "slots": {1}}, "copies of each array"
