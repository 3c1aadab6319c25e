"""`attend_by`: attention by kernels that never store the scores, cuDNN on GPUs and Pallas splash attention on TPUs.

Where the strategy has a sequence axis, `ops.ring_attention` computes it.

XLA cannot split a kernel over devices, so a `shard_map` does: rows over the axes of the batch, heads over the axes of
the query weights. Heads of keys and values are repeated where these axes do not divide them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as splash_mask
from jax.sharding import NamedSharding, PartitionSpec

from keras_dist.distribution.layout import Axis
from keras_dist.distribution.mesh import axis_tuple
from keras_dist.distribution.strategy import Distribution
from keras_dist.distribution.tracing import may_use_kernels, note_kernel, traced_distribution
from keras_dist.errors import ModelError
from keras_dist.ops.ring_attention import RingOptions, ring_for
from keras_dist.pretrained.attending import Scores, Span, Windows, attend, visible
from keras_dist.variables.variable import Variable

Arrays = tuple[jax.Array, jax.Array, jax.Array]
"""Queries (batch, length, heads, head_dim), and keys and values (batch, length, kv_heads, head_dim)."""

Kernel = Callable[[jax.Array, jax.Array, jax.Array, jax.Array | None], jax.Array]
"""`kernel(query, key, value, mask)` of one device; the first dim of the mask is the batch."""

Mask = Callable[[], jax.Array | None]
"""Makes the mask of a kernel, in the branch that needs it."""

Attend = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
"""`attend(query, key, value)` of all devices."""

_OF_PLATFORM = {"cuda": "cudnn", "tpu": "splash"}
_NAMES = {"cudnn": "cuDNN", "splash": "Pallas splash attention"}
_BLOCKS = (512, 256, 128)
"""Numbers of queries and keys in a block of splash attention, which must be multiples of 128."""


def attend_by(implementation: str, weight: Variable, arrays: Arrays, options: Scores) -> jax.Array:
    """Return `attend(*arrays, options)` by an implementation; the layout of the query `weight` shards the heads.

    Masks of kernels are constants. Where scanned layers have different windows, the layer switches between kernels.
    """
    if not may_use_kernels():
        return attend(*arrays, options)
    windows = options.window
    if not isinstance(windows, Windows):
        kernel = _kernel_for(implementation, weight, arrays, options)
        return attend(*arrays, options) if kernel is None else kernel(*arrays)
    each = [options._replace(window=size) for size in windows.sizes]
    kernels = [_kernel_for(implementation, weight, arrays, of_layer) for of_layer in each]
    if not any(kernels):
        return attend(*arrays, options)

    def branch(kernel: Attend | None, options: Scores) -> Attend:
        return kernel or (lambda query, key, value: attend(query, key, value, options))

    return jax.lax.switch(windows.index, list(map(branch, kernels, each)), *arrays)


def whole_heads(array: jax.Array, weight: Variable) -> jax.Array:
    """Gather the dims of keys or values of which the `weight` shards `head_dim`: XLA gathers them later, and twice."""
    distribution = traced_distribution() if may_use_kernels() else None
    layout = None if distribution is None else distribution.get_variable_layout(weight)
    if distribution is None or layout is None or jax.sharding.get_abstract_mesh().manual_axes:
        return array
    mesh, rows = distribution.device_mesh, distribution.get_data_layout(array.shape).axes[0]
    is_whole = layout.without((*distribution.gathered_axes, *axis_tuple(rows))).axes[-1] is None
    if is_whole or len(array) % mesh.axis_size(rows):
        return array
    spec = PartitionSpec(rows, PartitionSpec.UNCONSTRAINED, None, None)
    return jax.lax.with_sharding_constraint(array, NamedSharding(mesh.backend_mesh, spec))


def _kernel_for(implementation: str, weight: Variable, arrays: Arrays, options: Scores) -> Attend | None:
    """Return what computes attention with one window, and note it for the plan; None for XLA."""
    distribution = traced_distribution()
    platform = None if distribution is None else distribution.device_mesh.platform
    name = _OF_PLATFORM.get(platform or jax.default_backend(), "xla") if implementation == "auto" else implementation
    ring = ring_for(implementation, *arrays[:2], _problems_of_all(options))
    if ring is not None:
        return functools.partial(ring.attend, options=_in_ring(options))
    if implementation == "auto" and distribution is not None and distribution.sequence_axis is not None:
        return None  # kernels would gather the queries, too
    if name == "xla":
        note_kernel("attention by XLA")
        return None
    problems = list(_problems(name, arrays, options, distribution))
    if not problems and distribution is not None:
        kernel, mask = (_cudnn if name == "cudnn" else _splash)(options, arrays, platform)
        return _over_shards(name, kernel, arrays, mask, _heads_axis(weight, arrays[0], distribution), distribution)
    if implementation == "auto":
        note_kernel(f"attention by XLA, since {_NAMES[name]} cannot be used: {'; '.join(problems)}")
        return None
    fix = "attention='auto' uses it where it can, and XLA elsewhere"
    raise ModelError(f"attention={name!r} cannot be used here", given="; ".join(problems), fix=fix)


def _problems(name: str, arrays: Arrays, options: Scores, distribution: Distribution | None) -> Iterator[str]:
    """Yield the reasons for which a kernel cannot compute this attention."""
    if distribution is None:
        yield "no mesh is set: it does not divide the rows of the batch, or a layer is called without a model"
        return
    query, mesh = arrays[0], distribution.device_mesh
    rows = distribution.get_data_layout(query.shape).axes[0]
    if query.shape[0] % mesh.axis_size(rows):
        yield f"the mesh does not divide the {query.shape[0]} rows of the batch"
    if jax.sharding.get_abstract_mesh().manual_axes:
        yield "it is called inside of a shard_map"
    yield from _problems_of_all(options)
    problems = _problems_of_cudnn if name == "cudnn" else _problems_of_splash
    yield from problems(arrays, options, mesh.platform)


def _problems_of_all(options: Scores) -> list[str]:
    """Return the reasons for which only XLA can compute this attention."""
    return [] if options.sinks is None else ["scores with sinks"]


def _in_ring(options: Scores) -> RingOptions:
    def seen(queries: Span, keys: Span) -> jax.Array | None:
        return visible(options._replace(queries=queries, keys=keys))

    return RingOptions(options.scale, seen, options.queries, options.keys, soft_cap=options.soft_cap)


def _problems_of_cudnn(arrays: Arrays, options: Scores, platform: str) -> Iterator[str]:
    if options.soft_cap is not None:
        yield f"scores with soft_cap={options.soft_cap}"
    if arrays[0].dtype not in (jnp.bfloat16, jnp.float16):
        yield f"the dtype {arrays[0].dtype}, which is not bfloat16 or float16"
    if platform != "cuda":
        yield f"the platform {platform!r}, which is not 'cuda'"
        return
    kernel, mask = _cudnn(options, arrays, platform)
    try:  # JAX knows the limits of the version of cuDNN and of the GPU
        jax.eval_shape(lambda *arrays: jax.vjp(lambda q, k, v: kernel(q, k, v, mask()), *arrays)[0], *arrays)
    except (NotImplementedError, RuntimeError, ValueError) as error:
        yield f"JAX says: {' '.join(str(error).split())[:200]}"


def _problems_of_splash(arrays: Arrays, options: Scores, platform: str) -> Iterator[str]:
    if options.window is not None and options.queries.positions is not None and options.queries.segments is None:
        yield "positions without segments: its window counts tokens"
    if arrays[0].dtype not in (jnp.bfloat16, jnp.float32):
        yield f"the dtype {arrays[0].dtype}, which is not bfloat16 or float32"
    precision = getattr(jax.config, "jax_default_matmul_precision", None)
    if arrays[0].dtype == jnp.bfloat16 and precision not in (None, "default", "fastest", "bfloat16"):
        yield f"bfloat16 with the matmul precision {precision!r}"
    if platform not in ("tpu", "cpu"):
        yield f"the platform {platform!r}, which is not 'tpu'"


def _cudnn(options: Scores, arrays: Arrays, platform: str | None) -> tuple[Kernel, Mask]:
    """Return the kernel of cuDNN and its mask (batch, 1, length, length); a plain causal mask or window needs none."""
    del platform
    needs_mask = options.queries.segments is not None or not (options.window is None or options.is_causal)
    needs_mask |= options.window is not None and options.queries.positions is not None
    rows = len(arrays[0])

    def mask() -> jax.Array | None:
        found = visible(options) if needs_mask else None
        return None if found is None else jnp.broadcast_to(found, (rows, *found.shape[1:]))[:, None]

    window = None if needs_mask or not isinstance(options.window, int) else (options.window - 1, 0)

    def kernel(query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array | None) -> jax.Array:
        masks: dict[str, Any] = {"mask": mask, "is_causal": options.is_causal, "local_window_size": window}
        return jax.nn.dot_product_attention(query, key, value, scale=options.scale, implementation="cudnn", **masks)

    return kernel, mask


def _splash(options: Scores, arrays: Arrays, platform: str | None) -> tuple[Kernel, Mask]:
    """Return the kernel of Pallas, which pads sequences to whole blocks, and its mask: the segments."""
    del arrays

    def kernel(query: jax.Array, key: jax.Array, value: jax.Array, segments: jax.Array | None) -> jax.Array:
        batch, length, heads, _ = query.shape
        padding = -length % _BLOCKS[-1]
        if padding and segments is None:
            segments = jnp.zeros((batch, length), jnp.int32)
        query = (query.astype(jnp.float32) * options.scale).astype(query.dtype)
        made = _splash_kernel(length + padding, heads, options, platform == "cpu")
        given = [jnp.pad(each, ((0, 0), (0, padding), (0, 0), (0, 0))).swapaxes(1, 2) for each in (query, key, value)]
        if segments is not None:
            segments = jnp.pad(segments, ((0, 0), (0, padding)), constant_values=-1)
            segments = splash.SegmentIds(segments, segments)  # pyright: ignore
        return jax.vmap(made)(*given, segments).swapaxes(1, 2)[:, :length]

    return kernel, lambda: options.queries.segments


def _splash_kernel(length: int, heads: int, options: Scores, interpret: bool) -> Any:
    """Return the kernel for one row."""
    shape, window = (length, length), options.window
    if isinstance(window, int):
        mask = splash_mask.LocalMask(shape, (window - 1, 0 if options.is_causal else window - 1), 0)
    else:
        mask = splash_mask.CausalMask(shape) if options.is_causal else splash_mask.FullMask(shape)
    block = next(block for block in _BLOCKS if length % block == 0)
    sizes: dict[str, Any] = dict.fromkeys(
        ("block_q", "block_kv", "block_kv_compute", "block_q_dq", "block_kv_dq"), block
    )
    sizes |= dict.fromkeys(("block_q_dkv", "block_kv_dkv", "block_kv_dkv_compute"), block)
    return splash.make_splash_mha(
        splash_mask.MultiHeadMask([mask] * heads),
        block_sizes=splash.BlockSizes(**sizes),
        head_shards=1,
        q_seq_shards=1,
        attn_logits_soft_cap=options.soft_cap,
        interpret=interpret,
    )


def _over_shards(
    name: str, kernel: Kernel, arrays: Arrays, mask: Mask, heads: Axis, distribution: Distribution
) -> Attend:
    """Return a function that calls the kernel on each device for its rows and heads."""
    mesh, rows = distribution.device_mesh, distribution.get_data_layout(arrays[0].shape).axes[0]
    kv_heads = arrays[1].shape[2]
    repeats = math.lcm(kv_heads, mesh.axis_size(heads)) // kv_heads
    shards = {"rows": "+".join(axis_tuple(rows)), "heads": "+".join(axis_tuple(heads))}
    split = "".join(f", {what} over {axes}" for what, axes in shards.items() if axes)
    note_kernel(f"attention by {_NAMES[name]}{split}; plans do not count its FLOPs")
    spec = PartitionSpec(rows, None, heads, None)
    specs = {"in_specs": (spec, spec, spec, PartitionSpec(rows)), "out_specs": spec}

    def attended(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
        if repeats > 1:
            key, value = (jnp.repeat(each, repeats, axis=2) for each in (key, value))
        # not checked, since kernels do not say over which axes their outputs vary
        return jax.shard_map(kernel, mesh=mesh.backend_mesh, check_vma=False, **specs)(query, key, value, mask())

    return attended


def _heads_axis(weight: Variable, query: jax.Array, distribution: Distribution) -> Axis:
    """Return the mesh axes over which the heads of the query `weight` (hidden, heads, head_dim) are sharded."""
    layout = distribution.get_variable_layout(weight)
    if layout is None:
        return None
    rows = axis_tuple(distribution.get_data_layout(query.shape).axes[0])
    axes = axis_tuple(layout.without((*distribution.gathered_axes, *rows)).axes[-2])
    return axes if axes and query.shape[2] % distribution.device_mesh.axis_size(axes) == 0 else None
