"""`Model.quantize`: numbers and formats of qwix, adapters on top, files, and errors."""

import copy

import jax.numpy as jnp
import numpy as np
import pytest
import qwix
from flax import nnx

import keras_dist as kd
from keras_dist import layers
from keras_dist.errors import ModelError
from keras_dist.layers.base.quantized import MODES, Quantization
from tests import layouts

RNG = np.random.default_rng(0)
X = RNG.normal(size=(16, 6, 48)).astype("float32")
Y = RNG.normal(size=(16, 6, 5)).astype("float32")
RULES = {
    "query/kernel": (None, "model", None),
    "output/kernel": ("model", None, None),
    "moe/experts_.*": ("model", None, None),
}


def of_qwix(weight, mode, dims, tile):
    """The weight as qwix quantizes it as a whole, dequantized."""
    how = {"channelwise_axes": [dim for dim in range(weight.ndim) if dim != dims], "tiled_axes": {dims: tile}}
    return qwix.quantize(jnp.asarray(weight), jnp.float8_e4m3fn if mode == "fp8" else mode, **how)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("shape", "dim", "tile"),
    [((128, 24), -2, 64), ((3, 96, 4, 8), -3, 48), ((4, 22, 40), -2, 22), ((2, 134, 3), -2, 134)],
)
def test_values_and_scales_are_those_of_qwix(mode, shape, dim, tile):
    weight = (RNG.normal(size=shape) * RNG.choice([1e-4, 1, 300])).astype("float32")
    weight.reshape(-1)[:200] = 0
    form = Quantization(mode, dim, tile, "float32")
    values, scale = form.quantized(weight)
    assert values.shape == form.stored_shape(shape)
    expected = of_qwix(weight, mode, len(shape) + dim, tile)
    np.testing.assert_array_equal(scale, expected.scale)
    np.testing.assert_array_equal(form.dequantized(jnp.asarray(values), jnp.asarray(scale)), qwix.dequantize(expected))
    np.testing.assert_array_equal(form.dequantized(values, scale, np), qwix.dequantize(expected))


def network():
    inputs = kd.Input((6, 48), name="x")
    hidden = layers.EinsumDense("abc,cde->abde", (None, 4, 8), bias_axes="de", name="query")(inputs)
    hidden = layers.EinsumDense("abde,dec->abc", (None, 48), name="output")(hidden)
    hidden = layers.MixtureOfExperts(4, 16, name="moe")(hidden)
    hidden = layers.Conv1D(32, 3, padding="same", name="conv")(hidden)
    return kd.Model(inputs, layers.Dense(5, name="head")(hidden))


TILES = {"query": (0, 48), "output": (1, 8), "moe/experts_gate": (1, 48), "moe/experts_up": (1, 48)}
TILES |= {"moe/experts_down": (1, 16), "conv": (1, 48), "head": (0, 32)}


def made(where="one device", mode=None):
    kd.utils.set_random_seed(1)
    with layouts.on(where, RULES).scope():
        model = network()
        model.build((None, 6, 48))
    if mode:
        model.quantize(mode)
    return model


def reference(mode):
    """The outputs with weights that qwix has quantized and dequantized."""
    model = made()
    for weight in model.weights:
        dims = TILES.get(weight.path.removesuffix("/kernel"))
        if dims:
            weight.assign(np.asarray(qwix.dequantize(of_qwix(weight.numpy(), mode, *dims))))
    return np.asarray(model(X))


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("where", ["data=2,model=4", "fully data=8", "one device"])
def test_outputs_are_those_with_weights_of_qwix(where, mode):
    model = made(where, mode)
    expected = reference(mode)
    np.testing.assert_allclose(np.asarray(model(X)), expected, atol=1e-5 * np.abs(expected).max())
    stored = {row.path: (row.shape, str(row.dtype)) for row in model.layout_plan.rows}
    assert stored["query/kernel_scale"] == ((1, 4, 8), "float32")
    kinds = {"int8": (48, "int8"), "int4": (24, "int8"), "nf4": (24, "uint8"), "fp8": (48, "uint8")}
    assert stored["query/kernel"] == ((kinds[mode][0], 4, 8), kinds[mode][1]), "no two modes are alike"
    assert str(stored["moe/router"]) == "((48, 4), 'float32')"


def test_scales_have_the_layout_of_their_weight_where_an_axis_divides_them():
    axes = {row.path: row.axes for row in made("data=2,model=4", "nf4").layout_plan.rows}
    assert axes["query/kernel"] == axes["query/kernel_scale"] == (None, "model", None)
    assert axes["moe/experts_up"] == axes["moe/experts_up_scale"] == ("model", None, None)
    fully = {row.path: row.axes for row in made("fully data=8", "nf4").layout_plan.rows}
    assert fully["query/kernel"] == ("data", None, None)
    assert fully["query/kernel_scale"] == (None, None, "data"), "one tile of inputs, so another dim"
    assert fully["output/kernel"] == fully["output/kernel_scale"] == (None, None, "data")


