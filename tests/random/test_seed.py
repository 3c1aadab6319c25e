"""What a `seed` may be, and where none is refused."""

import random as random_of_python
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import keras_dist as kd
from keras_dist import random
from keras_dist._support import ambient
from keras_dist.errors import ModelError
from keras_dist.layers import Layer

DRAWS = {
    "normal": lambda **seed: random.normal((4,), **seed),
    "truncated_normal": lambda **seed: random.truncated_normal((4,), **seed),
    "uniform": lambda **seed: random.uniform((4,), **seed),
    "gamma": lambda **seed: random.gamma((4,), 2.0, **seed),
    "beta": lambda **seed: random.beta((4,), 2.0, 3.0, **seed),
    "randint": lambda **seed: random.randint((4,), 0, 1000, **seed),
    "categorical": lambda **seed: random.categorical(jnp.zeros((1, 1000)), 4, **seed),
    "binomial": lambda **seed: random.binomial((4,), 1000, 0.5, **seed),
    "dropout": lambda **seed: random.dropout(jnp.ones(40), 0.5, **seed),
    "shuffle": lambda **seed: random.shuffle(jnp.arange(40), **seed),
}
EVERY_FUNCTION = pytest.mark.parametrize("draw", list(DRAWS.values()), ids=list(DRAWS))


def same(one: Any, other: Any) -> bool:
    return bool((np.asarray(one) == np.asarray(other)).all())


@EVERY_FUNCTION
def test_without_a_seed_numbers_follow_from_that_of_the_process(draw, monkeypatch):
    monkeypatch.setattr(ambient.process, "seeds", type(ambient.process.seeds)())
    random.set_random_seed(5)
    first, second = draw(), draw()
    assert not same(first, second)
    random.set_random_seed(5)
    assert same(draw(), first) and same(draw(), second)


def test_the_seed_of_the_process_is_that_of_python_and_numpy_too(monkeypatch):
    monkeypatch.setattr(ambient.process, "seeds", type(ambient.process.seeds)())

    def drawn() -> tuple[float, float]:
        random.set_random_seed(5)
        return random_of_python.random(), np.random.rand()

    assert drawn() == drawn()


@EVERY_FUNCTION
def test_without_a_seed_inside_a_compiled_function(draw):
    with pytest.raises(ModelError, match="SeedGenerator that the layer creates"):
        jax.jit(draw)()


def test_a_generator_whose_first_number_would_become_a_constant():
    with pytest.raises(ModelError, match="inside a compiled function"):
        jax.jit(lambda: random.normal((), seed=random.SeedGenerator()))()


@pytest.mark.first_cases(2)
@EVERY_FUNCTION
def test_seeds_inside_a_compiled_function(draw):
    for found in jax.jit(lambda: [draw(seed=7), draw(seed=random.SeedGenerator(7))])():
        np.testing.assert_allclose(found, draw(seed=7), rtol=1e-6)


def test_gradients_and_vectors_may_be_computed_without_a_seed():
    assert jax.grad(lambda x: x * random.normal(()))(1.0) != 0
    assert jax.vmap(lambda x: x * random.normal(()))(jnp.ones(3)).shape == (3,)


@pytest.mark.parametrize("key", [jax.random.key(7), jnp.array([0, 7], jnp.uint32)], ids=["typed", "raw"])
def test_keys_of_jax(key):
    assert same(random.normal((4,), seed=key), jax.random.normal(jax.random.key(7), (4,)))


@pytest.mark.parametrize(
    "seed", [-1, 2**32, 1.5, "7", True, [1, 2], jnp.zeros(2), jnp.array(3), jax.random.split(jax.random.key(0))]
)
def test_what_is_no_seed(seed):
    with pytest.raises(ModelError, match="`seed` must be an integer"):
        random.normal((2,), seed=seed)


class Noise(Layer):
    """Adds numbers for which it has no generator."""

    def call(self, inputs: Any) -> Any:
        return inputs + random.normal(inputs.shape)


def model_with(layer: Layer) -> Any:
    inputs = kd.Input((3,))
    model = kd.Model(inputs, layer(inputs))
    model.compile("sgd", "mse")
    return model


def test_a_layer_without_a_generator_says_so_before_numbers_become_constants():
    model = model_with(Noise())
    with pytest.raises(ModelError, match="random numbers without a seed") as caught:
        model.predict(np.zeros((2, 3), "f4"), verbose=0)
    assert caught.value.fix.startswith("seed=self.seed_generator in call, a SeedGenerator that the layer creates")


@pytest.mark.parametrize("is_born", [True, False])
def test_a_generator_that_a_compiled_function_does_not_own_is_refused(is_born):
    generator = random.SeedGenerator(3)
    if is_born:
        assert generator.state is not None
    with pytest.raises(ModelError, match="inside a compiled function that does not own it") as caught:
        jax.jit(lambda: random.normal((2,), seed=generator))()
    assert "seed 3" in caught.value.given and "generator.next()" in caught.value.fix
    drawn = jax.jit(lambda key: random.normal((2,), seed=key))(generator.next())
    assert jnp.array_equal(drawn, random.normal((2,), seed=random.SeedGenerator(3)))


def test_a_key_is_two_numbers_as_in_keras_which_jax_takes():
    generator = random.SeedGenerator(3)
    first, second = generator.next(), generator.next(ordered=False)
    np.testing.assert_array_equal([first, second], [[3, 0], [3, 1]])
    assert first.dtype == "uint32"
    np.testing.assert_array_equal(jax.random.normal(second, (2,)), random.normal((2,), seed=second))


def test_the_state_of_a_generator_is_a_variable():
    generator = random.SeedGenerator(7)
    state = generator.state
    assert isinstance(state, kd.Variable) and isinstance(state, nnx.RngState)
    assert (state.name, state.path, state.tag) == ("seed_generator_state",) * 3
    assert (state.shape, state.dtype, state.trainable, state.constraint) == ((2,), "uint32", False, None)
    state.assign(np.array([3, 5]))
    np.testing.assert_array_equal(generator.next(), [3, 5])
    assert generator.state is state
    with pytest.raises(ModelError, match="the shape differs"):
        state.assign(1)
    (found,) = jax.tree.leaves(nnx.state(generator, nnx.RngState))
    np.testing.assert_array_equal(found, [3, 6])
    assert not jax.tree.leaves(nnx.state(generator, nnx.Not(nnx.RngState)))


def test_saved_files_find_generators_in_their_package():
    config = kd.saving.serialize_keras_object(random.SeedGenerator(7))
    assert config["module"] == "keras_dist.random" and "SeedGenerator" in dir(random)
    assert kd.saving.deserialize_keras_object(config).seed == 7


def test_a_state_outside_of_models_stays_where_it_is():
    layer, inputs = kd.layers.Dropout(0.5, seed=3), jax.device_put(np.ones((8, 2), "f4"), jax.devices()[1])
    with kd.DataParallel().scope():
        layer(inputs, training=True)
        layer(inputs, training=True)
    state = layer.seed_generator.state
    assert state.value.is_fully_addressable and len(state.value.devices()) == 1
    np.testing.assert_array_equal(state, [3, 2])
