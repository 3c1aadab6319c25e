"""A `WeightMap` at work: `MappedFile` is what a model loads, `MappedWeights` what a file is made of."""

from __future__ import annotations

import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist.data.conversion import noting
from keras_dist.distribution.placement import host_copy
from keras_dist.errors import ModelError
from keras_dist.files.tensor_format import in_parts, nbytes
from keras_dist.files.tensor_reader import TensorReader
from keras_dist.formats.array_store import narrowed, release_after
from keras_dist.formats.load_report import listed
from keras_dist.formats.weight_map import WeightMap
from keras_dist.formats.weight_pieces import Parts, Piece, load_piece
from keras_dist.formats.weight_transforms import Shape
from keras_dist.training.lora_weights import MergedWeight
from keras_dist.training.quantized_weights import QuantizedWeight
from keras_dist.training.state_cell import StateCell


class MappedFile:
    """The weights of a model in a file, given the shapes of its arrays, and of the weights."""

    def __init__(self, held: Mapping[str, Shape], weight_map: WeightMap, shapes: Mapping[str, Shape]) -> None:
        self._held, self._map = held, weight_map
        self._pieces, unused = weight_map.pieces_of(shapes)
        known = {*held, *(piece.name for each in self._pieces.values() for piece in each)}
        self.unused = (*unused, *weight_map.unknown_ties(known, self.extra()))  # rules without a weight or name

    def names_of(self, paths: Iterable[str]) -> list[str]:
        """Return the arrays of the file that these weights are made of, each once."""
        names = (piece.name for path in paths for piece in self._pieces[path])
        return list(dict.fromkeys(map(self._present, names)))

    def open(self, reader: TensorReader, path: str, shape: Shape) -> Parts:
        """Map the arrays that make a weight."""
        pieces = self._pieces[path]
        return Parts(pieces, [load_piece(reader.view(self._present(one.name)), one, path) for one in pieces], shape)

    def extra(self) -> tuple[str, ...]:
        """Return the arrays of the file that no weight needs, and that the map does not expect."""
        used = set(self.names_of(self._pieces))
        rest = (name for name in self._held if name not in used)
        return tuple(name for name in rest if self._map.alias(name) not in used and not self._map.ignores(name))

    def check_tied(self, reader: TensorReader) -> None:
        """Check that arrays of the file that are aliases of others have equal values."""
        used = set(self.names_of(self._pieces))
        aliases = {name: alias for name in reader.shapes if (alias := self._map.alias(name)) in used and alias != name}
        different = [name for name, alias in aliases.items() if not reader.are_equal(name, str(alias))]
        if different:
            summary = f"{reader.caller}: tied arrays differ in {str(reader.path)!r}"
            given = listed([f"{name} and {aliases[name]}" for name in different])
            raise ModelError(summary, given=given, fix="leave them out of `tied`, and load both: the model is not tied")

    def _present(self, name: str) -> str:
        """The name under which the file has the values of an array."""
        alias = None if name in self._held else self._map.alias(name)
        return name if alias is None or alias not in self._held else alias


