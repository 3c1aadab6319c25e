"""`Model.enable_lora` and `merge_lora`: adapt the chosen weights of a model, and add the updates to them."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any

from keras_dist._support import tree_paths
from keras_dist._support.arguments import argument_error, check_flag, check_number, check_optional, check_size
from keras_dist.adapters.adaptable_model import OPTIONS, AdaptableModel, Adapters
from keras_dist.adapters.choosing import LISTED, Candidate, by_rules, chosen, enumerated
from keras_dist.errors import ModelError, did_you_mean, shorten
from keras_dist.layers import Dense, EinsumDense, Layer
from keras_dist.layers.base.lora import Adapted, Factors, Vector, owner_of
from keras_dist.layers.base.quantized import dequantize_weight
from keras_dist.training.built_model import BuiltModel
from keras_dist.training.graph import compile_rule
from keras_dist.training.lora_modules import ROOT, Factor, add_factors, factors_in
from keras_dist.training.lora_weights import merged_weights
from keras_dist.training.quantized_modules import remove_scales
from keras_dist.training.quantized_weights import QuantizedWeight
from keras_dist.variables.variable import Variable


def enable_lora(
    model: AdaptableModel,
    rank: int,
    layers: str | Iterable[str],
    *,
    alpha: float | None = None,
    dropout: float = 0.0,
    rank_pattern: Mapping[str, int] | None = None,
    alpha_pattern: Mapping[str, float] | None = None,
    modules_to_save: str | Iterable[str] | None = None,
    dora: bool = False,
    lora_bias: bool = False,
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
        modules_to_save: regular expression, or several, for whole paths of layers or weights that are trained whole,
            and saved with the adapters, such as `"head"`. Not available in models of `from_nnx`.
        dora: whether the sum `W = kernel + alpha / rank * A @ B` is replaced by `magnitude * W / norm(W)`, with a
            trained magnitude for each output, at first the norm of the kernel. The norm is a constant for gradients.
            For `Dense` and `EinsumDense`. See Liu et al. 2024, arXiv:2402.09353.
        lora_bias: whether B has a bias, which is scaled as the product. For `Dense` and `EinsumDense`, without `dora`.

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
    vector = _vector(check_flag("dora", dora), check_flag("lora_bias", lora_bias))
    built = model._with_weights()
    _check_free(model, built)
    candidates = chosen(built, layers)
    unfit = [one.weight for one in candidates if not isinstance(one.layer, Dense | EinsumDense)] if vector else []
    if unfit:
        summary = f"enable_lora: `{OPTIONS[vector]}` is available for Dense and EinsumDense"
        fix = f"leave out {OPTIONS[vector]}, or choose layers without these weights"
        raise ModelError(summary, given=enumerated(unfit), fix=fix)
    if dropout and any(one.kind == "experts" for one in candidates):
        given, fix = f"dropout={dropout}", "dropout=0, as in peft; or choose other layers"
        raise ModelError("enable_lora: `dropout` is not available for experts", given=given, fix=fix)
    ranks = by_rules("rank_pattern", rank_pattern, candidates, check_size, example=4)
    alphas = by_rules("alpha_pattern", alpha_pattern, candidates, functools.partial(check_number, above=0), example=8)
    sizes = {one.weight: ranks.get(one.weight, rank) for one in candidates}
    scales = {path: (size, alphas.get(path, size if alpha is None else alpha)) for path, size in sizes.items()}
    options: dict[str, Any] = {"splits_inputs": True, "dropout": dropout, "vector": vector}
    factors = {path: Factors(*scale, **options) for path, scale in scales.items()}
    if built.cell.graph.is_foreign:
        if dropout:
            given, fix = f"dropout={dropout}", "dropout=0; or nnx.Dropout in the module; or a model of layers"
            raise ModelError("enable_lora: `dropout` is not available for flax.nnx modules", given=given, fix=fix)
        if modules_to_save is not None:
            given = f"modules_to_save={shorten(modules_to_save)}"
            summary = "enable_lora: `modules_to_save` is not available for flax.nnx modules"
            raise ModelError(summary, given=given, fix="leave it out; or use a model of layers")
        kernels = {one.parts: (one.dims, factors[one.weight]) for one in candidates}
        model._change_weights({"": built.model}, functools.partial(add_factors, built.model, kernels), Factor)
        frozen: tuple[Variable, ...] = ()
        whole: tuple[str, ...] = ()
    else:
        whole = _trained_whole(built, candidates, modules_to_save)
        frozen = _freezable(built, candidates, whole)
        adapted = {one.weight: one.layer for one in candidates if one.layer is not None}
        change = functools.partial(_adapt, adapted.values(), factors.values(), frozen)
        model._change_weights({"": built.model, **_owners(adapted)}, change)
    model._record.adapters = Adapters(scales, dropout, frozen, whole, vector)
    for one in merged_weights(built).values():
        one.start(built.cell)


def _vector(dora: bool, lora_bias: bool) -> Vector:
    if dora and lora_bias:
        summary = "enable_lora: `dora` and `lora_bias` exclude each other, as in peft"
        raise ModelError(summary, given="dora=True, lora_bias=True", fix="leave out one of them")
    return "magnitude" if dora else "bias" if lora_bias else ""


def _owners(adapted: Mapping[str, Adapted]) -> dict[str, Layer]:
    """Return the layers with factors by path, given what is adapted by the paths of weights."""
    return {path.rpartition("/")[0]: owner_of(layer) for path, layer in adapted.items()}


def _adapt(layers: Iterable[Adapted], factors: Iterable[Factors], frozen: Iterable[Variable]) -> None:
    for variable in frozen:
        variable.freeze()
    for layer, one in zip(layers, factors, strict=True):
        layer.adapt(one)


def _trained_whole(built: BuiltModel, candidates: Iterable[Candidate], rules: Any) -> tuple[str, ...]:
    """Return the paths of trained weights that patterns match, by their paths or by paths of layers around them."""
    if rules is None:
        return ()
    listed: list[Any] = [rules] if isinstance(rules, str) else [*rules] if isinstance(rules, Iterable) else [None]
    if not all(isinstance(rule, str) for rule in listed):
        expected = "a regular expression for paths, or a list of them"
        raise argument_error("modules_to_save", rules, expected, example="head")
    paths = [row.path for row in built.cell.plan.rows if built.is_trainable(row.path)]
    adapted = {one.weight for one in candidates}
    found: dict[str, None] = {}
    problems: list[str] = []
    for rule in listed:
        pattern = compile_rule(rule, "modules_to_save")
        matches = [path for path in paths if any(map(pattern.fullmatch, tree_paths.prefixes(path)))]
        problems += [] if matches else [f"{rule!r} matches no trained weight{did_you_mean(rule, paths)}"]
        problems += [f"{path!r} is adapted" for path in matches if path in adapted]
        found |= dict.fromkeys(matches)
    if problems:
        fix = f"choose by whole paths some of {[path for path in paths if path not in adapted][:LISTED]}"
        summary = "enable_lora: `modules_to_save` must match weights that are not adapted"
        raise ModelError(summary, given=enumerated(problems), fix=fix)
    return tuple(found)


def _freezable(built: BuiltModel, candidates: Iterable[Candidate], whole: Iterable[str]) -> tuple[Variable, ...]:
    """Return the weights to freeze: trained and not adapted; raise for a flax module's, which have other owners."""
    adapted = {*(one.weight for one in candidates), *whole}
    paths = [row.path for row in built.cell.plan.rows if built.is_trainable(row.path)]
    held = {path: built.cell.held(path) for path in paths if path not in adapted}
    foreign = [path for path, variable in held.items() if not isinstance(variable, Variable)]
    if foreign:
        given = f"trainable weights of flax modules: {', '.join(map(repr, foreign[:LISTED]))}"
        fix = "set `trainable` of these layers to False first"
        raise ModelError("enable_lora cannot freeze weights of flax modules in layers", given=given, fix=fix)
    return tuple(held.values())


