"""Inputs off the beaten track: taken as they are meant, or refused by name."""

import collections
import copy
import json
import pickle

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import keras_dist as kd
from keras_dist.errors import DistributionError, LayoutError, LayoutWarning, MeshError

F32 = jnp.float32


def shape(*dims, dtype=F32):
    return jax.ShapeDtypeStruct(dims, dtype)


def ruled(rules, mesh="data=2,model=4", **options):
    layout_map = kd.LayoutMap(kd.DeviceMesh(mesh))
    layout_map.update(rules)
    return kd.ModelParallel(layout_map, **options)


class TestDevices:
    @pytest.mark.parametrize("make", [iter, set, lambda d: dict.fromkeys(range(8), 0).keys() and (x for x in d)])
    def test_an_iterable_is_iterated_and_a_set_refused(self, make):
        devices = make(jax.devices())
        if isinstance(devices, set):
            with pytest.raises(MeshError, match="`devices` must be a sequence"):
                kd.DataParallel(devices=devices)
        else:
            assert kd.DataParallel(devices=devices).num_model_replicas == 8

    def test_nested_devices_are_flattened(self):
        assert kd.DeviceMesh((3,), ("d",), [["cpu:0"], ["cpu:1", "cpu:2"]]).size == 3

    @pytest.mark.parametrize("devices", [[], "cpu:0", 3])
    def test_no_devices(self, devices):
        with pytest.raises(MeshError, match="`devices` must"):
            kd.DeviceMesh((-1,), ("d",), devices)


class TestMesh:
    @pytest.mark.parametrize(("sizes", "names"), [(8, ("d",)), ((8,), {"d"}), ((n for n in (2, 4)), ("a", "b"))])
    def test_sizes_and_names_are_sequences(self, sizes, names):
        with pytest.raises(MeshError, match="must be a sequence"):
            kd.DeviceMesh(sizes, names)

    def test_numpy_names_become_plain_ones(self):
        names = kd.DeviceMesh((2, 4), np.array(["data", "model"])).axis_names
        assert [type(name) for name in names] == [str, str]

    def test_distributions_can_be_pickled_too(self):
        distribution = ruled({"k": (None, "model")})
        distribution.plan({"k": shape(4, 4)})
        assert pickle.loads(pickle.dumps(distribution)) == distribution


class TestFollow:
    """Slots follow whatever the containers are, and where branches are missing."""

    @staticmethod
    def unowned(plan):
        return [row.path for row in plan.rows if row.shape and not (row.rule or "").startswith("follows")]

    def test_linen_slots_of_the_params_collection(self):
        class Net(nn.Module):
            @nn.compact
            def __call__(self, x):
                return nn.BatchNorm(use_running_average=False)(nn.Dense(16, name="d1")(x))

        variables = jax.eval_shape(lambda key: Net().init(key, jnp.ones((8, 8))), jax.random.key(0))
        plan = kd.FullySharded(kd.DeviceMesh("data=8")).plan(variables)
        slots = plan.follow(jax.eval_shape(optax.adam(1e-3).init, variables["params"]))
        assert not self.unowned(slots)
        assert slots.row("0/mu/d1/kernel").axes == plan.row("d1/kernel").axes == (None, "data")
        assert not self.unowned(plan.follow({"params": variables["params"]}, "gradient"))
        assert not self.unowned(plan.follow(variables, "gradient"))

    def test_nnx_slots_of_the_parameters_of_a_module(self):
        class Net(nnx.Module):
            def __init__(self, rngs):
                self.a = nnx.Linear(8, 16, rngs=rngs)
                self.norm = nnx.BatchNorm(16, rngs=rngs)

        module, optimizer = Net(nnx.Rngs(0)), optax.adam(1e-3)
        params = nnx.state(module, nnx.Param)
        plan = kd.FullySharded(kd.DeviceMesh("data=8")).plan(module)
        followers = [
            optimizer.init(params),
            params,
            module,
            optimizer.init(nnx.to_pure_dict(params)),
            nnx.state(nnx.Optimizer(module, optimizer, wrt=nnx.Param)),
        ]
        for tree in followers:
            followed = plan.follow(tree)
            assert not self.unowned(followed)
            kernels = [row.axes for row in followed.rows if row.path.endswith("a/kernel")]
            assert kernels
            assert set(kernels) == {(None, "data")}

    def test_an_optimizer_instead_of_its_state(self):
        plan = ruled({"a": (None, "model")}).plan({"a": shape(8, 8)})
        with pytest.raises(LayoutError, match="must be an array"):
            plan.follow(optax.adam(1e-3))