@pytest.mark.parametrize("where", ["data=2,model=4", "fully data=8"])
@pytest.mark.parametrize("mode", ["int8", "nf4"])
def test_adapters_train_as_on_the_dequantized_weights(where, mode):
    model, plain = made(where, mode), made(where)
    for weight in plain.weights:
        dims = TILES.get(weight.path.removesuffix("/kernel"))
        if dims:
            weight.assign(np.asarray(qwix.dequantize(of_qwix(weight.numpy(), mode, *dims))))
    losses = []
    for one in (model, plain):
        one.enable_lora(2, "query|output|conv|moe/experts_up", alpha=4)
        for weight in one.trainable_weights:
            weight.assign(np.sin(np.arange(weight.size)).reshape(weight.shape) / 4)
        one.compile("adam", "mse")
        losses.append(one.fit(X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0).history["loss"])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
    assert [weight.path for weight in model.trainable_weights] == [weight.path for weight in plain.trainable_weights]
    slots = [row for row in model.state_plan.rows if row.role == "slot" and row.shape]
    assert len(slots) == 2 * len(model.trainable_weights), "Adam's moments of the adapters alone"
    for one, other in zip(model.trainable_weights, plain.trainable_weights, strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), atol=1e-5)


def test_a_quantized_model_is_saved_copied_and_merged(tmp_path):
    model = made("data=2,model=4", "nf4")
    model.enable_lora(2, "query|output", alpha=4)
    model.compile("adam", "mse")
    model.fit(X, Y, batch_size=8, epochs=1, verbose=0)
    before = np.asarray(model(X))
    model.save(tmp_path / "folder")
    with layouts.on("data=2,model=4", RULES).scope():
        loaded = kd.models.load_model(tmp_path / "folder")
    assert [(one.path, one.dtype) for one in loaded.weights] == [(one.path, one.dtype) for one in model.weights]
    for one in (loaded, copy.deepcopy(model)):
        np.testing.assert_array_equal(np.asarray(one(X)), before)
    history = [
        one.fit(X, Y, batch_size=8, epochs=1, shuffle=False, verbose=0).history["loss"] for one in (model, loaded)
    ]
    assert history[0] == history[1], "training goes on bit for bit"
    before = np.asarray(model(X))
    model.merge_lora()
    np.testing.assert_allclose(np.asarray(model(X)), before, atol=1e-5 * np.abs(before).max())
    kinds = {one.path: str(one.dtype) for one in model.weights}
    assert list(kinds)[:3] == ["query/kernel", "query/bias", "output/kernel"], "in their order from before"
    assert (kinds["query/kernel"], kinds["conv/kernel"]) == ("float32", "uint8")
    assert "query/kernel_scale" not in kinds and "conv/kernel_scale" in kinds
    assert "query/kernel" in [one.path for one in model.trainable_weights]


def test_files_of_safetensors_hold_stored_values_and_are_read_by_both(tmp_path):
    model = made(mode="int8")
    model.save_weights(tmp_path / "w.safetensors")
    other = made("fully data=8", "int8")
    other.load_weights(tmp_path / "w.safetensors")
    np.testing.assert_allclose(np.asarray(other(X)), np.asarray(model(X)), rtol=1e-5, atol=1e-4)
    plain = made()
    plain.save_weights(tmp_path / "plain.safetensors")
    other.load_weights(tmp_path / "plain.safetensors")  # is quantized as it is read
    for path in ("query/kernel", "query/kernel_scale", "moe/experts_down"):
        values = [next(one.numpy() for one in each.weights if one.path == path) for each in (other, model)]
        np.testing.assert_array_equal(*values)
    with pytest.raises(ModelError, match="kernel_scale"):
        plain.load_weights(tmp_path / "w.safetensors")


class Net(nnx.Module):
    def __init__(self, rngs):
        self.up, self.down = nnx.Linear(48, 128, rngs=rngs), nnx.Linear(128, 5, rngs=rngs)

    def __call__(self, x):
        return self.down(nnx.relu(self.up(x)))


