"""Planning a decoder for machines that are not here: what Shardy says of its train step, beside what XLA compiles.

The ratios are those of what is propagated to what is compiled for TPUs. Without libtpu (the extra `tpu`) nothing is
compiled, and nothing reported.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks import measure as m
from keras_dist.planner import CompiledFigures, Propagated, compile_for, propagate, roofline, target


@dataclasses.dataclass(frozen=True)
class Decoder:
    """Sizes of a decoder whose blocks are scanned."""

    blocks: int
    width: int
    heads: int
    hidden: int
    vocabulary: int
    length: int
    rows: int


DECODERS = {"decoder of 0.4 billion": Decoder(12, 1536, 16, 6144, 32_000, 1024, 32)}
MACHINES: Mapping[str, Mapping[str, int]] = {
    "v5e:2x4": {"data": 2, "model": 4},
    "v5p:4x4x4": {"data": 16, "model": 4},
}
LAYOUTS = {  # Megatron's
    "embedding": ("model", None),
    "query": (None, None, "model", None),
    "key": (None, None, "model", None),
    "value": (None, None, "model", None),
    "output": (None, "model", None, None),
    "up": (None, None, "model"),
    "down": (None, "model", None),
}


def main() -> None:
    """Plan and report."""
    quick = m.is_quick(__doc__)
    results = [
        result
        for name, decoder in DECODERS.items()
        for machine in (["v5e:2x4"] if quick else MACHINES)
        for result in plan(f"{name} on {machine}", functools.partial(lowered, decoder), machine, MACHINES[machine])
    ]
    if results:
        m.report("plan", "what is propagated / what is compiled for the machine", results, quick)


def plan(
    name: str, lower: Callable[[Mapping[str, int], str], jax.stages.Lowered], machine: str, mesh: Mapping[str, int]
) -> list[dict[str, Any]]:
    """Plan a program for a machine, print what is found, and return the lines of the report."""
    began = time.perf_counter()
    program = lower(mesh, target(machine).platform)
    traced = time.perf_counter()
    expected = propagate(program)
    seconds = time.perf_counter() - traced
    print(f"\n{name}: traced and lowered in {traced - began:.1f} s, propagated in {seconds:.2f} s")
    print_figures("propagated", expected)
    if importlib.util.find_spec("libtpu") is None:
        print("  not compiled: that needs the extra 'tpu'")
        return []
    found = compile_for(program, machine)
    print_figures("compiled", found)
    print(f"  compiled in {found.seconds_to_compile:.1f} s; {memory(found)}")
    print_roofline(machine, mesh, found)
    lines = [m.result(f"{name}: seconds", [seconds], [found.seconds_to_compile], "s")]
    if found.collectives:
        moved = [
            sum(each.nbytes_per_step for each in tier.collectives if not each.is_joined) / 2**20
            for tier in (expected, found)
        ]
        lines += [
            m.result(f"{name}: moved", [moved[0]], [moved[1]], "MiB"),
            m.result(f"{name}: FLOPs", [expected.flops / 1e9], [found.flops / 1e9], "GFLOP"),
        ]
    return lines


def print_figures(tier: str, figures: Propagated | CompiledFigures) -> None:
    """Print what moves."""
    for (kind, axes), nbytes in sorted(figures.nbytes_by_axes().items()):
        print(f"  {tier:<10}  {kind:<18} over {', '.join(axes):<12} {nbytes / 2**20:12,.1f} MiB")
    print(f"  {tier:<10}  {figures.flops / 1e9:,.0f} GFLOP on each device")


def memory(found: CompiledFigures) -> str:
    """The verdict."""
    gib = [f"{nbytes / 2**30:.2f} GiB" for nbytes in (found.peak_nbytes, found.limit_nbytes, found.short_by_nbytes)]
    return f"{gib[0]} of {gib[1]}: fits" if found.fits else f"{gib[0]} of {gib[1]}: short by {gib[2]}"


def print_roofline(machine: str, mesh: Mapping[str, int], found: CompiledFigures) -> None:
    """Print the least time of a step."""
    line = roofline(
        machine, mesh, flops=found.flops, accessed_nbytes=found.accessed_nbytes, collectives=found.collectives
    )
    lower, upper = 1e3 * line.step_seconds, 1e3 * line.serial_step_seconds
    print(f"  at least {lower:.2f} ms a step, {upper:.2f} if nothing overlaps; the bottleneck is {line.bottleneck}")


def lowered(decoder: Decoder, mesh: Mapping[str, int], platform: str) -> jax.stages.Lowered:
    """The train step of a decoder under Megatron's layout, lowered for devices that are not there."""
    abstract = AbstractMesh(tuple(mesh.values()), tuple(mesh), axis_types=(AxisType.Auto,) * len(mesh))

    def array(shape: tuple[int, ...], *axes: str | None, dtype: Any = jnp.bfloat16) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(abstract, P(*axes)))

    each = decoder.width // decoder.heads
    projection = (decoder.blocks, decoder.width, decoder.heads, each)
    shapes = {
        "embedding": (decoder.vocabulary, decoder.width),
        **dict.fromkeys(("query", "key", "value"), projection),
        "output": (decoder.blocks, decoder.heads, each, decoder.width),
        "up": (decoder.blocks, decoder.width, decoder.hidden),
        "down": (decoder.blocks, decoder.hidden, decoder.width),
    }
    weights = {name: array(shape, *LAYOUTS[name]) for name, shape in shapes.items()}
    tokens = array((decoder.rows * mesh["data"], decoder.length), "data", dtype=jnp.int32)

    def step(weights: Any, tokens: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(weights, tokens)
        return jax.tree.map(lambda weight, gradient: weight - 1e-3 * gradient, weights, gradients), loss

    layouts = jax.tree.map(lambda weight: weight.sharding, weights), NamedSharding(abstract, P())
    jitted = jax.jit(step, donate_argnums=0, out_shardings=layouts)
    return jitted.trace(weights, tokens).lower(lowering_platforms=(platform,))


def loss_of(weights: Mapping[str, jax.Array], tokens: jax.Array) -> jax.Array:
    """The mean cross-entropy of the next token, over blocks that are computed again for their gradients."""
    embedding, blocks = weights["embedding"], {name: each for name, each in weights.items() if name != "embedding"}
    hidden, _ = jax.lax.scan(jax.checkpoint(block), embedding[tokens], blocks)
    logits = (hidden[:, :-1] @ embedding.T).astype(jnp.float32)
    likely = jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[:, 1:, None], axis=-1)
    return -jnp.mean(likely)


def block(hidden: jax.Array, weights: Mapping[str, jax.Array]) -> tuple[jax.Array, None]:
    """Causal attention and two dense layers, each after a normalization and beside a way around it."""
    normal = normalized(hidden)
    query, key, value = (jnp.einsum("bsd,dhk->bshk", normal, weights[name]) for name in ("query", "key", "value"))
    attended = jax.nn.dot_product_attention(query, key, value, is_causal=True)
    hidden += jnp.einsum("bshk,hkd->bsd", attended, weights["output"])
    return hidden + jax.nn.relu(normalized(hidden) @ weights["up"]) @ weights["down"], None


def normalized(x: jax.Array) -> jax.Array:
    """Rows of unit root mean square."""
    square = jnp.mean(jnp.square(x.astype(jnp.float32)), axis=-1, keepdims=True)
    return x * jax.lax.rsqrt(square + 1e-6).astype(x.dtype)


if __name__ == "__main__":
    main()
