"""Each argument of public names with values that nobody expects: accepted, or an error of keras_dist.

`python -m tests.hostile SEED FRACTION ROOM...` prints the leaks of a larger sample.
"""

import inspect
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import keras_dist as kd
from keras_dist._support.raw_errors import explained
from keras_dist.errors import ArgumentTypeError, DataError, KerasDistError, ModelError
from tests import hostile

CHECKED = ("optimizers", "callbacks", "losses", "initializers", "regularizers", "constraints", "pretrained")
CLASSES = {
    name: target for name, target in hostile.public(CHECKED) if inspect.isclass(target) and hostile.has_base(target)
}
QUICK = ("data", "losses", "metrics", "layers", "activations", "random", "tree", "ops", "config", "presets", "")
SLOW = ("launch", "plan", "check_equivalence", "AutoParallel", "Sequential.fit", "Sequential.export", "get_file")
TARGETS = hostile.targets(QUICK, SLOW)
PLACES = [place for name, target in CLASSES.items() for place in hostile.cases(name, target)]
PLACES_OF = {
    room: [
        place
        for name, target in TARGETS.items()
        if hostile.room_of(name) == room
        for place in hostile.cases(name, target)
    ]
    for room in QUICK
}


def leaks(places):
    found = {place: hostile.leak((CLASSES | TARGETS)[place[0]], *place[1:]) for place in places}
    return {place: f"{type(error).__name__}" for place, error in found.items() if error is not None}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("seed", range(4))
def test_what_raises_is_an_error_of_keras_dist(seed):
    assert leaks(random.Random(seed).sample(PLACES, 150)) == {}


@pytest.mark.parametrize("room", PLACES_OF)
def test_what_functions_layers_and_methods_raise_is_an_error_of_keras_dist(room):
    seed = f"{room} 1"
    try:
        assert leaks(random.Random(seed).sample(PLACES_OF[room], 25)) == {}
    finally:
        kd.set_distribution(None)
        kd.mixed_precision.set_dtype_policy("float32")


@pytest.mark.slow
@pytest.mark.parametrize("value", hostile.VALUES)
def test_what_raises_is_an_error_of_keras_dist_for_all_arguments(value):
    assert leaks([place for place in PLACES if place[2] == value]) == {}


SCALARS = {float: (np.float32, np.float64, np.array, jnp.float32), int: (np.int64, np.int32, np.array, jnp.int32)}


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_numbers_of_numpy_and_jax_are_numbers(name):
    target = CLASSES[name]
    for parameter in hostile.parameters(target):
        given = parameter.default
        if given is parameter.empty and parameter.name in hostile.ARGUMENTS:
            given = hostile.ARGUMENTS[parameter.name]()
        for kind in SCALARS.get(type(given), ()):
            hostile.call(target, parameter.name, kind(given))


@pytest.mark.parametrize("name", kd.presets.__all__)
def test_presets_name_the_arguments_that_they_need(name):
    with pytest.raises(ArgumentTypeError, match=f"`{name}` needs .*`mesh`"):
        getattr(kd.presets, name)()


@pytest.mark.parametrize("weights", [(np.float32(1), 2), np.array([1, 2]), (np.array(1.0), np.int64(2)), (0.5, 1)])
def test_weights_of_a_mixture_are_any_numbers(weights):
    mixed = kd.data.mix({"a": [1, 2, 3], "b": [4, 5, 6]}, weights=weights, seed=None)
    assert mixed.counts == {"a": 2, "b": 3}


@pytest.mark.parametrize("length", [2**31, 2**63, 10**400, np.ones(2)])
def test_rows_have_a_longest_length(length):
    with pytest.raises(DataError, match="`length` must be an integer from 2 to 16777216"):
        kd.data.pack([[1, 2, 3]], length)


@pytest.mark.parametrize("kind", [np.uint8, np.int64, np.array, jnp.asarray])
def test_arguments_of_layers_are_any_integers(kind):
    conv = kd.layers.Conv1D(kind(200), kind(3), strides=kind(2), padding="same")
    assert conv(np.ones((1, 4, 2), "float32")).shape == (1, 2, 200)
    assert kd.layers.Normalization(axis=kind(1))(np.ones((1, 4), "float32")).shape == (1, 4)


@pytest.mark.parametrize("mask", ["abc", ["a", "b", "c"], [None] * 3, [[1], [2, 3], 1], {"a": 1}, b"abc", 1j])
def test_a_loss_mask_has_numbers(mask):
    with pytest.raises(DataError, match="'weights' must have a finite number for each token"):
        kd.data.pack([{"tokens": [1, 2, 3], "weights": mask}], 4, loss_mask="weights")


