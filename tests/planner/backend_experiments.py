"""Small programs that show what XLA for a backend makes of collectives, and what it did.

`python -m tests.planner.backend_experiments v5e:2x4` compiles them, and prints what XLA does now and what is recorded.
`keras_dist.planner.backends` follows the records.
"""

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import keras_dist as kd
from keras_dist.planner import compile_for, propagate

MESH = AbstractMesh((8,), ("data",), axis_types=(AxisType.Auto,))
ROWS, COLUMNS, WHOLE = P("data"), P(None, "data"), P()
Moved = dict[str, int]


class Experiment(NamedTuple):
    """A function of arrays, their shapes, layouts and dtypes, the layouts of its results, and bytes by kind."""

    function: Callable[..., Any]
    arguments: tuple[tuple[tuple[int, ...], P, Any], ...]
    results: Any
    recorded: dict[str, Moved]  # by target


def _gradient(inputs: int, outputs: int, layout: P, dtype: Any, **recorded: Moved) -> Experiment:
    arguments = ((256, inputs), ROWS, dtype), ((256, outputs), ROWS, dtype)
    return Experiment(lambda x, y: _whole(jnp.einsum("bi,bo->io", x, y)), arguments, layout, _by_target(recorded))


def _whole(x: jax.Array) -> jax.Array:
    """Ask for the whole array, as the gradient of a gathered weight does."""
    return jax.lax.with_sharding_constraint(x, NamedSharding(MESH, WHOLE))


def _product(function: Callable[..., Any], dtype: Any, results: Any = ROWS, **recorded: Moved) -> Experiment:
    arguments = ((256, 512), ROWS, dtype), ((512, 512), ROWS, dtype)
    return Experiment(function, arguments, results, _by_target(recorded))


def _vector(size: int, **recorded: Moved) -> Experiment:
    """A sharded vector that is added to rows."""
    arguments = ((256, size), ROWS, _F), ((size,), ROWS, _F)
    return Experiment(lambda x, bias: x + _whole(bias), arguments, ROWS, _by_target(recorded))


def _contraction(inputs: int, outputs: int, *, shards_both: bool = False, **recorded: Moved) -> Experiment:
    """A product that contracts a sharded dim of its first operand with a dim of the second."""
    arguments = ((64, inputs), COLUMNS, _F), ((inputs, outputs), ROWS if shards_both else WHOLE, _F)
    return Experiment(lambda x, w: (2 * x) @ w, arguments, WHOLE, _by_target(recorded))


def _by_target(recorded: dict[str, Moved]) -> dict[str, Moved]:
    return {{"cpu": "cpu:8", "tpu": "v5e:2x4"}[name]: moved for name, moved in recorded.items()}


def _summed(x: jax.Array) -> jax.Array:
    return _whole(jax.lax.scan(lambda total, each: (total + each.T @ each, None), jnp.zeros((256, 256)), x)[0])


def _summed_wider(x: jax.Array) -> jax.Array:
    def turn(total: jax.Array, each: jax.Array) -> tuple[jax.Array, None]:
        return total + (each.T @ each).astype(jnp.float32), None

    return _whole(jax.lax.scan(turn, jnp.zeros((256, 256)), x)[0])


def _recurrent(x: jax.Array, w: jax.Array) -> jax.Array:
    def turn(state: jax.Array, each: jax.Array) -> tuple[jax.Array, jax.Array]:
        state = jnp.tanh(state @ w + each)
        return state, state

    return (jax.lax.scan(turn, jnp.zeros_like(x[0]), x)[1] ** 2).sum()


def _stacked(x: jax.Array, w: jax.Array) -> jax.Array:
    return (jax.lax.scan(lambda x, each: (jnp.tanh(x @ each), None), x, w)[0] ** 2).sum()


@jax.jit
def _added(total: jax.Array, x: jax.Array) -> jax.Array:
    return total + x.T @ x


def _summed_unrolled(x: jax.Array) -> jax.Array:
    total = jnp.zeros((256, 256))
    for each in x:
        total = _added(total, each)
    return _whole(total)


