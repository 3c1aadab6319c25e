"""Modules find the mesh of their model: shard_map, bare specs, and helpers that ask whether there is one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.interpreters import pxla
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import keras_dist as kd
from keras_dist import dtensor
from keras_dist.errors import ModelError

WIDTH = 24
X = np.random.default_rng(0).normal(size=(10, WIDTH)).astype("float32")


def bare(x):
    return jax.lax.with_sharding_constraint(x, P("data", "model"))


def mapped(x):
    return jax.shard_map(lambda x: jax.lax.pmean(x, "model"), in_specs=P("data"), out_specs=P("data"))(x)


def by_thread_resources(x):
    """As tunix does."""
    mesh = pxla.thread_resources.env.physical_mesh
    return (
        x if mesh.empty else jax.lax.with_sharding_constraint(x, jax.sharding.NamedSharding(mesh, P("data", "model")))
    )


def by_abstract_mesh(x):
    mesh = jax.sharding.get_abstract_mesh()
    return x if mesh.empty else bare(x)


def by_reshard(x, spec):
    """As bonsai does."""
    return x if jax.sharding.get_abstract_mesh().empty else jax.sharding.reshard(x, spec)


class Net(nnx.Module):
    def __init__(self, rngs, shard=lambda x: x):
        self.linear = nnx.Linear(WIDTH, WIDTH, rngs=rngs)
        self.shard = shard
        self(jnp.zeros((2, WIDTH)))

    def __call__(self, x):
        return self.shard(jnp.tanh(self.linear(x)))


def scope():
    return kd.ModelParallel(kd.LayoutMap(kd.DeviceMesh("data=2,model=4")), "data").scope()


def net(shard=lambda x: x, **options):
    with scope():
        model = kd.Model.from_nnx(lambda rngs: Net(rngs, shard), seed=0)
    model.compile("sgd", "mse", **options)
    return model


def results(model):
    x = X[:8]
    losses = model.fit(x, x, 4, 2, verbose=0, shuffle=False).history["loss"]
    return [losses, model.evaluate(x, x, 4, verbose=0), model.predict(x, 4, verbose=0), np.asarray(model(x))]


def assert_close(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def splits(model):
    """How often the train step says how to split something."""
    text = model.lower_train_step(X[:4], X[:4]).as_text()
    return text.count("sdy.sharding_constraint") + text.count("sdy.manual_computation")


@pytest.fixture(scope="module")
def plain():
    model = net()
    return splits(model), results(model)


@pytest.mark.first_cases(1)
@pytest.mark.filterwarnings("ignore:.*thread_resources:DeprecationWarning")
@pytest.mark.parametrize("shard", [bare, mapped, by_thread_resources, by_abstract_mesh])
def test_modules_find_the_mesh(shard, plain):
    model = net(shard)
    assert splits(model) > plain[0]
    assert_close(results(model), plain[1])
    if shard in (by_thread_resources, by_abstract_mesh):  # a short batch is left as it is
        np.testing.assert_allclose(model.predict(X[:9], 4, verbose=0)[:8], plain[1][2], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_modules_find_the_mesh_without_jit_in_steps_and_in_layers(plain):
    def train_step(state, batch, rngs):
        def loss_of(trainable):
            return jnp.mean((model.merge(trainable, state.rest)(batch[0]) - batch[1]) ** 2)

        loss, grads = jax.value_and_grad(loss_of)(state.trainable)
        return model.apply_gradients(state, grads), {"loss": loss}

    model = net(mapped, train_step=train_step)
    loss = model.train_on_batch(X[:4], X[:4])
    assert net(mapped, run_eagerly=True).test_on_batch(X[:4], X[:4]) == pytest.approx(loss)
    with scope():
        inputs = kd.Input((WIDTH,))
        module = Net(nnx.Rngs(0))  # made outside of any trace, it finds no mesh
        module.shard = mapped
        functional = kd.Model(inputs, kd.layers.NNXLayer(module)(inputs))
    assert functional(X[:8]).shape == (8, WIDTH)


def by_size_of_an_axis(x):
    """As ring attention does."""
    return mapped(x) if jax.sharding.get_abstract_mesh().shape["model"] > 1 else x


def by_mesh_in_context(x):
    mesh = jax.sharding.get_abstract_mesh()
    return jax.shard_map(lambda x: x * 1, mesh=mesh, in_specs=P("data"), out_specs=P("data"))(x)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("shard", [bare, mapped, by_size_of_an_axis, by_mesh_in_context])
def test_short_batches_of_modules_that_split_them(shard):
    model = net(shard)
    with pytest.raises(ModelError, match="shards the batch itself") as caught:
        model.fit(X[:9], X[:9], 4, verbose=0)
    assert "a batch of 1 rows on mesh {data: 2, model: 4}" in caught.value.given
    assert "a multiple of 2 rows" in caught.value.expected
    assert "drop_remainder" in caught.value.fix and 'compile(..., uneven="pad")' in caught.value.fix


def test_other_errors_on_a_short_batch_stay_as_they_are():
    class Picky(Net):
        def __call__(self, x):
            if x.shape[0] == 1:
                raise KeyError("rows")
            return super().__call__(x)

    with scope():
        model = kd.Model.from_nnx(Picky)
    with pytest.raises(KeyError, match="rows"):
        model.predict(X[:9], 4, verbose=0)


@pytest.mark.parametrize(
    ("shard", "what"),
    [
        (lambda x: by_reshard(x, P("data", None)), "Explicit axes"),
        (lambda x: jax.lax.with_sharding_constraint(x, P("fsdp")), "names an axis that the mesh does not have"),
    ],
)
def test_specs_for_other_meshes(shard, what):
    with pytest.raises(ModelError, match=what):
        net(shard)


@pytest.fixture(params=[("data", 8), ("rows", 4)], ids=str)
def explicit(request):
    """Set a mesh with Explicit axes, JAX's default kind, as a user does."""
    (axis, size), before = request.param, jax.sharding.get_abstract_mesh()
    mesh = jax.make_mesh((size,), (axis,), devices=jax.devices()[:size])
    assert before.empty and set(mesh.axis_types) == {jax.sharding.AxisType.Explicit}
    with jax.set_mesh(mesh):
        yield mesh


