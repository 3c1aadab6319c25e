"""A stack of layers is optimized as the layers are apart. The reference is the optimizer itself, on single layers."""

import inspect
import operator

import jax
import numpy as np
import optax
import pytest

import keras_dist as kd
from keras_dist import layers, optimizers

DEPTH = 3
CLASSES = sorted(
    name
    for name, value in vars(optimizers).items()
    if inspect.isclass(value) and issubclass(value, optimizers.Optimizer)
    if name not in ("Optimizer", "LossScaleOptimizer", "MultiOptimizer")
)


def wrapped(name):
    return optimizers.LossScaleOptimizer(getattr(optimizers, name)(0.1), initial_scale=1.0)


def chosen(name):
    rules = {".*kernel": getattr(optimizers, name)(0.1), ".*bias": optimizers.SGD(0.1, clipnorm=0.1)}
    return optimizers.MultiOptimizer(optimizers.OptimizerMap(optimizers.SGD(), rules))


def by_function(optimizer):
    return optimizers.MultiOptimizer(lambda variable: optimizer)


OPTIMIZERS = {
    **{name: lambda name=name: getattr(optimizers, name)(0.1) for name in CLASSES},
    "SGD, clipnorm": lambda: optimizers.SGD(0.1, clipnorm=0.1),
    "Muon, decay": lambda: optimizers.Muon(0.1, weight_decay=0.3, adam_weight_decay=0.1),
    "Lamb, scaled loss": lambda: wrapped("Lamb"),
    "Muon, by path": lambda: chosen("Muon"),
    "Adafactor, by a function": lambda: by_function(optimizers.Adafactor(0.1)),
}


def trees(rng, count, kernel):
    """Yield weights, then gradients, as a stack of very different slices."""
    scales = 10.0 ** np.arange(DEPTH)
    for _ in range(count):
        yield {"kernel": rng.normal(size=(DEPTH, *kernel)) * scales[:, None, None], "bias": rng.normal(size=(DEPTH, 5))}


def steps(optimizer, weights, grads):
    @jax.jit
    def run(weights, grads):
        state = optimizer.init(weights)
        for each in grads:
            updates, state = optimizer.update(each, state, weights)
            weights = optax.apply_updates(weights, updates)
        return weights

    return run(*jax.tree.map(np.float32, (weights, grads)))


@pytest.mark.parametrize("leading", ["layers", "experts"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_stack_takes_the_steps_of_its_slices(name, leading):
    weights, *grads = trees(np.random.default_rng(0), 4, (4, 5))
    together = OPTIMIZERS[name]()
    together.know_dims({"stack/kernel": (leading, "inputs", "outputs"), "stack/bias": (leading, None)})
    stacked = steps(together, {"stack": weights}, [{"stack": each} for each in grads])["stack"]

    def apart(tree):
        return {f"layer_{place}": jax.tree.map(operator.itemgetter(place), tree) for place in range(DEPTH)}

    single = steps(OPTIMIZERS[name](), apart(weights), [apart(each) for each in grads])
    for one, other in zip(jax.tree.leaves(apart(stacked)), jax.tree.leaves(single), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-6)


def network(is_stacked):
    def block():
        return layers.Dense(8, "tanh", bias_initializer="uniform")

    body = [layers.Stack(block, DEPTH)] if is_stacked else [block() for _ in range(DEPTH)]
    return kd.Sequential([kd.Input((8,)), *body, layers.Dense(2)])


@pytest.mark.parametrize("name", ["Muon", "Lamb", "Adafactor", "SGD, clipnorm", "Muon, by path"])
def test_fit_trains_a_stack_as_its_layers(name):
    kd.set_distribution(kd.FullySharded(kd.DeviceMesh("data=8")))
    rng = np.random.default_rng(1)
    kernels, biases = (rng.normal(size=(DEPTH, *shape)).astype("float32") for shape in ((8, 8), (8,)))
    head, x = rng.normal(size=(8, 2)).astype("float32"), rng.normal(size=(8, 8)).astype("float32")
    found = []
    for is_stacked in (True, False):
        model = network(is_stacked)
        pairs = zip(kernels, biases, strict=True)
        body = [kernels, biases] if is_stacked else [each for pair in pairs for each in pair]
        model.set_weights([*body, head, np.zeros(2, "float32")])
        model.compile(OPTIMIZERS[name](), "mse")
        model.fit(x, x[:, :2], batch_size=8, epochs=3, verbose=0)
        values = [np.asarray(one) for one in model.get_weights()]
        found.append(values if is_stacked else [np.stack(values[:6:2]), np.stack(values[1:6:2]), *values[6:]])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=2e-6)


ELEMENTWISE = {
    "adamw": lambda: optax.adamw(0.1),
    "global norm": lambda: optax.chain(optax.clip_by_global_norm(0.1), optax.sgd(0.1, momentum=0.9)),
}
BY_TENSOR = {
    "lamb": lambda: optax.lamb(0.1),
    "adafactor": lambda: optax.adafactor(0.1),
    "by block": lambda: optax.chain(optax.clip_by_block_rms(0.1), optax.adam(0.1)),
    "by rank": lambda: optax.adamw(0.1, weight_decay=0.3, mask=lambda p: jax.tree.map(lambda w: w.ndim > 1, p)),
    "by known paths": lambda: optax.masked(optax.adam(0.1), {"stack": {"kernel": True, "bias": False}}),
}


@pytest.mark.parametrize("name", [*ELEMENTWISE, *BY_TENSOR])
def test_optax_warns_unless_it_treats_slices_alike(name, recwarn):
    names = {"stack/kernel": ("layers", "inputs", "outputs"), "stack/bias": ("layers", None)}
    optimizer = optimizers.OptaxOptimizer({**ELEMENTWISE, **BY_TENSOR}[name]())
    optimizer.know_dims(names)
    optimizer.know_dims(names)
    found = [str(one.message) for one in recwarn]
    assert len(found) == (name in BY_TENSOR)
    assert all("may treat a stack of layers as one weight" in one and "stack/bias" in one for one in found)


def test_optax_warns_of_no_single_layers(recwarn):
    optimizers.OptaxOptimizer(optax.lamb(0.1)).know_dims({"dense/kernel": ("inputs", "outputs"), "dense/bias": ()})
    assert not recwarn.list


def test_multi_steps_of_optax_is_told_from_accumulation():
    model = kd.Sequential([kd.Input((2,)), layers.Dense(1)])
    with pytest.warns(UserWarning, match="weights all batches alike(.|\n)*gradient_accumulation_steps=4"):
        model.compile(optax.chain(optax.MultiSteps(optax.adam(0.1), 2).gradient_transformation()), "mse")


def test_lookahead_of_optax_names_an_average_of_the_weights():
    model = kd.Sequential([kd.Input((2,)), layers.Dense(1)])
    with pytest.raises(kd.errors.ModelError, match=r"pairs of weights(.|\n)*optax.lookahead(.|\n)*use_ema"):
        model.compile(optax.lookahead(optax.sgd(0.1), 5, 0.5), "mse")


def test_scaled_losses_keep_the_exclusions_of_the_inner_optimizer():
    model = kd.Sequential([kd.Input((2,)), layers.Dense(1)])
    inner = optimizers.SGD(0.1, weight_decay=0.5)
    inner.exclude_from_weight_decay(var_list=[model.layers[0].bias])
    model.layers[0].bias.assign([2.0])
    model.compile(optimizers.LossScaleOptimizer(inner), lambda y, p: 0 * p[:, 0])
    model.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0)
    assert float(model.layers[0].bias[0]) == 2.0
