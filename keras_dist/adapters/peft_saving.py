"""Adapters of a model in files of `peft`, and back: weights by the names of modules in the base's files."""

from __future__ import annotations

import dataclasses
import math
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from keras_dist._support.dim_names import LAYERS
from keras_dist.adapters.adaptable_model import OPTIONS, AdaptableModel, Adapters, Scales
from keras_dist.adapters.choosing import candidates_in, enumerated
from keras_dist.adapters.enabling import enable_lora
from keras_dist.adapters.peft_files import AdapterFiles, adapter_folder, read_adapter, write_adapter, written_config
from keras_dist.adapters.peft_modules import PREFIX, Arrays, Form, Group, groups_of, misfits, modules_in, nested
from keras_dist.errors import ModelError
from keras_dist.formats.weight_map import WeightMap
from keras_dist.formats.weight_pieces import Parts, Piece, load_piece
from keras_dist.jobs.rendezvous import Rendezvous
from keras_dist.layers import ReversibleEmbedding
from keras_dist.layers.base.lora import LoraLayer, factor_dims
from keras_dist.training.built_model import BuiltModel
from keras_dist.training.lora_weights import MergedWeight, merged_weights
from keras_dist.training.quantized_weights import quantized_weights

_NAMES_OF_EXPERTS = ("gate_proj", "up_proj", "down_proj")  # as in peft.utils.transformers_weight_conversion


def save_adapter(
    model: AdaptableModel,
    filepath: str | os.PathLike[str],
    overwrite: bool = True,
    *,
    weight_map: WeightMap | None = None,
    base_model_name_or_path: str | None = None,
    task_type: str | None = None,
) -> None:
    """Save the factors of LoRA alone in a folder, in the format of `peft`.

    The files are `adapter_config.json` and `adapter_model.safetensors`. Modules have their names in the base
    model's files, for networks of `kd.pretrained`, or where `weight_map` gives them. Otherwise they have our paths
    with dots, and numbers for the layers of a stack. In a job all processes must call; the first writes.

    peft adapts a module as a whole. Of weights that are parts of one module, such as `qkv_proj`, the file has one
    factor A for all, of the sum of their ranks, and B consists of blocks. `load_adapter` finds the parts again.
    Weights of experts are `target_parameters`, which `transformers` 5 has for pretrained networks.

    Args:
        filepath: a folder, which is created in a folder that exists.
        overwrite: whether existing files are replaced.
        weight_map: names of weights in the base's files, as in `load_weights`.
        base_model_name_or_path: where peft finds the base.
        task_type: of peft, such as `"CAUSAL_LM"`.

    Raises:
        ModelError: the model has no adapters of `Model.enable_lora`, files exist and are not to be replaced, or the
            format cannot hold the adapters, for example of embeddings that are the head, or of parts of one module
            with different `alpha / rank`.
        OSError: a file cannot be written.

    Example:
        >>> import pathlib, tempfile
        >>> import keras_dist as kd
        >>> model = kd.Sequential([kd.Input((8,)), kd.layers.Dense(16, name="up")])
        >>> model.enable_lora(rank=2, layers="up")
        >>> folder = pathlib.Path(tempfile.mkdtemp()) / "adapter"
        >>> model.save_adapter(folder)
        >>> sorted(path.name for path in folder.iterdir())
        ['adapter_config.json', 'adapter_model.safetensors']

    Source: `peft.PeftModel.save_pretrained`.
    """
    built, adapters = model._with_weights(), model._record.adapters
    if adapters is None:
        fix = 'model.enable_lora(rank=8, layers=".*/query") first; save_weights saves all weights'
        raise ModelError("save_adapter: the model has no adapters", given=f"model {model.name!r}", fix=fix)
    folder = adapter_folder("save_adapter", filepath)
    everything, merged = _groups(model, built, weight_map), merged_weights(built)
    groups = nested(everything, lambda group: bool(group.forms_in(merged)), adapters.vector)
    chosen = [group for group in groups if group.forms_in(merged)]
    scales = {path: _scale(one, adapters.weights) for path, one in merged.items()}
    problems = [*_problems(chosen, groups), *_other_dims(chosen, merged), *_other_scales(chosen, scales)]
    problems += [*_taken_for_experts(chosen, everything), *_without_vectors(chosen, merged)]
    if problems:
        fix = "adapt other layers; or merge_lora, and save the merged weights"
        raise ModelError("save_adapter: peft's format cannot hold the adapters", given=enumerated(problems), fix=fix)
    arrays: dict[str, np.ndarray] = {}
    modules: dict[str, tuple[int, float]] = {}
    with built.cell.lock:  # all are of one step, whoever trains
        for group in chosen:
            rank, found = group.to_file({form.path: _pair(form, merged) for form in group.forms_in(merged)})
            rank_here, alpha = scales[group.forms_in(merged)[0].path]
            modules |= dict.fromkeys(group.modules, (rank, alpha * rank / rank_here))
            arrays |= found
    whole = _whole_pieces(model, built, weight_map, adapters.whole)
    cut = [f"{path} is a part of {each[0].name}" for path, each in whole.items() if each[0].cut is not None]
    if cut:
        fix = "train these weights by adapters; or merge_lora, and save the merged weights"
        raise ModelError("save_adapter: peft's format cannot hold parts of modules", given=enumerated(cut), fix=fix)
    for path, pieces in whole.items():
        value = built.variable(path).numpy()
        arrays |= {f"{PREFIX}{piece.name}": piece.saved(value[piece.region]) for piece in pieces}
    of_whole = {piece.name.rpartition(".")[0] for pieces in whole.values() for piece in pieces}
    left = [module for group in everything if not group.forms_in(merged) for module in group.modules]
    parameters = {module for group in chosen if group.is_parameter for module in group.modules}
    is_transposed = any(form.axis_of_outputs == 1 for group in chosen for form in group.forms)
    of_base = {"base_model_name_or_path": base_model_name_or_path, "task_type": task_type}
    given = (modules, left, parameters, of_whole, adapters.vector, adapters.dropout, is_transposed)
    config = written_config(*given, **of_base)
    write_adapter(folder, config, arrays, overwrite)


