"""`write`: write a function of weights and inputs as a program to a folder."""

from __future__ import annotations

import importlib.metadata
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from keras_dist._support.located_warnings import warn
from keras_dist._support.types import DTypeLike, PyTree
from keras_dist.errors import KerasDistError, ModelError, shorten
from keras_dist.export.manifest import PROGRAM, WEIGHTS, ArraySpec, Manifest, sha256_of
from keras_dist.export.structure import Structure, described, filled
from keras_dist.files.drafts import draft_of, writing_to
from keras_dist.files.tensor_writer import write_file

PLATFORMS = ("cpu", "cuda", "tpu")
BATCH = "batch"
_SOME_SIZE = 4  # replaces dims of any size, to find out whether they are the reason of an error

Dims = tuple[int | None, ...]
Named = list[tuple[int | str, ...]]


class Lowered:
    """A function of weights, by path, and inputs as a program, for all platforms or, if that fails, for this one."""

    def __init__(
        self,
        function: Callable[[dict[str, jax.Array], PyTree], PyTree],
        weights: Mapping[str, jax.ShapeDtypeStruct],
        input_structure: Structure,
        shapes: Sequence[Dims],
        dtypes: Sequence[Any],
        platforms: Sequence[str] | None,
    ) -> None:
        def predict(weights: dict[str, jax.Array], inputs: list[jax.Array]) -> list[jax.Array]:
            outputs = function(weights, filled(input_structure, inputs))
            self.output_structure, leaves = described("the output of the model", outputs)
            return [jnp.asarray(leaf) for leaf in leaves]

        self.output_structure: Structure = None  # set when `predict` is traced
        self._jitted = jax.jit(predict)
        self.weights, self.dtypes = dict(weights), tuple(map(jnp.dtype, dtypes))
        self.program, self.shapes = self._found(list(shapes), platforms)
        if self.program.nr_devices != 1:
            given = f"a call that itself places arrays on {self.program.nr_devices} devices"
            fix = "leave distribute_tensor out of `call`, and write layout rules for `<path>/output`"
            raise ModelError("export: the model runs on more than one device", given=given, fix=fix)

    def _found(self, shapes: list[Dims], platforms: Sequence[str] | None) -> tuple[jax.export.Exported, Named]:
        here = (jax.export.default_export_platform(),)
        errors: list[Exception] = []
        for these in (tuple(platforms),) if platforms is not None else (PLATFORMS, here):
            for named in _namings(shapes):
                try:
                    program = self._lower(named, these)
                except Exception as error:
                    errors.append(error)
                    continue
                if platforms is None and these != PLATFORMS:
                    text = f"export: the program runs on {', '.join(these)} only: {_first_line(errors[0])}"
                    warn(text)
                return program, named
        self._explain(shapes, tuple(platforms or here), errors[0])

    def _lower(self, named: Named, platforms: Sequence[str]) -> jax.export.Exported:
        scope = jax.export.SymbolicScope()
        inputs = [
            jax.ShapeDtypeStruct(jax.export.symbolic_shape(", ".join(map(str, dims)), scope=scope), dtype)
            for dims, dtype in zip(named, self.dtypes, strict=True)
        ]
        return jax.export.export(self._jitted, platforms=platforms)(self.weights, inputs)

    def _explain(self, shapes: list[Dims], platforms: Sequence[str], error: Exception) -> NoReturn:
        """Raise the error for a program that cannot be lowered."""
        fixed: Named = [tuple(_SOME_SIZE if size is None else size for size in dims) for dims in shapes]
        try:
            self._lower(fixed, platforms)
        except KerasDistError:
            raise
        except Exception as other:
            summary = f"export: the model cannot be lowered for {', '.join(platforms)}"
            fix = "remove Python callbacks from `call`, or pass platforms=(...) that it can be lowered for"
            raise ModelError(summary, given=f"{type(other).__name__}: {_first_line(other)}", fix=fix) from other
        given = f"inputs of shapes {shorten(shapes)}; {type(error).__name__}: {_first_line(error)}"
        fix = "model.export(..., batch_size=32) for one size of batches; for other dims input_signature with sizes"
        raise ModelError("export: the model cannot be lowered for batches of any size", given=given, fix=fix) from error


def write(
    path: pathlib.Path,
    lowered: Lowered,
    input_structure: Structure,
    input_names: Sequence[str],
    output_names: Sequence[str],
    weights: dict[str, np.ndarray],
) -> None:
    """Write a program to a new folder, atomically, with the names of its inputs and outputs and its weights."""
    program = lowered.program
    with writing_to(path), draft_of(path) as folder:
        draft = folder / path.name
        draft.mkdir()
        write_file("export", draft / WEIGHTS, weights, lambda name: [weights[name]], path / WEIGHTS)
        (draft / PROGRAM).write_bytes(program.serialize())
        outputs = [(aval.shape, aval.dtype) for aval in program.out_avals]
        inputs = list(zip(lowered.shapes, lowered.dtypes, strict=True))
        Manifest(
            tuple(_spec(name, *array) for name, array in zip(input_names, inputs, strict=True)),
            tuple(_spec(name, *array) for name, array in zip(output_names, outputs, strict=True)),
            input_structure,
            lowered.output_structure,
            tuple(program.platforms),
            {name: importlib.metadata.version(name) for name in ("keras_dist", "jax", "jaxlib", "safetensors")}
            | {"calling_convention": str(program.calling_convention_version)},
            {name: sha256_of(draft / name) for name in (PROGRAM, WEIGHTS)},
        ).write(draft)
        os.rename(draft, path)


def _namings(shapes: Sequence[Dims]) -> Iterator[Named]:
    """Yield names for dims of any size: first one for each; then one for each axis, as where inputs are joined."""
    yield [
        tuple(
            _name(size, axis, f"dim{axis}" + (f"_{number}" if len(shapes) > 1 else ""))
            for axis, size in enumerate(dims)
        )
        for number, dims in enumerate(shapes)
    ]
    if len(shapes) > 1 and any(None in dims[1:] for dims in shapes):
        yield [tuple(_name(size, axis, f"dim{axis}") for axis, size in enumerate(dims)) for dims in shapes]


def _name(size: int | None, axis: int, name: str) -> int | str:
    if size is not None:
        return size
    return name if axis else BATCH


def _spec(name: str, shape: Sequence[object], dtype: DTypeLike) -> ArraySpec:
    sizes = tuple(size if isinstance(size, int) else str(size) for size in shape)
    return ArraySpec(name, sizes, jnp.dtype(dtype).name)


def _first_line(error: Exception) -> str:
    return shorten(str(error).strip().partition("\n")[0])
