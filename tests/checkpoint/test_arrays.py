"""Arrays of each kind come back as they were, on any mesh."""

import itertools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from orbax import checkpoint as orbax

from keras_dist._unstable import jax_internals
from keras_dist.checkpoint import Stored, arrays
from keras_dist.checkpoint.arrays import read_arrays, write_arrays
from keras_dist.errors import CheckpointError
from tests.checkpoint.conftest import snapshot_of

P = jax.sharding.PartitionSpec
MESHES = {"1": (1, 1), "8": (8, 1), "2x4": (2, 4), "4x2": (4, 2)}
DTYPES = ["bool", "int8", "uint32", "int32", "float16", "bfloat16", "float32", "float8_e4m3fn", "float8_e5m2"]


def sharding(mesh="1", *axes):
    sizes = MESHES[mesh]
    devices = np.array(jax.devices()[: sizes[0] * sizes[1]]).reshape(sizes)
    return jax.sharding.NamedSharding(jax.sharding.Mesh(devices, ("data", "model")), P(*axes))


def like(value, where=None):
    return jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=where)


def bits(value):
    value = jax.random.key_data(value) if jax_internals.is_key_dtype(value.dtype) else value
    return str(value.dtype), value.shape, np.asarray(value).tobytes()


def written(folder, values):
    write_arrays(folder, values)()
    return folder


def values_of(dtype, shape):
    """Random bits, so that there are infinities, numbers that are none, and those below the normal ones."""
    random = np.random.default_rng(0)
    if dtype == "bool":
        return random.integers(0, 2, shape).astype(bool)
    dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
    return np.frombuffer(random.bytes(int(np.prod(shape)) * dtype.itemsize), dtype).reshape(shape)