def _looked_up(x: jax.Array, table: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.take(_whole(table), jnp.argmax(x, -1), axis=0) @ w


def _widened(x: jax.Array, y: jax.Array) -> jax.Array:
    gradient = jax.lax.with_sharding_constraint(x.T @ y, NamedSharding(MESH, COLUMNS))
    return 2 * _whole(gradient.astype(jnp.float32))


def _converted_twice(x: jax.Array, w: jax.Array) -> jax.Array:
    x = jnp.tanh(x @ _whole(w.astype(jnp.bfloat16)))
    return x @ _whole(w.astype(jnp.bfloat16)).T


_F, _B = jnp.float32, jnp.bfloat16
_SEQUENCES = ((16, 64, 256), COLUMNS, _F)
EXPERIMENTS = {
    "sum, small": _gradient(16, 16, ROWS, _F, cpu={"all_reduce": 1024}, tpu={"all_reduce": 1024}),
    "sum, rows": _gradient(512, 512, ROWS, _F, cpu={"all_reduce": 2**20}, tpu={"reduce_scatter": 2**20}),
    "sum, columns": _gradient(512, 512, COLUMNS, _F, cpu={"all_reduce": 2**20}, tpu={"reduce_scatter": 2**20}),
    "sum, whole": _gradient(512, 512, WHOLE, _F, cpu={"all_reduce": 2**20}, tpu={"all_reduce": 2**20}),
    "sum, bfloat16": _gradient(512, 512, ROWS, _B, cpu={"all_reduce": 2**20}, tpu={"reduce_scatter": 2**19}),
    "sum, bfloat16, 128 lanes": _gradient(512, 1024, COLUMNS, _B, cpu={"all_reduce": 2**21}, tpu={"all_reduce": 2**20}),
    "weight in a product": _product(lambda x, w: x @ w, _F, cpu={"all_gather": 2**20}, tpu={"all_gather": 2**19}),
    "weight in a product, bfloat16": _product(
        lambda x, w: x @ w, _B, cpu={"all_gather": 2**20}, tpu={"all_gather": 2**19}
    ),
    "weight in an exact product": _product(
        lambda x, w: jnp.dot(x, w, precision="highest"), _F, cpu={"all_gather": 2**20}, tpu={"all_gather": 2**20}
    ),
    "weight that is returned, too": _product(
        lambda x, w: (x @ w, w), _F, (ROWS, WHOLE), cpu={"all_gather": 2**20}, tpu={"all_gather": 2**20}
    ),
    "weight that is converted twice": Experiment(
        _converted_twice,
        (((256, 512), ROWS, _B), ((512, 512), ROWS, _F)),
        ROWS,
        _by_target({"cpu": {"all_gather": 2**20}, "tpu": {"all_gather": 2**19}}),
    ),
    "gradient that is widened": Experiment(
        _widened,
        (((256, 512), WHOLE, _B), ((256, 512), COLUMNS, _B)),
        WHOLE,
        _by_target({"cpu": {"all_gather": 2**20}, "tpu": {"all_gather": 2**19}}),
    ),
    "table of a lookup for a product": Experiment(
        _looked_up,
        (((256, 512), ROWS, _F), ((512, 512), ROWS, _F), ((512, 512), WHOLE, _F)),
        ROWS,
        _by_target({"cpu": {"all_gather": 2**20}, "tpu": {"all_gather": 2**19}}),
    ),
    "table of a lookup in bfloat16": Experiment(
        lambda x, table: jnp.take(_whole(table), x, axis=0).astype(_B) + _B(1),
        (((256,), ROWS, jnp.int32), ((512, 512), ROWS, _F)),
        ROWS,
        _by_target({"cpu": {"all_gather": 2**20}, "tpu": {"all_gather": 2**19}}),
    ),
    "contraction with a whole matrix": _contraction(256, 256, cpu={"all_gather": 2**16}, tpu={"all_gather": 2**15}),
    "contraction with a whole matrix, few outputs": _contraction(
        256, 128, cpu={"all_reduce": 2**15}, tpu={"all_reduce": 2**15}
    ),
    "contraction with a sharded matrix": _contraction(
        256, 256, shards_both=True, cpu={"all_reduce": 2**16}, tpu={"all_reduce": 2**16}
    ),
    "sum over functions": Experiment(
        _summed_unrolled,
        (((4, 64, 256), COLUMNS, _F),),
        WHOLE,
        _by_target({"cpu": {"all_reduce": 2**20}, "tpu": {"all_reduce": 2**18}}),
    ),
    "sum over a loop": Experiment(
        _summed, (_SEQUENCES,), WHOLE, _by_target({"cpu": {"all_reduce": 2**22}, "tpu": {"all_reduce": 2**18}})
    ),
    "sum over a loop, of products in bfloat16": Experiment(
        _summed_wider,
        (((16, 64, 256), COLUMNS, _B),),
        WHOLE,
        _by_target({"cpu": {"all_reduce": 2**22}, "tpu": {"all_reduce": 2**18}}),
    ),
    "vector in shards of 64": _vector(512, cpu={"all_gather": 2**11}, tpu={"all_reduce": 2**11}),
    "vector in shards of 128": _vector(1024, cpu={"all_gather": 2**12}, tpu={"all_gather": 2**12}),
    "sum over a loop, rows": Experiment(_summed, (_SEQUENCES,), ROWS, _by_target({"tpu": {"reduce_scatter": 2**18}})),
    "gradient of a recurrence": Experiment(
        jax.grad(_recurrent, 1),
        (_SEQUENCES, ((256, 256), WHOLE, _F)),
        WHOLE,
        _by_target({"cpu": {"all_reduce": 2**22}, "tpu": {"all_reduce": 2**18}}),
    ),
    "gradients of a stack": Experiment(
        jax.grad(_stacked, 1),
        (((256, 512), ROWS, _F), ((6, 512, 512), WHOLE, _F)),
        WHOLE,
        _by_target({"cpu": {"all_reduce": 6 * 2**20}, "tpu": {"all_reduce": 6 * 2**20}}),
    ),
    "gradients of a sharded stack": Experiment(
        jax.grad(_stacked, 1),
        (((256, 512), ROWS, _F), ((6, 512, 512), COLUMNS, _F)),
        COLUMNS,
        _by_target({"tpu": {"all_gather": 6 * 2**20, "reduce_scatter": 6 * 2**20}}),
    ),
}

ON_H100: dict[str, Moved] = {
    "sum, small": {"reduce_scatter": 1024},
    "sum, rows": {"reduce_scatter": 1048576},
    "sum, columns": {"reduce_scatter": 1048576},
    "sum, whole": {"all_reduce": 1048576},
    "sum, bfloat16": {"reduce_scatter": 524288},
    "sum, bfloat16, 128 lanes": {"reduce_scatter": 1048576},
    "weight in a product": {"all_gather": 1048576},
    "weight in a product, bfloat16": {"all_gather": 524288},
    "weight in an exact product": {"all_gather": 1048576},
    "weight that is returned, too": {"all_gather": 1048576},
    "weight that is converted twice": {"all_gather": 1048576},
    "gradient that is widened": {"all_gather": 524288},
    "table of a lookup for a product": {"all_gather": 1048576},
    "sum over functions": {"all_reduce": 262144},
    "sum over a loop": {"all_reduce": 262144},
    "sum over a loop, rows": {"reduce_scatter": 262144},
    "gradient of a recurrence": {"all_reduce": 262144},
    "gradients of a stack": {"all_reduce": 6291456},
    "gradients of a sharded stack": {"all_gather": 12582912, "reduce_scatter": 6291456},
}
"""Recorded from XLA of jax 0.10 with the extra `cuda`, which compiles for `h100:1x1x8` without a GPU."""

for _name, _moved in ON_H100.items():
    EXPERIMENTS[_name].recorded["h100:1x1x8"] = _moved


def lowered(experiment: Experiment, platform: str) -> jax.stages.Lowered:
    """Return the program of an experiment on 8 devices."""
    arguments = [
        jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(MESH, layout))
        for shape, layout, dtype in experiment.arguments
    ]
    is_layout = {"is_leaf": lambda each: isinstance(each, P)}
    results = jax.tree.map(lambda layout: NamedSharding(MESH, layout), experiment.results, **is_layout)
    traced = jax.jit(experiment.function, out_shardings=results).trace(*arguments)
    return traced.lower(lowering_platforms=(platform,))


def by_kind(collectives: Any) -> Moved:
    """Return the bytes of collectives by kind."""
    return {kind: nbytes for (kind, _), nbytes in collectives.nbytes_by_axes().items()}


def main(target: str) -> None:
    """Print what XLA makes of each experiment."""
    platform = kd.planner.target(target).platform
    for name, experiment in EXPERIMENTS.items():
        program = lowered(experiment, platform)
        found, expected = by_kind(compile_for(program, target)), experiment.recorded.get(target)
        word = "not recorded" if expected is None else "as recorded" if found == expected else f"recorded {expected}"
        print(f"{name}: {found}; {word}; propagated {by_kind(propagate(program))}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