def load_adapter(
    model: AdaptableModel,
    filepath: str | os.PathLike[str],
    *,
    weight_map: WeightMap | None = None,
    dropout: float | None = None,
) -> None:
    """Load factors that `save_adapter` or `peft` wrote. A model without adapters gets them.

    Weights that are parts of one module each get its factor A, and their rows of B. Our blocks are found by the
    zeros of B: where all of B is zero, as in a model that was saved untrained, the factors get the sum of the
    ranks, unless `enable_lora` gives the ranks first. A copy of the base's embeddings, which peft adds to the
    factors of embeddings, is not loaded.

    Args:
        filepath: the folder.
        weight_map: names of weights in the base's files; see `save_adapter`.
        dropout: instead of the fraction in the files, if the model has no adapters.

    Raises:
        ModelError: the files cannot be read, have unsupported options, or do not fit the model; all
            problems are listed, and the model stays as it is.
        FileNotFoundError: a file does not exist.

    Source: `peft.PeftModel.from_pretrained`.
    """
    built, adapters = model._with_weights(), model._record.adapters
    folder, everything = adapter_folder("load_adapter", filepath), _groups(model, built, weight_map)
    merged = merged_weights(built)
    here = None if adapters is None else {path: _scale(one, adapters.weights) for path, one in merged.items()}
    read: list[tuple[AdapterFiles, dict[str, Arrays], Scales, dict[str, np.ndarray]]] = []

    def look() -> None:
        files = read_adapter(folder)
        groups = nested(everything, lambda group: any(map(files.has_parameter, group.modules)), files.vector)
        problems: list[str] = []
        if adapters is not None and files.vector != adapters.vector:
            options = [OPTIONS.get(one, "neither dora nor lora_bias") for one in (files.vector, adapters.vector)]
            problems.append(f"the files have {options[0]}, the model {options[1]}")
        chosen = _in_files(files, groups, here, problems)
        problems += _problems([*chosen], groups)
        whole = _whole_in(files, _whole_pieces(model, built, weight_map, None if files.whole else ()), problems)
        if adapters is not None and {*adapters.whole} != {*whole}:
            problems.append(f"trained whole are {[*whole]}, in the model {[*adapters.whole]}")
        ranks = {group: rank for group, (rank, _) in chosen.items()}
        known = {f"{PREFIX}{piece.name}" for pieces in whole.values() for piece in pieces}
        problems = problems or [*misfits(files.reader, ranks, known)]
        pairs, scales = ({}, {}) if problems else _read(files, chosen, here, problems)
        if problems:
            summary = f"{str(folder)!r} does not fit the adapters of model {model.name!r}"
            fix = "load an adapter of this model; or name its modules with weight_map=kd.interop.WeightMap(names=...)"
            raise ModelError(summary, given=enumerated(problems), fix=fix)
        values = {path: _loaded(files, path, pieces, built.cell.row(path).shape) for path, pieces in whole.items()}
        read.append((files, pairs, scales, values))

    Rendezvous("a load of an adapter").each(look)
    ((files, pairs, scales, values),) = read
    if adapters is None:
        dropout = files.dropout if dropout is None else dropout
        enable_lora(model, **Adapters(scales, dropout, whole=tuple(values), vector=files.vector).arguments())
        merged = merged_weights(built)
    for path, value in values.items():
        built.variable(path).assign(value)
    forms = {form.path: form for group in everything for form in group.forms}
    for path, pair in pairs.items():
        for factor, value in zip(merged[path].factors, forms[path].from_file(*pair), strict=True):
            factor.assign(value)


