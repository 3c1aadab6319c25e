import jax
import jax.numpy as jnp
import numpy as np
import pytest

import keras_dist as kd
from keras_dist.distribution.birth import _groups

MIB = 1 << 20


@pytest.mark.parametrize(
    ("sizes", "groups"),
    [
        ([], []),
        ([4], [[0]]),
        ([4, 8, 16], [[0, 1, 2]]),
        ([2 * MIB, 2 * MIB], [[0], [1]]),
        ([2 * MIB, MIB, MIB, MIB], [[0], [1, 2], [3]]),
        ([MIB // 2, MIB // 2, 1], [[0, 1], [2]]),
        ([0, 0], [[0, 1]]),
    ],
)
def test_arrays_born_together_are_no_larger_than_the_largest(sizes: list[int], groups: list[list[int]]) -> None:
    assert _groups(sizes) == groups


def test_several_programs_give_one_tree() -> None:
    def init(key: jax.Array, scale: jax.Array) -> dict[str, jax.Array]:
        keys = jax.random.split(key, 3)
        return {name: scale * jax.random.normal(k, (512, 1024)) for name, k in zip("abc", keys, strict=True)}

    args = jax.random.key(0), jnp.float32(2)
    plan = kd.DataParallel().plan(jax.eval_shape(init, *args))
    compiled = plan.compile_init(init, *args)
    assert len(compiled.programs) == 3
    born = compiled(*args)
    for name, whole in init(*args).items():
        np.testing.assert_array_equal(born[name], whole)


def test_compiled_once_for_many_seeds() -> None:
    def init(key: jax.Array) -> jax.Array:
        return jax.random.normal(key, (8, 8))

    compiled = kd.DataParallel().plan(jax.ShapeDtypeStruct((8, 8), "float32")).compile_init(init, jax.random.key(0))
    for seed in (0, 1):
        np.testing.assert_array_equal(compiled(jax.random.key(seed)), init(jax.random.key(seed)))
