"""`layers.Stack` computes what its blocks compute one after the other, in one loop over stacked weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import keras_dist as kd
from keras_dist import layers
from keras_dist.errors import ModelError

DEPTH, SIZE = 3, 4
rng = np.random.default_rng(0)
X, Y = (rng.normal(size=(16, SIZE)).astype("float32") for _ in range(2))


def block():
    """A functional model, which has weights as soon as it is made."""
    inputs = kd.Input((SIZE,))
    x = layers.Dense(2 * SIZE, "tanh", name="up")(layers.BatchNormalization(name="norm", momentum=0.5)(inputs))
    return kd.Model(inputs, layers.Add()([inputs, layers.Dense(SIZE, name="down")(x)]))


def stacked(**options):
    kd.random.set_random_seed(3)
    return kd.Sequential([kd.Input((SIZE,)), layers.Stack(block, DEPTH, name="stack", **options)])


@pytest.fixture(scope="module")
def trained():
    """A stack and an unrolled model of the same weights, after one step, and its stack of weights before."""
    model, other = stacked(), kd.Sequential([kd.Input((SIZE,)), *(block() for _ in range(DEPTH))])
    before = model.get_weights()
    other.set_weights([stack[number] for number in range(DEPTH) for stack in before])
    for each in (model, other):
        each.compile("sgd", "mse")
    losses = [each.train_on_batch(X, Y) for each in (model, other)]
    return model, other, losses, before


def test_a_stack_trains_as_its_blocks_one_after_the_other_statistics_included(trained):
    model, other, (loss, expected), before = trained
    assert {weight.path: weight.shape for weight in model.weights} == {
        "stack/functional/norm/gamma": (3, 4),
        "stack/functional/norm/beta": (3, 4),
        "stack/functional/norm/moving_mean": (3, 4),
        "stack/functional/norm/moving_variance": (3, 4),
        "stack/functional/up/kernel": (3, 4, 8),
        "stack/functional/up/bias": (3, 8),
        "stack/functional/down/kernel": (3, 8, 4),
        "stack/functional/down/bias": (3, 4),
    }
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    paths = [weight.path for weight in model.weights]
    found = dict(zip(paths, model.get_weights(), strict=True))
    for number, layer in enumerate(other.layers):
        for weight in layer.weights:
            path = "stack/functional/" + "/".join(weight.path.split("/")[-2:])
            np.testing.assert_allclose(found[path][number], weight.numpy(), atol=1e-6, err_msg=path)
    kernel = dict(zip(paths, before, strict=True))["stack/functional/up/kernel"]
    assert len({each.tobytes() for each in kernel}) == DEPTH, "each block has its own initial values"
    np.testing.assert_allclose(model.predict(X, verbose=0), other.predict(X, verbose=0), atol=1e-6)


def test_files_and_configs(trained, tmp_path):
    model = trained[0]
    model.save(tmp_path / "model.keras")
    loaded = kd.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict(X, verbose=0), model.predict(X, verbose=0))
    layer = layers.Stack.from_config(layers.Stack(lambda: layers.Dense(8), 4, True, 2).get_config())
    assert (layer.block.units, layer.depth, layer.remat, layer.repeats) == (8, 4, True, 2)
    model.save_weights(tmp_path / "model.weights.h5")
    other = stacked()
    other.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_array_equal(other.predict(X, verbose=0), model.predict(X, verbose=0))


def test_repeats_are_a_second_leading_dim():
    layer = layers.Stack(layers.Dense(SIZE, "tanh"), 4, repeats=2)
    found, expected = layer(X), X
    kernel, bias = layer.get_weights()
    assert (kernel.shape, bias.shape) == ((2, 2, SIZE, SIZE), (2, 2, SIZE))
    for one in kernel.reshape(4, SIZE, SIZE):
        expected = np.tanh(expected @ one)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_each_block_draws_its_own_numbers():
    ones = np.ones((64, 64), "float32")
    layer = layers.Stack(layers.Dropout(0.5, seed=1), 3)
    found, second = (np.asarray(layer(ones, training=True)) for _ in range(2))
    assert set(np.unique(found)) == {0, 8} and not np.array_equal(found, second), "the stream goes on after the loop"
    assert 0.1 < np.mean(found == 8) < 0.15, "half of the half of the half; with one mask it would be a half"


def test_remat_computes_each_block_again():
    def program(remat):
        layer = layers.Stack(layers.Dense(SIZE, "tanh"), DEPTH, remat=remat)
        layer.build(X.shape)
        return str(jax.make_jaxpr(layer)(X))

    assert program(remat=True).count("remat") == 1 + program(remat=False).count("remat")


def test_constraints_and_regularizers_see_one_block():
    options = {
        "kernel_constraint": kd.constraints.MaxNorm(1),
        "kernel_regularizer": kd.regularizers.OrthogonalRegularizer(0.01),
    }
    model = kd.Sequential([layers.Stack(layers.Dense(SIZE, use_bias=False, **options), DEPTH)])
    model.build(X.shape)
    [kernel] = model.get_weights()

    def penalty(one):
        rows = one / np.sqrt((one**2).sum(1, keepdims=True))
        products = np.abs(rows @ rows.T)
        return 0.01 * (products.sum() - np.trace(products)) / 2 / (SIZE * (SIZE - 1) / 2)

    np.testing.assert_allclose(sum(model.losses), sum(map(penalty, kernel)), rtol=1e-5)
    model.compile(kd.optimizers.SGD(5.0), "mse")
    model.train_on_batch(X, 9 * Y)
    norms = np.sqrt((model.get_weights()[0] ** 2).sum(1))
    np.testing.assert_allclose(norms.max(), 1, atol=1e-5)  # along the inputs, and not along the blocks


def test_losses_of_activities_of_all_blocks_count():
    block = layers.Dense(SIZE, use_bias=False, activity_regularizer=lambda y: jnp.sum(y**2))
    model = kd.Sequential([kd.Input((SIZE,)), layers.Stack(block, DEPTH)])
    model.compile("sgd", "mse")
    x, expected = X, 0.0
    for kernel in model.get_weights()[0]:
        x = x @ kernel
        expected += (x**2).sum() / len(X)
    np.testing.assert_allclose(model.test_on_batch(X, x), expected, rtol=1e-4)


@pytest.mark.parametrize("axes", [(None, None, "model"), (None, "model", None)])
def test_a_stack_is_sharded_by_rules_with_its_leading_dim(axes):
    rules = kd.LayoutMap(kd.DeviceMesh("data=2,model=4"))
    rules["stack/.*kernel"] = axes
    with kd.ModelParallel(rules).scope():
        model = kd.Sequential([kd.Input((SIZE,)), layers.Stack(layers.Dense(SIZE, "tanh"), DEPTH, name="stack")])
    assert [row.axes for row in model.layout_plan.rows if "kernel" in row.path] == [axes]
    kernels, expected = model.get_weights()[0], X
    limit = np.sqrt(6 / (SIZE + SIZE))  # of one layer, not of the stack
    assert limit / 2 < abs(kernels).max() <= limit
    for kernel in kernels:
        expected = np.tanh(expected @ kernel)
    np.testing.assert_allclose(model.predict(X, verbose=0), expected, atol=1e-5)


def test_the_mask_reaches_all_blocks():
    class Sum(layers.Layer):
        supports_masking = True

        def call(self, inputs, mask=None):
            kept = inputs if mask is None else inputs * mask[..., None]
            return inputs + kept.sum(1, keepdims=True)

    steps = X.reshape(4, 4, SIZE)
    steps[:, 2:] = 0
    model = kd.Sequential([layers.Masking(), layers.Stack(Sum(), 2)])
    expected = steps
    for _ in range(2):
        expected = expected + expected[:, :2].sum(1, keepdims=True)
    np.testing.assert_allclose(model(steps), expected, atol=1e-5)


class Foreign(layers.Layer):
    def build(self, input_shape):
        self.inner = nnx.Linear(input_shape[-1], input_shape[-1], rngs=nnx.Rngs(0))

    def call(self, inputs):
        return self.inner(inputs)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: layers.Stack(layers.Dense(2), 2)(X), "must have the shape of its input"),
        (lambda: layers.Stack(Foreign(), 2)(X), "weights that `add_weight` did not create"),
        (
            lambda: layers.Stack(layers.Dense(4), 4, repeats=3),
            "`repeats` of layer 'stack' must be a divisor of depth=4",
        ),
        (lambda: layers.Stack(8, 4), "`layer` of layer 'stack' must be a layer"),
        (lambda: layers.Stack(layers.Dense(4), 0), "`depth` of layer 'stack' must be"),
    ],
)
def test_what_cannot_be_stacked(make, said):
    with pytest.raises(ModelError, match=said):
        make()


@pytest.mark.parametrize("is_whole_model", [True, False])
def test_lora_of_a_stack_has_factors_for_each_block(is_whole_model):
    kd.set_distribution(kd.ModelParallel(_by_model(), "data"))
    model = kd.Sequential([kd.Input((SIZE,)), layers.Stack(lambda: layers.Dense(SIZE, name="dense"), DEPTH)])
    dense = model.layers[0].block
    before = np.asarray(dense.kernel)
    if is_whole_model:
        model.enable_lora(2, layers=".*dense")
    else:
        dense.enable_lora(2)
    first, second = dense.lora_kernel_a, dense.lora_kernel_b
    assert (first.shape, second.shape) == ((DEPTH, SIZE, 2), (DEPTH, 2, SIZE))
    assert (first.dim_names, second.dim_names) == (("layers", "inputs", None), ("layers", None, "outputs"))
    assert second.layout.axes == (None, None, "model")
    draws = [np.asarray(first[place]) for place in range(DEPTH)]
    assert np.abs(draws).max() <= np.sqrt(6 / SIZE) and np.std(draws) > 0.5 * np.sqrt(2 / SIZE)  # He's fan is a block's
    second.assign(np.random.default_rng(0).normal(size=second.shape).astype("float32"))
    update = np.einsum("lir,lro->lio", first, second)
    expected = X
    for place in range(DEPTH):
        expected = expected @ (before[place] + update[place]) + np.asarray(dense.bias[place])
    np.testing.assert_allclose(model.predict(X, verbose=0), expected, rtol=1e-4, atol=1e-4)


def test_lora_of_the_constructor_is_sharded_in_a_stack():
    kd.set_distribution(kd.ModelParallel(_by_model(), "data"))
    model = kd.Sequential(
        [kd.Input((SIZE,)), layers.Stack(lambda: layers.Dense(SIZE, lora_rank=2, name="dense"), DEPTH)]
    )
    assert model.layers[0].block.lora_kernel_b.shape == (DEPTH, 2, SIZE)
    assert model.layers[0].block.lora_kernel_b.layout.axes == (None, None, "model")


def _by_model():
    rules = kd.LayoutMap(kd.DeviceMesh("data=2,model=4"))
    rules[".*kernel"] = (None, None, "model")
    return rules
