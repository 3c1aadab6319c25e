"""`enable_lora(dora=True)` and `lora_bias=True`: initial values, layouts, dropout, merging, folders and errors.

`tests/pretrained/test_adapters_with_vectors.py` compares numbers with peft.
"""

import copy

import numpy as np
import pytest

import keras_dist as kd
from keras_dist import layers
from keras_dist.errors import ModelError
from tests.adapters.test_enabling import TOLERANCE, X, Y, adapted, made, sharded, stacked, with_updates
from tests.adapters.test_lora_modules import made as made_module
from tests.pretrained.networks import FOLDER

DORA, BIAS = {"dora": True}, {"lora_bias": True}


def moved(model):
    """Give all factors other values."""
    for weight in with_updates(model).trainable_weights:
        if weight.name.endswith(("_magnitude", "_bias")):
            weight.assign(weight.numpy() * 1.5 + np.cos(np.arange(weight.size)).reshape(weight.shape))
    return model


@pytest.mark.parametrize("is_created", [False, True])
def test_a_model_begins_as_it_was_with_the_norms_of_its_kernels(is_created):
    plain, model = made(), made(sharded())
    if is_created:
        model.get_weights()
    model.enable_lora(2, "query|output|head", dora=True)
    assert model._built.cell.has_arrays is is_created, "no array is created for a magnitude alone"
    values = {weight.path: weight.numpy() for weight in model.weights}
    for name, dims in (("query", 0), ("output", (0, 1)), ("head", 0)):
        norms = np.sqrt(np.square(values[f"{name}/kernel"]).sum(dims))
        np.testing.assert_allclose(values[f"{name}/lora_kernel_magnitude"], norms, rtol=1e-6)
    np.testing.assert_allclose(model.predict(X, verbose=0), plain.predict(X, verbose=0), atol=TOLERANCE)


@pytest.mark.parametrize(("options", "end"), [(DORA, "magnitude"), (BIAS, "bias")])
def test_vectors_follow_the_outputs_of_their_kernels(options, end):
    model = adapted(sharded(), **options)
    rows = {row.path: row for row in model.layout_plan.rows}
    assert (rows[f"query/lora_kernel_{end}"].shape, rows[f"query/lora_kernel_{end}"].axes) == ((4, 2), ("model", None))
    assert (rows[f"output/lora_kernel_{end}"].shape, rows[f"output/lora_kernel_{end}"].axes) == ((8,), (None,))
    assert f"query/lora_kernel_{end}" in {weight.path for weight in model.trainable_weights}
    losses = []
    for distribution in (None, sharded(), kd.FullySharded(kd.DeviceMesh("data=8"), min_size_bytes=0)):
        model = moved(adapted(distribution, **options))
        model.compile("adam", "mse")
        losses.append(model.fit(X, Y, batch_size=16, epochs=2, shuffle=False, verbose=0).history["loss"])
    np.testing.assert_allclose(losses[1:], [losses[0]] * 2, rtol=TOLERANCE)


def test_dropout_drops_inputs_of_kernel_and_factors_beside_the_first_term():
    model = made(make=lambda: kd.Sequential([kd.Input((1,)), layers.Dense(1, use_bias=False, name="d")]))
    model.enable_lora(1, "d", dropout=0.75, dora=True)
    model.set_weights([[[2.0]], [[3.0]], [[5.0]], [8.5]])  # the sum is 17, the ratio a half
    x = np.ones((64, 1), "float32")
    np.testing.assert_allclose(model(x), 8.5)
    assert set(np.unique(np.asarray(model(x, training=True)))) == {2.0, 2.0 - 0.5 * 8 + 0.5 * 60}


@pytest.mark.parametrize("options", [DORA, BIAS])
def test_models_are_merged_saved_copied_and_loaded(options, tmp_path):
    def with_vectors(distribution=None):
        model = made(distribution)
        model.enable_lora(2, "query|head", alpha=3, **options)  # the output has no bias to merge with
        return moved(model)

    model = with_vectors(sharded())
    model.compile("adam", "mse")
    model.fit(X, Y, batch_size=8, verbose=0)
    expected = model.predict(X, verbose=0)
    model.save(tmp_path / "model")
    model.save_adapter(tmp_path / "adapter")
    model.save_weights(tmp_path / "merged.safetensors")
    model.save_weights(tmp_path / "merged.weights.h5")
    again, clone, fresh = kd.models.load_model(tmp_path / "model"), kd.models.clone_model(model), made()
    clone.set_weights(model.get_weights())
    fresh.set_weights([one.numpy() for one in model.weights if "lora" not in one.path])
    fresh.load_adapter(tmp_path / "adapter")
    for one in (again, copy.copy(model), clone, fresh):
        np.testing.assert_allclose(one.predict(X, verbose=0), expected, atol=TOLERANCE)
        assert [weight.path for weight in one.trainable_weights] == [weight.path for weight in model.trainable_weights]
    for file in ("merged.safetensors", "merged.weights.h5"):
        for one in (made(), with_vectors()):  # also over other updates
            one.load_weights(tmp_path / file)
            np.testing.assert_allclose(one.predict(X, verbose=0), expected, atol=TOLERANCE)
    model.merge_lora()
    np.testing.assert_allclose(model.predict(X, verbose=0), expected, atol=TOLERANCE)
    assert not any("lora" in weight.path for weight in model.weights)


