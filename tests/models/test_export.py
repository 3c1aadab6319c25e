"""`model.export`: the program gives what `predict` gives, in a process that knows no layers, and damage is told."""

import hashlib
import json
import os
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import keras_dist as kd
from keras_dist import layers
from keras_dist.errors import DataError, ModelError
from tests.contracts.processes import run_python
from tests.layouts import on
from tests.models.forms import functional, sequential, sequential_without_input
from tests.networks import FEATURES, Noisy, TwoInputs

POINTS = kd.InputSpec(shape=(None, FEATURES), dtype="float32")


def of_tokens():
    inputs = kd.Input((None,), dtype="int32", name="tokens")
    h = layers.LSTM(4, return_sequences=True)(layers.Embedding(9, 5, mask_zero=True)(inputs))
    return kd.Model(inputs, layers.Dense(2)(layers.Bidirectional(layers.GRU(3))(h)))


def of_pictures():
    convolution = [layers.Conv2D(4, 3), layers.MaxPooling2D(2), layers.BatchNormalization(), layers.Flatten()]
    model = kd.Sequential([*convolution, layers.Dense(2)])
    model.build((None, 8, 8, 3))
    return model


def of_sequences_joined():
    a, b = kd.Input((None, 3), name="a"), kd.Input((None, 3), name="b")
    return kd.Model([a, b], [layers.Add()([layers.Dense(3)(a), b]), layers.Dense(2)(layers.Concatenate()([a, b]))])


def with_noise_in_half_precision():
    class Noise(kd.Layer):
        def __init__(self):
            super().__init__()
            self.seed_generator = kd.random.SeedGenerator(3)

        def call(self, inputs):
            return inputs + kd.random.normal((4,), seed=self.seed_generator)

    dense = [layers.Dense(3, dtype="mixed_bfloat16"), layers.Dense(2, dtype="bfloat16")]
    return kd.Sequential([kd.Input((4,)), Noise(), *dense])