@pytest.fixture(params=[(4,), (2, 4)], ids=str)
def auto(request):
    """Set a mesh with Auto axes, which is no mesh of a model here."""
    devices = np.array(jax.devices()[: int(np.prod(request.param))]).reshape(request.param)
    with jax.set_mesh(jax.sharding.Mesh(devices, ("rows", "columns")[: devices.ndim])):
        yield


def layered():
    members = [kd.layers.Dense(16, "relu", kernel_regularizer="l2"), kd.layers.BatchNormalization(), kd.layers.Dense(4)]
    return kd.Sequential([kd.Input((WIDTH,)), *members])


def used(model, given=lambda x: x):
    """The results of what users call, for data as `given` makes it."""
    x, y = given(X[:8]), given(X[:8, :4])
    model.compile("adam", "mse", metrics=["mae"])
    found = [*model.fit(x, y, 4, verbose=0, shuffle=False).history.values(), model.evaluate(x, y, verbose=0)]
    found += [model.train_on_batch(x, y), model.predict(x, verbose=0), model(x), model.layers[0](X[:8])]
    parts = model.trainable_variables, model.non_trainable_variables
    trained, others = ([variable.value for variable in part] for part in parts)
    found += [model.stateless_call(trained, others, X[:8])[0], *model.losses]
    model.weights[0].assign(given(np.ones(model.weights[0].shape, "float32")))
    kd.optimizers.Adam().apply([np.ones(one.shape, "float32") for one in trained], parts[0])
    error = kd.metrics.MeanSquaredError()
    error.update_state(y, y)
    return [*found, *model.get_weights(), error.result(), kd.losses.MeanSquaredError()(y, y)]


def test_a_mesh_with_explicit_axes_around_everything(explicit):
    is_before, make = explicit.size == 8, scope if explicit.size == 8 else kd.DataParallel().scope
    with jax.set_mesh(None), make():
        kd.set_random_seed(3)
        expected, model = used(layered()), None
        kd.set_random_seed(3)
        if not is_before:
            model = layered()
            model.compile("sgd", "mse")
    sharding = jax.sharding.NamedSharding(explicit, P(explicit.axis_names[0]))
    with make():
        found = used(model or layered(), lambda x: jax.device_put(x, sharding))
    assert_close(found, expected)


