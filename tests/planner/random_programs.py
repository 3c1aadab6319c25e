"""Random networks under random layouts, and how their plans compare with XLA's programs.

`python -m tests.planner.random_programs cpu:8 20261129 200` compiles 200 programs, prints a line for each and then the
rates; with `large` at the end, programs that need up to GiB. TPUs need the extra `tpu`. `make soak` compiles some.
"""

import collections
import dataclasses
import random
import statistics
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import keras_dist as kd
from keras_dist import layers
from keras_dist.errors import LayoutWarning
from keras_dist.planner.peak_memory import PeakMemory
from keras_dist.planner.propagation import propagate
from keras_dist.planner.tracing import trace_step
from keras_dist.planner.verdict import judge

MESHES = ((8,), (2, 4), (4, 2), (1, 8))
ACTIVATIONS = ("relu", "gelu", "tanh", "silu", None)


def _dense(rng: random.Random, width: int, length: int) -> Iterator[layers.Layer]:
    up = layers.Dense(rng.choice((2, 4)) * width, activation=rng.choice(ACTIVATIONS), use_bias=rng.random() < 0.5)
    yield from (up, layers.Dense(width, use_bias=rng.random() < 0.5))


def _normalized(rng: random.Random, width: int, length: int) -> Iterator[layers.Layer]:
    yield rng.choice((layers.LayerNormalization, layers.BatchNormalization, layers.RMSNormalization))()


def _convolved(rng: random.Random, width: int, length: int) -> Iterator[layers.Layer]:
    padding = rng.choice(("same", "causal"))
    kinds: list[Callable[[], layers.Layer]] = [
        lambda: layers.Conv1D(width, rng.choice((1, 3, 5)), padding=padding, activation=rng.choice(ACTIVATIONS)),
        lambda: layers.Conv1D(width, 3, padding="same", dilation_rate=2),
        lambda: layers.SeparableConv1D(width, 3, padding="same"),
        lambda: layers.DepthwiseConv1D(3, padding="same"),
    ]
    yield rng.choice(kinds)()


def _recurrent(rng: random.Random, width: int, length: int) -> Iterator[layers.Layer]:
    kind = rng.choice((layers.LSTM, layers.GRU, layers.SimpleRNN))
    yield kind(width, return_sequences=True, unroll=rng.random() < 0.2 and length <= 64)