@pytest.mark.parametrize(
    "use",
    [
        lambda model, name: model.save(f"{name}.keras"),
        lambda model, name: model.save(name),
        lambda model, name: model.save_weights(f"{name}.safetensors"),
        lambda model, name: model.load_weights(f"{name}.weights.h5"),
        lambda model, name: kd.saving.load_model(name),
        lambda model, name: kd.callbacks.ModelCheckpoint(f"a/{name}.keras"),
        lambda model, name: kd.callbacks.BackupAndRestore(name),
        lambda model, name: kd.pretrained.load(name),
    ],
)
@pytest.mark.parametrize("name", ["n" * 300, "é" * 128, "\ud800"], ids=["letters", "bytes", "surrogate"])
def test_names_that_no_file_can_have_are_errors(use, name):
    model = kd.Sequential([kd.Input((2,)), kd.layers.Dense(1, name="n" * 300)], name="n" * 300)
    with pytest.raises(KerasDistError, match="must be a path whose names have at most 255 bytes"):
        use(model, name)


@pytest.mark.parametrize("ignore", [5, [5], None, {"a": 1}, np.ones(2)])
def test_ignored_names_are_expressions(ignore):
    with pytest.raises(ModelError, match="`ignore` must be a regular expression"):
        kd.pretrained.load("nowhere", ignore=ignore)


@pytest.mark.parametrize(
    "use",
    [
        lambda value: kd.layers.Attention(seed=value),
        lambda value: kd.layers.Dense(2)(value),
        lambda value: kd.losses.Huber()(value, value),
        lambda value: kd.metrics.Mean().update_state(value),
        lambda value: kd.activations.relu(value),
        lambda value: kd.data.ArraySource(value),
        lambda value: kd.tree.flatten(value),
        lambda value: kd.ops.add(1.0, value),
        lambda value: kd.ops.silu(value),
        lambda value: kd.ops.zeros(value),
        lambda value: kd.Variable(1.0).assign_add(value),
        lambda value: kd.Variable(value),
        lambda value: setattr(kd.layers.Dense(2), "table", value),
    ],
)
def test_values_that_contain_themselves_are_errors_and_break_nothing(use):
    for value in (hostile.recursive(), hostile.recursive_dict()):
        with pytest.raises(KerasDistError):
            use(value)
    assert kd.layers.Dense(2)(np.ones((1, 3), "float32")).shape == (1, 2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: kd.metrics.AUC(num_thresholds=2**31), "`num_thresholds` must be an integer from 2 to 16777216"),
        (lambda: kd.metrics.PrecisionAtRecall(0.5, 10**400), "`num_thresholds` must be an integer from 1 to 16777216"),
        (lambda: kd.metrics.MeanIoU(num_classes=2**31), "`num_classes` must be an integer of at most 46340"),
        (lambda: kd.activations.threshold(1.0, "a", 0.0), "`threshold` must be a finite number"),
        (lambda: kd.losses.huber([1.0], [2.0], delta="a"), "`delta` must be a finite number"),
        (lambda: kd.data.pad_sequences(5), "(?s)`pad_sequences` cannot use its arguments: .*sequences=5"),
        (lambda: kd.random.beta((2,), 1j, 1.0), "(?s)`beta` cannot use its arguments: TypePromotionError"),
        (lambda: kd.random.normal((2,), mean="a"), "(?s)`normal` cannot use its arguments: .*mean='a'"),
        (lambda: kd.ops.dtype(1.5), "(?s)`dtype` cannot use its arguments: AttributeError.*x=1.5"),
        (lambda: kd.ops.sin(2**63), "(?s)`sin` cannot use its arguments: OverflowError.*x=9223372036854775808"),
        (lambda: kd.ops.rearrange(np.ones((2, 2)), 5), "`pattern` must be a string"),
        (lambda: kd.ops.mean(np.ones(2), "a"), "(?s)`mean` cannot use its arguments: NameError.*axis='a'"),
        (lambda: kd.ops.irfft((np.ones(3), np.ones(3)), 2**63), "`fft_length` must be an integer of at least 1"),
        (lambda: kd.Variable([[1, 2], [3]]), r"(?s)cannot use its arguments: .*initializer=\[\[1, 2\], \[3\]\]"),
        (lambda: kd.Variable(1.0, trainable=np.ones(2)), "`trainable` must be True or False"),
        (lambda: kd.Variable(1.0, name=1.5), "`name` must be a string"),
        (
            lambda: kd.Variable(np.ones(2)).assign_add("words"),
            "(?s)assign_add` cannot use its arguments: .*value='words'",
        ),
        (lambda: kd.Variable(np.ones(2)).assign_sub(np.ones(3)), "(?s)assign_sub` cannot use its arguments: .*shape"),
        (lambda: kd.layers.Dense(2).build(5), "(?s)`Dense.build` cannot use its arguments: .*input_shape=5"),
        (
            lambda: kd.losses.Poisson()(np.ones(3), int),
            r"(?s)`Poisson` cannot use its arguments: .*y_true=float64 array",
        ),
    ],
)
def test_errors_name_the_argument(make, message):
    with pytest.raises(KerasDistError, match=message):
        make()