def random(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


CASES = {
    "functional": (functional, lambda n: random(n, FEATURES), None),
    "from_nnx": (lambda: kd.Model.from_nnx(Noisy, seed=0), lambda n: random(n, FEATURES), [POINTS]),
    "from_nnx of dicts": (
        lambda: kd.Model.from_nnx(TwoInputs, seed=0),
        lambda n: {"a": random(n, FEATURES), "b": random(n, 2)},
        {"b": kd.InputSpec(shape=(None, 2)), "a": POINTS},
    ),
    "tokens": (of_tokens, lambda n: np.arange(n * (n + 1), dtype=np.int32).reshape(n, n + 1) % 4, None),
    "pictures": (of_pictures, lambda n: random(n, 8, 8, 3), None),
    "sequences joined": (of_sequences_joined, lambda n: [random(n, n + 1, 3), random(n, n + 1, 3)], None),
    "half precision": (with_noise_in_half_precision, lambda n: random(n, 4), None),
}
SIZES = {name: [1, 3] if name in ("functional", "tokens", "sequences joined") else [3] for name in CASES}

ELSEWHERE = """
import json, pathlib, pickle, sys
def refuse(*args, **kwargs): raise AssertionError("pickles are not read")
pickle.loads = pickle.load = refuse
import numpy as np
import keras_dist as kd
for name, sizes in json.loads(pathlib.Path("cases.json").read_text()).items():
    program = kd.export.load(f"{name}/exported")
    for size in sizes:
        inputs = {key: value for key, value in np.load(f"{name}/{size}.npz").items()}
        outputs = program(inputs)
        leaves = outputs.values() if isinstance(outputs, dict) else outputs if isinstance(outputs, list) else [outputs]
        flat = [item for leaf in leaves for item in (leaf if isinstance(leaf, tuple) else [leaf])]
        np.savez(f"{name}/{size}.found.npz", *[np.asarray(leaf, np.float32) for leaf in flat])
print([name for name in sys.modules if name.startswith(("keras_dist.layers", "keras_dist.models", "flax"))])
"""


@pytest.mark.multiprocess
@pytest.mark.slow
def test_another_process_without_layers_and_models_predicts_the_same(tmp_path):
    for name, (make, batch, signature) in CASES.items():
        folder = tmp_path / name
        folder.mkdir()
        model = make()
        scramble(model)
        # the first one as by default, for each platform a lowering
        platforms = None if name == "functional" else "cpu"
        model.export(folder / "exported", input_signature=signature, platforms=platforms)
        names = [array["name"] for array in manifest_of(folder / "exported")["inputs"]]
        for size in SIZES[name]:
            x = batch(size)
            np.savez(folder / f"{size}.npz", **dict(zip(names, jax.tree.leaves(x), strict=True)))
            expected = jax.tree.leaves(model.predict(x, batch_size=size, verbose=0))
            np.savez(folder / f"{size}.expected.npz", *[np.asarray(leaf, np.float32) for leaf in expected])
    (tmp_path / "cases.json").write_text(json.dumps(SIZES))
    assert run_python(f"import os; os.chdir({str(tmp_path)!r})\n{ELSEWHERE}") == "[]"
    for name in CASES:
        for size in SIZES[name]:
            files = (tmp_path / name / f"{size}.{kind}.npz" for kind in ("found", "expected"))
            with np.load(next(files)) as found, np.load(next(files)) as expected:
                assert len(found) == len(expected) > 0, name
                for key, value in expected.items():
                    np.testing.assert_allclose(found[key], value, rtol=1e-5, atol=1e-6, err_msg=name, strict=True)


def scramble(model):
    """Other values than those that every layer is born with."""
    added = (0.1 + 0.01 * np.arange(value.size).reshape(value.shape) % 0.5 for value in model.get_weights())
    model.set_weights([value + more for value, more in zip(model.get_weights(), added, strict=True)])


def manifest_of(path):
    return json.loads((path / "export.json").read_text())


@pytest.fixture
def path(tmp_path):
    return tmp_path / "exported"


@pytest.fixture(scope="module")
def model():
    """On a mesh; programs are exported for one device all the same."""
    rules = {"d1/kernel": (None, "model"), "d1/output": ("data", "model")}
    with on("data=2,model=4", rules).scope():
        model = sequential()
    scramble(model)
    return model


@pytest.fixture(scope="module")
def exported(model, tmp_path_factory):
    """What nobody changes."""
    path = tmp_path_factory.mktemp("exported") / "model"
    model.export(path)
    return path


@pytest.fixture(scope="module")
def program(exported):
    return kd.export.load(exported)


def test_weights_are_arguments_and_the_files_are_explained(path):
    model = kd.Sequential([kd.Input((300,), name="x"), layers.Dense(300, name="d1")])
    model.export(path)
    found = manifest_of(path)
    assert sorted(os.listdir(path)) == ["export.json", "program.jax_export", "weights.safetensors"]
    assert (path / "program.jax_export").stat().st_size < 20_000 < (path / "weights.safetensors").stat().st_size
    assert found["inputs"] == [{"name": "x", "shape": ["batch", 300], "dtype": "float32"}]
    assert found["outputs"] == [{"name": "d1", "shape": ["batch", 300], "dtype": "float32"}]
    assert found["platforms"] == ["cpu", "cuda", "tpu"]
    assert found["versions"]["jax"] == jax.__version__


def test_models_on_a_mesh_are_exported_for_one_device_without_rules_of_activations(model, program):
    x = random(5, FEATURES)
    np.testing.assert_allclose(program(x), model.predict(x, verbose=0), rtol=1e-5, atol=1e-6)
    assert len(program(x).devices()) == 1
    np.testing.assert_allclose(jax.jit(lambda x: program(x) * 2)(x), 2 * np.asarray(program(x)), rtol=1e-6)


class OfOneSize(kd.Model):
    def call(self, inputs):
        return inputs * 2 if inputs.shape[0] > 3 else inputs


def test_a_model_that_asks_for_the_size_of_batches(path):
    model = OfOneSize()
    model.build((None, 2))
    with pytest.raises(ModelError, match="batches of any size") as error:
        model.export(path)
    assert "batch_size=" in error.value.fix and "InconclusiveDimensionOperation" in error.value.given
    assert not path.exists()
    model.export(path, batch_size=4)
    np.testing.assert_array_equal(kd.export.load(path)(np.ones((4, 2))), 2 * np.ones((4, 2)))


class OnCpusOnly(kd.Model):
    def call(self, inputs):
        return jnp.abs(jnp.linalg.eigvals(inputs))


def test_what_other_platforms_cannot_do(path):
    model = OnCpusOnly()
    model.build((None, 2, 2))
    with pytest.raises(ModelError, match="cannot be lowered for cpu, tpu"):
        model.export(path, platforms=("cpu", "tpu"))
    with pytest.warns(UserWarning, match="runs on cpu only") as caught:
        model.export(path)
    assert caught[0].filename == __file__
    x = random(3, 2, 2)
    np.testing.assert_allclose(kd.export.load(path)(x), model.predict(x, verbose=0), rtol=1e-5)


class InPython(kd.Model):
    def call(self, inputs):
        return jax.pure_callback(lambda x: x, jax.ShapeDtypeStruct(inputs.shape, inputs.dtype), inputs)


class OnManyDevices(kd.Model):
    def call(self, inputs):
        mesh = kd.DeviceMesh("data=8")
        return kd.distribute_tensor(inputs, kd.TensorLayout((None, "data"), mesh))


@pytest.mark.parametrize(
    ("make", "summary"), [(InPython, "cannot be lowered"), (OnManyDevices, "more than one device")]
)
def test_models_that_cannot_be_exported(path, make, summary):
    with kd.DataParallel().scope():
        model = make()
        model.build((None, 8))
    with pytest.raises(ModelError, match=summary):
        model.export(path)
    assert not path.exists()


def test_bad_arguments(model, path):
    with pytest.raises(ModelError, match="do not exist yet"):
        sequential_without_input().export(path)
    with pytest.raises(ModelError, match="not known what model") as error:
        kd.Model.from_nnx(Noisy, seed=0).export(path)
    assert "input_signature" in error.value.fix
    with pytest.raises(ModelError, match="`format` must be one of"):
        model.export(path, format="onnx")
    with pytest.raises(DataError, match="batch_size"):
        model.export(path, batch_size=0)
    for signature in ([POINTS, POINTS], kd.InputSpec(ndim=2), "x"):
        with pytest.raises(ModelError, match="input_signature"):
            model.export(path, input_signature=signature)
    with pytest.raises(ModelError, match="`filepath` must be a path"):
        model.export(3)
    with pytest.raises(FileNotFoundError):
        model.export(path / "none" / "exported")
    assert not list(path.parent.iterdir())


def test_nothing_is_replaced_and_an_interrupted_export_leaves_nothing(model, path, monkeypatch):
    def fails(draft, target):
        raise KeyboardInterrupt

    for kind, make, remove in (("a file", path.touch, path.unlink), ("a folder", path.mkdir, path.rmdir)):
        make()
        with pytest.raises(ModelError, match="exists") as error:
            model.export(path)
        assert error.value.given == kind and list(path.parent.iterdir()) == [path]
        remove()
    monkeypatch.setattr("keras_dist.export.writing.os.rename", fails)
    with pytest.raises(KeyboardInterrupt):
        model.export(path)
    assert not list(path.parent.iterdir())


def flip(name):
    def damage(path):
        content = bytearray((path / name).read_bytes())
        content[len(content) // 2] ^= 1
        (path / name).write_bytes(content)

    return damage


def edit(**changes):
    def damage(path):
        (path / "export.json").write_text(json.dumps(manifest_of(path) | changes))

    return damage


def endless(name):
    def damage(path):
        (path / name).unlink()
        (path / name).symlink_to("/dev/zero")

    return damage


def pipe(path):
    (path / "export.json").unlink()
    os.mkfifo(path / "export.json")


def forged(path):
    (path / "program.jax_export").write_bytes(b"x" * 100)
    sums = manifest_of(path)["sha256"]
    checksum = hashlib.sha256(b"x" * 100).hexdigest()
    edit(sha256=sums | {"program.jax_export": checksum})(path)


@pytest.mark.parametrize(
    ("damage", "given"),
    [
        (flip("program.jax_export"), "'program.jax_export' has the sha256 checksum"),
        (flip("weights.safetensors"), "'weights.safetensors' has the sha256 checksum"),
        (lambda path: (path / "weights.safetensors").unlink(), "'weights.safetensors' is missing"),
        (lambda path: (path / "export.json").unlink(), "a folder without 'export.json'"),
        (lambda path: (path / "export.json").write_text("{"), "'export.json': JSONDecodeError"),
        (edit(format="other"), "'export.json' is of another format"),
        (edit(version=2), "'export.json' of version 2"),
        (edit(inputs=[{}]), "'export.json': KeyError"),
        (edit(inputs=[{"name": "x", "shape": [None], "dtype": "float32"}]), "'export.json': ValueError"),
        (edit(output_structure=[0]), "'export.json': ValueError: 'output_structure' does not fit"),
        (forged, "'program.jax_export', for jax"),
        *[(endless(name), f"'{name}': [Errno 22]") for name in ("weights.safetensors", "program.jax_export")],
        (pipe, "a folder without 'export.json'"),
    ],
)
def test_damage_is_told(exported, path, damage, given):
    shutil.copytree(exported, path)
    damage(path)
    with pytest.raises(ModelError, match="cannot be read") as error:
        kd.export.load(path)
    assert given in error.value.given


def signed(path):
    """The checksums of whoever has forged the files."""
    files = ("program.jax_export", "weights.safetensors")
    edit(sha256={name: hashlib.sha256((path / name).read_bytes()).hexdigest() for name in files})(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda weights: weights.popitem(),
        lambda weights: weights.update(other=weights.popitem()[1]),
        lambda weights: weights.update(extra=np.zeros(3, "float32")),
        lambda weights: weights.update({name: value[None] for name, value in weights.items()}),
        lambda weights: weights.update({name: value.astype("float64") for name, value in weights.items()}),
    ],
)
def test_forged_weights_do_not_fit_the_program(exported, path, change):
    shutil.copytree(exported, path)
    weights = load_file(path / "weights.safetensors")
    change(weights)
    save_file(weights, path / "weights.safetensors")
    signed(path)
    with pytest.raises(ModelError, match="cannot be read") as error:
        kd.export.load(path)
    assert "'program.jax_export' has" in error.value.given and "load only what you trust" in error.value.fix


def test_a_forged_manifest_does_not_fit_the_program(exported, path):
    shutil.copytree(exported, path)
    honest = manifest_of(path)
    for changes in (
        {"platforms": ["cpu"]},
        {"platforms": ["gpu of mine"]},
        {"inputs": [{"name": "x", "shape": ["batch", 9], "dtype": "float32"}]},
        {"inputs": [{"name": "x", "shape": ["batch", 8], "dtype": "int32"}]},
        {"outputs": []},
    ):
        edit(**honest | changes)(path)
        with pytest.raises(ModelError, match="cannot be read"):
            kd.export.load(path)


def test_what_is_no_exported_model(path):
    for given, make in (("nothing is there", lambda: None), ("a file is there", path.touch)):
        make()
        with pytest.raises(ModelError, match="cannot be read") as error:
            kd.export.load(path)
        assert error.value.given == given


def test_inputs_that_do_not_fit(program):
    for inputs, given in (
        (random(3, FEATURES + 1), "float32(3, 9)"),
        (random(FEATURES), "float32(8,)"),
        (np.ones((3, FEATURES), complex), "complex128(3, 8)"),
        ([["a"]], "<U1(1, 1)"),
    ):
        with pytest.raises(ModelError, match="does not fit the program") as error:
            program(inputs)
        assert error.value.given == given and "(batch, 8)" in error.value.expected
