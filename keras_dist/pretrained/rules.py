"""`rules`: the layouts of a network, of Megatron's pairing."""

from __future__ import annotations

import os
from typing import Any

from keras_dist._support.arguments import argument_error
from keras_dist._support.located_warnings import warn
from keras_dist.distribution.layout import Axis
from keras_dist.distribution.layout_map import LayoutMap
from keras_dist.distribution.mesh import DeviceMesh, check_mesh
from keras_dist.distribution.strategy import resolve_axes
from keras_dist.errors import DistributionError, LayoutWarning
from keras_dist.pretrained.config import DecoderConfig, NetworkConfig
from keras_dist.pretrained.folder import read_config

Axes = tuple[Axis, ...]


def rules(
    network: Any, mesh: DeviceMesh, axis: str | None = None, *, scan: bool | None = None, stage: str | None = None
) -> LayoutMap:
    r"""Return the layout rules of a network: heads, hidden units and vocabulary are sharded over one axis.

    Query, key, value, gate and up are sharded by their outputs, the projections after them by their inputs, so that a
    block communicates twice in each direction (Megatron-LM). Embeddings and head are sharded by tokens. All other
    weights are replicated. Weights of `scan=True` have the same layouts, after their leading dim.

    Args:
        network: a network, its config, or a folder with a `config.json`.
        mesh: the mesh.
        axis: the axis. By default the last; with `stage` none.
        scan: whether blocks are stacked; by default as in `network`, or False for a config or a folder.
        stage: axis of the stages of a pipeline, over which stacked blocks are sharded; see `layers.Stack`. Without
            `axis`, embeddings and head are sharded over it by tokens, where it divides their number.

    Raises:
        DistributionError: the mesh has no such axis, or `stage` is given for blocks that are not stacked.

    Warns:
        LayoutWarning: the axis does not divide a number of heads, hidden units or tokens; these are replicated.

    Source: Shoeybi et al. 2019, arXiv:1909.08053.
    """
    mesh = check_mesh(mesh, DistributionError)
    axis = mesh.axis_names[-1] if axis is None and stage is None else axis
    config = _config(network)
    is_stack = bool(getattr(network, "scan", False)) if scan is None else scan
    if stage is not None and not is_stack:
        fix = "kd.pretrained.load(folder, scan=True), or rules(config, mesh, scan=True, stage=...)"
        raise argument_error("stage", stage, "None, since blocks are not stacked", fix=fix, error=DistributionError)
    first = None if stage is None else resolve_axes("stage", stage, mesh)
    heads, kv, units, tokens = (
        [None] * 4 if axis is None else _axes(config, mesh, str(resolve_axes("axis", axis, mesh)))
    )
    if axis is None and config.vocab_size is not None and config.vocab_size % mesh.axis_size(first) == 0:
        tokens = first  # outside of the pipeline: each stage would compute the logits of all tokens
    found = LayoutMap(mesh)
    for path, axes in _of_layer(config, heads, kv, units).items():
        found[f"layers/{path}" if is_stack else rf"layers/\d+/{path}"] = (first, *axes) if is_stack else axes
    if isinstance(config, DecoderConfig):
        found["embedding/embeddings"] = (tokens, None)
        found["norm/(scale|gamma|beta)"] = (None,)
        if not config.tied_head:
            found["head/kernel"] = (None, tokens)
        if config.learned_positions:
            found["position_embedding/embeddings"] = (None, None)
    elif config.vocab_size is not None:
        found["embedding/tokens/embeddings"] = (tokens, None)
    return found


def _axes(config: Any, mesh: DeviceMesh, axis: str) -> list[str | None]:
    """Return the axis for heads, heads of keys and values, hidden units and tokens; None where it does not divide."""
    heads, size = config.attention, mesh.axis_size(axis)
    counts: dict[str, int | None] = {
        "num_heads": heads.num_heads,
        "num_kv_heads": heads.num_kv_heads,
        "feed_forward.size": config.feed_forward.size,
        "vocab_size": config.vocab_size,
    }
    left = {name: count for name, count in counts.items() if count is not None and count % size}
    if left:
        listed = ", ".join(f"{name}={count}" for name, count in left.items())
        text = f"axis {axis!r} of size {size} does not divide {listed}: the weights with these dims are replicated"
        warn(text, LayoutWarning)
    if "num_heads" in left:
        left["num_kv_heads"] = heads.num_kv_heads  # scores would need them whole
    return [None if name in left else axis for name in counts]


def _of_layer(config: NetworkConfig, heads: Axis, kv: Axis, units: Axis) -> dict[str, Axes]:
    """Return the layouts of the weights of a block by path, without biases and norms that it lacks."""
    attention, feed_forward = config.attention, config.feed_forward
    found: dict[str, Axes] = {
        "attention/query/kernel": (None, heads, None),
        "attention/(key|value)/kernel": (None, kv, None),
        "attention/output/kernel": (heads, None, None),
        "feed_forward/(gate|up)/kernel": (None, units),
        "feed_forward/down/kernel": (units, None),
        "(attention|feed_forward)(_post)?_norm/(scale|gamma|beta)": (None,),
    }
    if attention.qk_norm == "head":
        found |= {"attention/(query|key)_norm/scale": (None,)}
    if attention.use_bias:
        found |= {"attention/query/bias": (heads, None), "attention/(key|value)/bias": (kv, None)}
    if attention.qk_norm == "all":
        found |= {"attention/query_norm/scale": (heads, None), "attention/key_norm/scale": (kv, None)}
    if attention.use_output_bias:
        found |= {"attention/output/bias": (None,)}
    if feed_forward.use_bias:
        found |= {"feed_forward/(gate|up)/bias": (units,), "feed_forward/down/bias": (None,)}
    return found


def _config(network: Any) -> Any:
    if isinstance(network, str | os.PathLike):
        return read_config(network)
    config = getattr(network, "config", network)
    if not isinstance(config, NetworkConfig):
        raise argument_error("network", network, "a network of `kd.pretrained`, its config, or a folder")
    return config
