"""Checkpoints: written from one mesh and layout, restored onto others."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import keras_dist as kd
from keras_dist import dtensor
from keras_dist.checkpoint import examine
from keras_dist.dtensor import UNSHARDED, DTensorCheckpoint, DVariable, Layout
from keras_dist.errors import CheckpointError, LayoutError, MeshError


class Dense(dtensor.Module):
    def __init__(self, seed, layout):
        draw = jax.random.uniform
        self.w = DVariable(dtensor.call_with_layout(draw, layout, jax.random.key(seed), shape=(8, 8)))
        self.b = DVariable(dtensor.call_with_layout(jnp.zeros, layout.delete([0]), shape=[8]))


class Mlp(dtensor.Module):
    """As in the tutorial, with a plain list of layers."""

    def __init__(self, layout):
        self.layers = [Dense(1, layout), Dense(2, layout)]
        self.steps = DVariable(np.int32(0), trainable=False)


@pytest.fixture(scope="module")
def trained(mesh, tmp_path_factory):
    """A model whose weights are sharded, and where it was saved."""
    model = Mlp(Layout(["batch", "model"], mesh))
    model.steps.assign_add(3)
    path = DTensorCheckpoint(mesh, model, scale=nnx.Param(jnp.ones(2))).save(tmp_path_factory.mktemp("states") / "1")
    return model, path


def test_a_module_has_the_variables_of_its_lists(trained):
    model, _ = trained
    assert [variable.shape for variable in model.variables] == [(8,), (8, 8), (8,), (8, 8), ()]
    assert len(model.trainable_variables) == 4


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("count", [1, 8])
def test_a_sharded_model_becomes_one_that_is_whole_on_another_mesh(trained, count):
    model, path = trained
    devices = [f"cpu:{7 - index}" for index in range(count)]
    layout = Layout.replicated(dtensor.create_mesh([("x", count)], devices=devices), 2)
    whole = Mlp(layout)
    for variable in whole.trainable_variables:
        variable.assign(jnp.full(variable.shape, 5.0))
    DTensorCheckpoint(layout.mesh, whole).restore(path)
    for saved, restored in zip(model.variables, whole.variables, strict=True):
        np.testing.assert_array_equal(restored, saved)
    dtensor.check_layout(whole.layers[1].w, layout)
    assert int(whole.steps) == 3


def test_the_folder_is_a_checkpoint_like_any_other(trained):
    found = examine(trained[1])
    assert found.is_good


def test_models_and_optimizers(mesh, line, tmp_path):
    def make(mesh, seed):
        kd.utils.set_random_seed(seed)
        rules = kd.LayoutMap(mesh)
        rules["d/kernel"] = (None, mesh.dim_names[-1])
        with kd.ModelParallel(rules).scope():
            model = kd.Sequential([kd.Input((4,)), kd.layers.Dense(8, name="d"), kd.layers.BatchNormalization()])
        optimizer = kd.optimizers.Adam(0.01)
        optimizer.build(model.trainable_variables)
        return model, optimizer

    model, optimizer = make(mesh, 1)
    for variable in optimizer.variables:
        variable.assign(variable.value + 2)
    metric = kd.metrics.Mean()
    metric.update_state([1.0, 5.0])
    objects = {"model": model, "optimizer": optimizer, "metrics": [metric]}
    path = DTensorCheckpoint(mesh, **objects).save(tmp_path / "1")
    other, its = make(line, 2)
    fresh = kd.metrics.Mean()
    DTensorCheckpoint(line, model=other, optimizer=its, metrics=[fresh]).restore(path)
    for saved, restored in zip(
        [*model.variables, *optimizer.variables], [*other.variables, *its.variables], strict=True
    ):
        np.testing.assert_array_equal(restored, saved)
    assert float(fresh.result()) == 3
    dtensor.check_layout(other.layers[0].kernel, Layout([UNSHARDED, "batch"], line))


def test_by_name(mesh, line, tmp_path):
    arrays = {
        "a/w": dtensor.copy_to_mesh(np.arange(16.0), Layout([("batch", "model")], mesh)),
        "b": dtensor.copy_to_mesh(np.arange(3, dtype=np.int16), Layout.replicated(mesh, 1)),
    }
    dtensor.name_based_save(mesh, tmp_path / "1", arrays)
    likes = {
        "b": DVariable(dtensor.copy_to_mesh(np.zeros(3, np.int16), Layout.replicated(line, 1))),
        "a/w": jax.ShapeDtypeStruct((16,), np.float32, sharding=Layout(["batch"], line).backend_layout),
    }
    found = dtensor.name_based_restore(line, tmp_path / "1", likes)
    assert list(found) == ["b", "a/w"]
    for name, array in found.items():
        np.testing.assert_array_equal(array, arrays[name])
        dtensor.check_layout(array, Layout(["batch"] if name == "a/w" else [UNSHARDED], line))
    dtensor.name_based_save(mesh, tmp_path / "1", {"b": arrays["b"]})  # in its place
    with pytest.raises(CheckpointError, match="does not hold these variables") as error:
        dtensor.name_based_restore(line, tmp_path / "1", likes)
    assert error.value.problems == ("'a/w': asked for shape (16,), float32, saved under no such name",)


class TestErrors:
    def test_other_variables(self, mesh, trained):
        layout = Layout(["batch", "model"], mesh)
        other = Mlp(layout)
        other.layers[0].w = DVariable(dtensor.call_with_layout(jnp.zeros, layout, shape=(4, 8)))
        before = other.layers[1].w.numpy()
        del other.layers[1].b
        with pytest.raises(CheckpointError, match="does not hold these variables") as error:
            DTensorCheckpoint(mesh, other).restore(trained[1])
        assert error.value.problems == (
            "'root/layers/0/w': asked for shape (4, 8), float32, saved shape (8, 8), float32",
            "'root/layers/1/b': saved, and not asked for",
        )
        np.testing.assert_array_equal(other.layers[1].w, before)

    def test_mixed_meshes(self, mesh, line, trained):
        for act in (lambda: DTensorCheckpoint(line, trained[0]).save("never"),
                    lambda: DTensorCheckpoint(line, trained[0]).restore(trained[1])):  # fmt: skip
            with pytest.raises(LayoutError, match="must be on the mesh of the checkpoint") as error:
                act()
            assert error.value.fix

    def test_what_is_no_variable(self, mesh, tmp_path):
        for value in (3, Mlp, [], np.ones(2), kd.optimizers.Adam()):
            with pytest.raises(CheckpointError, match="`thing` must be a variable, a module"):
                DTensorCheckpoint(mesh, thing=value).save(tmp_path)
        with pytest.raises(MeshError):
            DTensorCheckpoint("mesh", thing=DVariable(jnp.ones(2)))
        with pytest.raises(LayoutError, match="an array without a mesh"):
            dtensor.name_based_restore(mesh, tmp_path, {"a": jnp.ones(2)})