class TestPlan:
    def test_brackets_in_rules_and_paths_are_printed_as_they_are(self):
        plan = ruled({"d[0-9][/]kernel": (None, "model")}).plan({"d1": {"kernel": shape(8, 16)}, "[red]x": shape(2)})
        assert "d[0-9][/]kernel" in str(plan)
        assert "[red]x" in str(plan)

    def test_it_is_immutable(self):
        plan = ruled({}).plan({"a": shape(8, 8)})
        with pytest.raises(AttributeError):
            plan.rows = ()

    def test_numpy_sizes_become_plain_ones(self):
        leaf = jax.ShapeDtypeStruct((np.int64(4), 4), F32)
        assert json.loads(json.dumps(ruled({}).plan({"a": leaf}).to_dict()))["rows"][0]["shape"] == [4, 4]

    def test_equal_paths_are_refused(self):
        with pytest.raises(LayoutError, match="'a/b'"):
            ruled({}).plan({"a/b": shape(2), "a": {"b": shape(3)}})

    def test_the_dtype_is_that_of_the_placed_array(self):
        tree = {"a": np.zeros((4, 4))}  # float64
        plan = ruled({}).plan(tree)
        assert plan.rows[0].dtype == plan.place(tree)["a"].dtype == F32
        assert plan.rows[0].nbytes == 64

    def test_another_dtype_or_order_is_refused(self):
        plan = ruled({}).plan({"a": shape(4), "b": shape(4)})
        with pytest.raises(LayoutError, match="dtype"):
            plan.place({"a": jnp.zeros(4, jnp.bfloat16), "b": jnp.zeros(4)})
        with pytest.raises(LayoutError) as caught:
            plan.place(collections.OrderedDict(b=jnp.zeros(4), a=jnp.zeros(4)))
        assert "in the order ['b', 'a']" in caught.value.given

    def test_a_raw_prng_key_is_replicated(self):
        plan = kd.FullySharded(kd.DeviceMesh("data=2", devices=["cpu:0", "cpu:1"])).plan({"key": jax.random.PRNGKey(0)})
        assert (plan.rows[0].role, plan.rows[0].axes) == ("rng", (None,))


class TestStrategies:
    @pytest.mark.parametrize("least", ["1MB", None, -1, True])
    def test_min_size_bytes(self, least):
        with pytest.raises(DistributionError, match="`min_size_bytes`"):
            kd.FullySharded(kd.DeviceMesh("data=8"), min_size_bytes=least)

    def test_the_mesh_may_be_named_once_more(self):
        rules = kd.LayoutMap(kd.DeviceMesh("data=8"))
        assert kd.ModelParallel(layout_map=rules, device_mesh=kd.DeviceMesh("data=8")).device_mesh == rules.device_mesh
        with pytest.raises(DistributionError, match="`device_mesh`"):
            kd.ModelParallel(layout_map=rules, device_mesh=kd.DeviceMesh("data=4,model=2"))

    def test_attributes_that_are_arrays_are_compared(self):
        class Own(kd.DataParallel):
            def __init__(self, weights):
                super().__init__()
                self.weights = np.array(weights)

        assert Own([1, 2]) == Own([1, 2])
        assert Own([1, 2]) != Own([1, 3])


class TestRules:
    @pytest.mark.parametrize(
        ("rule", "remedy"),
        [("kernel|bias", "'.*(?:kernel|bias)'"), ("^d1", "'d1.*'"), ("kernel", "'.*kernel'"), ("d1/ker", "'d1/ker.*'")],
    )
    def test_the_remedy_for_a_part_of_a_path_matches_it(self, rule, remedy):
        with pytest.warns(LayoutWarning) as caught:
            ruled({rule: (None, "model")}).plan({"d1": {"kernel": shape(8, 8)}})
        assert remedy in str(caught[0].message)
        assert caught[0].filename == __file__

    def test_a_module_called_input_is_no_input(self):
        with pytest.raises(LayoutError, match="input/kernle"):
            ruled({"input/kernle": (None, "model")}, strict=True).plan({"input": {"kernel": shape(8, 8)}})

    def test_a_path_that_is_no_string(self):
        with pytest.raises(LayoutError, match="`path` must be a string"):
            kd.LayoutMap(kd.DeviceMesh("data=8"))[None]

    def test_a_copy_has_rules_of_its_own(self):
        rules = kd.LayoutMap(kd.DeviceMesh("data=8"))
        other = copy.copy(rules)
        other["k"] = ("data",)
        assert not rules
        assert len(other) == 1


class TestTensor:
    @pytest.mark.parametrize(("dims", "axes"), [((8,), (None, "model")), ((8, 8), ("model",)), ((7,), ("model",))])
    @pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
    def test_a_layout_that_does_not_fit(self, dims, axes, wrap):
        layout = kd.TensorLayout(axes, kd.DeviceMesh("data=2,model=4"))
        with pytest.raises(LayoutError, match="'tensor'"):
            wrap(lambda x: kd.distribute_tensor(x, layout))(jnp.zeros(dims))

    @pytest.mark.parametrize("layout", [None, (None, "model")])
    def test_what_is_no_layout(self, layout):
        with pytest.raises(LayoutError, match="`layout` must be a TensorLayout with a mesh"):
            kd.distribute_tensor(jnp.zeros(8), layout)
