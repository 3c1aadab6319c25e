"""`Model.from_nnx`: factories and ready modules, `call=`, pytrees, modules of every shape."""

import functools

import jax
import numpy as np
import pytest
from flax import nnx

import keras_dist as kd
from keras_dist.layers.core.foreign_modules import as_layer
from tests import layouts, networks
from tests.networks import LOSS, Buffered, MuNu, Noisy, Plain, Scanned, Sower, Stack, Tied, blobs, values_of


def test_a_factory_gives_what_it_gives_without_keras_dist_where_the_plan_says():
    expected = Plain(nnx.Rngs(3))
    for factory in (Plain, lambda rngs: Plain(rngs), lambda *, rngs: Plain(rngs=rngs), functools.partial(Plain)):
        model = layouts.model_on("data=2,model=4", factory, seed=3)
        for path, value in values_of(model).items():
            layer, name = path.split("/")
            # XLA fuses what a compiled initialiser computes, so that the last bit may differ
            np.testing.assert_allclose(value, getattr(getattr(expected, layer), name)[...], rtol=1e-6, err_msg=path)
        shapes = {v.path: {shard.data.shape for shard in v.value.addressable_shards} for v in model.variables}
        assert shapes == {"d1/bias": {(16,)}, "d1/kernel": {(8, 4)}, "d2/bias": {(4,)}, "d2/kernel": {(4, 4)}}
    assert model.layout_plan.row("d1/kernel").axes == (None, "model")


def test_a_ready_module_is_placed_by_the_rules_with_its_values():
    module = Noisy(nnx.Rngs(3))
    with layouts.on("data=2,model=4").scope():
        born, placed = kd.Model.from_nnx(Noisy, seed=3), kd.Model.from_nnx(module, seed=3)
    for path, value in values_of(born).items():
        np.testing.assert_allclose(value, values_of(placed)[path], rtol=1e-6, err_msg=path)
    np.testing.assert_array_equal(values_of(placed)["d1/kernel"], module.d1.kernel[...])
    assert [v.value.sharding for v in placed.variables] == [v.value.sharding for v in born.variables]


def test_without_a_distribution_a_model_lives_on_the_first_device():
    model = kd.Model.from_nnx(Plain)
    assert set().union(*(v.value.sharding.device_set for v in model.variables)) == {jax.devices()[0]}


