"""Stacks of layers over an axis of stages are pipelines, which compute what one device computes."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import keras_dist as kd
from keras_dist import layers
from keras_dist.errors import DataError, DistributionError, LayoutError, LayoutWarning, ModelError
from keras_dist.pretrained import AttentionConfig, Decoder, DecoderConfig, FeedForwardConfig, Rotary
from keras_dist.pretrained import rules as rules_of
from tests.training.collectives import nbytes_by_axes

DEPTH, SIZE, ROWS, RATE, DIMS = 8, 4, 32, 0.1, (2, 1, 2, 1)
rng = np.random.default_rng(0)
X, Y = (rng.normal(size=(ROWS, SIZE)).astype("float32") for _ in range(2))
GPIPE = {"stack/.*kernel": ("stage", None, None), "stack/.*bias": ("stage", None)}
CIRCULAR = {rule: (None, *axes) for rule, axes in GPIPE.items()}
TENSOR_PARALLEL = {
    "stack/.*up/kernel": ("stage", None, "model"),
    "stack/.*down/kernel": ("stage", "model", None),
    "stack/.*up/bias": ("stage", "model"),
    "stack/.*down/bias": ("stage", None),
}


def block(*others):
    return kd.Sequential([layers.Dense(6, "tanh", name="up"), layers.Dense(SIZE, name="down"), *others], name="block")


def on(rules, mesh="data=2,stage=4", batch="data"):
    if rules is None:
        return contextlib.nullcontext()
    layout_map = kd.LayoutMap(kd.DeviceMesh(mesh))
    layout_map.update(rules)
    return kd.ModelParallel(layout_map, batch_dim_name=batch).scope()


def model_on(rules, mesh="data=2,stage=4", micro_batches=8, make=block, batch="data", **options):
    with on(rules, mesh, batch):
        model = kd.Sequential([kd.Input((SIZE,)), layers.Stack(make, **{"depth": DEPTH, **options}, name="stack")])
    model.compile(kd.optimizers.SGD(RATE), "mse", micro_batches=micro_batches)
    return model


def by_hand(weights, x, y, steps):
    """Losses and weights of gradient descent in plain JAX on one device."""
    whole = [
        weight.reshape(DEPTH, *weight.shape[weight.ndim - dims :]) for weight, dims in zip(weights, DIMS, strict=True)
    ]

    def loss(weights):
        hidden = x
        for up, up_bias, down, down_bias in zip(*weights, strict=True):
            hidden = jnp.tanh(hidden @ up + up_bias) @ down + down_bias
        return jnp.mean((hidden - y) ** 2)

    losses = []
    for _ in range(steps):
        value, gradients = jax.value_and_grad(loss)(whole)
        whole = [weight - RATE * gradient for weight, gradient in zip(whole, gradients, strict=True)]
        losses.append(value)
    return losses, whole


@pytest.fixture(scope="module")
def gpipe():
    return model_on(GPIPE)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    ("rules", "mesh", "options", "bubble"),
    [
        (GPIPE, "data=2,stage=4", {}, 3 / 11),
        (CIRCULAR, "data=2,stage=4", {"repeats": 2}, 3 / 19),
        (CIRCULAR, "stage=4,data=2", {"repeats": 2, "micro_batches": 2}, 5 / 9),
        (TENSOR_PARALLEL, "data=2,stage=2,model=2", {"micro_batches": 4, "remat": True}, 1 / 5),
    ],
    ids=["gpipe", "circular", "fewer micro-batches than stages", "tensor parallel, remat"],
)
def test_training_is_that_of_one_device(rules, mesh, options, bubble):
    model = model_on(rules, mesh, **options)
    losses, expected = by_hand(model.get_weights(), X, Y, 3)
    history = model.fit(X, Y, batch_size=ROWS, epochs=3, shuffle=False, verbose=0)
    np.testing.assert_allclose(history.history["loss"], losses, rtol=1e-5)
    for found, one in zip(model.get_weights(), expected, strict=True):
        np.testing.assert_allclose(found.reshape(one.shape), one, atol=1e-6)
    [pipeline] = model.plan(X, Y).pipelines
    assert pipeline.bubble == pytest.approx(bubble)
    assert pipeline.schedule == ("circular" if options.get("repeats") else "gpipe")


def test_only_micro_batches_move_between_stages(gpipe):
    sizes, report = {"data": 2, "stage": 4}, gpipe.plan(X, Y)
    found = nbytes_by_axes(gpipe.lower_train_step(X, Y).compile(), sizes)
    weights, micro_batch = DEPTH // 4 * (6 * SIZE + 6 + SIZE * 6 + SIZE), ROWS // 8 // 2 * SIZE
    assert found == {
        ("collective_permute", ("stage",)): 4 * micro_batch * 11 * 2,  # in each turn, forward and back
        ("all_reduce", ("stage",)): 4 * micro_batch * 8,  # the output
        ("all_reduce", ("data",)): 4 * weights + 4,  # gradients once, and the loss
    }
    assert (report.step.nbytes_by_axes(), report.step.estimates) == (found, ())
    assert "'stack/block' over 'stage': 4 stages, 8 micro-batches, gpipe, 11 turns, bubble 27.3%" in str(report)
    assert report.to_dict()["pipelines"][0]["bubble"] == pytest.approx(3 / 11)


@pytest.mark.slow
def test_partial_batches_are_exact(gpipe):
    kernels = gpipe.get_weights()
    for rows in (30, 13, 1):
        losses, _ = by_hand(kernels, X[:rows], Y[:rows], 1)
        np.testing.assert_allclose(gpipe.evaluate(X[:rows], Y[:rows], batch_size=16, verbose=0), losses[0], rtol=1e-5)
        assert gpipe.predict(X[:rows], verbose=0).shape == (rows, SIZE)


@pytest.mark.slow
def test_dropout_is_equal_on_all_meshes():
    def train(mesh, **options):
        kd.random.set_random_seed(0)
        model = model_on(GPIPE, mesh, make=lambda: block(layers.Dropout(0.5)), **options)
        return model.fit(X, Y, epochs=2, verbose=0).history["loss"]

    expected = train("data=4,stage=2")
    np.testing.assert_allclose(train("data=2,stage=4"), expected, rtol=1e-5)
    assert not np.allclose(train("data=2,stage=4", micro_batches=4), expected, rtol=1e-3), "other numbers are drawn"


@pytest.mark.slow
def test_states_of_generators_are_no_weights_of_a_circular_pipeline():
    model = model_on(CIRCULAR, make=lambda: block(layers.Dropout(0.5)), repeats=2)
    assert np.isfinite(model.evaluate(X, Y, batch_size=16, verbose=0))


@pytest.mark.slow
def test_losses_of_layers_are_averaged_over_micro_batches():
    class Penalty(layers.Layer):
        def call(self, inputs):
            self.add_loss((inputs**2).mean())
            return inputs

    models = [model_on(rules, make=lambda: block(Penalty())) for rules in (GPIPE, None)]
    models[1].set_weights(models[0].get_weights())
    found, expected = (model.test_on_batch(X, Y) for model in models)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.first_cases(2)
@pytest.mark.parametrize(
    ("make", "kind", "said"),
    [
        (lambda: model_on(GPIPE, depth=6), LayoutError, "cannot shard dim 0"),
        (
            lambda: model_on(GPIPE).fit(X, Y, batch_size=24, verbose=0),
            DataError,
            "micro-batches do not divide the batch",
        ),
        (
            lambda: model_on(GPIPE, make=lambda: block(layers.BatchNormalization())).fit(X, Y, verbose=0),
            ModelError,
            "cannot be pipelined",
        ),
        (
            lambda: model_on({**GPIPE, "stack/.*bias": ("other", None)}, "data=2,stage=2,other=2").fit(X, Y, verbose=0),
            DistributionError,
            "different axes",
        ),
        (lambda: model_on(None, micro_batches=0), ModelError, "`micro_batches` must be"),
    ],
    ids=["depth", "batch", "statistics", "axes", "micro-batches"],
)
def test_what_cannot_be_pipelined(make, kind, said):
    with pytest.raises(kind, match=said):
        make()


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(("batch", "said"), [("data", "gathers and computes"), (("data", "stage"), "gathers")])
def test_stages_without_micro_batches_are_warned_of(batch, said):
    model = model_on(GPIPE, micro_batches=None, batch=batch)
    with pytest.warns(LayoutWarning, match="'stack/block' is sharded over 'stage'.*no `micro_batches`"):
        model.predict(X, verbose=0)
    with pytest.warns(LayoutWarning, match="no `micro_batches`"):
        report = model.plan(X, Y)
    [problem] = report.problems
    assert problem.given == f"each of the 4 stages {said} all layers"
    assert (problem.kind, problem.path, problem.fix) == ("pipeline", "stack/block", "compile(..., micro_batches=8)")
    assert not report.pipelines, "it is none"


@pytest.mark.slow
@pytest.mark.parametrize("has_places", [False, True])
def test_a_scanned_decoder_is_pipelined_too(has_places):
    rotary = {"rotary": Rotary(), "layers_without_rotary": (2,), "window": 3, "sliding_layers": (0, 2)}
    attention = AttentionConfig(num_heads=2, num_kv_heads=1, head_dim=4, **rotary)
    sizes = {"vocab_size": 16, "hidden_size": 8, "num_layers": 4, "feed_forward": FeedForwardConfig(8)}
    config = DecoderConfig(family="llama", attention=attention, **sizes)
    tokens = rng.integers(0, 16, (16, 6)).astype("int32")
    places = {"positions": np.sort(tokens, -1), "segments": np.sort(tokens // 8, -1)} if has_places else {}
    rules, models = rules_of(config, kd.DeviceMesh("data=2,stage=4"), scan=True, stage="stage"), []
    for distribution in (kd.DataParallel(devices=["cpu:0"]), kd.ModelParallel(rules, batch_dim_name="data")):
        kd.random.set_random_seed(0)
        with distribution.scope():
            models.append(Decoder(config, scan=True))
            models[-1].build()
        models[-1].compile("sgd", "sparse_categorical_crossentropy", micro_batches=8)
    expected, found = (model.train_on_batch({"tokens": tokens, **places}, tokens) for model in models)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    for one, other in zip(*(model.get_weights() for model in models), strict=True):
        np.testing.assert_allclose(other, one, atol=1e-6)
    assert [each.layer for each in models[1].plan({"tokens": tokens, **places}, tokens).pipelines] == ["layers"]
