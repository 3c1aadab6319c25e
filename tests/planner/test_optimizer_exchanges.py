"""Exchanges of optimizers in plans. The reference is XLA's program, for CPUs and TPUs."""

import numpy as np
import optax
import pytest

import keras_dist as kd
from keras_dist import optimizers
from keras_dist.pretrained import Decoder
from tests import soak
from tests.optimizers.test_muon_on_shards import TOKENS, TRAINED, config


@pytest.mark.full
@soak.soak_if_large
@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("fully sharded", "cpu:8"),
        ("Megatron", "v5e:2x4"),
        *[("Megatron", "cpu:8"), ("slots alone", "cpu:8"), ("fully sharded", "v5e:2x4")] * soak.LARGE,
    ],
)
def test_plans_count_its_exchanges_as_compilers_do(name, target, request):
    """Beside the gradients there are two groups, (32, 32) and (32, 64): two exchanges each.

    For TPUs XLA reduces gradients of this size as a whole, and exchanges less where slots alone are sharded.
    """
    if target != "cpu:8":
        request.getfixturevalue("tpu_compiler")
    steps = []
    for optimizer in (optimizers.Muon(0.02), optimizers.SGD(0.02, momentum=0.9)):
        with TRAINED[name][0](config()).scope():
            model = Decoder(config())
        batch = TOKENS[:8], TOKENS[:8]
        plan = kd.plan(model, batch, optimizer=optimizer, loss="causal_lm", target=target)
        assert not any("repeated work" in str(each) for each in plan.problems)
        steps.append((plan.step, plan.verdict.compiled))
    (mine, compiled), (sgd, _) = steps
    exchanges = [[each for each in of.collectives if each.kind == "all_to_all"] for of in (mine, compiled)]
    assert 2 <= len(exchanges[0]) <= 4
    assert len(exchanges[0]) == len(exchanges[1])
    assert sum(each.nbytes for each in exchanges[0]) == sum(each.nbytes for each in exchanges[1])
    assert not any("shard_map" in str(each) for each in mine.estimates)
    assert mine.flops > sgd.flops


def test_repeated_work_of_an_optimizer_names_it():
    """Muon of optax, weight by weight: devices compute the same products."""
    with kd.DataParallel(kd.DeviceMesh("data=8")).scope():
        model = kd.Sequential([kd.Input((64,)), kd.layers.Dense(64), kd.layers.Dense(64)])
    x = np.ones((8, 64), "float32")
    (problem,) = kd.plan(model, (x, x), optimizer=optax.contrib.muon(0.1), loss="mse").problems
    assert "the 8 devices along 'data' compute the same in 'optimizer'" in str(problem)
    assert not kd.plan(model, (x, x), optimizer=optimizers.Muon(0.1), loss="mse").problems
