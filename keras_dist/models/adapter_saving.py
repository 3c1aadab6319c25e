"""Adapters of a model in files of `peft`, and back: weights by the names of modules in the base's files."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from keras_dist.distribution.jobs.rendezvous import Rendezvous
from keras_dist.errors import ModelError
from keras_dist.layers import ReversibleEmbedding
from keras_dist.layers.lora import factor_dims
from keras_dist.models.adapters import candidates_in, enable, enumerated
from keras_dist.models.runtime import Adapters
from keras_dist.storage.adapter_files import (
    AdapterFiles,
    Form,
    adapter_folder,
    read_adapter,
    write_adapter,
    written_config,
)
from keras_dist.storage.lora_weights import merged_weights
from keras_dist.storage.weight_map import WeightMap
from keras_dist.training.built_model import BuiltModel

if TYPE_CHECKING:
    from keras_dist.models.adapter_methods import AdapterMethods


def save(
    model: AdapterMethods,
    filepath: str | os.PathLike[str],
    overwrite: bool,
    weight_map: WeightMap | None,
    **others: Any,
) -> None:
    """Write the adapters of a model; see `Model.save_adapter`."""
    session, adapters = model._with_weights(), model._runtime.adapters
    if adapters is None:
        fix = 'model.enable_lora(rank=8, layers=".*/query") first; save_weights saves all weights'
        raise ModelError("save_adapter: the model has no adapters", given=f"model {model.name!r}", fix=fix)
    folder = adapter_folder("save_adapter", filepath)
    forms = _forms(model, session, weight_map)
    chosen = [forms[path] for path in adapters.weights]
    merged = merged_weights(model, session)
    problems = [f"{path} was adapted by its layer alone" for path in merged if path not in adapters.weights]
    problems += _problems(chosen, forms.values())
    if problems:
        fix = "adapt other layers; or merge_lora, and save the merged weights"
        summary = "save_adapter: peft's format cannot hold the adapters"
        raise ModelError(summary, given=enumerated(problems), fix=fix)
    with session.cell.lock:  # all are of one step, whoever trains
        arrays = {
            name: array
            for form in chosen
            for name, array in form.to_file(*(factor.numpy() for factor in merged[form.path].factors)).items()
        }
    targets = _targets(chosen, forms.values())
    config = written_config(adapters.rank, adapters.alpha, adapters.dropout, targets, **others)
    write_adapter(folder, config, arrays, overwrite)


def load(
    model: AdapterMethods, filepath: str | os.PathLike[str], weight_map: WeightMap | None, dropout: float | None
) -> None:
    """Set the adapters of a model to those in files; see `Model.load_adapter`."""
    session, adapters = model._with_weights(), model._runtime.adapters
    folder, forms = adapter_folder("load_adapter", filepath), _forms(model, session, weight_map)
    read: list[tuple[AdapterFiles, list[Form], dict[str, Any]]] = []

    def look() -> None:
        files = read_adapter(folder)
        chosen, problems = _chosen(files, forms.values(), adapters)
        problems += _problems(chosen, forms.values())
        problems = problems or [*files.problems(chosen)]
        if problems:
            summary = f"{str(folder)!r} does not fit the adapters of model {model.name!r}"
            fix = "load an adapter of this model; or name its modules with weight_map=kd.interop.WeightMap(names=...)"
            raise ModelError(summary, given=enumerated(problems), fix=fix)
        names = [name for form in chosen for name in form.expected(files.rank)]
        read.append((files, chosen, files.reader.read_checked(names)))

    Rendezvous("a load of an adapter").each(look)
    ((files, chosen, arrays),) = read
    if adapters is None:
        layers = [re.escape(form.path) for form in chosen]
        enable(model, files.rank, layers, files.alpha, files.dropout if dropout is None else dropout)
    merged = merged_weights(model, session)
    for form in chosen:
        for factor, value in zip(merged[form.path].factors, form.from_file(arrays, files.rank), strict=True):
            factor.assign(value)


def _chosen(files: AdapterFiles, forms: Iterable[Form], adapters: Adapters | None) -> tuple[list[Form], list[str]]:
    """Return the forms that files have, or that the model has adapted already, and what does not fit."""
    if adapters is None:
        modules = files.modules()
        known = {module for form in forms for module in form.modules}
        problems = [f"unknown module {module}" for module in sorted(modules - known)]
        problems += [] if modules else ["no factors"]
        return [form for form in forms if not modules.isdisjoint(form.modules)], problems
    here, there = ({"rank": one.rank, "alpha / rank": one.alpha / one.rank} for one in (adapters, files))
    problems = [f"{name} is {there[name]}, in the model {here[name]}" for name in here if here[name] != there[name]]
    return [form for form in forms if form.path in adapters.weights], problems


def _forms(model: AdapterMethods, session: BuiltModel, weight_map: WeightMap | None) -> dict[str, Form]:
    """Return the form in files of each weight that LoRA can adapt, by path."""
    candidates = {one.weight: one for one in candidates_in(session) if one.dims[0]}
    shapes = {path: session.cell.row(path).shape for path in candidates}
    pieces, _ = (weight_map or model._map_of_base() or WeightMap()).pieces_of(shapes)
    found: dict[str, Form] = {}
    for path, one in candidates.items():
        shape, names = shapes[path], [piece.name for piece in pieces[path]]
        dims = factor_dims(len(shape), *one.dims)
        count = shape[0] if 0 in dims[0] and 0 in dims[1] else None
        if names == [path]:  # our own path with dots, and the numbers in a stack
            whole = one.names[0].replace("/", ".")
            modules = [whole] if count is None else [f"{whole}.{number}" for number in range(count)]
        else:
            modules = [name.rpartition(".")[0] for name in names]
        is_tied = isinstance(one.layer, ReversibleEmbedding) and one.layer.tie_weights
        found[path] = Form(path, tuple(modules), one.kind, shape, dims, is_tied)
    return found


def _problems(chosen: Sequence[Form], forms: Iterable[Form]) -> list[str]:
    """Return what the format cannot hold."""
    counts = Counter(module for form in forms for module in form.modules)
    problems = [form.problem for form in chosen if form.problem]
    parts = [f"{form.path} is a part of {module}" for form in chosen for module in form.modules if counts[module] > 1]
    return problems + parts


def _targets(chosen: Sequence[Form], forms: Iterable[Form]) -> list[str]:
    """Return `target_modules`: last names, unless these are numbers, if all modules with them are adapted; else all."""
    adapted = {module for form in chosen for module in form.modules}
    left = {module.rpartition(".")[2] for form in forms for module in form.modules if module not in adapted}
    names = dict.fromkeys(module.rpartition(".")[2] for module in adapted)
    return sorted(adapted if left & names.keys() or any(map(str.isdigit, names)) else names)