def _check_free(model: AdaptableModel, built: BuiltModel) -> None:
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


def merge_lora(model: AdaptableModel) -> None:
    """Add the updates of LoRA to their weights, on the devices, and remove the factors.

    The sums have the dtype of the weights; weights that were quantized have the dtype from before. The model computes
    the same, and trains the weights that it trained before `enable_lora`. The optimizer of a compiled model is reset;
    `fit` warns if it had taken steps. Updates of layers on which `enable_lora` was called are merged, too.

    Raises:
        ModelError: the model has no adapters, or is being trained.
    """
    built, adapters = model._with_weights(), model._record.adapters
    merged = merged_weights(built)
    if not merged:
        raise ModelError("merge_lora: the model has no adapters", fix="model.enable_lora(rank=8, layers='.*/query')")
    model._check_idle("merge_lora")
    for one in merged.values():
        one.check()
    quantized = {path: one for path, one in merged.items() if isinstance(one.weight, QuantizedWeight)}
    with built.cell.lock:
        sums = {path: one.sum(built.cell) for path, one in quantized.items()}
        for one in (one for path, one in merged.items() if path not in quantized):
            one.merge(built.cell)
    layers = {one.path: one.layer for one in merged.values() if one.layer is not None}

    def remove() -> None:
        for path, layer in layers.items():
            if path in quantized:
                dequantize_weight(owner_of(layer), layer.lora_names[0])
            layer.remove_factors()
        for variable in () if adapters is None else adapters.frozen:
            variable.freeze(False)

    def remove_from_module() -> None:
        remove_scales(built.model, {one.parts for one in factors_in(built.model)})
        delattr(built.model, ROOT)

    change = remove if layers else remove_from_module
    trainable = model._record.source and model._record.source.trainable
    model._change_weights({"": built.model, **_owners(layers)}, change, trainable)
    built.cell.write_all({built.cell.index(path): value for path, value in sums.items()})
    model._record.adapters = None
