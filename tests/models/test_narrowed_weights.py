"""Numbers in files of weights that the element type of a weight cannot hold."""

import h5py
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

import keras_dist as kd
from keras_dist.errors import ModelError

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
    [
        ("float32", "float64", 1e300),
        ("float32", "float64", -1e39),
        ("float16", "float32", 7e4),
        ("float16", "int32", 7e4),
    ],
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
        model.load_weights(tmp_path / "m.safetensors", transform={".*": lambda kernel: kernel * np.float64(1e300)})


@pytest.mark.parametrize("kind", ["m.weights.h5", "m.safetensors"])
def test_what_was_infinite_stays_so_and_rounding_is_no_error(kind, tmp_path):
    values = [np.array([[np.inf, -np.inf, np.nan]] * 3), np.full((3, 3), 0.1)]
    written(tmp_path / kind, values)
    model = network()
    model.load_weights(tmp_path / kind)
    np.testing.assert_array_equal(model.get_weights(), [value.astype("float32") for value in values])
    assert jnp.isinf(model.layers[0].kernel.value[0, 0])
