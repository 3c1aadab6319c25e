"""Adapters of LoRA for a whole model: the weights that patterns choose, and how they are adapted and merged.

Layers compute with their own factors. The kernels of a foreign module have the update added before it is called; see
`training.adapters`.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from flax import nnx

from keras_dist._support import tree_paths
from keras_dist._support.arguments import argument_error, check_number, check_optional, check_size
from keras_dist._support.dim_names import EXPERTS, INPUTS, LAYERS, OUTPUTS, DimNames, of_einsum
from keras_dist.errors import ModelError, did_you_mean, nearest
from keras_dist.formats.adapter_files import common_and_others
from keras_dist.formats.adapter_modules import Kind
from keras_dist.formats.lora_weights import merged_weights
from keras_dist.layers import Embedding, Layer, MixtureOfExperts
from keras_dist.layers.base.lora import Adapted, Factors, LoraLayer, owner_of
from keras_dist.layers.convolutional.convolution import BaseConvolution
from keras_dist.models.model_base import ModelBase
from keras_dist.models.model_record import Adapters
from keras_dist.models.weight_changes import change_weights
from keras_dist.training.adapters import ROOT, add_factors, is_factor, remove_factors
from keras_dist.training.built_model import BuiltModel
from keras_dist.training.graph import compile_rule, positions_of
from keras_dist.training.naming import layers_below
from keras_dist.variables.variable import Variable

_LISTED = 20

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
    more = f"; and {len(problems) - _LISTED} more" if len(problems) > _LISTED else ""
    return "; ".join(problems[:_LISTED]) + more


def candidates_in(built: BuiltModel) -> list[Candidate]:
    """Return all layers of a model, or all parameters of a foreign module."""
    return [*(_parameters(built) if built.cell.graph.is_foreign else _layers(built))]


def _layers(built: BuiltModel) -> Iterator[Candidate]:
    for path, layer in layers_below(built.model):
        if isinstance(layer, LoraLayer):
            weight = f"{path}/{layer.lora_names[0]}".lstrip("/")
            dims = getattr(getattr(layer, layer.lora_names[0], None), "dim_names", ())
            kind = "embedding" if isinstance(layer, Embedding) else "linear"
            kind = "convolution" if isinstance(layer, BaseConvolution) else kind
            yield Candidate((path, weight), weight, _reason(layer), layer, dims=dims, kind=kind)
        elif isinstance(layer, MixtureOfExperts):
            for part in layer.adapted_weights():
                weight, dims = f"{path}/{part.name}".lstrip("/"), getattr(layer, part.name).dim_names
                kind = "experts" if EXPERTS in dims else "linear"
                yield Candidate((weight, path), weight, _reason(part), part, dims=dims, kind=kind)
        elif path:
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
    for spec, parts, place in zip(graph.specs, graph.parts, positions_of(built.model, graph.parts), strict=True):
        if spec.role != "parameter" or spec.factor_of is not None:
            continue
        name, owner = str(parts[-1]), modules.get(parts[:-1])
        whole = tree_paths.join(parts[:-1]) if name in ("kernel", "embedding") else ""
        names = tuple(filter(None, (whole, *spec.names)))
        kind, dims = _form_of(owner, name, len(spec.shape))
        reason = "" if dims else f"{name!r} of {type(owner).__name__} has shape {spec.shape}; pass a matrix"
        reason = reason if place.variable is not None else "it is part of a structure"
        yield Candidate(names, spec.path, reason, None, parts, dims, kind)


def _form_of(owner: Any, name: str, ndim: int) -> tuple[Kind, DimNames]:
    """Return the kind of a parameter of a module, and the names of its dims; no names if unknown."""
    kind: Kind = "linear"
    names: DimNames = ()
    if name == "kernel" and isinstance(owner, nnx.Einsum):
        inputs, _, rest = owner.einsum_str.replace(".", "").replace(" ", "").partition(",")
        letters, _, outputs = rest.partition("->")
        names = of_einsum(inputs, letters, outputs)
    elif name == "kernel" and isinstance(owner, nnx.LinearGeneral):
        names = (*[INPUTS] * len(owner.in_features), *[OUTPUTS] * len(owner.out_features))
    elif name == "kernel" and isinstance(owner, nnx.Conv):
        kind, names = "convolution", (*[INPUTS] * (len(owner.kernel_size) + 1), OUTPUTS)
    elif name == "embedding" and isinstance(owner, nnx.Embed):
        kind, names = "embedding", (INPUTS, OUTPUTS)
    elif (name == "kernel" and isinstance(owner, nnx.Linear)) or (ndim == 2 and name not in ("bias", "scale")):
        names = (INPUTS, OUTPUTS)
    return kind, (*[LAYERS] * (ndim - len(names)), *names) if names else ()


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
        raise ModelError(summary, given=enumerated(problems), fix=f"choose by whole paths some of {able[:_LISTED]}")
    return list(found.values())


def _hint(rule: str, able: Sequence[str]) -> str:
    """Return the pattern for a name of peft, or the nearest path."""
    last = re.split(r"[/.]", rule)[-1]  # a rule may begin with ".*/"
    if last in _OF_PEFT and any(re.fullmatch(f".*/{_OF_PEFT[last]}", name) for name in able):
        return f"; {last!r} of peft is '.*/{_OF_PEFT[last]}' here"
    ends = {name.rpartition("/")[2]: name for name in reversed(able)}
    near = nearest(rule, able) or ends.get(nearest(last, ends) or "")
    return f"; the nearest path is {near!r}" if near else ""


def enable_lora(
    model: ModelBase,
    rank: int,
    layers: str | Iterable[str],
    *,
    alpha: float | None = None,
    dropout: float = 0.0,
    rank_pattern: Mapping[str, int] | None = None,
    alpha_pattern: Mapping[str, float] | None = None,
) -> None:
    r"""Freeze all weights, and train low-rank updates of the weights of some layers.

    A layer computes `inputs @ kernel + alpha / rank * dropout(inputs) @ A @ B`. The factors A (inputs, rank) and B
    (rank, outputs) are float32, sharded as the dims of the kernel, and become weights of the model; a kernel with
    several dims of inputs or outputs has them in A or B. A stack of kernels has a stack of factors. B is zero at
    first. Experts have factors each. The optimizer has slots for the factors alone; a compiled model has it
    reset, with a warning if it has taken steps.

    In models of `from_nnx` each call adds the update to the kernels: the backward pass computes gradients of
    whole kernels. The factors are below `lora`. Before `merge_lora`, `model.module` computes without the update.

    Args:
        rank: the rank of the updates.
        layers: regular expression, or several, for whole paths of `Dense`, `EinsumDense`, `Embedding`,
            `MixtureOfExperts` and convolutions, or of their weights. In models of `from_nnx` for paths of
            parameters, or of modules with a `kernel` or `embedding`.
        alpha: scaling factor; the updates are multiplied by `alpha / rank`. By default the rank of each layer.
        dropout: fraction of the inputs of the factors to drop in training; not for embeddings, and not available
            for experts and in models of `from_nnx`.
        rank_pattern: other ranks, by regular expressions for paths as in `layers`; the first that matches counts.
        alpha_pattern: other scaling factors.

    Raises:
        ModelError: an argument cannot be used; a pattern matches nothing, or layers that cannot be adapted, all of
            which are listed; the model has adapters, shares weights with another model, or is being trained. The
            model stays as it is.
        LayoutError: layout rules cannot be applied to the factors. The model stays as it is.

    Example:
        >>> import keras_dist as kd
        >>> from keras_dist import layers
        >>> model = kd.Sequential([kd.Input((8,)), layers.Dense(16, name="up"), layers.Dense(8, name="down")])
        >>> model.enable_lora(rank=2, layers="up|down", alpha=4)
        >>> [weight.path for weight in model.trainable_weights]
        ['up/lora_kernel_a', 'up/lora_kernel_b', 'down/lora_kernel_a', 'down/lora_kernel_b']

    Source: Hu et al. 2021, arXiv:2106.09685; `peft.LoraConfig`.
    """
    rank = check_size("rank", rank)
    alpha = check_optional(check_number, "alpha", alpha, above=0)
    dropout = check_number("dropout", dropout, 0, below=1, example=0.05)
    built = model._with_weights()
    _check_free(model, built)
    candidates = chosen(built, layers)
    if dropout and any(one.kind == "experts" for one in candidates):
        given, fix = f"dropout={dropout}", "dropout=0, as in peft; or choose other layers"
        raise ModelError("enable_lora: `dropout` is not available for experts", given=given, fix=fix)
    ranks = _by_rules("rank_pattern", rank_pattern, candidates, check_size, example=4)
    alphas = _by_rules("alpha_pattern", alpha_pattern, candidates, functools.partial(check_number, above=0), example=8)
    sizes = {one.weight: ranks.get(one.weight, rank) for one in candidates}
    scales = {path: (size, alphas.get(path, size if alpha is None else alpha)) for path, size in sizes.items()}
    factors = {path: Factors(*scale, splits_inputs=True, dropout=dropout) for path, scale in scales.items()}
    if built.cell.graph.is_foreign:
        if dropout:
            given, fix = f"dropout={dropout}", "dropout=0; or nnx.Dropout in the module; or a model of layers"
            raise ModelError("enable_lora: `dropout` is not available for flax.nnx modules", given=given, fix=fix)
        kernels = {one.parts: (one.dims, factors[one.weight]) for one in candidates}
        change_weights(model, {"": built.model}, functools.partial(add_factors, built.model, kernels), is_factor)
        frozen: tuple[Variable, ...] = ()
    else:
        frozen = _freezable(built, candidates)
        adapted = {one.weight: one.layer for one in candidates if one.layer is not None}
        change = functools.partial(_adapt, adapted.values(), factors.values(), frozen)
        change_weights(model, {"": built.model, **_owners(adapted)}, change)
    model._record.adapters = Adapters(scales, dropout, frozen)


def _by_rules(
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
        fix = f"choose among {[one.names[0] for one in candidates[:_LISTED]]}"
        raise ModelError(f"enable_lora: `{argument}` must match adapted layers", given=enumerated(unused), fix=fix)
    return found


def arguments_for(scales: Mapping[str, tuple[int, float]], dropout: float) -> dict[str, Any]:
    """Return the arguments of `enable_lora` for ranks and alphas of weights by path."""
    (rank, ranks), (alpha, alphas) = (
        common_and_others({re.escape(path): scale[place] for path, scale in scales.items()}) for place in (0, 1)
    )
    patterns = {"rank_pattern": ranks, "alpha_pattern": alphas}
    return {"rank": rank, "alpha": alpha, "dropout": dropout, "layers": [*map(re.escape, scales)], **patterns}


def written(adapters: Adapters | None) -> dict[str, Any] | None:
    """Return the arguments with which `enable_lora` makes the same adapters; None without."""
    return None if adapters is None else arguments_for(adapters.weights, adapters.dropout)


def _owners(adapted: Mapping[str, Adapted]) -> dict[str, Layer]:
    """Return the layers with factors by path, given what is adapted by the paths of weights."""
    return {path.rpartition("/")[0]: owner_of(layer) for path, layer in adapted.items()}


def _adapt(layers: Iterable[Adapted], factors: Iterable[Factors], frozen: Iterable[Variable]) -> None:
    for variable in frozen:
        variable.freeze()
    for layer, one in zip(layers, factors, strict=True):
        layer.adapt(one)


def _freezable(built: BuiltModel, candidates: Iterable[Candidate]) -> tuple[Variable, ...]:
    """Return the trained weights but the adapted ones; raise for weights of a flax module, which have other owners."""
    adapted = {one.weight for one in candidates}
    paths = [row.path for row in built.cell.plan.rows if built.is_trainable(row.path)]
    held = {path: built.cell.held(path) for path in paths if path not in adapted}
    foreign = [path for path, variable in held.items() if not isinstance(variable, Variable)]
    if foreign:
        given = f"trainable weights of flax modules: {', '.join(map(repr, foreign[:_LISTED]))}"
        fix = "set `trainable` of these layers to False first"
        raise ModelError("enable_lora cannot freeze weights of flax modules in layers", given=given, fix=fix)
    return tuple(held.values())


def _check_free(model: ModelBase, built: BuiltModel) -> None:
    if model._record.keras_model is not None:
        given = "a model that from_keras made"
        fix = "call enable_lora of Keras's layers before Model.from_keras"
        raise ModelError("enable_lora: Keras's layers have their own adapters", given=given, fix=fix)
    if model._record.adapters is not None:
        given = f"adapters of {len(model._record.adapters.weights)} weights"
        fix = "call model.merge_lora() first, or choose all layers in one call"
        raise ModelError("enable_lora: the model has adapters already", given=given, fix=fix)
    if built.cell.graph.is_foreign and ROOT in vars(built.model):
        given = f"a {type(built.model).__name__} with the attribute {ROOT!r}"
        raise ModelError("enable_lora: the name of the factors is taken", given=given, fix="rename the attribute")


def merge_lora(model: ModelBase) -> None:
    """Add the updates of LoRA to their weights, on the devices, and remove the factors.

    The sums have the dtype of the weights. The model computes the same, and trains the weights that it trained
    before `enable_lora`. The optimizer of a compiled model is reset; `fit` warns if it had taken steps. Updates of
    layers on which `enable_lora` was called are merged, too.

    Raises:
        ModelError: the model has no adapters, or is being trained.
    """
    built, adapters = model._with_weights(), model._record.adapters
    merged = merged_weights(model, built)
    if not merged:
        raise ModelError("merge_lora: the model has no adapters", fix="model.enable_lora(rank=8, layers='.*/query')")
    model._check_idle("merge_lora")
    with built.cell.lock:
        for one in merged.values():
            one.merge(built.cell)
    layers = {one.path: one.layer for one in merged.values() if one.layer is not None}
    merged_after = model._compile_config if built.cell.steps_taken else None

    def remove() -> None:
        for layer in layers.values():
            layer.remove_factors()
        for variable in () if adapters is None else adapters.frozen:
            variable.freeze(False)

    change: Callable[[], None] = remove if layers else functools.partial(remove_factors, built.model)
    source = model._record.source
    trainable = None if source is None else source.trainable
    change_weights(model, {"": built.model, **_owners(layers)}, change, trainable)
    model._merged_after = merged_after
    model._record.adapters = None