@pytest.mark.first_cases(1)
def test_another_mesh_with_auto_axes_around_everything(auto, tmp_path):
    with jax.set_mesh(None), scope():
        kd.set_random_seed(3)
        model = layered()
        expected, before = used(model), model.get_weights()
    with scope():
        kd.set_random_seed(3)
        assert_close(used(layered()), expected)
    model.save(tmp_path / "model.keras")
    model.set_weights([0 * one for one in before])
    model.load_weights(tmp_path / "model.keras")
    assert_close(model.get_weights(), before)
    assert_close([model.predict(X, verbose=0)], [kd.saving.load_model(tmp_path / "model.keras").predict(X, verbose=0)])
    assert len(model.losses) == 1 and (model.weights[0] + 1).shape == before[0].shape
    assert not jax.sharding.get_abstract_mesh().empty


def test_layers_use_an_equal_mesh_with_auto_axes():
    class Layer(kd.Layer):
        def call(self, inputs):
            return bare(inputs)

    with scope(), jax.set_mesh(kd.distribution.distribution().device_mesh.backend_mesh):
        assert Layer()(X[:8]).sharding.spec == P("data", "model")


SPECS_FOR_EXPLICIT_AXES = {
    "reshard": lambda x, mesh, spec: jax.sharding.reshard(x, spec),
    "out_sharding": lambda x, mesh, spec: jnp.einsum("ij,kj->ik", x, x, out_sharding=spec),
    "out_sharding, mesh": lambda x, mesh, spec: jnp.dot(x, x.T, out_sharding=NamedSharding(mesh, spec)),
    "constraint, mesh": lambda x, mesh, spec: jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec)),
    "shard_map, mesh": lambda x, mesh, spec: jax.shard_map(jnp.sin, mesh=mesh, in_specs=spec, out_specs=spec)(x),
}


@pytest.mark.parametrize("specs", SPECS_FOR_EXPLICIT_AXES)
def test_layers_for_explicit_axes_without_a_distribution(explicit, specs):
    class Layer(kd.Layer):
        def call(self, inputs):
            return SPECS_FOR_EXPLICIT_AXES[specs](inputs, explicit, P(*explicit.axis_names))

    with pytest.raises(ModelError, match="is written for a mesh with Explicit axes"):
        kd.Sequential([kd.Input((WIDTH,), batch_size=8), Layer()])
    with scope(), pytest.raises(ModelError, match=r"Explicit axes|names an axis that the mesh does not have"):
        kd.Sequential([kd.Input((WIDTH,), batch_size=8), Layer()])


def arithmetic(model, x, y):
    """What callers compute themselves with what we hand out, also in traces of theirs, and with our functions."""
    trained = [variable.value for variable in model.trainable_variables]
    others = [variable.value for variable in model.non_trainable_variables]
    kernel, mse = model.trainable_variables[0], kd.losses.mean_squared_error
    error = kd.metrics.MeanSquaredError()
    error.update_state(y, model(x))

    def loss_of(trained, x, y):
        return jnp.mean((model.stateless_call(trained, others, x)[0] - y) ** 2)

    loss, grads = jax.value_and_grad(loss_of)(trained, x, y)
    optimizer = kd.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    slots = [variable.value for variable in optimizer.variables]
    plain = kd.Variable(kernel.value)
    return [
        *(loss, sum(model.losses), jnp.mean((model(x) - y) ** 2), mse(y, model(x)), error.result() + 1, kernel[0] + 1),
        *(kernel + 1, x @ kernel.value, kernel.value.T @ kernel.value, jnp.vdot(kernel.value, kernel.value), plain + 1),
        *(
            kd.ops.matmul(x, kernel),
            kd.ops.norm(kernel),
            kd.random.shuffle(x, seed=1),
            kd.losses.circle(np.arange(8) % 2, x),
        ),
        *(value - 0.1 * grad for value, grad in zip(trained, grads, strict=True)),
        *jax.jit(jax.value_and_grad(loss_of))(trained, x, y)[1],
        *(jax.jit(lambda x: model(x) + 1)(x), jax.jit(mse)(y, model(x)), jax.jit(lambda x: x @ kernel.value)(x)),
        *kd.tree.map_structure(lambda array: array + 1, trained),
        *optimizer.stateless_apply(slots, trained, trained)[0],
        *jax.jit(optimizer.stateless_apply)(slots, trained, trained)[0],
    ]


