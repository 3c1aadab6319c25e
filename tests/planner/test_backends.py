"""Collectives and memory of small programs are propagated as XLA compiled them, for each backend."""

import numpy as np
import pytest

from keras_dist.planner import compile_for, propagate, verdict
from keras_dist.planner.backends import shards_moved_as
from keras_dist.planner.storage import STORAGE
from tests import soak
from tests.planner import memory_experiments as memory
from tests.planner.backend_experiments import EXPERIMENTS, by_kind, lowered

LABELLED = {"gradient of a recurrence", "gradients of a sharded stack"}
"""Shardy exchanges otherwise than XLA, as the estimates say."""
PLATFORMS = {"cpu:8": "cpu", "v5e:2x4": "tpu", "h100:1x1x8": "cuda"}
RECORDED = [(name, target) for name, one in EXPERIMENTS.items() for target in one.recorded]


@pytest.mark.parametrize(("name", "target"), RECORDED)
def test_as_recorded_or_labelled(name, target):
    found = propagate(lowered(EXPERIMENTS[name], PLATFORMS[target]))
    if name in LABELLED:
        least, most = found.moved_interval
        assert least <= sum(EXPERIMENTS[name].recorded[target].values()) <= most
    else:
        assert by_kind(found) == EXPERIMENTS[name].recorded[target]


@pytest.mark.full
@soak.soak_if_large
@pytest.mark.parametrize(("name", "target"), soak.sampled(RECORDED, 4))
def test_records_are_what_xla_does(request, name, target):
    if target == "v5e:2x4":
        request.getfixturevalue("tpu_compiler")
    elif target != "cpu:8":
        pytest.importorskip("jax_cuda12_plugin", reason="the extra `cuda` is not installed: 5 GB")
    found = compile_for(lowered(EXPERIMENTS[name], PLATFORMS[target]), target)
    assert by_kind(found) == EXPERIMENTS[name].recorded[target]


@pytest.mark.parametrize("target", ["cpu:8", "v5e:2x4"])
@pytest.mark.parametrize(("dtype", "suffix"), [("float32", ""), ("bfloat16", ", bfloat16")])
def test_sharded_weights_are_priced_as_recorded(target, dtype, suffix):
    nbytes = 512 * 512 * (4 if dtype == "float32" else 2)
    platform = "cpu" if target == "cpu:8" else "tpu"
    gathered, reduced = shards_moved_as(platform, (512, 512), dtype, nbytes)
    product, total = (EXPERIMENTS[f"{name}{suffix or more}"] for name, more in _SHARDED)
    assert {gathered.kind: gathered.nbytes} == product.recorded[target]
    assert {reduced.kind: reduced.nbytes} == total.recorded[target]


def test_gathers_of_vectors_keep_their_type():
    assert [shards_moved_as("tpu", (512,), "float32", 2048)[at][:2] for at in (0, 1)] == [
        ("all_gather", 2048),
        ("all_reduce", 2048),
    ]


_SHARDED = (("weight in a product", ""), ("sum", ", rows"))


@pytest.mark.parametrize(("array", "nbytes"), memory.ARGUMENTS.items())
def test_tpus_store_arguments_in_tiles(array, nbytes):
    shape, dtype = array
    assert STORAGE["tpu"].least_nbytes(shape, np.dtype(dtype).itemsize) == nbytes
    assert STORAGE["cpu"].least_nbytes(shape, np.dtype(dtype).itemsize) == np.prod(shape) * np.dtype(dtype).itemsize


@pytest.mark.parametrize("name", memory.EXPERIMENTS)
def test_intermediate_results_are_within_their_bounds(name):
    each = memory.EXPERIMENTS[name]
    step = propagate(memory.lowered(each.function, each.arguments))
    padding = step.memory.padding_nbytes
    least, most = (bound - padding for bound in verdict.bounds_nbytes("tpu", step.memory))
    assert least <= each.recorded <= most


def test_loops_and_lookups_store_few_features_as_128_lanes():
    """XLA stores these 32 features as 128, and needs more than in arrays with the least padding."""
    for name in ("loop without products", "lookup"):
        each = memory.EXPERIMENTS[name]
        found = propagate(memory.lowered(each.function, each.arguments)).memory
        assert 2 * found.nbytes < each.recorded < found.most_nbytes


@pytest.mark.full
@pytest.mark.usefixtures("tpu_compiler")
def test_records_of_memory_are_what_xla_does():
    total = compile_for(memory.of_arguments(), memory.TARGET).argument_nbytes
    assert total == sum(memory.ARGUMENTS.values())
    for each in memory.EXPERIMENTS.values():
        found = compile_for(memory.lowered(each.function, each.arguments), memory.TARGET)
        assert memory.used(found) == pytest.approx(each.recorded, rel=0.01)
