"""Arrays with layouts: packed, taken apart, moved, computed in place."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import PartitionSpec

import keras_dist as kd
from keras_dist import dtensor
from keras_dist.dtensor import UNSHARDED, Layout
from keras_dist.errors import DataError, LayoutError, MeshError

X = np.arange(64, dtype=np.float32).reshape(8, 8)
SPECS = [
    ["batch", "model"], ["model", "batch"], [("batch", "model"), UNSHARDED], [UNSHARDED, ("model", "batch")],
    ["batch", UNSHARDED], [UNSHARDED, "model"], [UNSHARDED, UNSHARDED],
]  # fmt: skip


def components(x, layout):
    """What the devices hold, as tutorials cut it: along each sharded dim, by the place of the device."""
    sizes = [size // shards for size, shards in zip(x.shape, layout.shape, strict=True)]
    offsets = layout.offset_to_shard()
    parts = {
        offset: x[tuple(slice(i * n, (i + 1) * n) for i, n in zip(offset, sizes, strict=True))] for offset in offsets
    }
    return [parts[offset] for offset in offsets]


@pytest.fixture(scope="module")
def elsewhere() -> dtensor.Mesh:
    """The dims of `mesh`, on the devices in another order."""
    return dtensor.create_mesh([("batch", 2), ("model", 4)], devices=[f"CPU:{7 - index}" for index in range(8)])


def parts_of(error):
    return [part for part in (error.value.summary, error.value.given, error.value.expected, error.value.fix) if part]


class TestPack:
    @pytest.mark.parametrize("specs", SPECS, ids=str)
    def test_pack_and_unpack_are_inverse(self, mesh, specs):
        layout = Layout(specs, mesh)
        packed = dtensor.pack(components(X, layout), layout)
        np.testing.assert_array_equal(packed, X)
        assert dtensor.fetch_layout(packed) == layout
        again = dtensor.pack(dtensor.unpack(packed), layout)
        np.testing.assert_array_equal(again, X)
        for own, other in zip(dtensor.unpack(again), components(X, layout), strict=True):
            np.testing.assert_array_equal(own, other)

    def test_the_order_is_that_of_the_mesh(self, elsewhere):
        layout = Layout(["batch", "model"], elsewhere)
        packed = dtensor.pack(components(X, layout), layout)
        np.testing.assert_array_equal(packed, X)
        np.testing.assert_array_equal(dtensor.unpack(packed)[0], X[:4, :2])
        assert dtensor.unpack(packed)[0].device == jax.devices()[7]

    @pytest.mark.parametrize("specs", [["batch", "model"], [UNSHARDED, "model"]], ids=str)
    def test_inside_jit(self, mesh, specs):
        layout = Layout(specs, mesh)
        packed = jax.jit(lambda parts: dtensor.pack(parts, layout))(components(X, layout))
        np.testing.assert_array_equal(packed, X)
        dtensor.check_layout(packed, layout)

    def test_scalars_and_numbers_of_python(self, mesh):
        packed = dtensor.pack([2.5] * 8, Layout.replicated(mesh, 0))
        assert (float(packed), packed.dtype, dtensor.is_dtensor(packed)) == (2.5, np.float32, True)
        traced = jax.jit(lambda x: dtensor.pack([x] * 8, Layout.replicated(mesh, 0)))(2.5)
        assert float(traced) == 2.5

    def test_the_components_may_be_overwritten_afterwards(self, line):
        rows = np.zeros((8, 1024), np.float32)
        packed = dtensor.pack(list(rows[:, None]), Layout.batch_sharded(line, "batch", 2))
        rows[:] = 1
        assert not np.asarray(packed).any()

    def test_the_components_of_a_variable_stay_when_it_is_assigned(self, line):
        variable = dtensor.DVariable(dtensor.pack(list(X[:, None]), Layout.batch_sharded(line, "batch", 2)))
        parts, whole = dtensor.unpack(variable), variable.numpy()
        dtensor.function(lambda: variable.assign_add(1.0))()
        np.testing.assert_array_equal(np.concatenate(parts), X)
        np.testing.assert_array_equal(whole, X)
        np.testing.assert_array_equal(variable, X + 1)

    def test_it_takes_a_keras_dist_layout(self, line):
        packed = dtensor.pack(np.split(X, 8), kd.TensorLayout(("batch", None), line))
        np.testing.assert_array_equal(packed, X)

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (
                lambda parts: parts[:7],
                ["needs a component for each device", "7 components for the 8 local devices", "split"],
            ),
            (lambda parts: X, ["component 0 .* 2 dims", r"shape \(8,\)", "1 entries"]),
            (
                lambda parts: [*parts[:3], parts[3][:1], *parts[4:]],
                [r"component 3 .* shape \(4, 2\)", r"shape \(1, 2\)", "parts of one size"],
            ),
            (
                lambda parts: [*parts[:5], parts[5].astype(np.int32), *parts[6:]],
                ["component 5 .* float32", "int32", "split"],
            ),
            (lambda parts: [part[0] for part in parts], ["component 0 .* 2 dims", r"shape \(2,\)", "1 entries"]),
        ],
        ids=["too few", "an array of as many rows", "shape", "dtype", "rank"],
    )
    def test_components_that_do_not_fit(self, mesh, change, words):
        layout = Layout(["batch", "model"], mesh)
        with pytest.raises(LayoutError, match=words[0]) as error:
            dtensor.pack(change(components(X, layout)), layout)
        for part, expected in zip(parts_of(error), words, strict=True):
            assert re.search(expected, part), part

    def test_replicas_that_differ(self, mesh):
        layout = Layout(["batch"], mesh)
        parts = components(np.arange(4.0), layout)
        parts[6] = parts[6] + 1
        with pytest.raises(LayoutError, match="components 4 and 6 of pack are one shard, but differ"):
            dtensor.pack(parts, layout)

    def test_components_of_this_process_alone(self, mesh, monkeypatch):
        monkeypatch.setattr(dtensor.Mesh, "local_device_ids", lambda mesh: [])
        with pytest.raises(LayoutError, match="needs a component for each device of this process"):
            dtensor.pack([], Layout.replicated(mesh, 1))
        monkeypatch.setattr(dtensor.Mesh, "local_device_ids", lambda mesh: [0, 1])
        with pytest.raises(LayoutError, match="components of several processes"):
            jax.eval_shape(lambda x: dtensor.pack([x, x], Layout(["model"], mesh)), np.ones(1))

    def test_components_without_elements(self, line):
        assert dtensor.pack([np.zeros((0, 2))] * 8, Layout(["batch", UNSHARDED], line)).shape == (0, 2)

    def test_nan_is_like_nan(self, line):
        packed = dtensor.pack([np.array([np.nan]) for _ in range(8)], Layout.replicated(line, 1))
        assert np.isnan(packed).all()

    def test_a_component_on_a_mesh(self, mesh, elsewhere):
        packed = dtensor.copy_to_mesh(X, Layout(["batch", "model"], elsewhere))
        with pytest.raises(LayoutError, match="component 0 of pack must be a NumPy array, or an array of one device"):
            dtensor.pack([packed] * 8, Layout.replicated(mesh, 2))

    def test_integers_that_jax_has_not(self, line):
        with pytest.raises(DataError, match="component 0 of pack holds an integer that does not fit int32"):
            dtensor.pack([np.array([2**40])] * 8, Layout.replicated(line, 1))

    @pytest.mark.parametrize("layout", [None, "batch", kd.TensorLayout(("batch",))])
    def test_what_is_no_layout(self, layout):
        with pytest.raises(LayoutError, match="`layout`"):
            dtensor.pack([X] * 8, layout)


class TestLayouts:
    def test_of_variables(self, mesh):
        layout = Layout(["batch", "model"], mesh)
        array = dtensor.copy_to_mesh(X, layout)
        variable = dtensor.DVariable(array)
        for holder in (array, variable, nnx.Param(array)):
            assert dtensor.is_dtensor(holder)
            assert dtensor.fetch_layout(holder) == layout
            assert len(dtensor.unpack(holder)) == 8
        seen = []
        dtensor.function(lambda: seen.append(dtensor.fetch_layout(variable)) or variable * 2)()
        assert seen[0] == layout

    def test_of_the_weights_of_a_model(self, mesh):
        layout = kd.TensorLayout((None, "model"), mesh)
        with kd.ModelParallel(kd.LayoutMap(mesh)).scope():
            model = kd.Sequential([kd.Input((8,)), kd.layers.Dense(4, kernel_layout=layout, use_bias=False)])
        assert dtensor.fetch_layout(model.weights[0]) == layout
        assert dtensor.is_dtensor(model.weights[0])

    @pytest.mark.parametrize("value", [jnp.ones(2), np.ones(2), 3], ids=["jax", "numpy", "number"])
    def test_of_a_plain_array(self, value):
        assert not dtensor.is_dtensor(value)
        with pytest.raises(LayoutError, match="an array without a mesh has no layout") as error:
            dtensor.fetch_layout(value)
        assert "copy_to_mesh" in error.value.fix

    def test_of_a_traced_array(self):
        def trace(x):
            assert not dtensor.is_dtensor(x)
            with pytest.raises(LayoutError, match="a traced array has no layout yet"):
                dtensor.unpack(x)
            return x

        jax.eval_shape(trace, X)

    def test_check_layout(self, mesh, elsewhere):
        array = dtensor.copy_to_mesh(X, Layout(["batch", UNSHARDED], mesh))
        dtensor.check_layout(array, kd.TensorLayout(("batch", None), mesh))
        for other in (Layout(["batch", "model"], mesh), Layout(["batch", UNSHARDED], elsewhere)):
            with pytest.raises(LayoutError, match="the array has another layout") as error:
                dtensor.check_layout(array, other)
            assert len(parts_of(error)) == 4


class TestRelayout:
    def test_copy_to_mesh_goes_anywhere(self, mesh, elsewhere):
        here = dtensor.copy_to_mesh(X, Layout(["batch", UNSHARDED], mesh))
        there = dtensor.copy_to_mesh(here, Layout([UNSHARDED, "model"], elsewhere))
        np.testing.assert_array_equal(there, X)
        assert dtensor.fetch_layout(there).mesh == elsewhere
        assert dtensor.copy_to_mesh(here, Layout(["batch", UNSHARDED], mesh)) is here

    def test_copy_to_mesh_copies(self, line):
        rows = np.zeros((8, 1024), np.float32)
        copied = dtensor.copy_to_mesh(rows, Layout.replicated(line, 2))
        rows[:] = 1
        assert not np.asarray(copied).any()

    def test_relayout_eagerly_and_inside_jit(self, mesh):
        array = dtensor.relayout(X, Layout(["batch", "model"], mesh))
        layout = Layout([UNSHARDED, ("model", "batch")], mesh)
        for moved in (dtensor.relayout(array, layout), jax.jit(lambda x: dtensor.relayout(x, layout))(array)):
            np.testing.assert_array_equal(moved, X)
            dtensor.check_layout(moved, layout)

    def test_another_mesh(self, mesh, elsewhere, line):
        array = dtensor.relayout(X, Layout(["batch", UNSHARDED], mesh))
        for other in (elsewhere, line):
            with pytest.raises(LayoutError, match="to another mesh") as error:
                dtensor.relayout(dtensor.DVariable(array), Layout(["batch", UNSHARDED], other))
            assert len(parts_of(error)) == 3
            assert "copy_to_mesh" in error.value.fix

    @pytest.mark.parametrize("act", [dtensor.relayout, dtensor.copy_to_mesh])
    def test_a_dim_that_does_not_divide(self, mesh, act):
        with pytest.raises(LayoutError, match="cannot shard dim 1") as error:
            act(np.ones((8, 6)), Layout(["batch", "model"], mesh))
        assert all(parts_of(error))
        with pytest.raises(LayoutError, match="cannot shard dim 1"):
            jax.eval_shape(lambda x: act(x, Layout(["batch", "model"], mesh)), np.ones((8, 6)))
        with pytest.raises(LayoutError, match="wrong rank"):
            act(np.ones(8), Layout(["batch", "model"], mesh))

    def test_like_another_array(self, mesh):
        like = dtensor.relayout(X, Layout([UNSHARDED, "model"], mesh))
        moved = dtensor.relayout_like(X.T, like)
        np.testing.assert_array_equal(moved, X.T)
        dtensor.check_layout(moved, dtensor.fetch_layout(like))

        def traced(x, y):
            y = dtensor.relayout(y, dtensor.fetch_layout(like))
            known, chosen = dtensor.relayout_like(x, like), dtensor.relayout_like(x + 1, y)
            with pytest.raises(LayoutError, match="two arrays of one shape"):
                dtensor.relayout_like(x[:4], y)
            return known, chosen, y

        known, chosen, _ = jax.jit(traced)(X, X)
        np.testing.assert_array_equal(chosen, X + 1)
        for moved in (known, chosen):
            dtensor.check_layout(moved, dtensor.fetch_layout(like))
        with pytest.raises(LayoutError, match="without a mesh"):
            dtensor.relayout_like(X, jnp.ones((8, 8)))


def draw(key, shape, scale=1.0):
    return {"w": jax.random.normal(key, shape) * scale}


class TestCallWithLayout:
    @pytest.mark.soak  # with the optimizations that users get
    def test_values_do_not_depend_on_the_layout(self, mesh, line):
        key = jax.random.key(22)
        expected = np.asarray(jax.jit(jax.random.normal, static_argnums=1)(key, (16, 8)))
        for layout in (
            Layout(["batch", "model"], mesh),
            Layout(["batch", UNSHARDED], line),
            Layout.replicated(line, 2),
        ):
            found = dtensor.call_with_layout(jax.random.normal, layout, key, shape=(16, 8))
            np.testing.assert_array_equal(found, expected)
            dtensor.check_layout(found, layout)

    def test_no_device_holds_more_than_its_shard(self, line, monkeypatch):
        programs = []
        compiled = kd.LayoutPlan.compile_init
        monkeypatch.setattr(
            kd.LayoutPlan, "compile_init", lambda *args: programs.append(compiled(*args)) or programs[-1]
        )
        dtensor.call_with_layout(jnp.zeros, Layout(["batch", UNSHARDED], line), shape=(1024, 512))
        (program,) = programs[0].programs
        assert program.memory_analysis().output_size_in_bytes == 1024 * 512 * 4 // 8
        assert program.memory_analysis().temp_size_in_bytes < 1024 * 512 * 4 // 8

    def test_arguments_of_all_kinds(self, mesh):
        layout = Layout([UNSHARDED, "model"], mesh)
        scale = dtensor.DVariable(dtensor.copy_to_mesh(2.0, Layout.replicated(mesh, 0)))
        there = jax.device_put(np.float32(3), jax.devices()[5])
        found = dtensor.call_with_layout(
            lambda x, shape, scale, more: {"a": jnp.broadcast_to(x * scale, shape), "b": [more[0] + jnp.zeros(shape)]},
            layout,
            np.float32(2),
            (4, 8),
            scale=scale,
            more=[there],
        )
        assert np.all(np.asarray(found["a"]) == 4)
        assert np.all(np.asarray(found["b"][0]) == 3)
        dtensor.check_layout(found["b"][0], layout)

    def test_without_a_layout_it_is_a_plain_call(self):
        assert dtensor.call_with_layout(lambda *a, **k: (a, k), None, 1, b=2) == ((1,), {"b": 2})

    def test_inside_jit(self, mesh):
        layout = Layout(["batch"], mesh)
        found = jax.jit(lambda x: dtensor.call_with_layout(jnp.add, layout, x, x))(np.ones(4, np.float32))
        dtensor.check_layout(found, layout)
        assert found.tolist() == [2.0] * 4

    def test_each_call_calls_the_function_once(self, line):
        numbers = iter(range(2))
        layout = Layout.replicated(line, 1)
        found = [dtensor.call_with_layout(lambda: jnp.full(2, next(numbers)), layout).tolist() for _ in range(2)]
        assert found == [[0, 0], [1, 1]]

    def test_what_does_not_fit(self, line):
        with pytest.raises(LayoutError, match="cannot shard dim 0 of 'the result'") as error:
            dtensor.call_with_layout(jnp.zeros, Layout(["batch"], line), (6,))
        assert all(parts_of(error))
        with pytest.raises(LayoutError, match="wrong rank"):
            dtensor.call_with_layout(jnp.zeros, Layout(["batch"], line), (8, 8))


class TestDefaultMesh:
    @pytest.mark.parametrize("scope", [dtensor.default_mesh, dtensor.run_on])
    def test_what_is_made_from_nothing_is_replicated_on_it(self, mesh, scope):
        layout = Layout.replicated(mesh, 1)
        assert dtensor.get_default_mesh() is None
        with scope(mesh):
            assert dtensor.get_default_mesh() == mesh
            made = [jnp.zeros(3), dtensor.copy_to_mesh(np.ones(2)), dtensor.DVariable(np.ones(2))]
            kept = dtensor.DVariable(dtensor.copy_to_mesh(np.ones(4), Layout(["batch"], mesh)))
            bare = jax.jit(lambda x: jax.lax.with_sharding_constraint(x, PartitionSpec("model")))(np.ones(4))
            traced = jax.jit(lambda x: dtensor.copy_to_mesh(x) + dtensor.get_default_mesh().size)(np.ones(2))
        assert dtensor.get_default_mesh() is None
        for array in (*made, traced):
            dtensor.check_layout(array, layout)
        for array, entry in ((kept, "batch"), (bare, "model")):
            assert dtensor.fetch_layout(array).sharding_specs == [entry]

    def test_without_one(self):
        with pytest.raises(LayoutError, match="`layout` must be a Layout without a default mesh"):
            dtensor.copy_to_mesh(X)
        with pytest.raises(MeshError), dtensor.default_mesh("batch"):
            pass
