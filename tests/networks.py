"""Small NNX modules, and data for them."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx

import keras_dist as kd

FEATURES, HIDDEN, CLASSES = 8, 16, 4
LOSS = kd.losses.SparseCategoricalCrossentropy(from_logits=True)
"""Of the classes of `blobs`."""


def blobs(rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Noisy points around one centre for each class: `x` (rows, FEATURES), `y` (rows,)."""
    random = np.random.default_rng(seed)
    centres = np.random.default_rng(1234).normal(size=(CLASSES, FEATURES))
    y = random.integers(0, CLASSES, rows)
    return (centres[y] + 0.3 * random.normal(size=(rows, FEATURES))).astype(np.float32), y.astype(np.int32)


def values_of(model: kd.Model) -> dict[str, np.ndarray]:
    """The variables by their paths."""
    return {variable.path: variable.numpy() for variable in model.variables}


class Plain(nnx.Module):
    """Two layers, nothing else."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.d1 = nnx.Linear(FEATURES, HIDDEN, rngs=rngs)
        self.d2 = nnx.Linear(HIDDEN, CLASSES, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.d2(nnx.tanh(self.d1(x)))


class Noisy(nnx.Module):
    """BatchNorm statistics and a Dropout stream beside the parameters."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.d1 = nnx.Linear(FEATURES, HIDDEN, use_bias=False, rngs=rngs)
        self.norm = nnx.BatchNorm(HIDDEN, momentum=0.9, rngs=rngs)
        self.drop = nnx.Dropout(0.25, rngs=rngs)
        self.d2 = nnx.Linear(HIDDEN, CLASSES, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.d2(self.drop(nnx.relu(self.norm(self.d1(x)))))


class ForeignNorm(nnx.Module):
    """A batch normalisation of somebody's own, which knows no masks."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.d1 = nnx.Linear(FEATURES, HIDDEN, use_bias=False, rngs=rngs)
        self.d2 = nnx.Linear(HIDDEN, CLASSES, rngs=rngs)
        self.mean = nnx.BatchStat(jnp.zeros(HIDDEN))
        self.use_running_average = False  # what `module.train()` and `.eval()` set

    def __call__(self, x: Any) -> Any:
        h = self.d1(x)
        if not self.use_running_average:
            mean = h.mean(axis=0)
            self.mean[...] = 0.5 * self.mean[...] + 0.5 * mean
        else:
            mean = self.mean[...]
        return self.d2(nnx.relu(h - mean) / (1e-3 + jnp.abs(h).max(axis=0)))


class TwoInputs(nnx.Module):
    """A dict in, a dict out."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.left = nnx.Linear(FEATURES, 3, rngs=rngs)
        self.right = nnx.Linear(2, 3, rngs=rngs)

    def __call__(self, inputs: dict[str, Any]) -> dict[str, Any]:
        left, right = self.left(inputs["a"]), self.right(inputs["b"])
        return {"sum": left + right, "parts": (left, right)}


class Tied(nnx.Module):
    """An autoencoder whose decoder is the encoder transposed: one weight under two names."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.encoder = nnx.Linear(FEATURES, 3, use_bias=False, rngs=rngs)
        self.tied_kernel = self.encoder.kernel

    def __call__(self, x: Any) -> Any:
        return self.encoder(x) @ self.tied_kernel[...].T


class Buffered(nnx.Module):
    """Raw arrays as attributes, one of them of integers."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.d1 = nnx.Linear(FEATURES, CLASSES, rngs=rngs)
        self.scale = jnp.linspace(0.5, 1.5, FEATURES)
        self.order = jnp.arange(FEATURES)[::-1]

    def __call__(self, x: Any) -> Any:
        return self.d1(x[:, self.order] * self.scale)


class Sower(nnx.Module):
    """Sows what it sees."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.d1 = nnx.Linear(FEATURES, CLASSES, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        h = self.d1(x)
        self.sow(nnx.Intermediate, "seen", h)
        return h


class Stack(nnx.Module):
    """A list of layers."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.layers = nnx.List([nnx.Linear(FEATURES, FEATURES, rngs=rngs) for _ in range(2)])
        self.head = nnx.Linear(FEATURES, CLASSES, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        for layer in self.layers:
            x = nnx.relu(layer(x))
        return self.head(x)


class Block(nnx.Module):
    """What `Scanned` repeats."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.dense = nnx.Linear(FEATURES, FEATURES, rngs=rngs)
        self.drop = nnx.Dropout(0.1, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return x + self.drop(nnx.tanh(self.dense(x)))


class Scanned(nnx.Module):
    """Three blocks with their arrays stacked along a leading dim, run by a scan."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        @nnx.split_rngs(splits=3)
        @nnx.vmap(in_axes=(0,), out_axes=0)
        def stack(rngs: nnx.Rngs) -> Block:
            return Block(rngs)

        self.blocks = stack(rngs)
        self.head = nnx.Linear(FEATURES, CLASSES, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        def run(x: Any, block: Block) -> Any:
            return block(x)

        return self.head(run(x, self.blocks))


class Annotated(nnx.Module):
    """A parameter that names mesh axes itself, which nobody here asked for."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        init = nnx.with_partitioning(nnx.initializers.lecun_normal(), (None, "tensor"))
        self.d1 = nnx.Linear(FEATURES, CLASSES, kernel_init=init, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.d1(x)


class MuNu(nnx.Module):
    """Submodules with the names of Adam's slots, and the inner one with the outer's shapes."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.mu = nnx.Linear(FEATURES, FEATURES, rngs=rngs)
        self.nu = nnx.Linear(FEATURES, CLASSES, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.nu(nnx.relu(self.mu(x)))


class Gan(nnx.Module):
    """A generator and a discriminator of points in the plane."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.generator = nnx.Sequential(nnx.Linear(3, 16, rngs=rngs), nnx.relu, nnx.Linear(16, 2, rngs=rngs))
        self.discriminator = nnx.Sequential(nnx.Linear(2, 16, rngs=rngs), nnx.relu, nnx.Linear(16, 1, rngs=rngs))

    def __call__(self, noise: Any) -> Any:
        return self.generator(noise)
