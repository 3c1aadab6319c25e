"""Numbers in files of weights that the element type of a weight cannot hold."""

import warnings

import h5py
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

import keras_dist as kd
from keras_dist.errors import CheckpointError, ModelError
from tests import forks

LAYERS = ("d1", "d2")


def network(dtype="float32"):
    return kd.Sequential([kd.Input((3,)), *(kd.layers.Dense(3, use_bias=False, dtype=dtype, name=n) for n in LAYERS)])


def written(path, values):
    """The kernels of `network` in a file of another writer, whatever their types."""
    if path.suffix == ".safetensors":
        save_file({f"{name}/kernel": value for name, value in zip(LAYERS, values, strict=True)}, path)
        return
    network().save_weights(path)
    with h5py.File(path, "r+") as file:
        for group, value in zip(("dense", "dense_1"), values, strict=True):
            del file[f"layers/{group}/vars/0"]
            file[f"layers/{group}/vars/0"] = value


@pytest.mark.parametrize("kind", ["m.weights.h5", "m.safetensors"])
@pytest.mark.parametrize(
    ("dtype", "stored", "number"),
    [("float32", "float64", -1e300), ("float16", "float32", 7e4), ("float16", "int32", 7e4)],
)
def test_a_number_that_would_become_infinite_is_refused_by_name(kind, dtype, stored, number, tmp_path):
    model, values = network(dtype), [np.ones((3, 3), stored) for _ in LAYERS]
    before = model.get_weights()
    values[1][2, 1] = number
    written(tmp_path / kind, values)
    with pytest.raises(ModelError, match=f"holds a number that {dtype} cannot hold") as caught:
        model.load_weights(tmp_path / kind)
    assert ("d2/kernel" if kind == "m.safetensors" else "layers/dense_1/vars/0") in caught.value.summary
    assert kind in caught.value.summary and f"{number:g}"[:3] in caught.value.given
    np.testing.assert_equal(model.get_weights(), before)


def test_what_overflows_bfloat16_is_refused(tmp_path):
    values = [np.ones((3, 3), "float32"), np.full((3, 3), np.finfo("float32").max)]
    written(tmp_path / "m.safetensors", values)
    with pytest.raises(ModelError, match="holds a number that bfloat16 cannot hold"):
        network("bfloat16").load_weights(tmp_path / "m.safetensors")


def test_folders_and_transforms_are_checked_too(tmp_path):
    model = network()
    model.set_weights([np.full((3, 3), 7e4, "float32")] * 2)
    model.save_weights(tmp_path / "m.orbax")
    with pytest.raises(ModelError, match=r"'d1/kernel' in '.*m.orbax' holds a number that float16 cannot hold"):
        network("float16").load_weights(tmp_path / "m.orbax")
    written(tmp_path / "m.safetensors", [np.ones((3, 3), "float32")] * 2)
    with pytest.raises(ModelError, match="float32 cannot hold"):
        weight_map = kd.interop.WeightMap(transform={".*": lambda kernel: kernel * np.float64(1e300)})
        model.load_weights(tmp_path / "m.safetensors", weight_map=weight_map)


@pytest.mark.parametrize("kind", ["m.weights.h5", "m.safetensors"])
def test_what_was_infinite_stays_so_and_rounding_is_no_error(kind, tmp_path):
    values = [np.array([[np.inf, -np.inf, np.nan]] * 3), np.full((3, 3), 0.1)]
    written(tmp_path / kind, values)
    model = network()
    model.load_weights(tmp_path / kind)
    np.testing.assert_array_equal(model.get_weights(), [value.astype("float32") for value in values])
    assert jnp.isinf(model.layers[0].kernel.value[0, 0])


def trained(path):
    """A folder of a trained model with Dropout in the form of Keras, without checksums, and a file of its weights."""
    layers = [kd.layers.Dense(3, name="d1"), kd.layers.Dropout(0.5)]
    model = kd.Sequential([kd.Input((3,)), *layers])
    model.compile("adam", "mse")
    model.fit(np.ones((2, 3)), np.ones((2, 3)), verbose=0)
    model.save(path, zipped=False)
    (path / "manifest.json").unlink()
    return model


def changed(path, name, change):
    """Let another program, which has no checksums, write an array of a file anew."""
    with h5py.File(path, "r+") as file:
        file.visititems(lambda _, found: found.attrs.pop("keras_dist_crc32c", None) and None)
        value = change(file[name][...])
        del file[name]
        file[name] = value


_SEED = "keras_dist/variables/dropout/seed_generator/seed_generator_state"


@pytest.mark.filterwarnings("error::numpy.exceptions.ComplexWarning")
@pytest.mark.parametrize("name", ["optimizer/vars/0", "optimizer/vars/2", "keras_dist/step", _SEED])
def test_complex_arrays_beside_the_weights_are_refused_by_name(name, tmp_path):
    trained(tmp_path / "m")
    changed(tmp_path / "m" / "model.weights.h5", name, lambda value: value + 1j)
    with pytest.raises(ModelError, match=f"'{name}' in .* is complex") as caught:
        kd.models.load_model(tmp_path / "m")
    assert "complex" in caught.value.given


@pytest.mark.parametrize("change", [lambda value: value + 1j, lambda value: np.full(value.shape, 1e300)])
def test_a_state_of_the_optimizer_that_cannot_be_held_changes_no_weight(change, tmp_path):
    model = trained(tmp_path / "m")
    changed(tmp_path / "m" / "model.weights.h5", "optimizer/vars/2", change)
    model.set_weights([np.zeros(w.shape, "float32") for w in model.weights])
    with pytest.raises(ModelError, match="'optimizer/vars/2' in"):
        model.load_weights(tmp_path / "m" / "model.weights.h5")
    assert not any(weight.any() for weight in model.get_weights())


_WIDE = """
import sys
import jax
import numpy as np
import keras_dist as kd
jax.config.update("jax_enable_x64", True)
layers = [kd.layers.Dense(3, use_bias=False, dtype="float64", name=name) for name in ("d1", "d2")]
model = kd.Sequential([kd.Input((3,)), *layers])
model.set_weights([np.ones((3, 3)), np.full((3, 3), 1e300)])
model.save_weights(f"{sys.argv[1]}/m.orbax")
model.save(f"{sys.argv[1]}/m")
model.set_weights([np.ones((3, 3)), np.full((3, 3), 0.1)])
model.save_weights(f"{sys.argv[1]}/small.orbax")
"""


@pytest.mark.multiprocess
def test_numbers_of_64_bits_in_folders_do_not_become_infinite(tmp_path):
    run = forks.python("-c", _WIDE, str(tmp_path))
    assert run.returncode == 0, run.stderr[-2000:]
    model = network()
    before = model.get_weights()
    for name in ("m.orbax", "m"):
        with pytest.raises(ModelError, match=f"'d2/kernel' in .*{name}' holds a number that float32 cannot hold"):
            model.load_weights(tmp_path / name)
    np.testing.assert_equal(model.get_weights(), before)
    with warnings.catch_warnings(action="ignore"), pytest.raises(CheckpointError, match="does not fit"):
        kd.models.load_model(tmp_path / "m")  # JAX warns of the dtype of the layers
    model.load_weights(tmp_path / "small.orbax")
    np.testing.assert_array_equal(model.get_weights()[1], np.full((3, 3), 0.1, "float32"))
