"""What a plan calls each array, and what role it sees in it."""

import dataclasses
from typing import Any

import flax.linen as linen
import jax
import jax.numpy as jnp
import pytest
from flax import nnx

import keras_dist as kd
from keras_dist.errors import LayoutError
from tests.distribution.shapes import f32, model_parallel


def roles(plan: kd.LayoutPlan) -> dict[str, str]:
    return {row.path: row.role for row in plan.rows}


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Linear:
    """A layer as Equinox writes it: a dataclass that is a pytree, with some fields that are no arrays."""

    weight: Any
    bias: Any
    name: str = dataclasses.field(default="linear", metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Network:
    """Layers in a list, beside a part that was filtered away."""

    layers: list[Linear]
    activation: Any = None


class Block(nnx.Module):
    """Parameters, statistics, RNG streams, a counter, a list, and a raw array."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.layers = nnx.List([nnx.Linear(4, 8, rngs=rngs), nnx.Linear(8, 4, rngs=rngs)])
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)
        self.calls = nnx.Variable(jnp.int32(0))
        self.table = nnx.data(jnp.arange(8.0))


class LinenNet(linen.Module):
    """A Linen model with statistics."""

    @linen.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return linen.BatchNorm(use_running_average=True, name="norm")(linen.Dense(8, name="d1")(x))


BLOCK = {
    "calls": "counter",
    "drop/rngs/count": "rng",
    "drop/rngs/key": "rng",
    "layers/0/bias": "parameter",
    "layers/0/kernel": "parameter",
    "layers/1/bias": "parameter",
    "layers/1/kernel": "parameter",
    "norm/bias": "parameter",
    "norm/mean": "statistic",
    "norm/scale": "parameter",
    "norm/var": "statistic",
    "table": "statistic",
}


@pytest.mark.parametrize(
    "tree",
    [
        pytest.param(lambda: Block(nnx.Rngs(0)), id="module"),
        pytest.param(lambda: nnx.state(Block(nnx.Rngs(0))), id="state"),
        pytest.param(lambda: nnx.eval_shape(lambda: Block(nnx.Rngs(0))), id="abstract module"),
        pytest.param(lambda: nnx.state(nnx.eval_shape(lambda: Block(nnx.Rngs(0)))), id="abstract state"),
    ],
)
def test_nnx(tree: Any) -> None:
    assert roles(kd.DataParallel().plan(tree())) == BLOCK


def test_linen_hides_params_and_keeps_other_collections() -> None:
    tree = jax.eval_shape(LinenNet().init, jax.random.key(0), f32(2, 4))
    assert roles(kd.DataParallel().plan(tree)) == {
        "batch_stats/norm/mean": "statistic",
        "batch_stats/norm/var": "statistic",
        "d1/bias": "parameter",
        "d1/kernel": "parameter",
        "norm/bias": "parameter",
        "norm/scale": "parameter",
    }


def test_a_linen_statistic_is_found_by_the_path_that_is_printed(mesh: kd.DeviceMesh) -> None:
    tree = jax.eval_shape(LinenNet().init, jax.random.key(0), f32(2, 4))
    plan = model_parallel(mesh, {"batch_stats/norm/mean": ("model",)}).plan(tree)
    assert plan.row("batch_stats/norm/mean").axes == ("model",)
    assert plan.row("batch_stats/norm/var").axes == (None,)


def test_params_stay_where_dropping_them_would_make_two_of_one_path() -> None:
    plan = kd.DataParallel().plan({"params": {"a": {"w": f32(8)}}, "a": {"w": f32(4)}})
    assert [row.path for row in plan.rows] == ["a/w", "params/a/w"]


def test_equinox_like_dataclasses() -> None:
    network = Network([Linear(f32(4, 8), f32(8)), Linear(f32(8, 4), None)])
    plan = kd.DataParallel().plan(network)
    assert [row.path for row in plan.rows] == ["layers/0/weight", "layers/0/bias", "layers/1/weight"]
    assert isinstance(plan.shardings, Network)


@pytest.mark.parametrize(
    ("leaf", "role"),
    [
        (jax.random.key(0), "rng"),
        (jax.eval_shape(jax.random.key, 0), "rng"),
        (jax.ShapeDtypeStruct((), "int32"), "counter"),
        (True, "counter"),
        (3, "counter"),
        (0.5, "parameter"),
        (jax.ShapeDtypeStruct((4,), "int8"), "parameter"),
        (f32(), "parameter"),
    ],
)
def test_roles_of_bare_leaves(leaf: Any, role: str) -> None:
    assert roles(kd.DataParallel().plan({"leaf": leaf})) == {"leaf": role}


def test_a_rule_for_an_rng_leaf_alone_is_dead(mesh: kd.DeviceMesh) -> None:
    with pytest.warns(kd.errors.LayoutWarning, match="rule 'key' matched nothing"):
        model_parallel(mesh, {"key": ("model",)}).plan({"key": jax.random.split(jax.random.key(0), 4), "w": f32(4)})


@pytest.mark.parametrize("leaf", ["text", object()])
def test_a_leaf_that_is_no_array_is_named(leaf: Any) -> None:
    with pytest.raises(LayoutError, match="plan: 'a/0' must be an array"):
        kd.DataParallel().plan({"a": [leaf]})


def test_a_scanned_layer_has_its_leading_dim_everywhere() -> None:
    @nnx.vmap(in_axes=0, out_axes=0)
    def make(rngs: nnx.Rngs) -> nnx.Linear:
        return nnx.Linear(4, 8, rngs=rngs)

    plan = kd.DataParallel().plan(make(nnx.Rngs(0).split(3)))
    assert {row.path: row.shape for row in plan.rows} == {"bias": (3, 8), "kernel": (3, 4, 8)}
