"""`compile(uneven="pad")`: modules that split rows themselves get rows that the mesh divides; the numbers stay."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P

import keras_dist as kd
from keras_dist.errors import ModelError
from tests.soak import few

VOCABULARY, STEPS, WIDTH = 12, 8, 8
RNG = np.random.default_rng(0)
X, Y = RNG.integers(1, VOCABULARY, (2, 23, STEPS))
WEIGHT = RNG.uniform(0, 2, (23, STEPS)).astype("f4")
LOSS = kd.losses.SparseCategoricalCrossentropy(from_logits=True)
MESHES = ["data=2,model=4", "data=8,model=1"]


def attention(q: Any, k: Any, v: Any) -> Any:
    return jax.nn.softmax(jnp.einsum("btd,bsd->bts", q, k)) @ v


def ring(q: Any, k: Any, v: Any) -> Any:
    """Attention whose keys and values go around the axis `model`, over which the steps are split."""
    size = jax.sharding.get_abstract_mesh().shape["model"]

    def local(q: Any, k: Any, v: Any) -> Any:
        most, total, out = jnp.full(q.shape[:2], -jnp.inf), jnp.zeros(q.shape[:2]), jnp.zeros_like(q)
        for _ in range(size):
            scores = jnp.einsum("btd,bsd->bts", q, k)
            now = jnp.maximum(most, scores.max(-1))
            parts, before = jnp.exp(scores - now[..., None]), jnp.exp(most - now)
            out = out * before[..., None] + jnp.einsum("bts,bsd->btd", parts, v)
            most, total = now, total * before + parts.sum(-1)
            k, v = (jax.lax.ppermute(one, "model", [(i, (i + 1) % size) for i in range(size)]) for one in (k, v))
        return out / total[..., None]

    spec = P("data", "model")
    return jax.shard_map(local, in_specs=(spec,) * 3, out_specs=spec, check_vma=False)(q, k, v)


class Attending(nnx.Module):
    def __init__(self, rngs: nnx.Rngs, attend: Any = ring) -> None:
        self.embed = nnx.Embed(VOCABULARY, WIDTH, rngs=rngs)
        self.qkv = nnx.Linear(WIDTH, 3 * WIDTH, rngs=rngs)
        self.drop = nnx.Dropout(0.2, rngs=rngs)
        self.out = nnx.Linear(WIDTH, VOCABULARY, rngs=rngs)
        self.attend = attend

    def __call__(self, ids: Any) -> Any:
        h = self.embed(ids)
        return self.out(self.drop(h + self.attend(*jnp.split(self.qkv(h), 3, -1))))


def on(mesh: str | None) -> Any:
    if mesh is None:
        return kd.DataParallel(devices=["cpu:0"])
    return kd.ModelParallel(kd.LayoutMap(kd.DeviceMesh(mesh)), batch_dim_name="data")


def model_on(mesh: str | None, factory: Any = Attending, loss: Any = LOSS, **options: Any) -> Any:
    attend = {"attend": attention} if mesh is None and factory is Attending else {}
    with on(mesh).scope():
        model = kd.Model.from_nnx(lambda rngs: factory(rngs, **attend), seed=1)
    model.compile(kd.optimizers.SGD(0.5), loss, **{"metrics": ["accuracy"], **options})
    return model


def results(mesh: str | None, **options: Any) -> Any:
    """Rows in batches of 16 and 7, with a weight for each token."""
    model = model_on(mesh, **options)
    weighted = {"sample_weight": WEIGHT}
    history = model.fit(X, Y, 16, 2, verbose=0, shuffle=False, validation_data=(X[:7], Y[:7]), **weighted).history
    scores = model.evaluate(X, Y, 8, verbose=0, **weighted)
    outputs = model.predict(X, 8, verbose=0), model.predict_on_batch(X[:7])
    batch = model.train_on_batch(X[:7], Y[:7], WEIGHT[:7]), model.test_on_batch(X[:5], Y[:5])
    weights = [variable.numpy() for variable in model.variables if variable.dtype == np.float32]
    return history, scores, outputs, batch, weights


@functools.cache
def results_of_one_device() -> Any:
    return results(None)


def assert_same(found: Any, expected: Any) -> None:
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert np.shape(one) == np.shape(other)
        np.testing.assert_allclose(one, other, atol=3e-6, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", few(MESHES, "data=2,model=4"))
def test_ring_attention_on_rows_that_do_not_divide_has_the_numbers_of_one_device(mesh: str) -> None:
    assert_same(results(mesh, uneven="pad"), results_of_one_device())


def scalar(y_true: Any, y_pred: Any) -> Any:
    """One number for the batch, which no weights of rows could mend."""
    return jnp.mean(y_pred**2) + jnp.max(y_pred) * 0.1


@pytest.mark.slow
def test_a_loss_that_is_one_number_sees_the_real_rows_alone() -> None:
    found = []
    for mesh, options in (("data=2,model=4", {"uneven": "pad"}), (None, {})):
        model = model_on(mesh, loss=scalar, **options)
        found.append((model.fit(X, Y, 16, 2, verbose=0, shuffle=False).history, model.test_on_batch(X[:5], Y[:5])))
    assert_same(*found)


@pytest.mark.slow
def test_steps_of_the_users_own_pad_by_stateless_call() -> None:
    def losses(mesh: str | None) -> list[float]:
        def train_step(state: Any, batch: Any, rngs: Any) -> Any:
            def loss_of(trainable: Any) -> Any:
                outputs, rest = model.stateless_call(trainable, state.rest, batch[0], training=False)
                return LOSS(batch[1], outputs), rest

            (loss, rest), grads = jax.value_and_grad(loss_of, has_aux=True)(state.trainable)
            return model.apply_gradients(state.replace(rest=rest), grads), {"loss": loss}

        model = model_on(mesh)
        model.compile(kd.optimizers.SGD(0.5), LOSS, train_step=train_step, uneven="pad")
        return model.fit(X, Y, 16, 2, verbose=0, shuffle=False).history["loss"]

    np.testing.assert_allclose(losses("data=2,model=4"), losses(None), atol=3e-6)


def test_statistics_count_the_added_rows_which_repeat_the_last_one() -> None:
    class Normalised(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.bn = nnx.BatchNorm(3, momentum=0.0, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return self.bn(x)

    x = RNG.normal(size=(7, 3)).astype("f4")
    model = model_on("data=8,model=1", Normalised, "mse", uneven="pad")
    model.train_on_batch(x, x)
    mean = next(variable.numpy() for variable in model.variables if variable.path == "bn/mean")
    np.testing.assert_allclose(mean, np.concatenate([x, x[-1:]]).mean(0), atol=1e-6)


class Auxiliary(Attending):
    """Outputs without rows: a number, a table of constants as long as padded batches, and one computed from rows."""

    def __call__(self, ids: Any) -> Any:
        y = super().__call__(ids)
        return {
            "y": y,
            "mean": jnp.mean(y),
            "table": jnp.arange(16.0).reshape(8, 2),
            "load": jnp.sum(y[..., :8], (0, 1)),
        }


@pytest.mark.slow
def test_outputs_without_rows_stay_as_they_are() -> None:
    model = model_on("data=8,model=1", Auxiliary, {"y": LOSS}, metrics=None, uneven="pad")
    plain = model_on("data=8,model=1", Attending, uneven="pad")
    expected = plain.predict(X, 8, verbose=0)
    padded = np.concatenate([expected[-7:], expected[-1:]])
    for size in (8, 16):  # of 8 rows, and padded to 8, the table is as long
        found = model.predict(X, size, verbose=0)
        batches = -(-23 // size)
        assert_same(found["y"], expected)
        assert found["mean"].shape == (batches,)
        assert_same(found["table"], np.tile(np.arange(16.0).reshape(8, 2), (batches, 1, 1)))
        np.testing.assert_allclose(found["load"][-1], padded[..., :8].sum((0, 1)), rtol=1e-5)
    assert model.predict_on_batch(X[:7])["table"].shape == model(X[:7])["table"].shape == (8, 2)
    assert model(X[:7])["y"].shape[0] == 7
    assert_same(model.train_on_batch(X[:7], Y[:7]), plain.train_on_batch(X[:7], Y[:7])[0])


@pytest.mark.parametrize(
    "options",
    [
        {"loss": {"y": LOSS, "load": lambda y, load: jnp.mean(load)}},
        {"loss": {"y": LOSS}, "metrics": {"load": [kd.metrics.Mean()]}},
        {"loss": lambda y, outputs: jnp.mean(outputs["y"])},
    ],
    ids=["loss", "metric", "whole"],
)
def test_losses_of_outputs_without_rows_are_refused_at_the_first_step(options: Any) -> None:
    model = model_on("data=8,model=1", Auxiliary, LOSS)
    model.compile("sgd", uneven="pad", **options)
    targets: Any = {"y": Y[:16], "load": np.zeros(16, "f4")} if isinstance(options["loss"], dict) else Y[:16]
    with pytest.raises(ModelError, match=r"output \['(load|mean)'\] has a loss or a metric, but no row"):
        model.train_on_batch(X[:16], targets)


def test_what_has_no_rows_is_refused() -> None:
    class Scalar(Attending):
        def __call__(self, ids: Any) -> Any:
            return jnp.mean(super().__call__(ids))

    model = model_on("data=2,model=4", Scalar, lambda y, p: p)
    model.compile("sgd", lambda y, p: p, uneven="pad")
    with pytest.raises(ModelError, match="output of the model has a loss or a metric, but no row"):
        model.train_on_batch(X[:8], Y[:8])
    assert model(X[:7]).shape == (), "of the padded rows, as the docstring of `compile` says"
    with pytest.raises(ModelError, match="`uneven`"):
        model.compile("sgd", LOSS, uneven="cut")