@pytest.mark.parametrize("mode", MODES)
def test_modules_of_nnx_compute_with_weights_of_qwix(mode, tmp_path):
    rules = {"up/kernel": (None, "model"), "down/kernel": ("model", None)}
    model = layouts.model_on("data=2,model=4", Net, rules)
    weights = {one.path: one.numpy() for one in model.weights}
    model.quantize(mode)
    up, down = (
        np.asarray(qwix.dequantize(of_qwix(weights[f"{name}/kernel"], mode, 0, tile)))
        for name, tile in (("up", 48), ("down", 64))
    )
    expected = np.maximum(X @ up + weights["up/bias"], 0) @ down + weights["down/bias"]
    np.testing.assert_allclose(np.asarray(model(X)), expected, atol=1e-5)
    axes = {row.path: row.axes for row in model.layout_plan.rows}
    assert axes["quantized/up/kernel/scale"] == axes["up/kernel"] == (None, "model")
    model.enable_lora(2, "up|down")
    model.compile("adam", "mse")
    model.fit(X, Y, batch_size=8, epochs=1, verbose=0)
    assert [one.path for one in model.trainable_weights] == [
        f"lora/{name}/kernel/{end}" for name in ("down", "up") for end in "ab"
    ]
    before = np.asarray(model(X))
    model.save(tmp_path / "folder")
    with layouts.on("data=2,model=4", rules).scope():
        loaded = kd.models.load_model(tmp_path / "folder", factory=Net)
    np.testing.assert_array_equal(np.asarray(loaded(X)), before)
    model.merge_lora()
    np.testing.assert_allclose(np.asarray(model(X)), before, atol=1e-5)
    assert {str(one.dtype) for one in model.weights} == {"float32"}


def adapted():
    model = made()
    model.enable_lora(2, "query")
    return model


ERRORS = [
    (made, ("int3",), "`mode` must be one of"),
    (made, ("int8", "qery"), "'qery' matches none.*'query'"),
    (made, ("int8", 3), "`layers` must be"),
    (made, ("int8", ["moe/router"]), "'moe/router' matches none"),
    (lambda: made(mode="nf4"), ("int8", "query"), "'query/kernel' is quantized"),
    (lambda: made(mode="nf4"), ("int8",), "7 weights are quantized already"),
    (adapted, ("int8",), "the model has adapters"),
    (lambda: kd.Sequential([kd.Input((7,)), layers.Dense(3)]), ("nf4",), "its inputs are 7"),
    (lambda: kd.Sequential([kd.Input((7,)), layers.ReLU()]), ("nf4",), "no weights"),
    (lambda: kd.Sequential([kd.Input((8,)), layers.Dense(3, dtype="complex64")]), ("int8",), "numbers are complex64"),
]


@pytest.mark.parametrize(("make", "arguments", "message"), ERRORS)
def test_what_cannot_be_quantized_is_an_error_and_the_model_stays(make, arguments, message):
    model = make()
    before = [(one.path, str(one.dtype)) for one in model.weights]
    with pytest.raises(ModelError, match=f"(?s){message}"):
        model.quantize(*arguments)
    assert [(one.path, str(one.dtype)) for one in model.weights] == before


def test_files_of_keras_hold_no_quantized_weights(tmp_path):
    model = made(mode="int8")
    for save in (lambda: model.save(tmp_path / "m.keras"), lambda: model.save_weights(tmp_path / "m.weights.h5")):
        with pytest.raises(ModelError, match="files of Keras cannot hold quantized weights"):
            save()


def test_qwix_says_what_to_use_instead():
    model = kd.Sequential([kd.Input((8,)), layers.Dense(4)])
    rules = [qwix.QuantizationRule(module_path=".*", weight_qtype="int8")]
    lora = qwix.LoraProvider(module_path=".*", rank=2, alpha=4.0, weight_qtype="int8")
    for attempt in (
        lambda: qwix.quantize_model(model, qwix.PtqProvider(rules), np.zeros((2, 8), "float32")),
        lambda: qwix.apply_lora_to_model(model, lora, np.zeros((2, 8), "float32"), rngs=nnx.Rngs(0)),
    ):
        with pytest.raises(ModelError, match=r'model\.quantize\("int8"\)'):
            attempt()
    assert len(model.weights) == 2


def test_weights_that_do_not_exist_yet_are_not_created_by_adapters():
    model = kd.pretrained.Decoder(
        kd.pretrained.DecoderConfig(
            family="llama",
            vocab_size=2**20,
            hidden_size=2**14,
            num_layers=64,
            attention=kd.pretrained.AttentionConfig(128, 8, 128),
            feed_forward=kd.pretrained.FeedForwardConfig(2**16),
        ),
        scan=True,
        dtype="bfloat16",
    )  # of half a terabyte
    model.enable_lora(8, ".*/query")
    assert not model._with_weights().cell.has_arrays
    assert len(model.trainable_weights) == 2


