"""Small programs that show how XLA for TPUs stores arrays, and the bytes that it used.

`python -m tests.planner.memory_experiments` compiles them with the extra `tpu`, and prints what XLA does now and what
is recorded. `keras_dist.planner.storage` follows the records.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from keras_dist.planner import CompiledFigures, compile_for, propagate
from tests.planner.backend_experiments import MESH, WHOLE

TARGET = "v5e:2x4"
F, B, I8 = jnp.float32, jnp.bfloat16, jnp.int8
Array = tuple[tuple[int, ...], Any]

ARGUMENTS: dict[Array, int] = {
    ((32,), F): 512,
    ((1000,), F): 4096,
    ((32,), B): 512,
    ((1000,), B): 2048,
    ((32,), I8): 512,
    ((3, 5), F): 2048,
    ((3, 5), B): 1024,
    ((3, 5), I8): 512,
    ((4096, 1), F): 16384,
    ((4096, 1), B): 16384,
    ((4096, 4), F): 65536,
    ((4096, 4), I8): 16384,
    ((4096, 1, 3), F): 49152,
    ((4096, 1, 3), B): 32768,
    ((8, 8), F): 4096,
    ((64, 32), F): 16384,
    ((64, 32), I8): 4096,
    ((4096, 32), F): 524288,
    ((64, 4096, 32), F): 33554432,
    ((100, 200, 7), F): 716800,
    ((128, 3, 3, 3), F): 18432,
    ((16, 16, 16, 3), F): 393216,
    ((16, 16, 16, 3), B): 196608,
}
"""Bytes that each argument takes: XLA chooses the two innermost dims for least padding."""


class Experiment(NamedTuple):
    """A function, its arguments, and the recorded bytes of intermediate results."""

    function: Callable[..., Any]
    arguments: tuple[Array, ...]
    recorded: int


def _filled(x: jax.Array) -> jax.Array:
    def turn(state: jax.Array, each: jax.Array) -> tuple[jax.Array, jax.Array]:
        state = state * 0.9 + each
        return state, state

    return jnp.sin(jax.lax.scan(turn, jnp.zeros_like(x[0]), x)[1]).sum(0)


def _recurrent(w: jax.Array, x: jax.Array) -> jax.Array:
    def turn(state: jax.Array, each: jax.Array) -> tuple[jax.Array, jax.Array]:
        state = jnp.tanh(state @ w + each)
        return state, state

    return (jax.lax.scan(turn, jnp.zeros_like(x[0]), x)[1] ** 2).sum()


def _dense(w: jax.Array, x: jax.Array) -> jax.Array:
    for _ in range(3):
        x = jnp.tanh(x @ w)
    return (x**2).sum()


def _attention(x: jax.Array) -> jax.Array:
    x = x.reshape(64, 512, 8, 32)
    scores = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", x, x))
    return (jnp.einsum("bhqk,bkhd->bqhd", scores, x) ** 2).sum()


def _convolved(kernel: jax.Array, x: jax.Array) -> jax.Array:
    for _ in range(2):
        x = jnp.tanh(
            jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        )
    return (x**2).sum()


_SEQUENCES, _KERNEL = ((64, 16384, 32), F), ((32, 32), F)
EXPERIMENTS = {
    "loop without products": Experiment(jax.grad(lambda x: (_filled(x) ** 2).sum()), (_SEQUENCES,), 1_207_965_184),
    "loop with products": Experiment(jax.grad(_recurrent), (_KERNEL, _SEQUENCES), 402_675_712),
    "products": Experiment(jax.grad(_dense), (_KERNEL, _SEQUENCES), 335_560_704),
    "attention": Experiment(jax.grad(_attention), (((64, 512, 256), F),), 1_125_122_048),
    "lookup": Experiment(
        lambda table, places: jnp.sort(table[places.astype(jnp.int32)], 0),
        (((1000, 32), F), ((2**20,), F)),
        671_090_688,
    ),
    "convolution": Experiment(jax.grad(_convolved), (((3, 3, 16, 16), F), ((8, 256, 256, 16), F)), 536_944_640),
}


def lowered(function: Callable[..., Any], arguments: tuple[Array, ...]) -> jax.stages.Lowered:
    """Return a program whose arrays are whole on each of 8 devices."""
    whole = NamedSharding(MESH, WHOLE)
    arrays = [jax.ShapeDtypeStruct(shape, dtype, sharding=whole) for shape, dtype in arguments]
    return jax.jit(function).trace(*arrays).lower(lowering_platforms=("tpu",))


def of_arguments() -> jax.stages.Lowered:
    """Return a program of all arguments of the table."""
    return lowered(lambda *arrays: sum(array.astype(F).sum() for array in arrays), tuple(ARGUMENTS))


def used(found: CompiledFigures) -> int:
    """Return the bytes of results and intermediate results."""
    return found.output_nbytes + found.temp_nbytes


if __name__ == "__main__":
    print("arguments", compile_for(of_arguments(), TARGET).argument_nbytes, sum(ARGUMENTS.values()))
    for name, each in EXPERIMENTS.items():
        program = lowered(each.function, each.arguments)
        memory = propagate(program).memory
        print(name, used(compile_for(program, TARGET)), each.recorded, memory.nbytes, memory.most_nbytes, flush=True)