@pytest.mark.parametrize("shape", [(), (1,), (0,), (4, 0, 3), (8, 8)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_each_type_comes_back_bit_for_bit(tmp_path, dtype, shape):
    value = values_of(dtype, shape)
    written(tmp_path, {"host": value, "device": jnp.asarray(value)})
    found = read_arrays(tmp_path, {"host": like(value), "device": like(value, sharding())})
    assert isinstance(found["host"], np.ndarray)
    assert isinstance(found["device"], jax.Array)
    assert bits(found["host"]) == bits(found["device"]) == bits(value)


@pytest.mark.parametrize("shape", [(), (3,), (0,)], ids=str)
@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_typed_keys_come_back(tmp_path, impl, shape):
    keys = jax.random.key(7, impl=impl)
    keys = jax.random.split(keys, shape) if shape else keys
    written(tmp_path, {"keys": keys})
    for where in (None, sharding("8")):
        found = read_arrays(tmp_path, {"keys": like(keys, where)})["keys"]
        assert found.dtype == keys.dtype
        assert bits(found) == bits(keys)


def test_typed_keys_are_found_by_the_record(tmp_path):
    values = {"training/0": jax.random.key(3), "training/1": jnp.ones(2, jnp.bfloat16)}
    snapshot_of({"variables/k": np.zeros(3), **values}).begin(tmp_path / "state")()
    found = Stored(tmp_path / "state").arrays_below("training/")
    assert [bits(found[name]) for name in ("0", "1")] == [bits(value) for value in values.values()]


def test_names_that_begin_with_others(tmp_path):
    names = ["a", "a/b", "a/b/c", "a.b", "a_b", "a b", "a%2Fb", "a/0", "0", "ä", "A", "a/b.", "..", "a//b"]
    values = {name: np.full((2,), index, np.float32) for index, name in enumerate(names)}
    written(tmp_path, values)
    found = read_arrays(tmp_path, {name: like(value) for name, value in values.items()})
    assert {name: value.tolist() for name, value in found.items()} == {name: v.tolist() for name, v in values.items()}
    assert read_arrays(tmp_path, {"a/b": like(values["a/b"])})["a/b"].tolist() == values["a/b"].tolist()


def test_nothing_to_write_and_nothing_to_read(tmp_path):
    assert read_arrays(written(tmp_path, {}), {}) == {}


@pytest.mark.parametrize(("source", "target"), [*itertools.product(MESHES, MESHES)])
def test_from_each_mesh_to_each(tmp_path, source, target):
    random = np.random.default_rng(1)
    whole = {name: random.normal(size=(8, 16)).astype(np.float32) for name in ("rows", "columns", "both", "whole")}
    axes = {"rows": ("data",), "columns": (None, "model"), "both": ("model", "data"), "whole": ()}
    written(tmp_path, {name: jax.device_put(value, sharding(source, *axes[name])) for name, value in whole.items()})
    wanted = {name: like(value, sharding(target, *axes[name])) for name, value in whole.items()}
    for name, found in read_arrays(tmp_path, wanted).items():
        assert found.sharding == wanted[name].sharding
        np.testing.assert_array_equal(np.asarray(found), whole[name])


def test_arrays_that_are_consumed_meanwhile_are_written_as_they_were(tmp_path):
    value = jax.device_put(np.arange(1 << 16, dtype=np.float32).reshape(256, 256), sharding("2x4", "data", "model"))
    host = np.arange(3.0)
    wait = write_arrays(tmp_path, {"device": value, "host": host})
    jax.jit(lambda x: x + 1, donate_argnums=0)(value).block_until_ready()
    host[:] = -1
    assert value.is_deleted()
    wait()
    found = read_arrays(tmp_path, {"device": jax.ShapeDtypeStruct((256, 256), np.float32), "host": like(host)})
    assert found["device"].ravel().tolist() == list(range(1 << 16))
    assert found["host"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("missing", ["a folder", "an array"])
def test_what_is_not_there_is_told(tmp_path, missing):
    value = np.zeros(3, np.float32)
    if missing == "an array":
        written(tmp_path, {"a": value})
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_arrays(tmp_path, {"b": like(value)})


def test_no_thread_stays(tmp_path, threads):
    value = {"a": np.zeros(3, np.float32)}
    (tmp_path / "good").mkdir()
    read_arrays(written(tmp_path / "good", value), {"a": like(value["a"])})
    with pytest.raises(CheckpointError):
        read_arrays(tmp_path / "nowhere", {"a": like(value["a"])})
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        write_arrays(tmp_path / "file", value)()
    assert threads() == []


def test_where_memory_of_devices_is_dear_arrays_are_on_the_host_before_steps_go_on(tmp_path, monkeypatch):
    monkeypatch.setattr(arrays, "_are_on_cpus", lambda values: False)
    value = jax.device_put(np.arange(64, dtype=np.float32).reshape(8, 8), sharding("2x4", "data", "model"))
    wait = write_arrays(tmp_path, {"device": value})
    value.delete()
    wait()
    found = read_arrays(tmp_path, {"device": jax.ShapeDtypeStruct((8, 8), np.float32)})
    assert found["device"].ravel().tolist() == list(range(64))


def test_where_memory_of_devices_is_dear_a_failure_to_begin_closes_orbax(tmp_path, monkeypatch):
    closed = []
    monkeypatch.setattr(orbax.PyTreeCheckpointHandler, "close", lambda self: closed.append(self))
    monkeypatch.setattr(arrays, "_are_on_cpus", lambda values: False)
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        write_arrays(tmp_path / "file", {"a": jnp.zeros(3)})
    assert len(closed) == 1


def test_a_save_compiles_no_slices_of_small_replicated_arrays(tmp_path, caplog, request):
    values = {str(size): jax.device_put(np.ones((8, size), np.float32), sharding("8")) for size in range(21, 25)}
    request.addfinalizer(lambda: jax.config.update("jax_log_compiles", False))
    jax.config.update("jax_log_compiles", True)  # in all threads
    written(tmp_path, values)
    assert "Compiling jit(copy)" in caplog.text and "slice" not in caplog.text


def test_arrays_that_orbax_does_not_merge_are_no_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(orbax.PyTreeCheckpointHandler, "finalize", lambda handler, folder: None)
    with pytest.raises(CheckpointError, match="was not written"):
        written(tmp_path, {"host": np.ones(3)})
