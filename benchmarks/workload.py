"""What all benchmarks train: the MLP of Keras's distribution guide, its data, and the loop one would write by hand."""

from __future__ import annotations

import collections
import dataclasses
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

MAX_IN_FLIGHT = 2
"""As many as keep the devices busy; more deadlock fake CPU devices."""


@dataclasses.dataclass(frozen=True)
class Network:
    """A multi-layer perceptron on images of 28 x 28: the guide's, unless told otherwise.

    Attributes:
        hidden: units of the hidden layers, which have no bias.
        dropout: the rate after the last of them.
    """

    hidden: tuple[int, ...] = (200,)
    dropout: float = 0.4


def images(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Random images (rows, 28, 28, 1) and targets (rows, 10), float32, as in the guide."""
    rng = np.random.default_rng(0)
    return rng.normal(size=(rows, 28, 28, 1)).astype(np.float32), rng.normal(size=(rows, 10)).astype(np.float32)


def make_model(keras: Any, network: Network | None = None, model_class: Any = None, **compile_options: Any) -> Any:
    """The network in `keras`, which is Keras or keras_dist, compiled as there: RMSprop, mean squared error."""
    network = network or Network()
    layers = keras.layers
    model = (model_class or keras.Sequential)(
        [
            keras.Input((28, 28, 1)),
            layers.Flatten(),
            *(layers.Dense(units, use_bias=False, activation="relu") for units in network.hidden),
            layers.Dropout(network.dropout),
            layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(loss="mse", **compile_options)
    return model


class BareLoop:
    """The same training by hand: one jitted step that donates its state, fed with numpy rows, two in flight.

    Args:
        network: what to train.
        devices: the rows of a batch are split over so many.
        x: images.
        y: targets.
        batch_size: rows of a step; it divides the data.
    """

    def __init__(self, network: Network, devices: int, x: np.ndarray, y: np.ndarray, batch_size: int) -> None:
        mesh = jax.sharding.Mesh(np.array(jax.devices()[:devices]), ("batch",))
        replicated = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
        rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("batch"))
        self._data, self._batch_size = (x, y), batch_size
        self._rng = np.random.default_rng(1)
        self._optimizer = optax.rmsprop(1e-3, decay=0.9, eps=1e-7)  # as in Keras: eps under the root
        self._dropout = network.dropout
        self.state = jax.jit(lambda: self._first_state(network), out_shardings=replicated)()
        self._step = jax.jit(
            self._stepped,
            in_shardings=(replicated, rows, rows),
            out_shardings=(replicated, replicated),
            donate_argnums=0,
        )

    def run(self, epochs: int = 1) -> float:
        """Train, and return the last loss."""
        x, y = self._data
        in_flight: collections.deque[jax.Array] = collections.deque()
        for _ in range(epochs):
            order = self._rng.permutation(len(x))
            for start in range(0, len(x), self._batch_size):
                rows = order[start : start + self._batch_size]
                if len(in_flight) == MAX_IN_FLIGHT:
                    in_flight.popleft().block_until_ready()
                self.state, loss = self._step(self.state, x[rows], y[rows])
                in_flight.append(loss)
        return float(in_flight[-1])

    def _first_state(self, network: Network) -> tuple[Any, Any, Any]:
        sizes = (784, *network.hidden, 10)
        keys = jax.random.split(jax.random.key(0), len(sizes))
        glorot = jax.nn.initializers.glorot_uniform()
        kernels = [glorot(key, shape) for key, shape in zip(keys, itertools.pairwise(sizes), strict=False)]
        params = kernels, jnp.zeros(10)
        return params, self._optimizer.init(params), jnp.zeros((), jnp.int32)

    def _stepped(self, state: tuple[Any, Any, Any], x: jax.Array, y: jax.Array) -> tuple[tuple[Any, Any, Any], Any]:
        params, slots, count = state
        loss, gradients = jax.value_and_grad(self._loss)(params, x, y, jax.random.fold_in(jax.random.key(1), count))
        updates, slots = self._optimizer.update(gradients, slots, params)
        return (optax.apply_updates(params, updates), slots, count + 1), loss

    def _loss(self, params: Any, x: jax.Array, y: jax.Array, key: jax.Array) -> jax.Array:
        (*hidden, last), bias = params
        h = x.reshape(len(x), -1)
        for kernel in hidden:
            h = jax.nn.relu(h @ kernel)
        kept = jax.random.bernoulli(key, 1 - self._dropout, h.shape)
        h = jnp.where(kept, h / (1 - self._dropout), 0)
        return jnp.mean((jax.nn.softmax(h @ last + bias) - y) ** 2)


class ResidentLoop(BareLoop):
    """The same training on data that is on the device before it begins: a scan for each epoch, two in flight.

    Rows are flat there: XLA gathers those in half the time.
    """

    def __init__(self, network: Network, devices: int, x: np.ndarray, y: np.ndarray, batch_size: int) -> None:
        super().__init__(network, devices, x, y, batch_size)
        self._resident = jax.device_put(x.reshape(len(x), -1)), jax.device_put(y)
        self._epoch = jax.jit(self._scanned, donate_argnums=0)

    def run(self, epochs: int = 1) -> float:
        """Train, and return the last loss."""
        in_flight: collections.deque[jax.Array] = collections.deque()
        for _ in range(epochs):
            order = self._rng.permutation(len(self._resident[0])).astype(np.int32)
            if len(in_flight) == MAX_IN_FLIGHT:
                in_flight.popleft().block_until_ready()
            self.state, loss = self._epoch(self.state, *self._resident, order.reshape(-1, self._batch_size))
            in_flight.append(loss)
        return float(in_flight[-1])

    def _scanned(self, state: Any, x: jax.Array, y: jax.Array, order: jax.Array) -> tuple[Any, jax.Array]:
        def step(state: Any, rows: jax.Array) -> tuple[Any, jax.Array]:
            batch = [part.at[rows].get(mode="promise_in_bounds") for part in (x, y)]
            return self._stepped(state, *batch)

        state, losses = jax.lax.scan(step, state, order)
        return state, losses[-1]
