"""Factors of LoRA as modules of torch have them, also of modules that several weights are parts of.

`peft` adapts a module as a whole. A module of query, key and value has one A for all three, and its B has their rows.
Our weights have factors each: in the file, their A's are below each other, and B is block diagonal, which has the same
products. Blocks are found again by the zeros of B.

The weights of experts are parameters of one module (experts, outputs, inputs), which `peft` wraps one after the other:
all but the last have their factors below `base_layer`. A is (experts * rank, inputs), and B (outputs, rank * experts).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Literal

import jax.numpy as jnp
import numpy as np

from keras_dist.errors import shorten
from keras_dist.files.tensor_reader import TensorReader
from keras_dist.formats.weight_pieces import Piece
from keras_dist.layers.base.lora import Dims, Vector, output_dims

PREFIX = "base_model.model."

Kind = Literal["linear", "embedding", "convolution", "experts"]
Arrays = tuple[np.ndarray, ...]
"""A and B of a module, and its magnitude or the bias of B, if it has one."""

_ENDS = (".lora_A.weight", ".lora_B.weight")
_ENDS_OF_EMBEDDINGS = (".lora_embedding_A", ".lora_embedding_B")
_ENDS_OF_VECTORS: dict[Vector, str] = {"magnitude": ".lora_magnitude_vector", "bias": ".lora_B.bias"}


@dataclasses.dataclass(frozen=True)
class Form:
    """The factors of a weight in a file."""

    path: str  # of the weight
    modules: tuple[str, ...]  # torch's modules, or parameters of experts: one, or one for each layer of a stack
    kind: Kind  # of the module
    shape: tuple[int, ...]  # shape of the weight
    dims: Dims  # for each dim of the factors the dim of the weight; None for the rank
    # the weight, or the first layer of a stack, in the base's file; None under our own names
    piece: Piece | None = None
    is_tied: bool = False  # whether the weight is also the head

    @property
    def problem(self) -> str:
        """Why the format cannot hold the factors; empty if it can."""
        count = math.prod(self.shape[dim] for dim in self._stacked) // self.experts
        cut = None if self.piece is None else self.piece.cut
        if self.is_tied:
            return f"{self.path}: it is also the head, whose weight peft does not adapt with it"
        if self._stacked - {0} and self.kind != "experts":
            return f"{self.path}: its factors share more than the dim of a stack"
        if len(self.modules) != count:
            return f"{self.path}: {count} modules in the file, not {len(self.modules)}: {shorten(self.modules)}"
        if self.axis_of_outputs is None:
            return f"{self.path}: its transform does more than joining dims, and transposing"
        if self.kind == "experts" and self.axis_of_outputs == 1:
            return f"{self.path}: peft expects parameters (experts, outputs, inputs)"
        if cut is not None and cut.step > 1:
            return f"{self.path}: its elements take turns with others in {self.modules[0]}"
        axis = None if cut is None else cut.axis - (self.kind == "experts")
        if cut is not None and (self.kind not in ("linear", "experts") or axis != self.axis_of_outputs):
            return f"{self.path}: a part of {self.modules[0]}, joined along the inputs"
        return ""

    @property
    def experts(self) -> int:
        """The number of experts in a module; 1 for other weights."""
        return self.shape[-3] if self.kind == "experts" else 1

    @functools.cached_property
    def axis_of_outputs(self) -> int | None:
        """The axis of the base's matrix that has the outputs in our order; None without one."""
        if self.piece is None or self.kind not in ("linear", "experts"):
            return 0
        found = [self.piece.transform.save(self._numbered(factor)) for factor in (0, 1)]
        found = [each[0] if self.kind == "experts" and each.ndim == 3 else each for each in found]
        if found[0].ndim != 2:  # the map has names alone
            return 0 if self.piece.cut is None else None
        for axis in (0, 1):
            moved = np.moveaxis(found[0], axis, 1), np.moveaxis(found[1], axis, 0)
            if all(np.array_equal(numbers[:, [0, -1]].T, [np.arange(len(numbers))] * 2) for numbers in moved):
                return axis
        return None

    @property
    def rows(self) -> tuple[int, int, int]:
        """First and last row in B of the module, and the number of its rows."""
        cut = None if self.piece is None else self.piece.cut
        size = self._sizes(1)[0]
        return (0, size, size) if cut is None else (cut.start, cut.stop, cut.whole[cut.axis])

    @property
    def shape_of_copy(self) -> tuple[int, ...] | None:
        """The shape of the weight in a file, to which peft adds copies of adapted embeddings and heads."""
        if self.kind == "embedding":
            return self.shape
        sides = (self.rows[2], *self._sizes(0))
        return (sides[::-1] if self.axis_of_outputs == 1 else sides) if self.kind == "linear" else None

    def to_file(self, *factors: np.ndarray) -> Arrays:
        """Return A (layers, rank, inputs, ...), B (layers, outputs, rank) and the vector (layers, outputs)."""
        first, second, *vector = map(self._stack, factors)
        rank, layers = first.shape[-1], len(first)
        first = first.reshape(layers, *self._sizes(0)[:-1], -1, rank)
        both = np.moveaxis(first, (-1, -2), (1, 2)), second.reshape(layers, rank, -1).swapaxes(1, 2)
        return *both, *(one.reshape(layers, -1) for one in vector)

    def from_file(self, first: np.ndarray, second: np.ndarray, *vector: np.ndarray) -> Arrays:
        """Return the factors of A, B and the vector."""
        rank = first.shape[1]
        shapes = [tuple(rank if dim is None else self.shape[dim] for dim in dims) for dims in self.dims]
        shapes += [tuple(self.shape[dim] for dim in output_dims(self.dims))] * len(vector)
        found = np.moveaxis(first, (1, 2), (-1, -2)), second.swapaxes(1, 2), *vector
        return tuple(factor.reshape(shape) for factor, shape in zip(found, shapes, strict=True))

    @property
    def _stacked(self) -> set[int]:
        return {dim for dim in self.dims[0] if dim is not None and dim in self.dims[1]}

    def _sizes(self, factor: int) -> list[int]:
        """The sizes of inputs (0) or outputs (1) in the file, after the dims of a convolution's kernel."""
        sizes = [self.shape[dim] for dim in self.dims[factor] if dim is not None and dim not in self._stacked]
        return sizes if self.kind == "convolution" and factor == 0 else [math.prod(sizes)]

    def _stack(self, factor: np.ndarray) -> np.ndarray:
        return factor.reshape(-1, *factor.shape[max(len(self._stacked), 1) :]) if self._stacked else factor[None]

    def _numbered(self, factor: int) -> np.ndarray:
        """Return the number of its input (0) or output (1) for each element of a layer, without memory for them."""
        experts = [len(self.shape) - 3] if self.kind == "experts" else []
        sizes = {dim: size for dim, size in enumerate(self.shape) if dim not in self._stacked or dim in experts}
        shape = [size if dim in self.dims[factor] and dim not in experts else 1 for dim, size in sizes.items()]
        return np.broadcast_to(np.arange(math.prod(shape), dtype=np.float32).reshape(shape), tuple(sizes.values()))


