"""The weights that patterns of `enable_lora` choose, and values that other patterns give them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from flax import nnx

from keras_dist._support import tree_paths
from keras_dist._support.arguments import argument_error
from keras_dist._support.dim_names import EXPERTS, DimNames
from keras_dist.adapters.peft_modules import Kind
from keras_dist.errors import ModelError, did_you_mean, nearest
from keras_dist.layers import Embedding
from keras_dist.layers.base.lora import Adapted, lora_parts, owner_of
from keras_dist.layers.base.names import layers_below
from keras_dist.layers.convolutional.convolution import BaseConvolution
from keras_dist.training.built_model import BuiltModel
from keras_dist.training.graph import compile_rule, positions_of

LISTED = 20

_OF_PEFT = {
    "q_proj": "query",
    "k_proj": "key",
    "v_proj": "value",
    "o_proj": "output",
    **dict.fromkeys(("qkv_proj", "c_attn"), "(query|key|value)"),
    "gate_proj": "(experts_)?gate",
    "up_proj": "(experts_)?up",
    "down_proj": "(experts_)?down",
    "gate_up_proj": "(experts_)?(gate|up)",
    "w1": "experts_gate",
    "w2": "experts_down",
    "w3": "experts_up",
}
"""Ends of paths in networks of `kd.pretrained`, for modules by their names in peft."""


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A layer, or a parameter of a foreign module, that a pattern may choose."""

    names: tuple[str, ...]  # paths that patterns match: of the layer, and of its weight
    weight: str = ""  # path of the weight; empty for a layer without one
    reason: str = ""  # why it cannot be adapted; empty if it can
    layer: Adapted | None = None  # the layer, or one of its weights; None in a foreign module
    parts: tree_paths.Parts = ()  # names and indices that lead to the parameter in a foreign module
    dims: DimNames = ()  # names of the dims of the weight, if it has one
    kind: Kind = "linear"  # of the module in files


def enumerated(problems: Sequence[str]) -> str:
    """Return the problems for an error, and the number of those left out."""
    more = f"; and {len(problems) - LISTED} more" if len(problems) > LISTED else ""
    return "; ".join(problems[:LISTED]) + more


def candidates_in(built: BuiltModel) -> list[Candidate]:
    """Return all layers of a model, or all parameters of a foreign module."""
    return [*(_parameters(built) if built.cell.graph.is_foreign else _layers(built))]


def _layers(built: BuiltModel) -> Iterator[Candidate]:
    for path, layer in layers_below(built.model):
        kind = "embedding" if isinstance(layer, Embedding) else "linear"
        kind = "convolution" if isinstance(layer, BaseConvolution) else kind
        parts = lora_parts(layer)
        for part in parts:
            weight = f"{path}/{part.lora_names[0]}".lstrip("/")
            dims = getattr(getattr(layer, part.lora_names[0], None), "dim_names", ())
            names = (path, weight) if part is layer else (weight, path)
            of_part = "experts" if EXPERTS in dims else kind
            yield Candidate(names, weight, _reason(part), part, dims=dims, kind=of_part)
        if path and not parts:
            yield Candidate((path,), reason=f"{type(layer).__name__} has no weight that LoRA adapts")


def _reason(layer: Adapted) -> str:
    if not owner_of(layer).trainable:
        return "its `trainable` is False: leave it True, since enable_lora freezes all weights"
    try:
        layer.check_adaptable()
    except ModelError as error:
        return error.summary
    return ""


