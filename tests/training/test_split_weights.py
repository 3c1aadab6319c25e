"""A module whose own shard_map takes weights apart that no rule shards: a warning with the rules to add."""

import ast
import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P

import keras_dist as kd
from keras_dist.errors import LayoutWarning

X = np.ones((8, 8), "float32")


def summed(inputs, experts, stages):
    def local(inputs, experts, stages):
        mixed = jnp.einsum("bi,eij->bj", inputs, experts)
        return jax.lax.psum(mixed, "expert") + jnp.einsum("bi,eij->bj", inputs, stages).sum() * 0

    specs = P("data"), P("expert"), P("expert")
    return jax.shard_map(local, in_specs=specs, out_specs=P("data"), check_vma=False)(inputs, experts, stages)


class Mixture(nnx.Module):
    """Experts as they are; stages cast, transposed, and inside of a checkpoint and a jit; `whole` for all devices."""

    def __init__(self, rngs):
        self.experts = nnx.Param(jax.random.normal(rngs.params(), (4, 8, 8)))
        self.stages = nnx.Param(jax.random.normal(rngs.params(), (8, 8, 4)))
        self.whole = nnx.Param(jax.random.normal(rngs.params(), (8, 8)))

    def __call__(self, inputs):
        def inner(inputs, experts, stages):
            stages = stages.astype("bfloat16").transpose(2, 0, 1).astype("float32")
            return jax.jit(summed)(inputs, experts, stages)

        if jax.sharding.get_abstract_mesh().empty:
            return inputs
        return jax.checkpoint(inner)(inputs @ self.whole[...], self.experts[...], self.stages[...])


def warnings_of(rules, mesh="data=2,expert=4", runs=2):
    layout_map = kd.LayoutMap(kd.DeviceMesh(mesh))
    for rule, axes in rules.items():
        layout_map[rule] = axes
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with kd.ModelParallel(layout_map, "data").scope():
            model = kd.Model.from_nnx(Mixture, seed=0)
        model.compile("sgd", "mse")
        for _ in range(runs):
            model.fit(X, X, 4, verbose=0)
        model.evaluate(X, X, 4, verbose=0)
    return [w for w in caught if issubclass(w.category, LayoutWarning)]


def test_one_warning_has_the_rules_to_add_and_they_silence_it():
    (warning,) = warnings_of({})
    text = str(warning.message)
    assert "splits 2 weight(s)" in text
    assert "whole" not in text
    assert warning.filename == __file__
    told = {path: ast.literal_eval(axes) for path, axes in re.findall(r"layout_map\['(\w+)'\] = (\(.*?\))  #", text)}
    assert told == {"experts": ("expert", None, None), "stages": (None, None, "expert")}
    assert warnings_of(told) == []


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    ("rules", "mesh"),
    [
        ({"experts|stages": (None, None, None)}, "data=2,expert=4"),  # on purpose
        ({}, "data=8,expert=1"),  # nothing is split
    ],
    ids=["replicated by rule", "axis of one device"],
)
def test_no_warning(rules, mesh):
    assert warnings_of(rules, mesh, runs=1) == []


@pytest.mark.slow
def test_only_the_weights_without_a_rule_are_named():
    (warning,) = warnings_of({"experts": ("expert", None, None)})
    assert "'stages'" in str(warning.message)
    assert "'experts'" not in str(warning.message)