@dataclasses.dataclass(frozen=True, eq=False)
class Group:
    """Weights with the same modules: one, or all parts of these modules in the order of their rows."""

    forms: tuple[Form, ...]  # of the weights
    depth: int = 0  # number of further wrappers around the wrapper of a parameter
    vector: Vector = ""

    @property
    def is_parameter(self) -> bool:
        """Whether peft wraps parameters, instead of modules."""
        return self.forms[0].kind == "experts"

    @property
    def modules(self) -> tuple[str, ...]:
        """The names of the modules."""
        return self.forms[0].modules

    @property
    def keys(self) -> Sequence[str]:
        """The names of the modules in files."""
        if not self.is_parameter:
            return self.modules
        return [name.rpartition(".")[0] + ".base_layer" * self.depth for name in self.modules]

    def forms_in(self, paths: Container[str]) -> list[Form]:
        """Return the forms of weights with these paths."""
        return [form for form in self.forms if form.path in paths]

    def expected(self, rank: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the arrays of a file."""
        form = self.forms[0]
        *kernel, inputs = form._sizes(0)
        rank *= form.experts
        shapes = (rank, inputs, *kernel), (form.rows[2], rank, *[1] * len(kernel)), (form.rows[2],)
        return {name: shape for names in self._names() for name, shape in zip(names, shapes, strict=False)}

    def to_file(self, pairs: Mapping[str, Arrays]) -> tuple[int, dict[str, np.ndarray]]:
        """Return the rank of the modules and the arrays of a file, for A, B and vectors of weights."""
        firsts = [pairs[form.path][0] for form in self.forms if form.path in pairs]
        is_shared = all(np.array_equal(first, firsts[0]) for first in firsts)
        first = firsts[0] if is_shared else np.concatenate(firsts, axis=1)
        second, column = np.zeros((len(first), self.forms[0].rows[2], first.shape[1]), first.dtype), 0
        for form in self.forms:
            if form.path in pairs:
                part, (start, stop, _) = pairs[form.path][1], form.rows
                second[:, start:stop, column : column + part.shape[-1]] = part
                column += 0 if is_shared else part.shape[-1]
        rank, experts = first.shape[1], self.forms[0].experts
        first = first.reshape(-1, experts * rank, *first.shape[2:])
        second = np.moveaxis(second.reshape(-1, experts, *second.shape[1:]), 1, 3)
        second = second.reshape(len(first), -1, experts * rank, *[1] * (first.ndim - 3))
        vector = [np.concatenate([pairs[form.path][2] for form in self.forms], axis=1)] if self.vector else []
        layers = zip(self._names(), zip(first, second, *vector, strict=True), strict=True)
        return rank, {name: array for both in layers for name, array in zip(*both, strict=True)}

    def from_file(self, arrays: Mapping[str, np.ndarray], ranks: Mapping[str, int] | None) -> dict[str, Arrays] | None:
        """Return arrays of the adapted weights, of these ranks if they are known; None if they do not fit."""
        names = zip(*self._names(), strict=True)
        first, second, *vector = (np.stack([arrays[name].astype("float32") for name in each]) for each in names)
        experts = self.forms[0].experts
        first = first.reshape(len(first) * experts, -1, *first.shape[2:])
        second = np.moveaxis(second.reshape(*second.shape[:2], -1, experts), 3, 1)
        second = second.reshape(len(first), *second.shape[2:])
        parts = [second[:, slice(*form.rows[:2])] for form in self.forms]
        columns = _columns(parts, None if ranks is None else [ranks.get(form.path, 0) for form in self.forms])
        if columns is None or (vector and any(one.start == one.stop for one in columns)):
            return None
        found: dict[str, Arrays] = {}
        for form, part, one in zip(self.forms, parts, columns, strict=True):
            if one.start < one.stop:
                rows = (each[:, slice(*form.rows[:2])] for each in vector)
                found[form.path] = first[:, one], part[..., one], *rows
        return found

    def _names(self) -> list[tuple[str, ...]]:
        ends = _ENDS_OF_EMBEDDINGS if self.forms[0].kind == "embedding" else _ENDS
        ends = (*ends, _ENDS_OF_VECTORS[self.vector]) if self.vector else ends
        return [tuple(f"{PREFIX}{module}{end}" for end in ends) for module in self.keys]


def modules_in(reader: TensorReader) -> set[str]:
    """Return the modules of torch that have a first factor in a file."""
    names = [name.removeprefix(PREFIX) for name in reader.shapes]
    return {name.removesuffix(end) for end, _ in (_ENDS, _ENDS_OF_EMBEDDINGS) for name in names if name.endswith(end)}


def misfits(reader: TensorReader, groups: Mapping[Group, int], known: Container[str] = ()) -> Iterator[str]:
    """Yield what does not fit groups of these ranks in a file: missing arrays, unknown ones, and other shapes."""
    expected = {name: shape for group, rank in groups.items() for name, shape in group.expected(rank).items()}
    for name, shape in expected.items():
        found = reader.shapes.get(name)
        if found is None:
            yield f"missing: {name}"
        elif found != shape:
            yield f"{name} has shape {found}, not {shape}"
        elif not jnp.issubdtype(reader.dtype(name), jnp.floating):
            yield f"{name} has elements of {reader.dtype(name)}"
    forms = (form for group in groups for form in group.forms)
    copies = {f"{PREFIX}{module}.base_layer.weight": form.shape_of_copy for form in forms for module in form.modules}
    others = (name for name, shape in reader.shapes.items() if copies.get(name) != shape)
    yield from (f"not in the model: {name}" for name in others if name not in expected and name not in known)


def groups_of(forms: Iterable[Form]) -> list[Group]:
    """Return the groups of weights with the same modules."""
    found: dict[tuple[str, ...], list[Form]] = {}
    for form in forms:
        found.setdefault(form.modules, []).append(form)
    return [Group(tuple(sorted(each, key=lambda form: form.rows[0]))) for each in found.values()]


def nested(groups: Sequence[Group], is_adapted: Callable[[Group], bool], vector: Vector) -> list[Group]:
    """Return the groups as peft wraps adapted parameters, without other parameters, and with vectors."""
    found: list[Group] = []
    inside: Counter[tuple[str, ...]] = Counter()
    for group in reversed(groups):
        if not group.is_parameter or is_adapted(group):
            module = tuple(name.rpartition(".")[0] for name in group.modules)
            found.append(dataclasses.replace(group, depth=inside[module], vector=vector))
            inside[module] += group.is_parameter
    return found[::-1]


def _columns(parts: Sequence[np.ndarray], ranks: Sequence[int] | None) -> list[slice] | None:
    """Return the columns of B of each part: a block if its rows are zero elsewhere, else all; None if they do not fit.

    Without ranks there are blocks if each column has one part with values other than zero.
    """
    rank = parts[0].shape[-1]
    used = np.stack([part.any(axis=(0, 1)) for part in parts])
    is_sorted = bool((used.sum(0) == 1).all() and (np.diff(used.argmax(0)) >= 0).all())
    found: list[int] = used.sum(1).tolist() if is_sorted else [rank] * len(parts)
    ranks = found if ranks is None else ranks
    blocks = [slice(end - size, end) for size, end in zip(ranks, np.cumsum(ranks).tolist(), strict=True)]
    both = list(zip(used, blocks, strict=True))
    if blocks[-1].stop == rank and not any(np.delete(row, block).any() for row, block in both):
        return blocks
    is_shared = all(size == rank or (size == 0 and not row.any()) for size, row in zip(ranks, used, strict=True))
    return [slice(0, size) for size in ranks] if is_shared else None
