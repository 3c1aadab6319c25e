"""Why arrays live where they do: rules of variables, and origins of the layouts of activations."""

import json
import subprocess

import jax
import numpy as np
import pytest
from flax import nnx

import keras_dist as kd
from keras_dist._unstable import shardy
from keras_dist.errors import LayoutError
from keras_dist.planner import trace_step
from keras_dist.planner.explanation import activations

WIDTH, HIDDEN, BLOCKS, ROWS, LENGTH = 16, 64, 3, 32, 5
X = jax.ShapeDtypeStruct((ROWS, LENGTH, WIDTH), np.float32)
MEGATRON = {r".*up/kernel": (None, "model"), r".*down/kernel": ("model", None)}
STACKED = {r"blocks/up/kernel": (None, None, "model"), r"blocks/down/kernel": (None, "model", None)}


class Block(nnx.Module):
    """A norm and an MLP around which the input is added."""

    def __init__(self, rngs):
        self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.up, self.down = nnx.Linear(WIDTH, HIDDEN, rngs=rngs), nnx.Linear(HIDDEN, WIDTH, rngs=rngs)

    def __call__(self, x):
        return x + self.down(nnx.relu(self.up(self.norm(x))))


class Unrolled(nnx.Module):
    def __init__(self, rngs):
        self.blocks = nnx.List([Block(rngs) for _ in range(BLOCKS)])

    def __call__(self, x):
        for block in self.blocks:
            x = block(x)
        return x


class Scanned(nnx.Module):
    def __init__(self, rngs):
        self.blocks = nnx.vmap(lambda key: Block(nnx.Rngs(key)))(jax.random.split(rngs.params(), BLOCKS))

    def __call__(self, x):
        return nnx.scan(lambda x, block: block(x), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)(x, self.blocks)


def strategy(rules):
    layout_map = kd.LayoutMap(kd.DeviceMesh("data=2,model=4"))
    for rule, axes in rules.items():
        layout_map[rule] = axes
    return kd.ModelParallel(layout_map)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    ("module", "rules", "block"),
    [(Unrolled, MEGATRON, "blocks/1"), (Scanned, STACKED, "blocks")],
    ids=["unrolled", "scanned"],
)
def test_activations_and_what_brought_them_there(module, rules, block):
    report = kd.plan(module, X, strategy(rules))
    found = {each.path: each for each in report.activations}
    names = ["norm/output", "up/output", "down/output", "output"]
    assert [name for name in found if name.startswith(f"{block}/")] == [f"{block}/{name}" for name in names]
    up = found[f"{block}/up/output"]
    assert up.shape == (ROWS, LENGTH, HIDDEN) and up.axes == ("data", None, "model")
    assert up.nbytes_per_device == 4 * ROWS * LENGTH * HIDDEN // 8
    origins = dict(up.origins)
    assert origins["data"] == ("input/x", "the batch dim")
    assert origins["model"][0].endswith("up/kernel")
    assert origins["model"][1] == f"rule {next(rule for rule in rules if 'up' in rule)!r}"
    assert found[f"{block}/down/output"].axes == found[f"{block}/norm/output"].axes == ("data", None, None)
    said = str(report.explain(f"{block}/up/output"))
    assert f"'model': from {origins['model'][0]}, which is decided by {origins['model'][1]}" in said
    assert "propagated" in said


def test_a_rule_for_an_activation_is_its_origin():
    rules = {**MEGATRON, r"blocks/1/up/output": ("data", None, None)}
    found = kd.plan(Unrolled, X, strategy(rules)).explain("blocks/1/up/output")
    assert found.axes == ("data", None, None)
    assert found.reasons == ("'data': from blocks/1/up/output, which is decided by rule 'blocks/1/up/output'",)
    assert not any("blocks/1/up/output" in other for other in found.others)


def test_a_constraint_of_the_module_is_an_origin():
    class Constrained(nnx.Module):
        def __init__(self, rngs):
            self.inner = Inner(rngs)

        def __call__(self, x):
            return self.inner(x)

    class Inner(nnx.Module):
        def __init__(self, rngs):
            self.linear = nnx.Linear(WIDTH, HIDDEN, rngs=rngs)

        def __call__(self, x):
            return jax.lax.with_sharding_constraint(self.linear(x), jax.P(None, None, "model"))

    found = {each.path: each for each in kd.plan(Constrained, X, strategy({})).activations}
    assert dict(found["inner/output"].origins) == {"model": ("a constraint in inner",)}


def test_a_slot_is_no_origin_but_what_it_follows():
    found = kd.plan(Unrolled, (X, X), strategy(MEGATRON), "adam", "mse").activations
    sources = {chain[0] for each in found for _, chain in each.origins}
    assert sources <= {
        "input/x",
        "target",
        *(f"blocks/{i}/{name}/kernel" for i in range(BLOCKS) for name in ("up", "down")),
    }


def test_variables_and_unknown_paths():
    report = kd.plan(Unrolled, X, strategy({"blocks/0/up/kernel": (None, "model"), "blocks/0/down/bias": (None,)}))
    kernel = report.explain("blocks/0/up/kernel")
    assert (kernel.axes, kernel.source) == ((None, "model"), "exact")
    assert "rule 'blocks/0/up/kernel'" in str(kernel)
    other = report.explain("blocks/1/up/kernel")
    assert other.axes == (None, None) and "no rule matches: replicated" in other.reasons
    assert other.others[0] == "rule 'blocks/0/up/kernel' -> (-, model)"
    slot = next(row.path for row in report.state.rows if row.role == "slot" and row.path.endswith("0/up/kernel"))
    assert "follows blocks/0/up/kernel" in str(report.explain(slot))
    assert report.explain("input/x").kind == "batch"
    assert json.loads(json.dumps(kernel.to_dict()))["axes"] == [None, "model"]
    for path in ("blocks/0/up/kernal", "nothing", 3):
        with pytest.raises(LayoutError, match="the step has no array") as error:
            report.explain(path)
        assert path != "blocks/0/up/kernal" or "'blocks/0/up/kernel'" in error.value.fix


def test_layouts_stay_known_where_shardy_ends_the_process_that_notes_origins(monkeypatch):
    failures = [subprocess.CalledProcessError(-11, "shardy"), subprocess.TimeoutExpired("s", 1)]

    def ended(*args, **kwargs):
        raise failures.pop()

    program = trace_step(Unrolled, X, strategy(MEGATRON))
    expected = {each.path: each.axes for each in activations(program)}
    monkeypatch.setattr(shardy.subprocess, "run", ended)
    while failures:
        found = activations(program)
        assert {each.path: each.axes for each in found} == expected
        assert {reason for each in found for _, reason in each.origins} == {("not known",)}


@pytest.mark.multiprocess
def test_the_process_of_its_own_notes_what_is_noted_here(monkeypatch):
    program = trace_step(Unrolled, X, strategy(MEGATRON))
    expected = activations(program)
    monkeypatch.setattr(shardy, "subprocess", subprocess)
    assert activations(program) == expected
