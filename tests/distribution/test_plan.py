import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import keras_dist as kd
from keras_dist.errors import LayoutError
from tests.distribution.shapes import f32, model_parallel

RULES = {"d1/kernel": (None, "model"), "d1/bias": ("model",)}


def init(key: jax.Array) -> dict[str, Any]:
    first, second = jax.random.split(key)
    return {
        "d1": {"kernel": jax.random.normal(first, (8, 16)), "bias": jnp.zeros(16)},
        "d2": {"kernel": jax.random.uniform(second, (16, 4), jnp.bfloat16)},
    }


@pytest.fixture
def plan(mesh: kd.DeviceMesh) -> kd.LayoutPlan:
    return model_parallel(mesh, RULES).plan(jax.eval_shape(init, jax.random.key(0)))


def test_a_row_says_all_of_one_array(plan: kd.LayoutPlan) -> None:
    row = plan.row("d1/kernel")
    assert (row.path, row.shape, str(row.dtype), row.role) == ("d1/kernel", (8, 16), "float32", "parameter")
    assert (row.axes, row.rule, row.nbytes, row.nbytes_per_device) == ((None, "model"), "d1/kernel", 512, 128)
    other = plan.row("d2/kernel")
    assert (other.axes, other.rule, other.nbytes, other.nbytes_per_device) == ((None, None), None, 128, 128)


def test_totals(plan: kd.LayoutPlan) -> None:
    assert plan.nbytes == 512 + 64 + 128
    assert plan.nbytes_per_device == 128 + 16 + 128


def test_shardings_have_the_structure_of_the_tree(plan: kd.LayoutPlan, mesh: kd.DeviceMesh) -> None:
    assert plan.shardings == {
        "d1": {
            "kernel": NamedSharding(mesh.backend_mesh, P(None, "model")),
            "bias": NamedSharding(mesh.backend_mesh, P("model")),
        },
        "d2": {"kernel": NamedSharding(mesh.backend_mesh, P(None, None))},
    }


def test_planning_allocates_nothing(mesh: kd.DeviceMesh) -> None:
    plan = model_parallel(mesh, {"w": ("data", "model")}).plan({"w": f32(1 << 20, 1 << 20)})
    assert (plan.nbytes, plan.nbytes_per_device) == (1 << 42, 1 << 39)


def test_a_plan_is_a_snapshot_of_the_rules(mesh: kd.DeviceMesh) -> None:
    distribution = model_parallel(mesh, RULES)
    tree = jax.eval_shape(init, jax.random.key(0))
    before = distribution.plan(tree)
    del distribution.layout_map["d1/kernel"]
    distribution.layout_map["d1/kernel"] = ("data", None)
    assert before.row("d1/kernel").axes == (None, "model")
    assert dict(before.rules) == RULES
    assert distribution.plan(tree).row("d1/kernel").axes == ("data", None)


def test_init_gives_the_planned_shards_and_the_unsharded_values(plan: kd.LayoutPlan) -> None:
    born, whole = plan.init(init, jax.random.key(7)), jax.jit(init)(jax.random.key(7))
    for ours, theirs, sharding in zip(*map(jax.tree.leaves, (born, whole, plan.shardings)), strict=True):
        assert ours.sharding == sharding
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)
    assert {shard.data.shape for shard in born["d1"]["kernel"].addressable_shards} == {(8, 4)}


def test_init_never_makes_a_whole_array_on_one_device(mesh: kd.DeviceMesh) -> None:
    def large(key: jax.Array) -> dict[str, jax.Array]:
        return {name: jax.random.normal(key, (1024, 4096)) for name in ("a", "b")}

    plan = kd.FullySharded(mesh, axis=("data", "model")).plan(jax.eval_shape(large, jax.random.key(0)))
    compiled = plan.compile_init(large, jax.random.key(0))
    shard = plan.row("a").nbytes_per_device
    for program in compiled.programs:
        memory: Any = program.memory_analysis()
        assert memory.output_size_in_bytes <= shard + 1024
        assert memory.output_size_in_bytes + memory.temp_size_in_bytes < plan.row("a").nbytes


def test_init_that_returns_its_argument_copies_it(mesh: kd.DeviceMesh) -> None:
    weights = jax.device_put(jnp.ones((8, 8)), NamedSharding(mesh.backend_mesh, P(None, None)))
    plan = model_parallel(mesh, {}).plan({"w": weights})
    born = plan.init(lambda w: {"w": w}, weights)
    born["w"].delete()
    assert float(weights.sum()) == 64


@pytest.mark.parametrize(
    ("fn", "words"),
    [
        (lambda: {"w": jnp.ones((8, 8)), "extra": jnp.ones(2)}, r"not planned: \['extra'\]"),
        (lambda: {"v": jnp.ones((8, 8))}, r"missing: \['w'\]"),
        (lambda: {"w": jnp.ones((8, 9))}, "'w' in the result of the initialiser must have the planned shape"),
    ],
)
def test_init_must_return_what_was_planned(mesh: kd.DeviceMesh, fn: Any, words: str) -> None:
    with pytest.raises(LayoutError, match=words):
        model_parallel(mesh, {}).plan({"w": f32(8, 8)}).init(fn)


def test_place_copies_arrays_that_lie_there_already(plan: kd.LayoutPlan) -> None:
    first = plan.place(init(jax.random.key(0)))
    second = plan.place(first)
    jax.tree.map(lambda leaf: leaf.delete(), second)
    np.testing.assert_array_equal(first["d1"]["kernel"], init(jax.random.key(0))["d1"]["kernel"])