class _Mixed(layers.Layer):
    """Attention over the sequence, with the inputs added."""

    def __init__(self, heads: int, size: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.attention = layers.MultiHeadAttention(heads, size)

    def call(self, inputs: jax.Array) -> jax.Array:
        return inputs + self.attention(inputs, inputs, use_causal_mask=True)


def _attention(rng: random.Random, width: int, length: int) -> Iterator[layers.Layer]:
    heads = rng.choice((2, 4, 8))
    yield _Mixed(heads, width // heads)


class _Block(layers.Layer):
    """A residual block of dense layers."""

    def __init__(self, width: int, factor: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.norm = layers.LayerNormalization()
        self.up, self.down = layers.Dense(factor * width, activation="gelu"), layers.Dense(width)

    def call(self, inputs: jax.Array) -> jax.Array:
        return inputs + self.down(self.up(self.norm(inputs)))


def _stacked(rng: random.Random, width: int, length: int) -> Iterator[layers.Layer]:
    yield layers.Stack(_Block(width, rng.choice((1, 2, 4))), rng.choice((2, 3, 6)))


def _experts(rng: random.Random, width: int, length: int) -> Iterator[layers.Layer]:
    yield layers.MixtureOfExperts(rng.choice((4, 8)), 2 * width)


def _moved(rng: random.Random, width: int, length: int) -> Iterator[layers.Layer]:
    """Reshapes, rolls, slices, joins and gathers."""
    half = width // 2
    functions: list[Callable[[Any], Any]] = [
        lambda x: jnp.roll(x, 1, axis=1),
        lambda x: jnp.concatenate([x[..., half:], -x[..., :half]], -1),
        lambda x: x.reshape(x.shape[0], length // 2, 2, width).mean(2).repeat(2, axis=1),
        lambda x: jnp.cumsum(x, axis=1) / length,
        lambda x: jnp.take(x, jnp.arange(length)[::-1], axis=1),
        lambda x: jnp.swapaxes(x.reshape(x.shape[0], length, 4, width // 4), 2, 3).reshape(x.shape),
        lambda x: x * jax.nn.softmax(x, axis=1),
        lambda x: x - x.mean(axis=(0, 1), keepdims=True),
    ]
    yield layers.Lambda(rng.choice(functions))


class _Images(layers.Layer):
    """2-D convolutions of a sequence as images with 4 columns."""

    def __init__(self, *parts: layers.Layer, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.parts = list(parts)

    def call(self, inputs: jax.Array) -> jax.Array:
        images = inputs.reshape(inputs.shape[0], -1, 4, inputs.shape[-1])
        for part in self.parts:
            images = part(images)
        return images.reshape(inputs.shape)


def _imaged(rng: random.Random, width: int, length: int) -> Iterator[layers.Layer]:
    same = {"padding": "same"}
    kinds: list[Callable[[], Any]] = [
        lambda: [layers.Conv2D(width, 3, activation=rng.choice(ACTIVATIONS), **same), layers.Conv2D(width, 1)],
        lambda: [layers.Conv2D(2 * width, 2, 2, **same), layers.Conv2DTranspose(width, 2, 2, **same)],
        lambda: [layers.SeparableConv2D(width, 3, **same)],
        lambda: [layers.DepthwiseConv2D(3, **same), layers.BatchNormalization(), layers.Conv2D(width, 1)],
        lambda: [layers.Conv2D(width, 3, **same), layers.MaxPooling2D(2), layers.UpSampling2D(2)],
    ]
    yield _Images(*rng.choice(kinds)())


class _Weighted(layers.Layer):
    """A function of weights of these shapes, and of the inputs."""

    def __init__(self, function: Callable[..., jax.Array], *shapes: tuple[int, ...], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.function, self.shapes = function, shapes

    def build(self, input_shape: Any) -> None:
        self.kernels = [self.add_weight(shape, name=f"w{index}") for index, shape in enumerate(self.shapes)]

    def call(self, inputs: jax.Array) -> jax.Array:
        return self.function(inputs, *(kernel.value.astype(inputs.dtype) for kernel in self.kernels))


def _layers_in_loop(x: jax.Array, kernels: jax.Array) -> jax.Array:
    return jax.lax.scan(lambda x, kernel: (x + jnp.tanh(x @ kernel), None), x, kernels)[0]


def _state_in_loop(x: jax.Array, key: jax.Array, value: jax.Array, decay: jax.Array) -> jax.Array:
    """Linear attention with a decay, as in RWKV."""

    def turn(state: jax.Array, now: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        state = jax.nn.sigmoid(decay) * state + now[0] * now[1]
        return state, jnp.tanh(state)

    over_time = jnp.swapaxes(x @ key, 0, 1), jnp.swapaxes(x @ value, 0, 1)
    return x + jnp.swapaxes(jax.lax.scan(turn, jnp.zeros_like(x[:, 0]), over_time)[1], 0, 1)


def _scanned(rng: random.Random, width: int, length: int) -> Iterator[layers.Layer]:
    square = (width, width)
    if rng.random() < 0.5:
        yield _Weighted(_layers_in_loop, (rng.choice((2, 5)), *square))
    else:
        yield _Weighted(_state_in_loop, square, square, (width,))


def _chosen(x: jax.Array, most: int) -> jax.Array:
    return jnp.argmax(jax.lax.stop_gradient(x), -1) % most


def _indexed(rng: random.Random, width: int, length: int) -> Iterator[layers.Layer]:
    """Gathers and scatters with indices that depend on the inputs."""
    functions: list[Callable[[Any], Any]] = [
        lambda x: x + jnp.zeros_like(x).at[:, _chosen(x, length)[0]].add(x),
        lambda x: x + jax.vmap(lambda rows, to: jnp.zeros_like(rows).at[to].add(rows))(x, _chosen(x, length)),
        lambda x: x + jnp.take_along_axis(x, _chosen(x, length)[..., None], axis=1),
        lambda x: x.at[:, 1::2].set(jnp.tanh(x[:, ::2])),
        lambda x: jnp.take_along_axis(x, jnp.argsort(x.mean(-1), axis=1)[..., None], axis=1),
    ]
    if rng.random() < 0.4:
        yield _Weighted(lambda x, table: x + table[_chosen(x, 64)], (64, width))
    else:
        yield layers.Lambda(rng.choice(functions))


def _shared(rng: random.Random, width: int, length: int) -> Iterator[layers.Layer]:
    """Weights that are used twice."""
    functions: list[Callable[..., jax.Array]] = [
        lambda x, kernel: jnp.tanh(x @ kernel) @ kernel.T,
        lambda x, kernel: x + jax.nn.gelu(x @ kernel[:, :width]) @ kernel[:, width:],
    ]
    yield _Weighted(rng.choice(functions), (width, 2 * width))


BLOCKS = (_dense, _dense, _normalized, _convolved, _recurrent, _attention, _stacked, _experts, _moved)
MORE_BLOCKS = (*BLOCKS, _imaged, _scanned, _indexed, _shared)
"""The blocks of seeds from `FIRST` on; programs of lower seeds are those of recorded cases."""
FIRST = 100_000


class _Joined(layers.Layer):
    """A sum over two inputs, (batch, length, width) and (batch, width)."""

    def __init__(self, width: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.dense = layers.Dense(width, activation="silu")

    def call(self, inputs: Any) -> jax.Array:
        return inputs[0] + self.dense(inputs[1])[:, None]


@dataclasses.dataclass(frozen=True)
class Found:
    """Figures of a program, propagated and compiled, of one device."""

    text: str
    given: int  # bytes of state and batch
    arguments: int
    moved: Mapping[Any, tuple[int, int]]  # bytes by kind and axes, propagated and compiled
    intervals: Mapping[Any, tuple[int, int]]  # the same, as the plan prints them
    total: tuple[int, int]  # bytes of all collectives, as the plan prints them
    doubted: int  # most bytes of estimates, which XLA may exchange by other kinds
    bounds: tuple[int, int]  # bytes between which the peak of memory is said to be
    peak: int
    memory: PeakMemory
    seconds: tuple[float, float]
    fits: bool | None  # as the plan says for a machine with a little less memory than the peak

    @property
    def ratios(self) -> tuple[float, float]:
        """XLA's peak of intermediate results, divided by its estimate in arrays with the least padding and the most."""
        used = self.peak - self.given - self.memory.padding_nbytes
        return used / max(self.memory.nbytes, 1), used / max(self.memory.most_nbytes, 1)

    @property
    def moves_right(self) -> bool:
        """Whether the collectives of each kind are within 5 %."""
        return all(abs(one - other) <= 0.05 * max(one, other) for one, other in self.moved.values())

    @property
    def is_labelled(self) -> bool:
        """Whether the plan prints intervals that contain the bytes, within 5 %."""
        real = {key: nbytes for key, (_, nbytes) in self.moved.items()}
        least, most = self.total
        above = (max(0, nbytes - 1.05 * self.intervals.get(key, (0, 0))[1]) for key, nbytes in real.items())
        return (
            least < most
            and 0.95 * least <= sum(real.values()) <= 1.05 * most
            and all(real[key] >= 0.95 * interval[0] for key, interval in self.intervals.items())
            and sum(above) <= 1.05 * self.doubted
        )

    def problems(self) -> Iterator[str]:
        """Yield the kinds of figures that are wrong and are not labelled."""
        if self.arguments < 0.999 * self.given:  # XLA drops unused arguments, such as counters
            yield "state"
        if not (self.moves_right or self.is_labelled):
            yield "collectives"
        if not self.bounds[0] <= self.peak <= self.bounds[1]:
            yield "memory"
        if self.fits:
            yield "fits"
        if self.seconds[0] > 1.1 * self.seconds[1]:
            yield "time"


def compare(seed: int, target: str, *, large: bool = False) -> Found:
    """Plan the program of a seed for a target, compile it, and return both figures."""
    machine = kd.planner.target(target)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LayoutWarning)  # of work that devices repeat
        text, model, batch = random_program(seed, large=large)
        program = trace_step(model, batch, None, platform=machine.platform)
    step = propagate(program.lowered)
    verdict = judge(program, step, machine, compiles=True, timeout_seconds=600)
    compiled = verdict.compiled
    assert compiled is not None and not compiled.note, verdict.note or compiled
    propagated, real = step.nbytes_by_axes(), compiled.nbytes_by_axes()
    small = dataclasses.replace(machine.chip, hbm_nbytes=(compiled.peak_nbytes - 1) * machine.chip.devices)
    smaller = dataclasses.replace(machine, chip=small)
    return Found(
        text,
        given=program.state.nbytes_per_device + program.batch.nbytes_per_device,
        arguments=compiled.argument_nbytes,
        moved={key: (propagated.get(key, 0), real.get(key, 0)) for key in sorted({*propagated, *real})},
        intervals=step.intervals(),
        total=step.moved_interval,
        doubted=sum(each.most_nbytes for each in step.estimates),
        bounds=verdict.peak_bounds_nbytes,
        peak=compiled.peak_nbytes,
        memory=step.memory,
        seconds=(verdict.rooflines["propagated"].step_seconds, verdict.rooflines["compiled"].step_seconds),
        fits=judge(program, step, smaller, compiles=False, timeout_seconds=1).fits,
    )


def random_program(seed: int, *, large: bool = False) -> tuple[str, kd.Model, tuple[Any, Any]]:
    """Return a description, a compiled model under a layout, and a batch; large ones need up to GiB."""
    rng = random.Random(seed)
    width, length, rows = rng.choice((32, 64, 128, 256)), rng.choice((8, 16, 64)), 8 * rng.choice((1, 2, 4))
    if large:
        width, length, rows = width * rng.choice((1, 4)), length * rng.choice((1, 4, 16)), rows * rng.choice((4, 16))
    shape, words = rng.choice(MESHES), rng.choice((0, 0, 64, 1000))
    mesh = kd.DeviceMesh(shape, ("data", "model")[: len(shape)])
    kinds = [rng.choice(BLOCKS if seed < FIRST else MORE_BLOCKS) for _ in range(rng.randint(1, 4))]
    optimizer, remat = rng.choice(("sgd", "adam", "adam", "adafactor", "muon")), rng.choice((None, None, None, "full"))
    policy = rng.choice(("float32", "float32", "mixed_bfloat16"))
    layout = rng.choice(("data parallel", "fully sharded", "rules", "rules"))
    numbers = rng.random()
    is_joined = seed >= FIRST and rng.random() < 0.25

    def network(distribution: kd.Distribution) -> kd.Model:
        blocks, before = random.Random(numbers), kd.config.dtype_policy()
        kd.mixed_precision.set_dtype_policy(policy)
        try:
            with distribution.scope():
                inputs: list[Any] = [kd.Input((length,), dtype="int32") if words else kd.Input((length, width))]
                parts: list[Any] = [layers.Embedding(words, width)] if words else []
                parts += [part for kind in kinds for part in kind(blocks, width, length)]
                parts += [layers.Dense(width)]
                if is_joined:
                    inputs += [kd.Input((width,))]
                    values = _Joined(width)([parts.pop(0)(inputs[0]) if words else inputs[0], inputs[1]])
                    for part in parts:
                        values = part(values)
                    model = kd.Model(inputs, values)
                else:
                    model = kd.Sequential([*inputs, *parts])
                model.compile(optimizer, "mse", remat=remat)
                return model
        finally:
            kd.mixed_precision.set_dtype_policy(before)

    model = network(kd.FullySharded(mesh) if layout == "fully sharded" else kd.DataParallel(mesh))
    if layout == "rules":
        rules = kd.LayoutMap(mesh)
        for weight in model.weights:
            axes = _axes_of(rng, weight.shape, mesh)
            if any(axes):
                rules[weight.path] = axes
        model = network(kd.ModelParallel(rules, batch_dim_name="data"))
    names = "+".join(kind.__name__.strip("_") for kind in kinds)
    names += " of two inputs" * is_joined
    text = f"{names}, {layout} {shape}, {optimizer}, {policy}, {remat=}, {width=} {length=} {rows=} {words=}"
    x: Any = jax.ShapeDtypeStruct((rows, length) if words else (rows, length, width), "int32" if words else "float32")
    x = [x, jax.ShapeDtypeStruct((rows, width), jnp.float32)] if is_joined else x
    return text, model, (x, jax.ShapeDtypeStruct((rows, length, width), jnp.float32))


def _axes_of(rng: random.Random, shape: tuple[int, ...], mesh: kd.DeviceMesh) -> list[str | None]:
    axes: list[str | None] = [None] * len(shape)
    name = mesh.axis_names[-1]
    dims = [dim for dim, size in enumerate(shape) if size % mesh.axis_size(name) == 0]
    if dims and rng.random() < 0.6:
        axes[rng.choice(dims)] = name
    return axes


def main(target: str, first: int, count: int, size: str = "") -> None:
    """Compare programs; print what is wrong, and the rates from which `planner.verdict` has its margins."""
    widths: list[float] = []
    found: list[tuple[int, Found]] = []
    wrong: collections.Counter[str] = collections.Counter()
    for seed in range(first, first + count):
        try:
            each = compare(seed, target, large=size == "large")
        except Exception as error:  # the seed is reported, and the others are compared
            wrong["crash"] += 1
            print(f"{seed} crash: {type(error).__name__}: {str(error)[:600]}", flush=True)
            continue
        found.append((seed, each))
        problems = list(each.problems())
        wrong.update(problems)
        if "collectives" not in problems:
            wrong["moved exactly" if each.moves_right else "labelled rightly"] += 1
        least, most = each.total
        widths += [most / max(least, 1)] * (least < most)
        print(f"{seed} {' '.join(problems) or 'right'}: {each}", flush=True)
    width = f"; intervals are {statistics.median(widths):.2f} times wide, in the median" if widths else ""
    print(f"{count} programs for {target} from seed {first}: {dict(wrong)}{width}")
    for name, place in (("least padding", 0), ("most padding", 1)):
        values = [each.ratios[place] for _, each in found]
        shown = " ".join(f"{part:.0%} {np.quantile(values, part):.2f}" for part in (0, 0.02, 0.5, 0.98, 1))
        print(f"peak of intermediate results / estimate with {name}: {shown}")
    shown = ", ".join(f"{np.median([each.bounds[end] / each.peak for _, each in found]):.2f}" for end in (0, 1))
    print(f"median of least and most, divided by the peak: {shown}")


if __name__ == "__main__":
    kd.use_cpu_devices(8)
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