def _parameters(built: BuiltModel) -> Iterator[Candidate]:
    graph = built.cell.graph
    modules = {tree_paths.visible(path): node for path, node in nnx.iter_graph(built.model)}
    arrays = zip(graph.specs, graph.parts, graph.dim_names, positions_of(built.model, graph.parts), strict=True)
    for spec, parts, dims, place in arrays:
        if spec.role != "parameter" or spec.factor_of is not None:
            continue
        name, owner = str(parts[-1]), modules.get(parts[:-1])
        whole = tree_paths.join(parts[:-1]) if name in ("kernel", "embedding") else ""
        names = tuple(filter(None, (whole, *spec.names)))
        reason = "" if dims else f"{name!r} of {type(owner).__name__} has shape {spec.shape}; pass a matrix"
        reason = reason if place.variable is not None else "it is part of a structure"
        yield Candidate(names, spec.path, reason, None, parts, dims, _kind_of(owner, name))


def _kind_of(owner: Any, name: str) -> Kind:
    """Return the kind of a parameter of a module."""
    if name == "kernel" and isinstance(owner, nnx.Conv):
        return "convolution"
    return "embedding" if name == "embedding" and isinstance(owner, nnx.Embed) else "linear"


def chosen(built: BuiltModel, layers: str | Iterable[str]) -> list[Candidate]:
    """Return the candidates that patterns match; raise one error for all patterns without a match, and all misfits."""
    rules = [layers] if isinstance(layers, str) else [*layers] if isinstance(layers, Iterable) else []
    if not rules or not all(isinstance(rule, str) for rule in rules):
        raise argument_error("layers", layers, "a regular expression for paths, or a list of them", example=".*/query")
    candidates = candidates_in(built)
    able = [name for one in candidates if not one.reason for name in one.names[:1]]
    found: dict[int, Candidate] = {}
    problems: list[str] = []
    for rule in rules:
        pattern = compile_rule(rule, "layers")
        matches = [one for one in candidates if any(map(pattern.fullmatch, one.names))]
        found |= {id(one): one for one in matches}
        if not matches:
            others = [row.path for row in built.cell.plan.rows if pattern.fullmatch(row.path)]
            hint = f"; LoRA does not adapt {others[0]!r}" if others else _hint(rule, able)
            problems.append(f"{rule!r} matches none{hint}")
    problems += [f"{one.names[0]!r}: {one.reason}" for one in found.values() if one.reason]
    if problems:
        summary = "enable_lora: `layers` must match layers that can be adapted"
        raise ModelError(summary, given=enumerated(problems), fix=f"choose by whole paths some of {able[:LISTED]}")
    return list(found.values())


def _hint(rule: str, able: Sequence[str]) -> str:
    """Return the pattern for a name of peft, or the nearest path."""
    last = re.split(r"[/.]", rule)[-1]  # a rule may begin with ".*/"
    if last in _OF_PEFT and any(re.fullmatch(f".*/{_OF_PEFT[last]}", name) for name in able):
        return f"; {last!r} of peft is '.*/{_OF_PEFT[last]}' here"
    ends = {name.rpartition("/")[2]: name for name in reversed(able)}
    near = nearest(rule, able) or ends.get(nearest(last, ends) or "")
    return f"; the nearest path is {near!r}" if near else ""


def by_rules(
    argument: str, rules: Any, candidates: Sequence[Candidate], check: Callable[..., Any], example: Any
) -> dict[str, Any]:
    """Return the values of the first rules that match weights, by path; raise one error for rules without a match."""
    if rules is not None and not (isinstance(rules, Mapping) and all(isinstance(rule, str) for rule in rules)):
        raise argument_error(
            argument, rules, "a dict from regular expressions for paths", example={".*/value": example}
        )
    found: dict[str, Any] = {}
    unused: list[str] = []
    for rule, value in (rules or {}).items():
        pattern, value = compile_rule(rule, argument), check(argument, value)
        matches = [one.weight for one in candidates if any(map(pattern.fullmatch, one.names))]
        found = dict.fromkeys(matches, value) | found
        unused += [] if matches else [rule + did_you_mean(rule, (one.names[0] for one in candidates))]
    if unused:
        fix = f"choose among {[one.names[0] for one in candidates[:LISTED]]}"
        raise ModelError(f"enable_lora: `{argument}` must match adapted layers", given=enumerated(unused), fix=fix)
    return found
