"""Arrays of a model in files of Keras: weights and optimizer state, read and written shard by shard."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist._support.located_warnings import warn
from keras_dist._unstable import jax_internals
from keras_dist._unstable.jax_internals import is_key_dtype, key_impl
from keras_dist.distribution.placement import host_copy, place_copy
from keras_dist.errors import ModelError
from keras_dist.files.drafts import draft_of, writing_to
from keras_dist.files.locks import alone_in
from keras_dist.files.tensor_writer import grouped
from keras_dist.formats.array_store import check_narrowed, is_complex, narrowed, set_array, warn_unchecked
from keras_dist.formats.h5_files import H5Reader, H5Writer, index_of, old_shards, shard_name
from keras_dist.formats.keras_archives import KERAS_SUFFIX, OWN, KerasArchive, KerasFolder
from keras_dist.formats.keras_paths import OPTIMIZER, Hooks, name_now, stored_variables
from keras_dist.formats.keras_slots import Slot, derived, stored_slots
from keras_dist.formats.load_report import LoadReport, misfit
from keras_dist.formats.model_state import names_of
from keras_dist.formats.save_formats import check_file_path, legacy_error
from keras_dist.jobs.job import is_chief
from keras_dist.jobs.rendezvous import Rendezvous
from keras_dist.layers.base.names import layers_below
from keras_dist.training.built_model import BuiltModel
from keras_dist.training.lora_weights import MergedWeight, factor_paths, merged_weights
from keras_dist.training.optimization import DEFAULT

Fetch = tuple[str, Callable[[], Any]]
"""The name of an array in a file, and a function that returns it on the host; all processes of a job must call it."""


@dataclasses.dataclass(frozen=True)
class Contents:
    """The variables of a model that files of Keras contain."""

    slots: list[Slot]  # the arrays, in the order of the file
    # layers with `save_own_variables`, by the names of their groups
    hooked: dict[str, Any] = dataclasses.field(default_factory=dict)
    # layers with separate files, by the names of their folders
    with_assets: dict[str, Any] = dataclasses.field(default_factory=dict)
    # the weights that LoRA adapts, by their paths: kept with what the factors add, without the factors
    merged: dict[str, MergedWeight] = dataclasses.field(default_factory=dict)
    skipped: frozenset[str] = frozenset()  # names of arrays that are not set

    def written(self) -> list[Slot]:
        """Return the arrays to write; all processes of a job must call it."""
        found = list(self.slots)
        for group, layer in self.hooked.items():
            store: dict[str, Any] = {}
            layer.save_own_variables(store)
            found += [Slot(f"{group}/{key}", computed=functools.partial(_as_numpy, v)) for key, v in store.items()]
        return found


def contents_of(model: Any, built: BuiltModel, stored: Iterable[str] = ()) -> Contents:
    """Return the variables of a model that files of Keras contain, by name in a file with these arrays."""
    live = dict(layers_below(model))
    hooks = Hooks(live)
    merged = merged_weights(built)
    listed = [built.path_of(weight) for weight in built.variables()]
    states = {path for path in listed if built.cell.row(path).role == "state"}  # of stateful RNNs, say
    left_out = factor_paths(built, merged) | states
    order = {path: place for place, path in enumerate(listed) if path not in left_out}
    names = {name: order[row.path] for row in built.cell.plan.rows if row.path in order for name in row.aliases}
    module, places, there = built.cell.graph.described(), {**names, **order}, {name_now(name) for name in stored}
    pairs = [*stored_variables(module, places, hooks)]
    if there and any(name not in there for name, _ in pairs):
        otherwise = Hooks(live)
        others = [*stored_variables(module, places, otherwise, there)]
        if others:
            reached, hooks = {path for _, path in others} | otherwise.covered, otherwise
            pairs = others + [pair for pair in pairs if pair[1] not in reached]
    found = [
        Slot(name, built.variable(path), computed=merged[path].numpy if path in merged else None)
        for name, path in pairs
    ]
    kept = {built.cell.row(path).path for path in (*(path for _, path in pairs), *hooks.covered)}
    beside = [Slot(f"{OWN}/{path}", built.variable(path)) for path in order if path not in kept]
    return Contents(found + beside, hooks.found, hooks.with_assets, merged)


def _but(contents: Contents, skipped: Sequence[Any]) -> Contents:
    """Leave out the weights of some layers."""
    weights = [weight for layer in skipped for weight in layer.weights]
    left = [slot for slot in contents.slots if not any(slot.variable is one for one in weights)]
    hooked = {group: layer for group, layer in contents.hooked.items() if all(layer is not one for one in skipped)}
    names = {slot.name for slot in contents.slots} - {slot.name for slot in left}
    return dataclasses.replace(contents, slots=left, hooked=hooked, skipped=frozenset(names))


def stored_optimizer(built: BuiltModel) -> list[Slot]:
    """Return the optimizer arrays in the form of Keras; empty if Keras has no such optimizer."""
    if [*built.optimizers] != [DEFAULT]:
        return []
    paths = [path for path in map(built.path_of, built.variables()) if built.cell.is_trained(path)]
    return stored_slots(built.optimizers[DEFAULT].transformation, paths, OPTIMIZER) or []


def own_arrays(built: BuiltModel, contents: Contents, slots: Iterable[Slot]) -> dict[str, int]:
    """Return names and places of the arrays that only keras_dist stores; weights contain the product of LoRA."""
    kept = {built.place_of(slot.variable) for slot in slots}
    kept |= {built.place_of(factor) for one in contents.merged.values() for factor in one.factors}
    places = {name: place for place, name in enumerate(names_of(built)) if place not in kept}
    return {f"{OWN}/{name}": place for name, place in places.items()}


def fetches(built: BuiltModel, slots: Iterable[Slot], own: Mapping[str, int] | None = None) -> list[Fetch]:
    """Return functions that copy slots and `own_arrays` to the host."""
    arrays = built.cell.arrays
    return [(slot.name, slot.numpy) for slot in slots] + [
        (name, functools.partial(host_copy, arrays[place])) for name, place in (own or {}).items()
    ]


@contextlib.contextmanager
def drafted(
    caller: str, path: pathlib.Path, built: BuiltModel, groups: Sequence[Callable[[], list[Fetch]]]
) -> Iterator[list[pathlib.Path]]:
    """Write each group of arrays to a draft beside `path`, one array after another.

    Yields the paths of the drafts in the first process, an empty list in others. The model is not trained meanwhile.
    """
    with writing_to(path), built.cell.lock, contextlib.ExitStack() as opened:
        drafts: list[pathlib.Path] = []

        def write() -> None:
            folder = opened.enter_context(draft_of(path)) if is_chief() else None
            for number, group in enumerate(groups):
                with contextlib.ExitStack() as file:
                    writer = None
                    if folder is not None:
                        drafts.append(folder / f"arrays-{number}")
                        writer = file.enter_context(H5Writer(caller, drafts[-1], path))
                    _write(group(), writer)

        Rendezvous("a save").each(write)
        yield drafts


def _write(fetches: Iterable[Fetch], writer: H5Writer | None) -> None:
    failure: BaseException | None = None
    for name, fetch in fetches:
        value = np.asarray(fetch())
        if writer is not None and failure is None:
            try:
                writer.write(name, value)
            except Exception as error:  # the other processes wait for this one to fetch the rest
                failure = error
    if failure is not None:
        raise failure


def save_h5_weights(
    model: Any,
    built: BuiltModel,
    path: pathlib.Path,
    overwrite: bool,
    max_bytes: float | None,
    skipped: Sequence[Any] = (),
) -> None:
    """Write weights and optimizer state to one `.weights.h5`, or to shards and an index."""
    path = path.with_suffix(".json") if max_bytes is not None else path  # as Keras does
    check_file_path("save_weights", path, overwrite, ModelError)
    slots = [*_but(contents_of(model, built), skipped).written(), *stored_optimizer(built)]
    is_index = path.suffix == ".json"
    groups = [slots]
    sizes = {slot.name: _bytes(slot) for slot in slots}
    if is_index:
        by_name = {slot.name: slot for slot in slots}
        groups = [[by_name[name] for name in names] for names in grouped(sizes, max_bytes)]
    readers = [functools.partial(fetches, built, group) for group in groups]
    with drafted("save_weights", path, built, readers) as drafts:

        def commit() -> None:
            with alone_in(path.parent):
                if not is_index:
                    os.replace(drafts[0], path)
                    return
                index = drafts[0].with_name("index")
                index.write_text(index_of(path, [[slot.name for slot in group] for group in groups], sizes), "utf-8")
                path.unlink(missing_ok=True)  # Keras fixes the names of the files: an old index would name the new ones
                for number, draft in enumerate(drafts):
                    os.replace(draft, path.with_name(shard_name(path, number)))
                os.replace(index, path)
                names = {shard_name(path, number) for number in range(len(drafts))}
                for file in old_shards(path):
                    if file.name not in names:
                        file.unlink()

        Rendezvous("a save of weights").first(commit)


def load_h5_weights(
    model: Any, built: BuiltModel, path: pathlib.Path, strict: bool, skipped: Sequence[Any] = ()
) -> LoadReport:
    """Set the weights of a model from a file of Keras."""
    with opened(path) as reader:
        if any(reader.attribute(group, "layer_names") is not None for group in ("/", "model_weights")):
            raise legacy_error("load_weights", str(path))
        contents = _but(contents_of(model, built, reader.shapes), skipped)
        # Keras, too, takes its state where the optimizer is built
        optimizer = stored_optimizer(built) if built.cell.steps_taken else []
        report = set_contents(model.name, built, contents, reader, strict, optimizer)
        if optimizer:
            set_optimizer(built, optimizer, reader)
    return report


@contextlib.contextmanager
def opened(path: pathlib.Path) -> Iterator[H5Reader]:
    """Open the arrays of a `.weights.h5` file, a `.keras` archive or an unzipped archive."""
    if path.name.endswith(KERAS_SUFFIX) or path.is_dir():
        with (KerasFolder if path.is_dir() else KerasArchive)("load_weights", path) as archive:
            yield archive.arrays()
    else:
        with H5Reader("load_weights", path) as reader:
            yield reader


def set_contents(
    model: str, built: BuiltModel, contents: Contents, reader: H5Reader, strict: bool, beside: Sequence[Slot] = ()
) -> LoadReport:
    """Set the weights and `beside` from a file; on an error nothing is set."""
    slots, there = contents.slots, {name_now(name): name for name in reader.shapes}
    missing: dict[str, str] = {}
    unfit: dict[str, str] = {}
    for slot in slots:
        path, shape = slot.variable.path, reader.shapes.get(there.get(slot.name, ""))
        if shape is None:
            missing[path] = f"{path}, there {slot.name!r}"
        elif shape != slot.shape or _loses_part(reader, there[slot.name], slot):
            kind = "complex " if is_complex(reader, there[slot.name]) else ""
            unfit[path] = f"{path}, there {slot.name!r} {kind}{shape} for {slot.shape}"
    names = {slot.name for slot in slots} | contents.skipped
    hooked = tuple(f"{group}/" for group in contents.hooked)
    extra = tuple(name for name in there if name not in names and not _is_beside(name) and not name.startswith(hooked))
    if strict and (missing or extra or unfit):
        problems = (missing.values(), extra, unfit.values(), ())
        raise misfit(model, str(reader.path), problems, reader.caller)
    fitting = [slot for slot in slots if slot.variable.path not in missing and slot.variable.path not in unfit]

    def check() -> None:
        reader.check(there.values())
        for slot in fitting:
            check_narrowed(reader, there[slot.name], slot.variable.dtype)
        for slot in beside:
            if slot.variable is not None and slot.name in reader.shapes:
                check_narrowed(reader, slot.name, slot.variable.dtype)

    Rendezvous("a load of weights").each(check)
    warn_unchecked(reader, there.values())
    for slot in fitting:
        _set(built, slot, reader, there[slot.name])
        if slot.variable.path in contents.merged:
            contents.merged[slot.variable.path].forget(built.cell)
    for group, layer in contents.hooked.items():
        keys = {name.removeprefix(f"{group}/"): there[name] for name in there if name.startswith(f"{group}/")}
        layer.load_own_variables(_Store(reader, keys))
    loaded = dict.fromkeys(slot.variable.path for slot in fitting)
    report = LoadReport(tuple(loaded), tuple(missing), extra, tuple(unfit))
    report.warn_of_rest(str(reader.path))
    return report


def set_optimizer(built: BuiltModel, slots: Sequence[Slot], reader: H5Reader) -> bool:
    """Set the optimizer state from a file with a matching optimizer; return whether it was set."""
    stored = {name for name in reader.shapes if name.startswith(f"{OPTIMIZER}/")}
    if not stored:
        return False
    fits = all(slot.name in stored and slot.shape in (None, reader.shapes[slot.name]) for slot in slots)
    if not fits or len(stored) != len(slots):
        warn(
            f"{str(reader.path)!r} has the state of another optimizer, or of one that took no step: {len(stored)} "
            f"arrays for {len(slots)}; the optimizer stays as it is"
        )
        return False
    for slot in slots:
        if slot.variable is not None:
            _set(built, slot, reader, slot.name)
    optimizer: Any = built.optimizers[DEFAULT].transformation
    for handle, value in derived(optimizer):
        handle.assign(value)
    steps = next(handle for handle in optimizer.variables if handle.name == "iterations").numpy()
    place = names_of(built).index("step")
    built.cell.put({place: _placed(built, place, steps)})
    return True


def set_own(built: BuiltModel, own: dict[str, int], reader: H5Reader) -> None:
    """Set the arrays that only keras_dist stores."""
    for name, place in own.items():
        if name in reader.shapes:
            _set_place(built, place, reader, name, Slot(name))


class _Store(Mapping[str, np.ndarray]):
    """The arrays in a group of a file, each of which is read when it is asked for."""

    def __init__(self, reader: H5Reader, names: Mapping[str, str]) -> None:
        self._reader, self._names = reader, names

    def __getitem__(self, key: str) -> np.ndarray:
        return self._reader.read(self._names[key])

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _as_numpy(value: Any) -> np.ndarray:
    return np.asarray(value.numpy() if hasattr(value, "numpy") else value)


def _set(built: BuiltModel, slot: Slot, reader: H5Reader, name: str) -> None:
    variable, place = slot.variable, built.place_of(slot.variable)
    if place is not None:
        _set_place(built, place, reader, name, slot)
    else:
        variable.assign(narrowed(slot.ours(reader.read(name)), variable.dtype, reader, name))


def _set_place(built: BuiltModel, place: int, reader: H5Reader, name: str, slot: Slot) -> None:
    """Set an array of the model, of which each device of this process gets its part."""
    if is_key_dtype(built.cell.state_plan.rows[place].dtype):
        before, data = built.cell.arrays[place], reader.read(name)
        if data.shape != jax.random.key_data(before).shape:
            raise reader.damaged(f"{name!r} of shape {data.shape}")
        words = jnp.asarray(narrowed(data, jnp.uint32, reader, name))
        value = jax.random.wrap_key_data(words, impl=key_impl(before.dtype))
        built.cell.put({place: _placed(built, place, value)})
        return
    set_array(built.cell, place, lambda index: slot.ours(reader.read(name, slot.of_ours(index))), reader, name)


def _placed(built: BuiltModel, place: int, value: Any) -> jax.Array:
    return place_copy(value, jax.tree.leaves(built.cell.state_plan.shardings)[place])


def _is_beside(name: str) -> bool:
    """Whether an array in a file is not a weight."""
    return name.startswith((f"{OPTIMIZER}/", f"{OWN}/", "optimizer_weights/")) or "seed_generator" in name


def _loses_part(reader: H5Reader, name: str, slot: Slot) -> bool:
    return is_complex(reader, name) and not jnp.issubdtype(slot.variable.dtype, jnp.complexfloating)


def _bytes(slot: Slot) -> int:
    if slot.variable is None:
        return np.asarray(slot.numpy()).nbytes
    return math.prod(slot.variable.shape) * jax_internals.itemsize(slot.variable.dtype)
