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
from keras_dist import layers
from keras_dist.errors import ModelError

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
    model.compile(kd.optimizers.SGD(0.5), loss, metrics=["accuracy"], **options)
    return model


@functools.cache
def results(mesh: str | None, loss: Any = LOSS, **options: Any) -> Any:
    """Rows in batches of 16 and 7, with a weight for each token."""
    model = model_on(mesh, loss=loss, **options)
    weighted = {} if loss is not LOSS else {"sample_weight": WEIGHT}
    history = model.fit(X, Y, 16, 2, verbose=0, shuffle=False, validation_data=(X[:7], Y[:7]), **weighted).history
    scores = model.evaluate(X, Y, 8, verbose=0, **weighted)
    outputs = model.predict(X, 8, verbose=0), model.predict_on_batch(X[:7])
    batch = (
        model.train_on_batch(X[:7], Y[:7], *(one[:7] for one in weighted.values())),
        model.test_on_batch(X[:5], Y[:5]),
    )
    weights = [variable.numpy() for variable in model.variables if variable.dtype == np.float32]
    return history, scores, outputs, batch, weights


def assert_same(found: Any, expected: Any) -> None:
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert np.shape(one) == np.shape(other)
        np.testing.assert_allclose(one, other, atol=3e-6, rtol=0)


@pytest.mark.parametrize("mesh", MESHES)
def test_ring_attention_on_rows_that_do_not_divide_has_the_numbers_of_one_device(mesh: str) -> None:
    assert_same(results(mesh, uneven="pad"), results(None))


def scalar(y_true: Any, y_pred: Any) -> Any:
    """One number for the batch, which no weights of rows could mend."""
    return jnp.mean(y_pred**2) + jnp.max(y_pred) * 0.1


def test_a_loss_that_is_one_number_sees_the_real_rows_alone() -> None:
    assert_same(results("data=2,model=4", scalar, uneven="pad"), results(None, scalar))


def test_each_step_sees_padding_in_the_module_alone() -> None:
    seen: dict[str, set[int]] = {"module": set(), "loss": set()}

    class Watching(Attending):
        def __call__(self, ids: Any) -> Any:
            seen["module"].add(len(ids))
            return super().__call__(ids)

    def loss(y_true: Any, y_pred: Any) -> Any:
        seen["loss"] |= {len(y_true), len(y_pred)}
        return jnp.mean(y_pred**2, (1, 2))

    model = model_on("data=4,model=2", Watching, loss, uneven="pad")
    model.fit(X, Y, 16, verbose=0)
    assert model.predict(X[:7], verbose=0).shape == (7, STEPS, VOCABULARY)
    assert model(X[:7]).shape == (7, STEPS, VOCABULARY)
    assert seen == {"module": {16, 8}, "loss": {16, 7}}


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


class Mapped(layers.Layer):
    """A layer that splits the rows itself, and keeps masks."""

    supports_masking = True

    def call(self, inputs: Any) -> Any:
        if "data" not in jax.sharding.get_abstract_mesh().axis_names:
            return inputs * 2
        return jax.shard_map(lambda x: x * 2, in_specs=P("data"), out_specs=P("data"))(inputs)


def test_models_of_layers_keep_their_masks() -> None:
    x = np.where(RNG.uniform(size=X.shape) < 0.3, 0, X)

    def history(mesh: str | None) -> Any:
        kd.set_random_seed(2)
        with on(mesh).scope():
            model = kd.Sequential(
                [kd.Input((STEPS,), dtype="int32"), layers.Embedding(VOCABULARY, 4, mask_zero=True), Mapped(),
                 layers.Dense(VOCABULARY)]
            )  # fmt: skip
        model.compile(kd.optimizers.SGD(0.5), LOSS, weighted_metrics=["accuracy"], uneven="pad")
        return model.fit(x, Y, 16, 2, verbose=0, shuffle=False).history, model.evaluate(x, Y, 8, verbose=0)

    assert_same(history("data=2,model=4"), history(None))


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


def test_what_has_no_rows_is_refused() -> None:
    class Scalar(Attending):
        def __call__(self, ids: Any) -> Any:
            return jnp.mean(super().__call__(ids))

    model = model_on("data=2,model=4", Scalar, lambda y, p: p, uneven="pad")
    model.compile("sgd", lambda y, p: p, uneven="pad")
    with pytest.raises(ModelError, match="has no row for each example") as caught:
        model.train_on_batch(X[:7], Y[:7])
    assert "7 rows, padded to 8" in caught.value.given
    with pytest.raises(ModelError, match="`uneven`"):
        model.compile("sgd", LOSS, uneven="cut")
