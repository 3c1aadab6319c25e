"""Attention in a ring equals attention on one device, with its gradients, and moves keys and values step by step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import keras_dist as kd
from keras_dist import layers
from keras_dist.distribution.tracing import kernels_noted, traced_in
from keras_dist.errors import DistributionError, ModelError
from tests.training.collectives import nbytes_by_axes

ROWS, LENGTH, HEADS, KV_HEADS, SIZE = 4, 16, 4, 2, 8
RNG = np.random.default_rng(0)
QUERY, SEED = (RNG.normal(size=(ROWS, LENGTH, HEADS, SIZE)).astype("float32") for _ in range(2))
KEY, VALUE = (RNG.normal(size=(ROWS, LENGTH, KV_HEADS, SIZE)).astype("float32") for _ in range(2))
MASKS = {
    "none": None,
    "of keys": RNG.random((ROWS, 1, 1, LENGTH)) < 0.8,
    "of heads": RNG.random((1, HEADS, LENGTH, LENGTH)) < 0.7,
    "of queries": np.ones((ROWS, 1, LENGTH, 1), bool),
}
MASKS["of heads"][:, :, 3] = False  # a target without sources


def in_ring(mesh="data=2,sequence=4"):
    return kd.ModelParallel(kd.LayoutMap(kd.DeviceMesh(mesh)), "data", sequence_axis="sequence")


def attended(distribution, arrays, **options):
    """Outputs and gradients, and the kernels that were noted."""

    def attend(*arrays):
        call = lambda: kd.ops.dot_product_attention(*arrays, **options)  # noqa: E731
        return call() if distribution is None else traced_in(distribution, ROWS, call)

    def both(*arrays):
        outputs, back = jax.vjp(attend, *arrays)
        return outputs, *back(jnp.asarray(SEED, outputs.dtype))

    with kernels_noted() as noted:
        return jax.jit(both)(*arrays), list(noted)


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("mask", MASKS)
def test_it_equals_attention_on_one_device_with_its_gradients(mask):
    options = {"mask": MASKS[mask], "is_causal": mask != "of queries", "scale": 0.4}
    found, noted = attended(in_ring(), (QUERY, KEY, VALUE), **options)
    assert noted == ["attention in a ring over sequence"]
    expected, noted = attended(None, (QUERY, KEY, VALUE), **options)
    assert not noted
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-6)


def test_fewer_sources_and_half_precision():
    arrays = QUERY, KEY[:, :8], VALUE[:, :8]
    found, _ = attended(in_ring("data=1,sequence=8"), arrays)
    for one, other in zip(found, attended(None, arrays)[0], strict=True):
        np.testing.assert_allclose(one, other, atol=2e-6)
    halves, _ = attended(in_ring(), [array.astype(jnp.bfloat16) for array in arrays])
    for one, other in zip(halves, found, strict=True):
        assert one.dtype == jnp.bfloat16
        np.testing.assert_allclose(one.astype("float32"), other, atol=0.05)


def test_reasons_against_a_ring_are_noted_or_raised():
    bias = np.zeros((1, 1, LENGTH, LENGTH), "float32")
    found, noted = attended(in_ring(), (QUERY, KEY, VALUE), bias=bias)
    assert noted == ["attention by XLA, which gathers keys and values over sequence: a bias"]
    np.testing.assert_allclose(found[0], attended(None, (QUERY, KEY, VALUE))[0][0], atol=2e-6)
    with pytest.raises(ModelError, match=r"(?s)in a ring cannot.*4 devices along 'sequence' do not divide 15 queries"):
        attended(in_ring(), (QUERY[:, :15], KEY, VALUE), implementation="ring")
    with pytest.raises(ModelError, match=r"(?s)in a ring cannot.*no sequence_axis"):
        attended(None, (QUERY, KEY, VALUE), implementation="ring")
    with pytest.raises(ModelError, match=r"(?s)`implementation`.*'ring'.*'rings'"):
        attended(None, (QUERY, KEY, VALUE), implementation="rings")
    assert attended(in_ring(), (QUERY, KEY, VALUE), implementation="xla")[1] == []


def test_sequences_of_unknown_length():
    with in_ring().scope():
        inputs = kd.Input((None, HEADS * SIZE))
        heads = kd.ops.reshape(inputs, (-1, LENGTH, HEADS, SIZE))
        model = kd.Model(inputs, kd.ops.dot_product_attention(heads, heads, heads, implementation="ring"))
    found = model.predict(QUERY.reshape(ROWS, LENGTH, -1), verbose=0)
    np.testing.assert_allclose(found, attended(None, (QUERY,) * 3)[0][0], atol=2e-6)


TOKENS, TARGETS = (RNG.integers(0, 12, (8, LENGTH)).astype("int32") for _ in range(2))


def model_on(distribution, **options):
    kd.utils.set_random_seed(0)
    with distribution.scope():
        inputs = kd.Input((LENGTH,), dtype="int32")
        x = layers.Embedding(12, 8, mask_zero=True, name="embed")(inputs)
        x = x + layers.GroupedQueryAttention(2, HEADS, KV_HEADS, name="attention", **options)(
            x, x, use_causal_mask=True
        )
        model = kd.Model(inputs, layers.Dense(12, name="head")(x))
    model.compile(kd.optimizers.SGD(0.5), kd.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def one_device():
    return kd.DataParallel(kd.DeviceMesh("data=1", devices=kd.list_devices()[:1]))


@pytest.mark.slow
def test_training_in_a_ring_equals_one_device():
    mesh = kd.DeviceMesh("data=2,sequence=4")
    runs = []
    for distribution in (one_device(), in_ring(), kd.FullySharded(mesh, "data", sequence_axis="sequence")):
        model = model_on(distribution, sliding_window=7)
        logs = model.fit(TOKENS, TARGETS, batch_size=8, epochs=3, shuffle=False, verbose=0).history["loss"]
        runs.append([logs, model.evaluate(TOKENS[:5], TARGETS[:5], verbose=0), *model.get_weights()])
    for run in runs[1:]:
        for found, expected in zip(run, runs[0], strict=True):
            np.testing.assert_allclose(found, expected, atol=2e-6)


@pytest.mark.slow
def test_the_plan_reports_the_exchanges_of_the_program():
    model = model_on(in_ring())
    report = model.plan(TOKENS, TARGETS)
    assert report.kernels == ("attention in a ring over sequence",) and not report.problems
    block = 4 * (8 // 2) * (LENGTH // 4) * KV_HEADS * 2
    # keys and values three times; then with their gradients, which return in one more step
    assert report.step.nbytes_by_axes()["collective_permute", ("sequence",)] == block * (2 * 3 + 4 * 3 + 2)
    compiled = nbytes_by_axes(model.lower_train_step(TOKENS, TARGETS).compile(), {"data": 2, "sequence": 4})
    assert compiled["collective_permute", ("sequence",)] == block * 20
    of_mask = {("all_gather", ("sequence",)): 8 // 2 * LENGTH}  # which keys are tokens
    assert {key: nbytes for key, nbytes in compiled.items() if key[0] in ("all_gather", "all_to_all")} == of_mask
    whole = model_on(one_device()).plan(TOKENS, TARGETS).step
    scores = 4 * 2 * 8 * LENGTH**2 * HEADS * 2  # two products of the backward pass are computed again, with scores
    assert whole.flops / 8 <= report.step.flops <= (whole.flops + scores) / 8


@pytest.mark.slow
def test_dropped_scores_need_all_keys():
    report = model_on(in_ring(), dropout=0.5).plan(TOKENS, TARGETS)
    assert report.kernels[0].startswith("attention by XLA, which gathers keys and values over sequence: dropout")
    assert ("all_gather", ("sequence",)) in report.step.nbytes_by_axes()


@pytest.mark.slow
def test_the_preset_has_the_axis():
    found = kd.presets.sequence_parallel(
        lambda: model_on(one_device()), (TOKENS, TARGETS), kd.DeviceMesh("data=2,sequence=4")
    )
    assert found.sequence_axis == "sequence" and found.layout_map["input/x"].axes == ("data", "sequence")
    assert model_on(found).plan(TOKENS, TARGETS).kernels == ("attention in a ring over sequence",)


def test_layouts_of_data_and_refused_axes():
    found = in_ring()
    shapes = {(8,): ("data",), (8, 16): ("data", "sequence"), (8, 15, 4): ("data", None, None)}
    assert {shape: found.get_data_layout(shape).axes for shape in shapes} == shapes
    for axis in ("data", "rows"):
        with pytest.raises(DistributionError, match=r"(?s)`sequence_axis`.*sequence_axis='sequence'"):
            kd.ModelParallel(kd.LayoutMap(kd.DeviceMesh("data=2,sequence=4")), "data", sequence_axis=axis)