@pytest.mark.parametrize(("equation", "shape"), [("abc,dce->aebd", (5, None, 6)), ("ab...,bcd->adc...", (3, 4))])
@pytest.mark.parametrize("options", [DORA, BIAS])
def test_outputs_in_other_orders_have_their_vectors(equation, shape, options):
    axes = "ed" if "e" in equation else "dc"

    def network():
        layer = layers.EinsumDense(equation, shape, bias_axes=axes if options is DORA else None, name="d")
        return kd.Sequential([kd.Input((3, 8)), layer])

    model = made(make=network)
    model.enable_lora(2, "d", **options)
    moved(model)
    if options is DORA:
        expected = model.predict(X, verbose=0)
        model.merge_lora()
        np.testing.assert_allclose(model.predict(X, verbose=0), expected, atol=TOLERANCE)
        return
    difference = model.predict(np.zeros_like(X), verbose=0)[0]
    value = model.get_layer("d").lora_kernel_bias.numpy()
    wanted = value.T[:, None] if "e" in equation else value.T[..., None]
    np.testing.assert_allclose(difference, np.broadcast_to(wanted, difference.shape), atol=TOLERANCE)
    with pytest.raises(ModelError, match="'d/kernel' cannot be merged"):
        model.merge_lora()
    np.testing.assert_allclose(model.predict(np.zeros_like(X), verbose=0)[0], difference, atol=TOLERANCE)


def test_padded_outputs_stay_zero():
    model = made(make=lambda: kd.Sequential([kd.Input((8,)), layers.Dense(3, use_bias=False, name="d")]))
    model.set_weights([np.diag([1.0, 2, 0, 0, 0, 0, 0, 0])[:, :3]])
    model.enable_lora(2, "d", dora=True)
    model.compile("sgd", "mse")
    model.fit(X[:, 0], Y[:, 0, :3], batch_size=16, verbose=0)
    found = model.predict(X[:, 0], verbose=0)
    assert np.isfinite(found).all() and np.abs(found[:, 2]).max() < 1e-20


def test_magnitudes_of_quantized_kernels_are_norms_of_what_they_stand_for():
    model = made()
    model.quantize("int8", "query")
    plain = model.predict(X, verbose=0)
    model.enable_lora(2, "query", dora=True)
    np.testing.assert_allclose(model.predict(X, verbose=0), plain, atol=TOLERANCE)
    expected = moved(model).predict(X, verbose=0)
    assert np.abs(expected - plain).max() > 0.1
    model.merge_lora()
    np.testing.assert_allclose(model.predict(X, verbose=0), expected, atol=TOLERANCE)


@pytest.mark.parametrize("options", [DORA, BIAS])
def test_described_networks_have_rows_and_no_arrays(options):
    with kd.FullySharded(kd.DeviceMesh("data=8"), min_size_bytes=0).scope():
        network = kd.pretrained.describe(FOLDER / "llama", scan=True)
        network.enable_lora(2, ".*/query", **options)
        tokens = np.zeros((8, 8), "int32")
        plan = kd.plan(network, (tokens, tokens), optimizer="adam", loss="causal_lm")
    end = "magnitude" if options is DORA else "bias"
    (row,) = (
        row for row in plan.state.rows if row.role == "parameter" and row.path.endswith(f"query/lora_kernel_{end}")
    )
    assert row.shape == (2, 4, 8) and "data" in row.axes
    assert not network._built.cell.has_arrays


def test_what_has_no_vectors_is_an_error_that_names_it(tmp_path):
    model = made(make=stacked)
    for options in (DORA, BIAS):
        with pytest.raises(
            ModelError, match=f"`{next(iter(options))}` is available for Dense and EinsumDense"
        ) as found:
            model.enable_lora(2, "table|c", **options)
        assert "table/embeddings" in str(found.value) and "c/kernel" in str(found.value)
        with pytest.raises(ModelError, match="available for Dense and EinsumDense"):
            made_module().enable_lora(2, "query", **options)
    with pytest.raises(ModelError, match="exclude each other"):
        made().enable_lora(2, "query", **DORA, **BIAS)
    adapted(**DORA).save_adapter(tmp_path / "a")
    with pytest.raises(ModelError, match="the files have dora, the model lora_bias"):
        adapted(**BIAS).load_adapter(tmp_path / "a")
    with pytest.raises(ModelError, match="the files have dora, the model neither"):
        adapted().load_adapter(tmp_path / "a")


def test_peft_has_vectors_for_all_parts_of_a_module(tmp_path):
    model = kd.pretrained.load(FOLDER / "phi3")
    model.enable_lora(2, ".*/query", dora=True)
    with pytest.raises(ModelError, match=r"key/kernel is without dora, which peft has for all of .*qkv_proj"):
        model.save_adapter(tmp_path / "a")