class Mine(Exception):
    pass


def fails(*_):
    raise Mine


class Unreadable:
    def __len__(self):
        return 4

    def __getitem__(self, index):
        raise KeyError("mine")


class Unfinished:
    """A data set with mistakes in its code."""

    shape, dtype, ndim = (8, 2), np.dtype("float32"), 2

    def __init__(self, mistake):
        self.mistake = mistake

    def __len__(self):
        if self.mistake == "len":
            return nothing_of_this_name  # noqa: F821
        return 8

    def __iter__(self):
        yield {}["mine"]

    def __array__(self, *_, **__):
        raise OSError("no such disk")


def fit(x):
    model = kd.Sequential([kd.Input((2,)), kd.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(x, verbose=0)


@pytest.mark.parametrize(
    ("use", "kind"),
    [
        (lambda: kd.data.LookupSource(Unfinished("len")), NameError),
        (lambda: kd.data.ArraySource(Unfinished("array")), OSError),
        (lambda: fit(iter(Unfinished("iter"))), KeyError),
        (lambda: kd.ops.map(lambda x: {}["mine"], np.ones(2)), KeyError),
        (lambda: kd.tree.map_structure(fails, [1]), Mine),
        (lambda: kd.tree.map_structure(lambda x: x["a"], [{1}]), TypeError),
        (lambda: kd.layers.Lambda(lambda x: x + "a")(np.ones(2)), TypeError),
        (lambda: kd.losses.LossFunctionWrapper(lambda y, z: y.nothing)(np.ones(2), np.ones(2)), AttributeError),
        (lambda: kd.data.LookupSource(Unreadable()), KeyError),
        (lambda: jax.jit(kd.activations.relu)(1, 2, 3, 4, 5), TypeError),
        (lambda: jax.jit(kd.data.img_to_array)(np.ones((2, 2))), jax.errors.TracerArrayConversionError),
    ],
)
def test_errors_of_users_and_of_traces_stay(use, kind):
    with pytest.raises(kind) as caught:
        use()
    assert not isinstance(caught.value, KerasDistError)


def test_a_mistake_in_code_of_this_package_is_not_one_of_the_caller():
    made = {"__name__": "keras_dist.made"}
    exec("def function(x):\n    return x + nothing_of_this_name", made)
    with pytest.raises(NameError, match="nothing_of_this_name"):
        explained(made["function"])(1)


@pytest.mark.parametrize(
    "call",
    [
        lambda: kd.layers.Dense(2, wrogn=1),
        lambda: kd.DeviceMesh((8,), ("data",), wrogn=1),
        lambda: kd.ModelParallel(wrogn=1),
        lambda: kd.optimizers.Adam(wrogn=1),
        lambda: kd.losses.MeanSquaredError(wrogn=1),
        lambda: kd.metrics.Mean(wrogn=1),
        lambda: kd.callbacks.EarlyStopping(wrogn=1),
        lambda: kd.initializers.Constant(wrogn=1),
        lambda: kd.plan(wrogn=1),
        lambda: kd.data.mix(wrogn=1),
        lambda: kd.config.load(wrogn=1),
        lambda: kd.presets.hybrid(wrogn=1),
        lambda: kd.Sequential([kd.Input((2,)), kd.layers.Dense(1)]).compile(wrogn=1),
        lambda: kd.Sequential([kd.Input((2,)), kd.layers.Dense(1)]).save("model.keras", wrogn=1),
        lambda: kd.random.normal((2,), wrogn=1),
    ],
)
def test_an_unknown_argument_has_one_text_everywhere(call):
    text = r"^`\w+` has no argument 'wrogn'.*\n  given:    wrogn=1\n  fix:      correct the name"
    with pytest.raises(ArgumentTypeError, match=text):
        call()


def test_a_missing_argument_is_named():
    with pytest.raises(ArgumentTypeError, match="`mix` needs `sources`"):
        kd.data.mix()
