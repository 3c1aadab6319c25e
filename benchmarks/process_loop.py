"""The job of `bench_jobs` without keras_dist, as one writes it with JAX, Flax and Optax: one of its processes.

Prints the seconds of a step as JSON.
"""

import collections
import json
import os
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

MAX_IN_FLIGHT = 2


class Network(nnx.Module):
    """The tutorial's."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.conv = nnx.Conv(1, 32, (3, 3), padding="VALID", rngs=rngs)
        self.d1 = nnx.Linear(26 * 26 * 32, 128, rngs=rngs)
        self.d2 = nnx.Linear(128, 10, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        """Logits."""
        h = nnx.relu(self.conv(images[..., None]))
        return self.d2(nnx.relu(self.d1(h.reshape(len(h), -1))))


def join() -> None:
    """Join the job that `TF_CONFIG` names."""
    config = json.loads(os.environ["TF_CONFIG"])
    addresses, process = config["cluster"]["worker"], config["task"]["index"]
    jax.distributed.initialize(addresses[0], len(addresses), process, coordinator_bind_address=addresses[0])


def main(rows: int, batch_size: int, steps: int, epochs: int) -> None:
    """Train for an epoch that compiles, and time the others."""
    join()
    process, processes = jax.process_index(), jax.process_count()
    mesh = jax.make_mesh((jax.device_count(),), ("batch",), axis_types=(jax.sharding.AxisType.Auto,))
    replicated = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    by_rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("batch"))
    rng = np.random.default_rng(0)
    x, y = rng.random((rows, 28, 28), np.float32), rng.integers(0, 10, rows).astype(np.int32)

    optimizer = optax.sgd(0.001)
    graph = nnx.graphdef(nnx.eval_shape(lambda: Network(nnx.Rngs(0))))

    def first_state() -> Any:
        params = nnx.state(Network(nnx.Rngs(0)))
        return params, optimizer.init(params)

    def loss_and_accuracy(params: Any, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        logits = nnx.merge(graph, params)(x)
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()
        # of floats like the gradients, so that XLA sends all in one exchange a step
        return loss, jnp.mean(jnp.argmax(logits, -1) == y)

    def step(state: Any, totals: jax.Array, x: jax.Array, y: jax.Array) -> tuple[Any, jax.Array]:
        params, slots = state
        (loss, accuracy), gradients = jax.value_and_grad(loss_and_accuracy, has_aux=True)(params, x, y)
        updates, slots = optimizer.update(gradients, slots, params)
        return (optax.apply_updates(params, updates), slots), totals + jnp.array([loss, accuracy])

    step = jax.jit(
        step,
        in_shardings=(replicated, replicated, by_rows, by_rows),
        out_shardings=(replicated, replicated),
        donate_argnums=0,
    )
    state = jax.jit(first_state, out_shardings=replicated)()
    local = batch_size // processes
    in_flight: collections.deque[jax.Array] = collections.deque()
    ends, taken, order = [], rows, rng.permutation(rows)
    for _ in range(1 + epochs):
        totals = jax.device_put(np.zeros(2, np.float32), replicated)
        for _ in range(steps):
            if taken + batch_size > rows:
                order, taken = rng.permutation(rows), 0
            own = order[taken + process * local : taken + (process + 1) * local]
            taken += batch_size
            batch = [
                jax.make_array_from_process_local_data(by_rows, part[own], (batch_size, *part.shape[1:]))
                for part in (x, y)
            ]
            if len(in_flight) == MAX_IN_FLIGHT:
                in_flight.popleft().block_until_ready()
            state, totals = step(state, totals, *batch)
            in_flight.append(totals)
        np.asarray(totals)
        ends.append(time.perf_counter())
    print(json.dumps((ends[-1] - ends[0]) / epochs / steps))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