def _in_files(
    files: AdapterFiles, groups: Sequence[Group], here: Scales | None, problems: list[str]
) -> dict[Group, tuple[int, float]]:
    """Return rank and alpha of the groups that files have, or that the model has adapted already."""
    modules = modules_in(files.reader)
    if here is None:
        known = {module for group in groups for module in group.keys}
        single = [module for module in sorted(modules - known) if re.search(r"\.experts\.\d+\.", module)]
        if single:
            way = "merge it in peft, and load the merged weights"
            problems.append(f"{single[0]} is of a single expert, as in transformers 4 ({len(single)} modules): {way}")
        problems += [f"unknown module {module}" for module in sorted(modules - known - {*single})]
        problems += [] if modules else ["no factors"]
        chosen = [group for group in groups if not modules.isdisjoint(group.keys)]
    else:
        chosen = [group for group in groups if group.forms_in(here)]
    found: dict[Group, tuple[int, float]] = {}
    for group in chosen:
        first, *others = dict.fromkeys(map(files.rank_and_alpha, group.modules))
        found[group] = first
        if others:
            layers = f"layers of ranks and alphas {[first, *others]}: load the model with scan=False"
            problems.append(f"{group.forms[0].path} is a stack, and cannot hold {layers}")
        absent = [module for module in group.keys if module not in modules]
        if 0 < len(absent) < len(group.keys):
            there = f"{len(group.keys) - len(absent)} of {len(group.keys)} layers, without {absent[0]}"
            problems.append(f"{group.forms[0].path} is a stack; there are {there}: load it with scan=False")
        problems += [] if here is None else _other_ranks(group, first, here)
    return found


def _other_ranks(group: Group, found: tuple[int, float], here: Scales) -> Iterator[str]:
    """Yield the differences of rank and scale between a module in files and the weights of the model."""
    ranks = [here[form.path][0] for form in group.forms_in(here)]
    if found[0] != sum(ranks) and {found[0]} != {*ranks}:
        yield f"{group.modules[0]}: rank is {found[0]}, in the model {', '.join(map(str, ranks))}"
    for form in group.forms_in(here):
        one, other = (alpha / rank for rank, alpha in (found, here[form.path]))
        if not math.isclose(one, other):
            yield f"{form.path}: alpha / rank is {one:g}, in the model {other:g}"