@pytest.mark.parametrize(("here", "there"), [("int4", "nf4"), ("nf4", "int4"), ("int8", "fp8"), ("fp8", "int8")])
def test_values_of_another_mode_are_refused(here, there, tmp_path):
    made(mode=there).save_weights(tmp_path / "w.safetensors")
    model = made(mode=here)
    before = np.asarray(model(X))
    with pytest.raises(ModelError, match=r"(?s)quantized in another mode.*query/kernel"):
        model.load_weights(tmp_path / "w.safetensors")
    np.testing.assert_array_equal(np.asarray(model(X)), before)


class Tied(layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.up = layers.Dense(32, name="up")

    def build(self, input_shape):
        self.up.build(input_shape)

    def call(self, x):
        return self.up(x) @ self.up.kernel[...].T


class Own(layers.Dense):
    def call(self, x):
        return x @ self.kernel[...]


def test_codes_are_never_taken_for_numbers():
    model = kd.Sequential([kd.Input((64,)), Tied(name="tied")])
    model.quantize("int8")
    with pytest.raises(ModelError, match="kernel' is quantized"):
        model(np.ones((2, 64), "float32"))
    own = kd.Sequential([kd.Input((64,)), Own(32, name="own")])
    with pytest.raises(ModelError, match="Own has its own `call`"):
        own.quantize("int8", "own")
    plain = kd.Sequential([kd.Input((64,)), layers.Dense(32, name="up")])
    kernel = plain.layers[0].kernel.numpy()
    plain.quantize("int8")
    with pytest.raises(ModelError, match="cannot assign numbers to 'up/kernel'"):
        plain.layers[0].kernel.assign(kernel)
    assert plain.layers[0].kernel.numpy().dtype == np.int8


def test_numbers_that_are_not_finite_stay_visible():
    for mode in MODES:
        model = kd.Sequential([kd.Input((64,)), layers.Dense(32, use_bias=False, name="up")])
        kernel = model.layers[0].kernel.numpy()
        kernel[3, 4] = np.nan
        model.layers[0].kernel.assign(kernel)
        model.quantize(mode)
        found = np.isnan(np.asarray(model(np.ones((2, 64), "float32"))))
        assert found[:, 4].all() and not np.delete(found, 4, 1).any()


def test_an_interrupted_quantization_changes_nothing(monkeypatch):
    model = made()
    before, original, calls = np.asarray(model(X)), Quantization.quantized, []

    def interrupted(self, weight):
        calls.append(weight)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(self, weight)

    monkeypatch.setattr(Quantization, "quantized", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.quantize("nf4")
    np.testing.assert_array_equal(np.asarray(model(X)), before)
    assert not [one.path for one in model.weights if one.path.endswith("_scale")]


def test_variables_of_modules_that_were_read_before_are_made_anew(tmp_path):
    model = kd.Model.from_nnx(Net(nnx.Rngs(0)))
    assert [one.shape for one in model.weights if one.path == "up/kernel"] == [(48, 128)]
    model.quantize("nf4", "up")
    (kernel,) = (one for one in model.weights if one.path == "up/kernel")
    assert (kernel.shape, str(kernel.dtype), kernel.numpy().shape) == ((24, 128), "uint8", (24, 128))
    before = np.asarray(model(X))
    model.save_weights(tmp_path / "q.safetensors")
    other = kd.Model.from_nnx(Net(nnx.Rngs(1)))
    other.quantize("nf4", "up")
    other.load_weights(tmp_path / "q.safetensors")
    np.testing.assert_array_equal(np.asarray(other(X)), before)
    model.enable_lora(2, "up")
    model.merge_lora()
    assert [one.numpy().shape for one in model.weights if one.path == "up/kernel"] == [(48, 128)]
    np.testing.assert_allclose(np.asarray(model(X)), before, atol=1e-5)


class Looked(nnx.Module):
    def __init__(self, rngs):
        self.table, self.quantized = nnx.Param(rngs.params.normal((64, 48))), nnx.Linear(48, 5, rngs=rngs)

    def __call__(self, x):
        return self.quantized(x + self.table[0])


def test_names_and_tables_of_modules_are_left_alone():
    model = kd.Model.from_nnx(Looked(nnx.Rngs(0)))
    before = np.asarray(model(X))
    with pytest.raises(ModelError, match="the name of the scales is taken"):
        model.quantize("int8")
    np.testing.assert_array_equal(np.asarray(model(X)), before)


def test_a_quantized_model_inside_of_another_is_not_saved_with_its_config(tmp_path):
    inner = kd.Sequential([kd.Input((64,)), layers.Dense(32, name="up")], name="inner")
    inner.quantize("int8")
    inputs = kd.Input((64,))
    model = kd.Model(inputs, layers.Dense(3)(inner(inputs)))
    with pytest.raises(ModelError, match="a quantized model inside of another"):
        model.save(tmp_path / "folder")
    model.save_weights(tmp_path / "w.safetensors")