PATHS = {
    Tied: ["encoder/kernel"],
    Buffered: ["d1/bias", "d1/kernel", "order", "scale"],
    Sower: ["d1/bias", "d1/kernel"],
    Stack: [f"{layer}/{name}" for layer in ("head", "layers/0", "layers/1") for name in ("bias", "kernel")],
    Scanned: [
        *(f"blocks/{name}" for name in ("dense/bias", "dense/kernel", "drop/rngs/count", "drop/rngs/key")),
        "head/bias",
        "head/kernel",
    ],
    networks.Annotated: ["d1/bias", "d1/kernel"],
    MuNu: ["mu/bias", "mu/kernel", "nu/bias", "nu/kernel"],
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Using 'Module.sow", "ignore:raw floating arrays")
@pytest.mark.parametrize("factory", PATHS, ids=lambda factory: factory.__name__)
def test_modules_of_every_shape_have_the_paths_a_user_would_say_and_predict(factory):
    model = layouts.model_on(kd.FullySharded(kd.DeviceMesh("data=8")), factory)
    assert [v.path for v in model.variables] == PATHS[factory]
    x, _ = blobs(8)
    module = model.module
    module.eval()
    np.testing.assert_allclose(model.predict(x, verbose=0), module(x), atol=1e-5)


@pytest.mark.parametrize("path", ["encoder/kernel", "tied_kernel"])
def test_a_tied_weight_is_one_variable_under_either_name(path):
    rules = kd.LayoutMap(kd.DeviceMesh("data=8"))
    rules[path] = ("data", None)
    model = layouts.model_on(kd.ModelParallel(rules, strict=True), Tied)
    (variable,) = model.variables
    assert variable.layout.axes == ("data", None)
    module = model.module
    assert module.encoder.kernel is module.tied_kernel


def test_slots_of_modules_called_mu_and_nu_belong_to_their_own_parameters():
    rules = kd.LayoutMap(kd.DeviceMesh("data=2,model=4"))
    rules["mu/kernel"], rules["nu/kernel"] = (None, "model"), ("model", None)
    with kd.ModelParallel(rules, strict=True).scope():
        model = kd.Model.from_nnx(MuNu, seed=0)
        model.compile("adam", loss=LOSS)
    (adam,) = [n for n in jax.tree.leaves(model.state.slots, is_leaf=is_adam) if is_adam(n)]
    for slots in (adam.mu, adam.nu):
        assert slots["mu"]["kernel"].sharding.spec == jax.sharding.PartitionSpec(None, "model")
        assert slots["nu"]["kernel"].sharding.spec == jax.sharding.PartitionSpec("model", None)


def is_adam(node):
    return hasattr(node, "mu") and hasattr(node, "nu")


def modes_of(model, x, y):
    """What runs a model, and whether it trains it. What counts is the last trace: the first of a kind learns names."""
    return [
        (lambda: model.train_on_batch(x, y), True),
        (lambda: model.predict_on_batch(x), False),
        (lambda: model.test_on_batch(x, y), False),
    ]


class TestCall:
    def test_it_gets_the_module_the_batch_the_mode_and_streams(self):
        seen = []

        def call(module, x, training, rngs):
            seen.append((type(module), x.shape, training, type(rngs)))
            return module(x)

        model = kd.Model.from_nnx(Plain, call)
        model.compile("sgd", loss=LOSS)
        x, y = blobs(4)
        for run, training in modes_of(model, x, y):
            run()
            assert seen[-1][2] is training
        assert {entry[:2] + entry[3:] for entry in seen} == {(Plain, (4, 8), nnx.Rngs)}

    def test_dropout_can_draw_from_its_streams_anew_in_each_step(self):
        class NeedsRngs(nnx.Module):
            def __init__(self, rngs):
                self.drop = nnx.Dropout(0.5)
                self.scale = nnx.Param(jax.numpy.ones(()))

            def __call__(self, x, training, rngs):
                return self.scale * self.drop(x, deterministic=not training, rngs=rngs)

        model = kd.Model.from_nnx(NeedsRngs, lambda m, x, training, rngs: m(x, training, rngs), seed=0)
        model.compile(kd.optimizers.get("sgd", 0.0), loss=lambda y_true, y_pred: y_pred.mean(-1))
        x = np.ones((4, 64), "f4")
        first, second = model.train_on_batch(x), model.train_on_batch(x)
        assert first != second
        assert first != 1.0
        assert model.test_on_batch(x) == 1.0

    def test_without_it_the_module_is_in_training_or_evaluation_mode(self):
        modes = []

        class Watching(nnx.Module):
            def __init__(self, rngs):
                self.drop = nnx.Dropout(0.5, rngs=rngs)
                self.d1 = nnx.Linear(8, 4, rngs=rngs)

            def __call__(self, x):
                modes.append(self.drop.deterministic)
                return self.d1(x)

        model = kd.Model.from_nnx(Watching)
        model.compile("sgd", loss=LOSS)
        x, y = blobs(4)
        for run, training in modes_of(model, x, y):
            run()
            assert modes[-1] is not training


class Named(Plain):
    """Calls its one argument otherwise: it might be anything."""

    def __init__(self, features):
        super().__init__(features)


@pytest.mark.parametrize("factory", [lambda r: Plain(r), functools.partial(lambda width, r: Plain(r), 8)])
def test_the_one_argument_of_a_factory_may_have_any_name(factory):
    expected = kd.Model.from_nnx(Plain, seed=3)
    model = kd.Model.from_nnx(factory, seed=3)
    assert [variable.path for variable in model.variables] == [variable.path for variable in expected.variables]
    assert all(
        np.array_equal(one.numpy(), other.numpy())
        for one, other in zip(model.variables, expected.variables, strict=True)
    )
    report = kd.plan(factory, np.zeros((4, networks.FEATURES), "f4"))
    assert sum(row.role == "parameter" for row in report.state.rows) == len(model.variables)


def test_a_function_that_is_no_factory_is_told_what_it_got():
    with pytest.raises(TypeError) as caught:
        kd.Model.from_nnx(lambda x: x @ x)
    assert any("was called with flax.nnx.Rngs, as a factory" in note for note in caught.value.__notes__)


@pytest.mark.slow
def test_fit_finds_its_layout_under_auto_parallel():
    made, (x, y) = Plain(nnx.Rngs(0)), blobs(8)
    distribution = kd.planner.AutoParallel(kd.DeviceMesh("data=2,model=4"), "memory")
    with distribution.scope():
        model = kd.Model.from_nnx(made, seed=0)
        model.compile("sgd", LOSS)
        with pytest.raises(kd.errors.DistributionError, match="AutoParallel has no layout yet") as caught:
            model.predict(x, verbose=0)
        assert "call fit first" in caught.value.fix
        lines: list[str] = []
        model.summary(print_fn=lines.append)
        assert "AutoParallel has no layout yet" in lines[0] and "until fit finds one" in "".join(lines)
        losses = model.fit(x, y, epochs=2, verbose=0).history["loss"]
    found = distribution.search(lambda: kd.Model.from_nnx(made, seed=0), (x, y), "sgd", LOSS)
    assert model.distribution.device_mesh.size == 8
    assert str(model.distribution.layout_map) == str(found.distribution.layout_map)
    assert any(axis for row in model.layout_plan.rows for axis in row.axes)
    alone = kd.Model.from_nnx(made, seed=0)
    alone.compile("sgd", LOSS)
    np.testing.assert_allclose(losses, alone.fit(x, y, epochs=2, verbose=0).history["loss"], rtol=1e-5)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda: Plain(nnx.Rngs(0)), r"cannot be called as factory\(rngs=rngs\) or factory\(rngs\)"),
        (lambda rngs, width: Plain(rngs), "cannot be called as factory"),
        (lambda *, r: Plain(r), "cannot be called as factory"),
        (lambda r=None: Plain(r), "cannot be called as factory"),
        (Named, "cannot be called as factory"),
        (lambda x, y: x, "a function of weights and inputs"),
        (lambda rngs: {"kernel": 1}, "the factory's result is not a flax.nnx.Module"),
        ({"kernel": np.ones(3)}, "neither a module nor a factory"),
        (None, "neither a module nor a factory"),
    ],
    ids=["no rngs", "second argument", "by keyword", "optional", "class", "two", "dict made", "dict given", "none"],
)
def test_what_is_not_a_module_is_refused_with_the_remedy(given, message):
    with pytest.raises(kd.errors.ModelError, match=message) as caught:
        kd.Model.from_nnx(given)
    assert caught.value.given and caught.value.fix