class MappedWeights:
    """The arrays of a file, made of the weights of a model one at a time; `arrays` has shape and dtype of each."""

    caller = "save_weights"

    def __init__(
        self, path: pathlib.Path, cell: StateCell, weights: Mapping[str, Any], weight_map: WeightMap, dtype: Any
    ) -> None:
        self.path = path
        self._cell, self._weights = cell, weights
        pieces, unused = weight_map.pieces_of({path: weight.shape for path, weight in weights.items()})
        names = {piece.name for each in pieces.values() for piece in each}
        if unused := (*unused, *weight_map.unknown_ties(names)):
            fix = "correct the rules: model.layout_plan lists the paths of weights"
            raise ModelError("save_weights: rules that match no weight", given=listed(unused), fix=fix)
        self._pieces: dict[str, list[tuple[str, Piece]]] = {}
        for known_as, each in pieces.items():
            for piece in each:
                self._pieces.setdefault(piece.name, []).append((known_as, piece))
        for name, parts in self._pieces.items():
            parts.sort(key=lambda part: part[1].cut.start if part[1].cut else 0)
            if len(parts) > 1 and any(piece.cut is None for _, piece in parts):
                raise _ambiguous(name, [known_as for known_as, _ in parts])
        aliases = {name: alias for name in self._pieces if (alias := weight_map.alias(name)) in self._pieces}
        self._aliases = {name: str(alias) for name, alias in aliases.items() if alias != name}
        self.arrays = {
            name: jax.ShapeDtypeStruct(_saved_shape(name, parts), _saved_dtype(weights[parts[0][0]].dtype, dtype))
            for name, parts in self._pieces.items()
            if name not in self._aliases
        }

    def check_tied(self) -> None:
        """Check that weights that are not written equal the tied ones. All processes must call."""
        different = [f"{name} and {alias}" for name, alias in self._aliases.items() if self._differ(name, alias)]
        if different:
            fix = "leave them out of `tied`, so that both are saved"
            raise ModelError("save_weights: tied weights are not equal", given=listed(different), fix=fix)

    def fetch(self, name: str) -> np.ndarray:
        """Return an array of the file. All processes must call."""
        found = self._joined(name)
        described = self.arrays[name]
        if found.shape != described.shape:
            summary = f"save_weights: the transform for {name!r} returns another shape than for zeros"
            fix = "write a pair of functions whose shapes do not depend on values"
            raise ModelError(summary, given=f"{found.shape}, and {described.shape} for zeros", fix=fix)
        return found

    def parts(self, name: str) -> Iterator[np.ndarray]:
        """Yield an array of the file in small parts, in its element type there."""
        dtype = self.arrays[name].dtype
        for part in in_parts(self.fetch(name)):
            yield part if part.dtype == dtype else narrowed(part, dtype, self, name)
        release_after(nbytes(self.arrays[name]))

    def _differ(self, name: str, alias: str) -> bool:
        one, other = self._joined(name), self._joined(alias)
        return one.shape != other.shape or not np.array_equal(one, other, equal_nan=True)

    def _joined(self, name: str) -> np.ndarray:
        parts = self._pieces[name]
        with noting(f"save_weights: {name!r} of the weight {parts[0][0]!r}"):
            found = [piece.saved(self._part(path, piece)) for path, piece in parts]
        cut = parts[0][1].cut
        if cut is not None and cut.step > 1:  # they take turns
            return np.stack(found, axis=cut.axis + 1).reshape(cut.whole)
        return found[0] if cut is None else np.concatenate(found, axis=cut.axis)

    def _part(self, path: str, piece: Piece) -> np.ndarray:
        weight = self._weights[path]
        if isinstance(weight, MergedWeight | QuantizedWeight):
            return weight.numpy()[piece.region]
        return host_copy(self._cell.read(path), piece.region)


def _saved_shape(name: str, parts: Sequence[tuple[str, Piece]]) -> Shape:
    path, piece = parts[0]
    with noting(f"save_weights: {name!r} of the weight {path!r}"):
        return piece.transform.file_shape(piece.shape) if piece.cut is None else piece.cut.whole


def _saved_dtype(dtype: Any, wanted: Any) -> np.dtype[Any]:
    """The element type in the file: another one for floating-point numbers alone."""
    return jnp.dtype(dtype if wanted is None or not jnp.issubdtype(dtype, jnp.floating) else wanted)


def _ambiguous(name: str, paths: Sequence[str]) -> ModelError:
    summary = f"save_weights: the map does not say how {name!r} consists of {len(paths)} weights"
    fix = "name them together: names={('.*/query', '.*/key'): 'qk'}, or Joined('qk', axis=1) for another axis"
    return ModelError(summary, given=listed(paths), fix=fix)