def _read(
    files: AdapterFiles, chosen: Mapping[Group, tuple[int, float]], here: Scales | None, problems: list[str]
) -> tuple[dict[str, Arrays], dict[str, tuple[int, float]]]:
    """Read the factors in files, by path, and their ranks and alphas."""
    arrays = files.reader.read_checked([name for group, (rank, _) in chosen.items() for name in group.expected(rank)])
    ranks = None if here is None else {path: rank for path, (rank, _) in here.items()}
    pairs: dict[str, Arrays] = {}
    scales: dict[str, tuple[int, float]] = {}
    for group, (rank, alpha) in chosen.items():
        found = group.from_file(arrays, ranks)
        if found is None:
            problems.append(f"{group.modules[0]} adapts other parts than the model, or is not made of blocks")
            continue
        pairs |= found
        scales |= {path: (first.shape[1], alpha * first.shape[1] / rank) for path, (first, *_) in found.items()}
    return pairs, scales


def _whole_pieces(
    model: AdaptableModel, built: BuiltModel, weight_map: WeightMap | None, paths: Sequence[str] | None
) -> dict[str, list[Piece]]:
    """Return the pieces in files of weights that are trained whole; without `paths` of all weights."""
    if paths is not None and not paths:
        return {}
    shapes = {row.path: row.shape for row in built.cell.plan.rows if row.role == "parameter"}
    shapes |= {path: one.shape for path, one in quantized_weights(built).items()}
    found = (weight_map or model._map_of_base() or WeightMap()).pieces_of(shapes)[0]
    return {
        path: [dataclasses.replace(one, name=one.name.replace("/", ".")) for one in pieces]
        for path, pieces in found.items()
        if paths is None or path in paths
    }


def _whole_in(
    files: AdapterFiles, pieces: Mapping[str, Sequence[Piece]], problems: list[str]
) -> dict[str, Sequence[Piece]]:
    """Return the pieces of the weights that files have whole; note those that do not fit."""
    found: dict[str, Sequence[Piece]] = {}
    for path, each in pieces.items():
        there = [f"{PREFIX}{one.name}" in files.reader.shapes for one in each]
        if any(there) and files.has_whole(each[0].name.rpartition(".")[0]):
            found[path] = each
            absent = [one.name for one, is_there in zip(each, there, strict=True) if not is_there]
            problems += [f"{path} is a stack, of which the files lack {absent[0]}"] if absent else []
            problems += [f"{path} is a part of {each[0].name}"] if each[0].cut is not None else []
    names = [one.name.rpartition(".")[0] for each in found.values() for one in each]
    lacking = [name for name in files.whole if not any(one.endswith(name) for one in names)]
    problems += [f"modules_to_save: {name!r} has no arrays that the model has" for name in lacking]
    return found


def _loaded(files: AdapterFiles, path: str, pieces: Sequence[Piece], shape: tuple[int, ...]) -> np.ndarray:
    """Return the value of a weight in files."""
    names = [f"{PREFIX}{piece.name}" for piece in pieces]
    arrays = files.reader.read_checked(names)
    found = [load_piece(arrays[name], piece, path) for name, piece in zip(names, pieces, strict=True)]
    parts = Parts(pieces, found, shape)
    if parts.shape != parts.wanted:
        summary = f"load_adapter: {names[0]!r} does not fit the weight {path!r}"
        raise ModelError(summary, given=f"shape {parts.shape} for {parts.wanted}", fix="load an adapter of this model")
    return parts[tuple(slice(0, size) for size in shape)]


def _pair(form: Form, merged: Mapping[str, MergedWeight]) -> Arrays:
    return form.to_file(*(factor.numpy() for factor in merged[form.path].factors))


