"""`rules`: the layouts of a network, of Megatron's pairing."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

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

_EXPERT = "expert"
"""The axis of the mesh that experts have for themselves."""


def rules(
    network: Any, mesh: DeviceMesh, axis: str | None = None, *, scan: bool | None = None, stage: str | None = None
) -> LayoutMap:
    r"""Return the layout rules of a network: heads, hidden units and vocabulary are sharded over one axis.

    Query, key, value, gate and up are sharded by their outputs, the projections after them by their inputs, so that a
    block communicates twice in each direction (Megatron-LM). Embeddings and head are sharded by tokens. All other
    weights are replicated. Weights of `scan=True` have the same layouts, after their leading dim.

    Experts are sharded over an axis called `expert`, if the mesh has one, and their hidden units over `axis`. Otherwise
    experts are sharded over `axis`, or their hidden units where it does not divide the experts. The batch should be
    sharded over the axis `expert`, too.

    Args:
        network: a network, its config, or a folder with a `config.json`.
        mesh: the mesh.
        axis: the axis. By default the last; with `stage`, or if the last is called `expert`, none.
        scan: whether blocks are stacked; by default as in `network`, or False for a config or a folder.
        stage: axis of the stages of a pipeline, over which stacked blocks are sharded; see `layers.Stack`. Without
            `axis`, embeddings and head are sharded over it by tokens, where it divides their number.

    Raises:
        DistributionError: the mesh has no such axis, or `stage` is given for blocks that are not stacked.

    Warns:
        LayoutWarning: the axis does not divide a number of heads, hidden units, experts or tokens. Heads of keys and
            values are then sharded by `head_dim`, and tokens by `hidden_size`, where it divides these; others are
            replicated.

    Source: Shoeybi et al. 2019, arXiv:1909.08053.
    """
    mesh = check_mesh(mesh, DistributionError)
    config = _config(network)
    if axis is None and stage is None and (config.experts is None or mesh.axis_names[-1] != _EXPERT):
        axis = mesh.axis_names[-1]
    is_stack = bool(getattr(network, "scan", False)) if scan is None else scan
    if stage is not None and not is_stack:
        fix = "kd.pretrained.load(folder, scan=True), or rules(config, mesh, scan=True, stage=...)"
        raise argument_error("stage", stage, "None, since blocks are not stacked", fix=fix, error=DistributionError)
    first = None if stage is None else resolve_axes("stage", stage, mesh)
    axes = _Axes() if axis is None else _axes(config, mesh, str(resolve_axes("axis", axis, mesh)))
    experts = config.experts if axis is None and _EXPERT in mesh.axis_names else None
    if experts is not None and experts.num_experts % mesh.axis_size(_EXPERT) == 0:
        axes = axes._replace(num_experts=_EXPERT)
    tokens = axes.vocab_size
    if axis is None and config.vocab_size is not None and config.vocab_size % mesh.axis_size(first) == 0:
        tokens = first  # outside of the pipeline: each stage would compute the logits of all tokens
    found = LayoutMap(mesh)
    for path, layout in _of_layer(config, axes).items():
        found[f"layers/{path}" if is_stack else rf"layers/\d+/{path}"] = (first, *layout) if is_stack else layout
    if isinstance(config, DecoderConfig):
        found["embedding/embeddings"] = (tokens, axes.hidden_size)
        found["norm/(scale|gamma|beta)"] = (None,)
        if not config.tied_head:
            found["head/kernel"] = (axes.hidden_size, tokens)
        if config.learned_positions:
            found["position_embedding/embeddings"] = (None, None)
    elif config.vocab_size is not None:
        found["embedding/tokens/embeddings"] = (tokens, axes.hidden_size)
    return found


class _Axes(NamedTuple):
    """The axes of dims, by the number that they divide; None for replicated dims."""

    num_heads: Axis = None
    num_kv_heads: Axis = None
    size: Axis = None
    vocab_size: Axis = None
    num_experts: Axis = None
    units: Axis = None
    head_dim: Axis = None  # of keys and values, in place of num_kv_heads
    hidden_size: Axis = None  # of embeddings and head, in place of vocab_size


def _axes(config: Any, mesh: DeviceMesh, axis: str) -> _Axes:
    """Return the axes of the dims that these divide, and warn of others."""
    heads, experts = config.attention, config.experts
    numbers = {"num_heads": heads.num_heads, "num_kv_heads": heads.num_kv_heads, "vocab_size": config.vocab_size}
    if not all(map(config.has_experts, range(config.num_layers))):
        numbers["size"] = config.feed_forward.size
    axes = dict.fromkeys(numbers, axis)
    if experts is not None:
        units = experts.units or config.feed_forward.size
        numbers |= {"num_experts": experts.num_experts, "units": units}
        of_experts = _EXPERT if _EXPERT in mesh.axis_names else axis
        axes["num_experts"] = of_experts
        if of_experts != axis or experts.num_experts % mesh.axis_size(axis):
            axes["units"] = axis
    left = [name for name in axes if numbers[name] is not None and numbers[name] % mesh.axis_size(axes[name])]
    if "num_heads" in left:
        left = list(dict.fromkeys([*left, "num_kv_heads"]))  # scores would need them whole
    others = {"num_kv_heads": ("head_dim", heads.head_dim), "vocab_size": ("hidden_size", config.hidden_size)}
    kept = {name for name in others if name in left and others[name][1] % mesh.axis_size(axis) == 0}
    kept -= {"num_kv_heads"} if "num_heads" in left else set()
    for each in dict.fromkeys(axes[name] for name in left):
        start = f"axis {each!r} of size {mesh.axis_size(each)} does not divide"
        whole = [
            name for name in left if axes[name] == each and name not in kept and numbers[name] % mesh.axis_size(each)
        ]
        if whole:
            listed = ", ".join(f"{name}={numbers[name]}" for name in whole)
            warn(f"{start} {listed}: these dims are replicated", LayoutWarning)
        for name in (name for name in left if axes[name] == each and name in kept):
            other, size = others[name]
            warn(f"{start} {name}={numbers[name]}: {other}={size} is sharded instead", LayoutWarning)
    instead = {others[name][0]: axis for name in kept}
    return _Axes(**{name: each for name, each in axes.items() if name not in left}, **instead)


def _of_layer(config: NetworkConfig, axes: _Axes) -> dict[str, Axes]:
    """Return the layouts of the weights of a block by path, without biases and norms that it lacks."""
    attention, heads, kv = config.attention, axes.num_heads, (axes.num_kv_heads, axes.head_dim)
    found: dict[str, Axes] = {
        "attention/query/kernel": (None, heads, None),
        "attention/(key|value)/kernel": (None, *kv),
        "attention/output/kernel": (heads, None, None),
        "(attention|feed_forward)(_post)?_norm/(scale|gamma|beta)": (None,),
    }
    if attention.qk_norm == "head":
        found |= {"attention/(query|key)_norm/scale": (None,)}
    if attention.use_bias:
        found |= {"attention/query/bias": (heads, None), "attention/(key|value)/bias": kv}
    if attention.qk_norm == "all":
        found |= {"attention/query_norm/scale": (heads, None), "attention/key_norm/scale": kv}
    if attention.use_output_bias:
        found |= {"attention/output/bias": (None,)}
    if attention.has_sinks:
        found |= {"attention/sinks": (heads,)}
    has_experts = {config.has_experts(layer) for layer in range(config.num_layers)}
    if False in has_experts:
        found |= {"feed_forward/(gate|up)/kernel": (None, axes.size), "feed_forward/down/kernel": (axes.size, None)}
        if config.feed_forward.use_bias:
            found |= {"feed_forward/(gate|up)/bias": (axes.size,), "feed_forward/down/bias": (None,)}
    if True in has_experts:
        found |= {
            "feed_forward/router": (None, None),
            "feed_forward/experts_(gate|up)": (axes.num_experts, None, axes.units),
            "feed_forward/experts_down": (axes.num_experts, axes.units, None),
        }
        if config.experts is not None and config.experts.use_bias:
            found |= {
                "feed_forward/router_bias": (None,),
                "feed_forward/experts_(gate|up)_bias": (axes.num_experts, axes.units),
                "feed_forward/experts_down_bias": (axes.num_experts, None),
            }
    return found


def _config(network: Any) -> Any:
    if isinstance(network, str | os.PathLike):
        return read_config(network)
    config = getattr(network, "config", network)
    if not isinstance(config, NetworkConfig):
        raise argument_error("network", network, "a network of `kd.pretrained`, its config, or a folder")
    return config