@pytest.mark.parametrize("rows", [8, 4096])
def test_place_does_not_point_into_numpy_memory(mesh: kd.DeviceMesh, rows: int) -> None:
    buffer = np.zeros((rows, 16), np.float32)
    placed = model_parallel(mesh, {"w": ("data", None)}).plan({"w": buffer}).place({"w": buffer})
    buffer[:] = 7
    assert float(placed["w"].sum()) == 0


def test_place_takes_modules_keys_and_numbers(mesh: kd.DeviceMesh) -> None:
    distribution = model_parallel(mesh, {"kernel": (None, "model")})
    module = nnx.Linear(8, 16, rngs=nnx.Rngs(0))
    assert distribution.plan(module).place(module)["kernel"][...].sharding.spec == P(None, "model")
    tree = {"key": jax.random.key(3), "step": 4, "kernel": jnp.ones((8, 16))}
    placed = distribution.plan(tree).place(tree)
    assert int(placed["step"]) == 4
    assert jax.random.key_data(placed["key"]).tolist() == [0, 3]


@pytest.mark.parametrize(
    ("tree", "words"), [({"w": jnp.ones((8, 4))}, "'w' in the tree to place"), ({"v": jnp.ones((8, 8))}, "structure")]
)
def test_place_wants_what_was_planned(mesh: kd.DeviceMesh, tree: Any, words: str) -> None:
    with pytest.raises(LayoutError, match=words):
        model_parallel(mesh, {}).plan({"w": f32(8, 8)}).place(tree)


def test_to_dict_is_plain(mesh: kd.DeviceMesh) -> None:
    with pytest.warns(kd.errors.LayoutWarning):
        plan = model_parallel(mesh, {"w": (("data", "model"), None), "x": (None,)}).plan({"w": f32(8, 2)})
    found = json.loads(json.dumps(plan.to_dict()))
    assert found["mesh"] == {
        "shape": [2, 4],
        "axis_names": ["data", "model"],
        "devices": [f"cpu:{index}" for index in range(8)],
    }
    assert found["rows"] == [
        {
            "path": "w",
            "shape": [8, 2],
            "dtype": "float32",
            "role": "parameter",
            "axes": [["data", "model"], None],
            "rule": "w",
            "nbytes": 64,
            "nbytes_per_device": 8,
        }
    ]
    assert [(problem["kind"], problem["path"]) for problem in found["problems"]] == [("dead", "x")]
    assert (found["nbytes"], found["nbytes_per_device"]) == (64, 8)


def test_printed_as_a_table_with_totals_last(plan: kd.LayoutPlan) -> None:
    lines = [line for line in str(plan).splitlines() if "│" in line]
    header, *cells = [[cell.strip() for cell in line.split("│")] for line in lines]
    assert header == ["path", "shape", "dtype", "role", "layout", "rule", "bytes", "per device"]
    assert cells[0] == ["d1/bias", "16", "float32", "parameter", "(model)", "d1/bias", "64 B", "16 B"]
    assert cells[1] == ["d1/kernel", "8 x 16", "float32", "parameter", "(-, model)", "d1/kernel", "512 B", "128 B"]
    assert cells[2] == ["d2/kernel", "16 x 4", "bfloat16", "parameter", "replicated", "no rule", "128 B", "128 B"]
    assert cells[3] == ["total", "", "", "", "", "", "704 B", "272 B"]
    assert len(cells) == 4
    assert str(plan).startswith("Layout on mesh {data: 2, model: 4}")
    assert repr(plan) == "<LayoutPlan of 3 arrays on mesh {data: 2, model: 4}>"


def test_arranged_in_another_structure(plan: kd.LayoutPlan) -> None:
    arranged = plan.arrange([("d2/kernel", "d1/bias")])
    assert [row.path for row in arranged.rows] == ["d2/kernel", "d1/bias"]
    assert arranged.shardings[0][1] == plan.shardings["d1"]["bias"]
    with pytest.raises(KeyError):
        plan.arrange(["d3/bias"])


def test_joined_and_prefixed(plan: kd.LayoutPlan, mesh: kd.DeviceMesh) -> None:
    counter = kd.LayoutPlan.replicated_scalar("step", "int32", mesh)
    joined = kd.LayoutPlan.join({"model": plan.prefixed("model"), "step": counter})
    assert [row.path for row in joined.rows] == ["model/d1/bias", "model/d1/kernel", "model/d2/kernel", "step"]
    assert joined.shardings["model"] == plan.shardings
    assert joined.shardings["step"].is_fully_replicated
    assert joined.nbytes == plan.nbytes + 4
    assert joined.rules == plan.rules


def test_an_exact_path_beats_the_alias_of_another_array(mesh: kd.DeviceMesh) -> None:
    tree = {"params": {"n": {"w": f32(8)}}, "stats": {"n": {"w": f32(4)}}}
    plan = model_parallel(mesh, {}).plan(tree)
    assert plan.row("n/w").shape == (8,)
    assert plan.row("stats/n/w").shape == (4,)


@pytest.mark.parametrize(
    "seconds, text",
    [
        (0, "0 ns"),
        (1.71e-8, "17.1 ns"),
        (3.45e-7, "345 ns"),
        (0.9996e-3, "1 ms"),
        (0.0412, "41.2 ms"),
        (90, "1.5 min"),
        (1e7, "2,778 h"),
    ],
)
def test_times_have_a_readable_unit(seconds, text):
    assert kd.distribution.render.render_seconds(seconds) == text