def _scale(one: MergedWeight, weights: Scales) -> tuple[int, float]:
    """Return rank and alpha of a weight, which its layer has alone or with others."""
    if one.path in weights or not isinstance(one.layer, LoraLayer):
        return weights[one.path]
    rank = one.layer.lora_rank or 1
    return rank, one.layer.lora_alpha or rank


def _groups(model: AdaptableModel, built: BuiltModel, weight_map: WeightMap | None) -> list[Group]:
    """Return the form in files of each weight that LoRA can adapt, in groups of one module."""
    candidates = {one.weight: one for one in candidates_in(built) if one.dims}
    shapes = {path: built.cell.row(path).shape for path in candidates}
    shapes |= {path: one.shape for path, one in quantized_weights(built).items()}
    pieces, _ = (weight_map or model._map_of_base() or WeightMap()).pieces_of(shapes)
    found: list[Form] = []
    for path, one in candidates.items():
        shape, names = shapes[path], [piece.name for piece in pieces[path]]
        dims = factor_dims(one.dims)
        count = shape[0] if one.dims[0] == LAYERS else None
        piece = None if names == [path] else pieces[path][0]
        if piece is None:  # our own path with dots, and the numbers in a stack
            whole = one.names[0].replace("/", ".")
            modules = [whole] if count is None else [f"{whole}.{number}" for number in range(count)]
        else:
            modules = names if one.kind == "experts" else [name.rpartition(".")[0] for name in names]
        is_tied = isinstance(one.layer, ReversibleEmbedding) and one.layer.tie_weights
        found.append(Form(path, tuple(modules), one.kind, shape, dims, piece, is_tied))
    return groups_of(found)


def _problems(chosen: Sequence[Group], groups: Sequence[Group]) -> Iterator[str]:
    """Yield what the format cannot hold."""
    counts = Counter(module for group in groups for module in group.modules)
    for group in chosen:
        yield from filter(None, (form.problem for form in group.forms))
        paths = [form.path for form in group.forms]
        if len(paths) > 1 and any(form.piece is None or form.piece.cut is None for form in group.forms):
            yield f"{group.modules[0]} has no rows for each of {', '.join(paths)}: name them in one tuple"
        yield from (f"{group.forms[0].path} is a part of {one}" for one in group.modules if counts[one] > 1)


def _taken_for_experts(chosen: Sequence[Group], everything: Sequence[Group]) -> Iterator[str]:
    """Yield modules beside experts that peft maps to parameters of these, in any layer (peft 0.21.2)."""
    if any(group.is_parameter and group.forms[0].piece is not None for group in everything):
        modules = (module for group in chosen if not group.is_parameter for module in group.modules)
        taken = [module for module in modules if module.rpartition(".")[2] in _NAMES_OF_EXPERTS]
        yield from (f"{module} is not of experts, but peft adapts experts instead of it" for module in taken)


def _other_dims(chosen: Sequence[Group], merged: Mapping[str, MergedWeight]) -> Iterator[str]:
    for group in chosen:
        for form in group.forms_in(merged):
            if merged[form.path].dims != form.dims:
                yield f"{form.path} was adapted by its layer alone, whose factors split other dims"


def _without_vectors(chosen: Sequence[Group], merged: Mapping[str, MergedWeight]) -> Iterator[str]:
    for form in (form for group in chosen if group.vector for form in group.forms):
        if form.path not in merged or not merged[form.path].vector:
            yield f"{form.path} is without {OPTIONS[chosen[0].vector]}, which peft has for all of {form.modules[0]}"


def _other_scales(chosen: Sequence[Group], scales: Scales) -> Iterator[str]:
    for group in chosen:
        factors = [alpha / rank for rank, alpha in (scales[form.path] for form in group.forms_in(scales))]
        if any(not math.isclose(factor, factors[0]) for factor in factors):
            yield f"{group.modules[0]} consists of weights with different alpha / rank: {factors}"
