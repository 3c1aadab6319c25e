"""Values of initializers: they follow from shape, dtype and key alone."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import keras_dist as kd
from keras_dist import initializers, random
from keras_dist.errors import KerasDistError, ModelError, UnknownNameError

RANDOM = [
    initializers.GlorotNormal,
    initializers.GlorotUniform,
    initializers.HeNormal,
    initializers.HeUniform,
    initializers.LecunNormal,
    initializers.LecunUniform,
    initializers.Orthogonal,
    initializers.RandomNormal,
    initializers.RandomUniform,
    initializers.TruncatedNormal,
    initializers.VarianceScaling,
]
ALL = [*RANDOM, initializers.Constant, initializers.Identity, initializers.Ones, initializers.Zeros]
random_ones = pytest.mark.parametrize("cls", RANDOM, ids=lambda cls: cls.__name__)
all_of_them = pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)


@all_of_them
def test_shape_and_dtype_are_those_asked_for_and_values_inside_a_trace_those_outside(cls: Any) -> None:
    make, dtypes = cls(), ["float32", "bfloat16", "float16", None]
    inside = jax.jit(lambda key: [make((6, 5), dtype, key) for dtype in dtypes])(jax.random.key(3))
    for values, dtype in zip(inside, dtypes, strict=True):
        assert (values.shape, values.dtype) == ((6, 5), jnp.dtype(dtype or "float32"))
        assert np.all(np.isfinite(np.asarray(values, "float32")))
    np.testing.assert_allclose(inside[0], make((6, 5), "float32", jax.random.key(3)), rtol=1e-5, atol=1e-6)


@random_ones
def test_a_key_decides_the_values(cls: Any) -> None:
    one, same, other = (cls()((6, 5), key=jax.random.key(seed)) for seed in (1, 1, 2))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)


@random_ones
def test_a_seed_goes_before_the_key(cls: Any) -> None:
    seeded = cls(seed=7)
    assert np.array_equal(seeded((6, 5), key=jax.random.key(1)), seeded((6, 5), key=jax.random.key(2)))
    assert np.array_equal(seeded((6, 5)), cls(seed=7)((6, 5)))
    assert not np.array_equal(seeded((6, 5)), cls(seed=8)((6, 5)))


@random_ones
def test_without_key_and_seed_the_process_gives_keys(cls: Any) -> None:
    random.set_random_seed(5)
    first, second = cls()((6, 5)), cls()((6, 5))
    random.set_random_seed(5)
    assert np.array_equal(first, cls()((6, 5)))
    assert not np.array_equal(first, second)


@random_ones
def test_empty_weights_are_possible(cls: Any) -> None:
    assert cls()((0, 3), key=jax.random.key(0)).shape == (0, 3)


@pytest.mark.parametrize("shape", [(4, 4), (6, 3), (3, 6), (2, 3, 4), (2, 2, 2, 9)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_orthogonal_matrices_are_orthogonal(shape: tuple[int, ...], dtype: str) -> None:
    matrix = initializers.Orthogonal(gain=2.0)(shape, dtype, jax.random.key(0)).astype("float32").reshape(-1, shape[-1])
    rows, columns = matrix.shape
    product = matrix.T @ matrix if rows >= columns else matrix @ matrix.T
    np.testing.assert_allclose(product, 4.0 * np.eye(len(product)), atol=1e-5 if dtype == "float32" else 0.1)


def test_the_mean_is_added_in_the_dtype_of_the_weight() -> None:
    for cls in (initializers.RandomNormal, initializers.TruncatedNormal):
        values = cls(mean=np.float64(100.0), stddev=np.float32(0.5))((64, 64), "bfloat16", jax.random.key(0))
        assert values.dtype == jnp.bfloat16
        assert 99 < float(values.astype("float32").mean()) < 101


def test_constants_are_cast() -> None:
    assert initializers.Constant(2.7)((2,), "int32").tolist() == [2, 2]
    assert initializers.Ones()((2,), "bool").tolist() == [True, True]
    assert initializers.Identity(3.0)((2, 3), "int32").tolist() == [[3, 0, 0], [0, 3, 0]]
    assert initializers.Constant(jnp.float32(2.0))((), "float32").item() == 2.0
    for values in (np.arange(3.0), [0, 1, 2]):
        assert initializers.Constant(values)((2, 3)).tolist() == [[0.0, 1.0, 2.0]] * 2


def test_axes_that_count_for_neither_are_left_out_of_the_fans() -> None:
    shape, key = (7, 4, 5, 6), jax.random.key(0)
    uniform = {"scale": 1.0, "distribution": "uniform"}
    by_axes = initializers.VarianceScaling(**uniform, mode="fan_in", input_axes=[1, -2], output_axes=[3])
    assert np.abs(by_axes(shape, key=key)).max() == pytest.approx(np.sqrt(3 / 20), rel=0.02)
    by_axes = initializers.VarianceScaling(**uniform, mode="fan_avg", input_axes=[0], output_axes=[1])
    assert np.abs(by_axes(shape, key=key)).max() == pytest.approx(np.sqrt(3 / 5.5), rel=0.02)


def test_the_base_says_that_it_gives_nothing() -> None:
    with pytest.raises(NotImplementedError, match="Initializer must define"):
        initializers.Initializer()((2,))


def test_clone_is_a_new_one_with_the_same_arguments() -> None:
    first = initializers.VarianceScaling(2.0, "fan_out", seed=3)
    second = first.clone()
    assert second is not first
    assert np.array_equal(first((3, 4)), second((3, 4)))


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: initializers.VarianceScaling(scale=0), ModelError, "`scale` must be a finite number above 0"),
        (lambda: initializers.VarianceScaling(mode="fan_inn"), UnknownNameError, "did you mean 'fan_in'"),
        (lambda: initializers.VarianceScaling(distribution="unifrom"), UnknownNameError, "did you mean 'uniform'"),
        (lambda: initializers.VarianceScaling(input_axes=[0]), ModelError, "must be given together"),
        (lambda: initializers.HeNormal(output_axes=[0]), ModelError, "must be given together"),
        (lambda: initializers.RandomNormal(seed=-1), ModelError, "`seed`"),
        (lambda: initializers.Orthogonal(seed="x"), ModelError, "`seed`"),
        (lambda: initializers.STFT("imaginary"), ModelError, "`side`"),
        (lambda: initializers.STFT(scaling="l2"), ModelError, "`scaling`"),
        (lambda: initializers.STFT(window="unknown"), ModelError, "`window` must be the name of a window"),
        (lambda: initializers.Constant([[1.0], [2.0, 3.0]]), ModelError, "`value` must be a number"),
        (lambda: initializers.Constant(np.ones(2))((2, 3)), ModelError, "does not broadcast to the shape"),
    ],
)
def test_arguments_that_mean_nothing_are_named(make: Any, error: type[KerasDistError], words: str) -> None:
    with pytest.raises(error, match=words) as caught:
        make()
    assert caught.value.given and caught.value.fix


@pytest.mark.parametrize(
    ("initializer", "shape", "words"),
    [
        (initializers.Identity(), (2, 2, 2), r"\(2, 2, 2\) of 3 dims"),
        (initializers.Orthogonal(), (3,), "only weights of shape"),
        (initializers.VarianceScaling(input_axes=[0], output_axes=[2]), (3, 4), "must be distinct axes of 2 dims"),
        (initializers.STFT(), (4, 3), "only kernels of shape"),
        (initializers.STFT(window=[1.0, 2.0]), (4, 1, 3), "`window` must have the shape"),
        (initializers.FromArray(np.zeros((2, 3))), (3, 2), r"array of shape \(2, 3\)"),
    ],
)
def test_shapes_that_an_initializer_cannot_give_are_named(initializer: Any, shape: Any, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        initializer(shape, "float32", jax.random.key(0))


def test_a_key_that_is_none_is_named() -> None:
    with pytest.raises(ModelError, match="`key` must be a PRNG key") as caught:
        initializers.RandomNormal()((2,), "float32", 3)  # type: ignore[arg-type]
    assert "jax.random.key(0)" in caught.value.fix


def test_a_generator_goes_on_with_each_call_and_is_mixed_with_the_keys_of_layers() -> None:
    seed = kd.random.SeedGenerator(7)
    first, second = (np.asarray(initializers.RandomNormal(seed=seed)((2,))) for _ in range(2))
    np.testing.assert_array_equal(first, initializers.RandomNormal(seed=7)((2,)))
    assert not np.array_equal(first, second)
    again = initializers.deserialize(initializers.serialize(initializers.GlorotNormal(seed=seed)))
    assert again.seed.seed == 7
    inputs = kd.Input((2,))
    dense = [kd.layers.Dense(2, kernel_initializer=initializers.RandomNormal(seed=seed)) for _ in range(2)]
    model = kd.Model(inputs, dense[1](dense[0](inputs)))
    one, _, other, _ = map(np.asarray, model.weights)
    assert not np.array_equal(one, other)


@pytest.mark.parametrize(
    "arguments",
    [("real", None), ("real", "hamming", None, True), ("imag", "tukey", "density"), ("imag", [1, 2, 3, 4], "spectrum")],
)
def test_stft_gives_the_kernels_of_keras(keras: Any, arguments: Any) -> None:
    expected = keras.initializers.STFT(*arguments)((4, 1, 3))
    found = initializers.get(initializers.serialize(initializers.STFT(*arguments)))((4, 1, 3))
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert isinstance(initializers.get("STFTInitializer"), initializers.STFT)
