"""`plan(search=...)`: batch sizes, remat and slots on the host, by memory and time."""

import itertools

import jax
import pytest

import keras_dist as kd
from keras_dist import layers
from keras_dist.errors import ConfigError, ModelError
from keras_dist.planner import compile_for
from keras_dist.planner.tracing import trace_step

WIDTH, LENGTH, DEPTH = 512, 256, 6


class Block(layers.Layer):
    def __init__(self, **options):
        super().__init__(**options)
        self.up, self.down = layers.Dense(4 * WIDTH, activation="gelu"), layers.Dense(WIDTH)

    def call(self, inputs):
        return inputs + self.down(self.up(inputs))


def model():
    made = kd.Sequential([kd.Input((LENGTH, WIDTH)), layers.Stack(Block(), DEPTH)])
    made.compile("adam", "mse")
    return made


def batch(rows):
    x = jax.ShapeDtypeStruct((rows, LENGTH, WIDTH), "float32")
    return x, x


@pytest.fixture(scope="module")
def found():
    options = {"target": "v5e:1x1", "compiles": False}
    return kd.plan(model, batch(64), search=("batch", "remat", "offload"), **options)


def test_batches_are_halved_and_doubled_until_none_fits(found):
    rows = sorted({each.rows for each in found.points})
    assert rows[0] <= 64 < rows[-1] and all(two == 2 * one for one, two in itertools.pairwise(rows))
    largest = [each for each in found.points if each.rows == rows[-1]]
    assert not any(each.verdict.fits for each in largest), "one more doubling would be useless"
    assert any(each.verdict.fits for each in found.points)


def test_each_option_costs_what_it_is_known_for(found):
    def of(remat, place):
        return next(
            each
            for each in found.points
            if each.rows == 64 and bool(each.remat and "stack" in each.remat) == remat and each.slot_memory == place
        )

    plain, again, moved = of(False, None), of(True, None), of(False, "pinned_host")
    assert again.needed_nbytes < plain.needed_nbytes
    assert again.verdict.roofline.compute_seconds > plain.verdict.roofline.compute_seconds
    slots = plain.verdict.slots_nbytes
    assert plain.remat == "none"
    assert slots == 2 * 4 * DEPTH * (2 * 4 * WIDTH * WIDTH + 5 * WIDTH), "two of float32 for each weight"
    seconds = moved.verdict.rooflines["propagated"].host_seconds
    assert seconds == pytest.approx(slots / 16e9, rel=1e-3), "PCIe of v5e"
    assert moved.verdict.roofline.step_seconds >= seconds


def test_nothing_on_the_frontier_is_beaten_and_all_else_is(found):
    kept = found.frontier

    def beats(one, other):
        ours, theirs = ((each.needed_nbytes, each.seconds_per_row) for each in (one, other))
        return ours != theirs and ours[0] <= theirs[0] and ours[1] <= theirs[1]

    assert not any(beats(one, other) for one in found.points for other in kept)
    for each in found.points:
        equal = (each.needed_nbytes, each.seconds_per_row)
        known = any((one.needed_nbytes, one.seconds_per_row) == equal for one in kept)
        assert known or any(beats(one, each) for one in kept)
    best = found.best
    assert best.verdict.fits and all(
        best.seconds_per_row <= each.seconds_per_row for each in found.points if each.verdict.fits
    )
    text = str(found)
    assert f"best that fits: {best.rows} rows" in text and text.count("\n") < 60
    assert sum(each["on_frontier"] for each in found.to_dict()["points"]) == len(kept)


@pytest.mark.slow
@pytest.mark.usefixtures("tpu_compiler")
def test_what_is_said_to_fit_is_what_xla_compiles():
    found = kd.plan(model, batch(64), target="v5e:1x1", search=("batch", "remat"))
    assert any(each.verdict.compiled for each in found.frontier)
    best = found.best
    program = trace_step(model, batch(best.rows), platform="tpu", remat=best.remat)
    assert compile_for(program.lowered, "v5e:1x1").fits
    twice = [each for each in found.points if each.rows == 2 * best.rows and each.verdict.fits]
    assert all(each.seconds_per_row >= best.seconds_per_row for each in twice)