def test_an_abstract_module_is_refused():
    module = nnx.eval_shape(lambda: Plain(nnx.Rngs(0)))
    with pytest.raises(kd.errors.ModelError, match="holds shapes, not arrays"):
        kd.Model.from_nnx(module)


def test_a_model_is_not_made_by_calling_the_class():
    with pytest.raises(kd.errors.ModelError, match="from_nnx"):
        kd.Model(Plain(nnx.Rngs(0)))


class Lazy(nnx.Module):
    """Creates a statistic on its first call."""

    def __init__(self, rngs):
        self.d1 = nnx.Linear(networks.FEATURES, networks.CLASSES, rngs=rngs)

    def __call__(self, x):
        if not hasattr(self, "seen"):
            self.seen = nnx.BatchStat(jax.numpy.zeros(()))
        self.seen[...] += 1
        return self.d1(x)


def test_a_variable_made_by_a_call_is_refused_by_name():
    x, y = blobs(8)
    model = kd.Model.from_nnx(Lazy, seed=0)
    model.compile("sgd", loss=LOSS)
    with pytest.raises(kd.errors.ModelError, match="'seen'") as caught:
        model.train_on_batch(x, y)
    assert caught.value.given and "__init__" in caught.value.fix


def test_a_module_called_once_in_the_factory_keeps_the_variable():
    def warmed_up(rngs):
        module = Lazy(rngs)
        module(jax.numpy.zeros((1, networks.FEATURES)))
        return module

    x, y = blobs(8)
    model = kd.Model.from_nnx(warmed_up, seed=0)
    model.compile("sgd", loss=LOSS)
    model.train_on_batch(x, y)
    assert values_of(model)["seen"] == 2


def test_a_model_passed_in_place_of_its_module_names_the_module():
    model = kd.Model.from_nnx(lambda rngs: nnx.Linear(4, 4, rngs=rngs), seed=0)
    x = np.ones((8, 4), np.float32)
    mistakes = [
        lambda given: nnx.grad(lambda given: given(x).sum())(given),
        lambda given: nnx.jit(lambda given: given(x))(given),
        lambda given: nnx.merge(*nnx.split(given))(x),
        lambda given: kd.Model.from_nnx(given),
        lambda given: kd.Sequential([kd.Input((4,)), as_layer(given)]),
        lambda given: kd.Sequential([as_layer(given)])(x),
    ]
    for use in mistakes:
        with pytest.raises(kd.errors.ModelError, match="is not the module that it trains") as caught:
            use(model)
        assert "pass model.module" in caught.value.fix
        use(model.module)


def test_a_module_is_shared_with_a_model_of_layers():
    one = kd.Model.from_nnx(lambda rngs: nnx.Linear(4, 1, rngs=rngs), seed=0)
    other = kd.Sequential([kd.Input((4,)), kd.layers.NNXLayer(one.module)])
    x = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)
    before = one.predict(x, verbose=0)
    for model in (one, other):
        model.compile("sgd", "mse")
        model.fit(x, x[:, :1], verbose=0)
        np.testing.assert_allclose(one.predict(x, verbose=0), other.predict(x, verbose=0), atol=1e-6)
        assert np.abs(one.predict(x, verbose=0) - before).max() > 1e-3
        before = one.predict(x, verbose=0)
