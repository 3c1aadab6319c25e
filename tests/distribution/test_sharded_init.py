from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import keras_dist as kd


def test_arrays_that_differ_in_the_number_of_their_key_share_a_program() -> None:
    def init() -> dict[str, jax.Array]:
        keys = (jax.random.fold_in(jax.random.key(7), count) for count in range(9))
        born = {f"normal_{n}": jax.random.normal(next(keys), (4, 8)) for n in range(4)}
        born |= {f"uniform_{n}": jax.random.uniform(next(keys), (4, 8)) for n in range(3)}
        born |= {"alone": jax.random.uniform(next(keys), (8,)), "zeros": np.zeros(3)}
        return born | {f"bias_{n}": jax.numpy.zeros(8) for n in range(4)}

    plan = kd.DataParallel().plan(jax.eval_shape(init))
    compiled = plan.compile_init(init)
    assert len(compiled.programs) == 3  # two kinds of kernels, and all others
    born = compiled()
    for name, whole in init().items():
        np.testing.assert_array_equal(born[name], whole)
    assert not np.array_equal(born["normal_0"], born["normal_1"])


def test_initialisers_that_are_made_one_after_the_other_share_programs() -> None:
    def initialiser(factor: float) -> Any:
        def init(seed: jax.Array) -> dict[str, jax.Array]:
            keys = [jax.random.fold_in(jax.random.key(seed), count) for count in range(4)]
            drawn = {f"kernel_{n}": factor * jax.random.normal(keys[n], (4, 8)) for n in range(2)}
            return drawn | {"bias": jnp.full(8, factor), "alone": jax.random.uniform(keys[3], (8,))}

        return init

    seed = np.uint32(3)
    plan = kd.DataParallel().plan(jax.eval_shape(initialiser(1.0), seed))
    first, second, other = (plan.compile_init(initialiser(factor), seed) for factor in (1.0, 1.0, 2.0))
    assert [*map(id, first.programs)] == [*map(id, second.programs)]
    assert not set(map(id, first.programs)) & set(map(id, other.programs))
    for compiled, factor in ((second, 1.0), (other, 2.0)):
        for name, value in compiled(seed).items():
            np.testing.assert_allclose(value, initialiser(factor)(seed)[name], rtol=1e-6)
    flat = kd.FullySharded(kd.DeviceMesh((8,), ("data",))).plan(jax.eval_shape(initialiser(1.0), seed))
    assert not set(map(id, first.programs)) & set(map(id, flat.compile_init(initialiser(1.0), seed).programs))


def test_the_two_results_of_one_equation_are_not_alike() -> None:
    def init(seed: jax.Array) -> dict[str, jax.Array]:
        key = jax.random.fold_in(jax.random.key(seed), 1)
        values, vectors = jnp.linalg.qr(jax.random.normal(key, (3, 3)))
        return {"q": values, "r": vectors}

    seed = np.uint32(3)
    plan = kd.DataParallel().plan(jax.eval_shape(init, seed))
    for name, value in plan.init(init, seed).items():
        np.testing.assert_allclose(value, init(seed)[name], rtol=1e-5, atol=1e-6)


def test_arrays_of_other_layouts_do_not() -> None:
    def init() -> dict[str, jax.Array]:
        return {n: jax.random.normal(jax.random.fold_in(jax.random.key(7), i), (8, 8)) for i, n in enumerate("abcd")}

    layout_map = kd.LayoutMap(kd.DeviceMesh("data=2,model=4"))
    layout_map["a|b"] = (None, "model")
    plan = kd.ModelParallel(layout_map).plan(jax.eval_shape(init))
    compiled = plan.compile_init(init)
    assert len(compiled.programs) == 2
    for name, value in compiled().items():
        np.testing.assert_array_equal(value, init()[name])
        assert value.sharding == plan.shardings[name]


def test_what_is_drawn_from_an_argument_or_given_back_is_right_too() -> None:
    def init(key: jax.Array, scale: jax.Array) -> list[jax.Array]:
        drawn = [scale * jax.random.normal(jax.random.fold_in(key, count), (4,)) for count in range(3)]
        return [*drawn, drawn[1] + jax.random.normal(jax.random.fold_in(key, 9), (4,)), scale]

    args = jax.random.key(3), jax.numpy.arange(4.0)
    plan = kd.DataParallel().plan(jax.eval_shape(init, *args))
    compiled = plan.compile_init(init, *args)
    assert len(compiled.programs) == 2
    for value, whole in zip(compiled(*args), init(*args), strict=True):
        np.testing.assert_allclose(value, whole, rtol=1e-6)


class Net(nnx.Module):
    """Blocks that draw from three streams: two of a user's own, and one that a fork has made."""

    def __init__(self, depth: int) -> None:
        self.rngs = nnx.Rngs(7, params=8)
        forked = self.rngs.fork()
        self.blocks = nnx.List(
            nnx.Sequential(
                nnx.Linear(4, 4, rngs=self.rngs),
                nnx.LayerNorm(4, rngs=self.rngs),
                nnx.Dropout(0.5, rngs=self.rngs),
                nnx.Linear(4, 4, rngs=forked),
            )
            for _ in range(depth)
        )


def test_blocks_of_flax_modules_share_programs_however_many_they_are() -> None:
    def programs_of(depth: int) -> int:
        def init() -> nnx.State:
            return nnx.state(Net(depth))

        plan = kd.DataParallel().plan(jax.eval_shape(init))
        compiled = plan.compile_init(init)
        for row, *both in zip(plan.rows, *map(jax.tree.leaves, (compiled(), init())), strict=True):
            value, whole = (v if jnp.issubdtype(v.dtype, np.number) else jax.random.key_data(v) for v in both)
            exactly = row.role == "rng"  # keys, and counts of what was drawn
            np.testing.assert_allclose(value, whole, rtol=0 if exactly else 1e-6, err_msg=row.path)
        return len(compiled.programs)

    assert programs_of(2) == programs_of(5) == 4