def test_one_choice_is_searched_alone():
    found = kd.plan(model, batch(8), search=("remat",), target="v5e:1x1", compiles=False)
    assert {each.rows for each in found.points} == {8} and len({each.remat for each in found.points}) == 3


def test_what_a_step_cannot_have_is_said():
    """One row cannot be split into two micro-batches."""
    devices = [f"tpu:{index}" for index in range(8)]
    rules = kd.LayoutMap(kd.DeviceMesh("stage=2,batch=4", devices=devices))
    rules["stack/.*kernel"], rules["stack/.*bias"] = ("stage", None, None), ("stage", None)

    def pipelined():
        made = kd.Sequential([kd.Input((2**17, WIDTH)), layers.Stack(Block(), DEPTH)])
        made.compile("adam", "mse", micro_batches=8)
        return made

    x = jax.ShapeDtypeStruct((64, 2**17, WIDTH), "float32")
    distribution = kd.ModelParallel(rules, batch_dim_name="batch")
    found = kd.plan(pipelined, (x, x), distribution, target="v5e:2x4", search=("batch",), compiles=False)
    assert {each.rows for each in found.points} == {64, 32}
    assert [each.partition(":")[0] for each in found.refused] == ["16 rows, remat=None, slot_memory=None"]
    assert "not tried: 16 rows" in str(found)


def test_the_error_of_the_step_itself_is_raised():
    with pytest.raises(ModelError, match="the inputs do not fit the model"):
        wrong = jax.ShapeDtypeStruct((8, 3), "float32")
        kd.plan(model, (wrong, wrong), target="v5e:1x1", search=("batch",), compiles=False)


@pytest.mark.parametrize("search", ["memory", ("batch", "depth"), 3])
def test_unknown_choices_are_errors(search):
    with pytest.raises(ModelError, match="`search` must be some of 'batch', 'remat', 'offload'"):
        kd.plan(model, batch(8), target="v5e:1x1", search=search)


@pytest.mark.parametrize("target", [None, "cpu:1"])
def test_a_target_must_have_a_memory(target):
    with pytest.raises(ConfigError, match="needs a target whose memory limits the batch"):
        kd.plan(model, batch(8), target=target, search="batch")


def test_a_pattern_that_matches_no_layer_is_an_error():
    with pytest.raises(ModelError, match="neither a policy nor the path of a layer"):
        kd.plan(model, batch(8), target="v5e:1x1", remat="stack/blok", compiles=False)


def test_options_that_are_not_searched_are_kept():
    found = kd.plan(
        model, batch(8), search="batch", remat="full", slot_memory="pinned_host", target="v5e:1x1", compiles=False
    )
    assert {(each.remat, each.slot_memory) for each in found.points} == {("full", "pinned_host")}
    with pytest.raises(ModelError, match="neither a policy nor the path of a layer"):
        kd.plan(model, batch(8), search="batch", remat="nothing/.*", target="v5e:1x1", compiles=False)


def test_what_a_plan_refuses_a_search_refuses():
    x = jax.ShapeDtypeStruct((64, LENGTH, WIDTH), "float32")
    for wrong in (
        None,
        (x, jax.ShapeDtypeStruct((32, LENGTH, WIDTH), "float32")),
        (x, jax.ShapeDtypeStruct((), "float32")),
    ):
        with pytest.raises(kd.errors.DataError):
            kd.plan(model, wrong, search="batch", target="v5e:1x1", compiles=False)


def test_a_batch_that_is_far_too_large_is_halved_until_one_fits():
    found = kd.plan(model, batch(2**20 + 1), search="batch", target="v5e:1x1", compiles=False)
    assert found.best is not None and found.exit_code == 0
    large = kd.Sequential([kd.Input((2**17,)), layers.Dense(2**17)])
    x = jax.ShapeDtypeStruct((8, 2**17), "float32")
    assert kd.plan(large, (x, x), None, "sgd", "mse", search="batch", target="v5e:1x1", compiles=False).exit_code == 1


def test_evaluation_does_not_move_slots():
    options = {"target": "v5e:1x1", "slot_memory": "pinned_host", "compiles": False}
    lines = {mode: kd.plan(model, batch(8), mode=mode, **options).verdict.roofline for mode in ("train", "test")}
    assert lines["train"].host_seconds > lines["test"].host_seconds == 0