@pytest.fixture(scope="module")
def trained():
    with scope():
        kd.set_random_seed(3)
        model = layered()
    model.compile("adam", "mse")
    model.fit(X, X[:, :4], 4, verbose=0, shuffle=False)
    return model, arithmetic(model, X[:8], X[:8, :4])


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("axes", [{"data": 8}, {"rows": 4, "columns": 2}], ids=str)
@pytest.mark.parametrize("spec", [None, P(), "first"], ids=str)
def test_callers_compute_with_what_we_hand_out_on_a_mesh_with_explicit_axes(trained, axes, spec):
    model, expected = trained
    with scope(), jax.set_mesh(jax.make_mesh(tuple(axes.values()), tuple(axes))):
        where = jax.sharding.NamedSharding(jax.sharding.get_mesh(), P(tuple(axes)) if spec == "first" else P())
        x, y = (each if spec is None else jax.device_put(each, where) for each in (X[:8], X[:8, :4]))
        assert_close(arithmetic(model, x, y), expected)
        assert jax.vmap(lambda row: model(row[None])[0])(X[:8]).shape == (8, 4)


def test_callers_compute_on_fewer_devices_with_explicit_axes_but_do_not_trace(trained):
    model, expected = trained
    x, y = X[:8], X[:8, :4]
    with scope(), jax.set_mesh(jax.make_mesh((4,), ("rows",), devices=jax.devices()[:4])):
        kernel = model.trainable_variables[0]
        found = [kernel[0] + 1, kernel + 1, jax.device_put(x, jax.P("rows")) @ kernel.value]
        assert_close([sum(model.losses), jnp.mean((model(x) - y) ** 2)], expected[1:3])
        assert_close(found, [kernel.numpy()[0] + 1, kernel.numpy() + 1, x @ kernel.numpy()])
        with pytest.raises(ModelError, match="the mesh of a trace has other devices"):
            jax.jit(lambda x: model(x))(jax.device_put(x, jax.P("rows")))


def test_arrays_are_handed_out_without_a_copy(explicit):
    with jax.set_mesh(None), kd.FullySharded(kd.DeviceMesh("data=8")).scope():
        kernel = kd.Variable(np.ones((WIDTH, 16), "float32"), layout=("data", None))
    held, seen = (
        [shard.data.unsafe_buffer_pointer() for shard in array.addressable_shards]
        for array in (kernel.peek(), kernel.value)
    )
    assert len(held) == 8 and (held == seen or explicit.size < 8)


def test_arrays_placed_by_a_layout_are_computed_with_on_their_own_mesh(explicit):
    mesh = kd.DeviceMesh("data=2,model=4")
    placed = kd.distribute_tensor(X[:8], kd.TensorLayout(("data", None), mesh))
    with pytest.raises(ValueError, match="should match the aval mesh"):
        placed + 1
    with jax.set_mesh(mesh.backend_mesh):
        np.testing.assert_array_equal(placed + 1, X[:8] + 1)
    double = dtensor.function(lambda x: x * 2)
    assert double(placed).sharding == placed.sharding and explicit == jax.sharding.get_mesh()


@pytest.mark.parametrize(
    "function", [kd.losses.cosine_similarity, kd.metrics.mean_absolute_error], ids=["loss", "metric"]
)
def test_losses_and_metrics_take_labels_and_predictions_of_two_meshes(function):
    rules = kd.LayoutMap(kd.DeviceMesh({"data": 2, "model": 4}))
    rules[".*kernel"] = (None, "model")
    with kd.ModelParallel(rules).scope():
        model = kd.Sequential([kd.Input((WIDTH,)), kd.layers.Dense(8)])
    x, y = X[:8], X[:8, :8]
    expected = function(y, model(x))
    mesh = jax.make_mesh((4, 2), ("rows", "columns"))
    with jax.set_mesh(mesh):
        found = function(jax.device_put(y, jax.sharding.NamedSharding(mesh, P("rows"))), model(x))
    np.testing.assert_allclose(found, expected, atol=1e-6)
