"""`Model.quantize`: frozen weights in eight or four bits, below the adapters that are trained."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping

import jax
import numpy as np

from keras_dist._support.arguments import argument_error, check_option
from keras_dist._support.dim_names import CLASSES
from keras_dist._support.extras import import_extra
from keras_dist.adapters.adaptable_model import AdaptableModel
from keras_dist.adapters.choosing import LISTED, Candidate, candidates_in, enumerated
from keras_dist.distribution.placement import host_copy
from keras_dist.errors import ModelError, did_you_mean
from keras_dist.layers.base.lora import Adapted, owner_of
from keras_dist.layers.base.quantized import MODES, Quantization, quantization_for, quantize_weight
from keras_dist.training.built_model import BuiltModel
from keras_dist.training.graph import compile_rule
from keras_dist.training.quantized_modules import ROOT, add_scales, scales_in
from keras_dist.training.quantized_weights import Read, quantized_part, quantized_weights


def quantize(model: AdaptableModel, mode: str, layers: str | Iterable[str] | None = None) -> None:
    r"""Store the weights of some layers in eight or four bits, and freeze them. Adapters are trained on top.

    64 neighbouring inputs of an output share a float32 scale, or the largest number from 16 to 64 that divides the
    inputs; all inputs, if none does. `int8` and `fp8` (e4m3) take 1.06 bytes for each number, `int4` and `nf4` 0.56.
    A weight is two rows of the table: `<weight>` and `<weight>_scale`, which has the layout of the weight on the dims
    that the mesh divides. A layer dequantizes its weight in each pass. In models of `from_nnx` kernels are dequantized
    before the module is called, and stay in floating point until the backward pass. `merge_lora`, and files of other
    programs, have weights in floating point; folders of `save`, checkpoints and our safetensors the stored ones. The
    optimizer of a compiled model is reset, with a warning if it has taken steps.

    The numbers are of qwix, which the extra `quantize` installs.

    Args:
        mode: `"int8"`, `"int4"`, `"nf4"` or `"fp8"`.
        layers: regular expression, or several, for whole paths of `Dense`, `EinsumDense`, `MixtureOfExperts` and
            convolutions, or of their weights. By default all of them that have a form, without classes that have their
            own `call`, and without the head of a decoder; in models of `from_nnx` all kernels.

    Raises:
        ModelError: an argument cannot be used; a pattern matches nothing, or weights that cannot be quantized, all of
            which are listed; the model has adapters, shares weights with another model, or is being trained.
        MissingExtraError: qwix is not installed.

    Example:
        >>> import keras_dist as kd
        >>> from keras_dist import layers
        >>> model = kd.Sequential([kd.Input((64,)), layers.Dense(128, name="up"), layers.Dense(8, name="down")])
        >>> model.quantize("nf4", "up")
        >>> [(weight.path, weight.shape, str(weight.dtype)) for weight in model.layers[0].weights]
        [('up/kernel', (32, 128), 'uint8'), ('up/kernel_scale', (1, 128), 'float32'), ('up/bias', (128,), 'float32')]
        >>> model.enable_lora(rank=4, layers="up")

    Source: `keras.Model.quantize`; `qwix.quantize`; Dettmers et al. 2023, arXiv:2305.14314 (nf4).
    """
    check_option("mode", mode, MODES)
    import_extra("qwix", "quantize", f"quantize({mode!r})")
    built = model._with_weights()
    _check_free(model)
    chosen = _chosen(built, mode, layers)
    forms = {path: form for path, (_, form) in chosen.items() if isinstance(form, Quantization)}
    stored: dict[str, list[np.ndarray]] = {}
    for path, form in forms.items():
        array = built.cell.read(path)
        stored[path] = quantized_part(form, _reader(array), [(0, size) for size in array.shape])
    _give_forms(model, chosen)  # all values are known: an interruption before this changes nothing
    for path, one in quantized_weights(built).items():
        if path in stored:
            both = zip((path, one.scale_path), stored.pop(path), strict=True)
            built.cell.write_all({built.cell.index(name): value for name, value in both})


def quantize_unread(model: AdaptableModel, modes: str | Mapping[str, str], layers: str | None = None) -> None:
    """Quantize weights whose values come later, of these layers; or given the modes by path."""
    built = model._with_weights()
    if isinstance(modes, str):
        _give_forms(model, _chosen(built, check_option("quantize", modes, MODES), layers))
        return
    able = {mode: _able(built, mode) for mode in set(modes.values())}
    _give_forms(model, {path: able[mode][path] for path, mode in modes.items()})


def modes_of(built: BuiltModel) -> dict[str, str]:
    """Return the modes of the quantized weights of a model by path."""
    return {path: one.form.mode for path, one in quantized_weights(built).items()}


_Chosen = Mapping[str, tuple[Candidate, Quantization | str]]
"""Weights by path, with their forms, or the reasons why they have none."""


def _able(built: BuiltModel, mode: str) -> _Chosen:
    """Return all weights of layers and modules that LoRA adapts, but embeddings, whose rows are looked up."""
    found: dict[str, tuple[Candidate, Quantization | str]] = {}
    for one in candidates_in(built):
        if one.weight and one.dims and one.kind != "embedding":
            row = built.cell.row(one.weight)
            form = quantization_for(mode, one.dims, row.shape, row.dtype)
            owner = None if one.layer is None else owner_of(one.layer)
            if one.layer is not None and one.layer.lora_enabled:
                form = "it has adapters: quantize first"
            elif owner is not None and not type(owner).call.__module__.startswith("keras_dist."):
                form = f"{type(owner).__name__} has its own `call`, which may read the weight"
            found[row.path] = one, form
    return found


def _chosen(built: BuiltModel, mode: str, layers: str | Iterable[str] | None) -> _Chosen:
    """Return the weights that patterns match; raise one error for patterns without a match, and for misfits."""
    able, known = _able(built, mode), quantized_weights(built)
    if layers is None:
        rest = {path: one for path, one in able.items() if path not in known and CLASSES not in one[0].dims}
        if built.cell.graph.is_foreign:  # other matrices may be looked up
            rest = {path: one for path, one in rest.items() if one[0].parts[-1] == "kernel"}
        chosen = {path: one for path, one in rest.items() if isinstance(one[1], Quantization)}
        if not chosen:
            given = enumerated([f"{path!r}: {reason}" for path, (_, reason) in rest.items()])
            given = given or (
                f"{len(known)} weights are quantized already" if known else "no weights of layers with kernels"
            )
            raise ModelError(f"quantize: the model has no weights for {mode!r}", given=given)
        return chosen
    rules = [layers] if isinstance(layers, str) else [*layers] if isinstance(layers, Iterable) else []
    if not rules or not all(isinstance(rule, str) for rule in rules):
        raise argument_error("layers", layers, "a regular expression for paths, or a list of them", example=".*/query")
    chosen, problems = {}, []
    for rule in rules:
        pattern = compile_rule(rule, "layers")
        matches = {path: one for path, one in able.items() if any(map(pattern.fullmatch, (path, *one[0].names)))}
        problems += (
            []
            if matches
            else [f"{rule!r} matches none{did_you_mean(rule, (one.names[0] for one, _ in able.values()))}"]
        )
        chosen |= matches
    problems += [f"{path!r}: {form}" for path, (_, form) in chosen.items() if not isinstance(form, Quantization)]
    problems += [f"{path!r} is quantized" for path in chosen if path in known]
    if problems:
        fix = f"choose by whole paths some of {[one.names[0] for one, _ in able.values()][:LISTED]}"
        raise ModelError(
            "quantize: `layers` must match weights that can be quantized", given=enumerated(problems), fix=fix
        )
    return chosen


def _give_forms(model: AdaptableModel, chosen: _Chosen) -> None:
    """Replace weights by stored values and scales of zero."""
    built = model._with_weights()
    forms = {path: form for path, (_, form) in chosen.items() if isinstance(form, Quantization)}
    if built.cell.graph.is_foreign:
        if ROOT in vars(built.model) and not scales_in(built.model):
            given = f"a {type(built.model).__name__} with the attribute {ROOT!r}"
            raise ModelError("quantize: the name of the scales is taken", given=given, fix="rename the attribute")
        by_parts = {chosen[path][0].parts: form for path, form in forms.items()}
        trainable = model._record.source and model._record.source.trainable
        model._change_weights({"": built.model}, functools.partial(add_scales, built.model, by_parts), trainable)
        return
    parts: dict[str, Adapted] = {path: one.layer for path, (one, _) in chosen.items() if one.layer is not None}

    def change() -> None:
        for path, part in parts.items():
            quantize_weight(owner_of(part), part.lora_names[0], forms[path])

    owners = {path.rpartition("/")[0]: owner_of(part) for path, part in parts.items()}
    model._change_weights({"": built.model, **owners}, change)


def _check_free(model: AdaptableModel) -> None:
    if model._record.keras_model is not None:
        fix = "call `quantize` of the Keras model before Model.from_keras"
        raise ModelError(
            "quantize: Keras's layers have their own quantization", given="a model that from_keras made", fix=fix
        )
    if model._record.adapters is not None:
        given = f"adapters of {len(model._record.adapters.weights)} weights"
        raise ModelError("quantize: the model has adapters", given=given, fix="quantize first, then enable_lora")


def _reader(array: jax.Array) -> Read:
    if array.is_fully_addressable or array.is_fully_replicated:
        return functools.partial(host_copy, array)
    whole = host_copy(array)  # all processes gather together
    return whole.__getitem__
