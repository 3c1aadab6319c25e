"""`load`: an exported model as a callable, without the code of the model."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.core
import jax.export
import jax.numpy as jnp
import numpy as np

from keras_dist._support.arguments import check_path
from keras_dist._support.types import ArrayLike, DTypeLike, PyTree
from keras_dist.errors import ModelError, shorten
from keras_dist.export.manifest import PROGRAM, WEIGHTS, ArraySpec, Manifest, damaged
from keras_dist.export.structure import arranged, filled
from keras_dist.files.tensor_reader import TensorReader


class ExportedProgram:
    """An exported model: `program(inputs) -> outputs`.

    It is compiled once for each shape of inputs, and may be called inside functions that JAX transforms.

    Args:
        manifest: description of inputs and outputs.
        program: the result of `jax.export`.
        weights: the weights by path.

    Attributes:
        inputs: names, shapes and dtypes of the inputs; dims of any size have names.
        outputs: names, shapes and dtypes of the outputs.
        platforms: platforms it runs on.
        versions: versions of the packages that made it.
    """

    def __init__(self, manifest: Manifest, program: jax.export.Exported, weights: Mapping[str, np.ndarray]) -> None:
        self.inputs, self.outputs = manifest.inputs, manifest.outputs
        self.platforms, self.versions = manifest.platforms, manifest.versions
        self._manifest = manifest
        self._weights = jax.device_put(dict(weights))
        self._run = jax.jit(program.call)

    def __call__(self, inputs: PyTree) -> PyTree:
        """Return the outputs for a batch.

        Args:
            inputs: arrays in the structure of the model's inputs, or a dict by their names.

        Returns:
            JAX arrays in the structure of the model's outputs.

        Raises:
            ModelError: structure, shapes or dtypes do not fit, or JAX cannot run the program.
        """
        names = [spec.name for spec in self.inputs]
        arrays = arranged(self._manifest.input_structure, names, inputs)
        sizes: dict[str, int] = {}
        given = [_checked(spec, array, sizes) for spec, array in zip(self.inputs, arrays, strict=True)]
        try:
            outputs = self._run(self._weights, given)
        except Exception as error:  # JAX, MLIR and XLA raise many kinds of errors for forged programs
            if any(isinstance(array, jax.core.Tracer) for array in given):
                raise  # of the function that JAX transforms
            summary = f"the exported program cannot be run by jax {jax.__version__} on {jax.default_backend()}"
            fix = "export the model again, for this platform; a program is code: load only what you trust"
            raise ModelError(summary, given=f"{type(error).__name__}: {shorten(str(error))}", fix=fix) from error
        return filled(self._manifest.output_structure, outputs)

    def __repr__(self) -> str:
        inputs, outputs = (", ".join(map(_described, arrays)) for arrays in (self.inputs, self.outputs))
        return f"<{type(self).__name__} {inputs} -> {outputs}, for {', '.join(self.platforms)}>"


def load(path: str | os.PathLike[str]) -> ExportedProgram:
    """Load a model that `model.export` wrote, as a callable on the default device.

    Reads no pickles and no Python code, and does not need the code of the model. But a program is code, which XLA
    compiles and runs in this process: a forged program can compute anything, and can end the process. Load only
    programs that you trust: checksums detect accidents, not forgery. Programs run on versions of JAX up to half a year
    newer than the one that made them, and often on later ones: see `jax.export`.

    Args:
        path: the folder.

    Raises:
        ModelError: the folder is not an exported model, or a file in it, which is named, is damaged or missing.

    Example:
        >>> import pathlib, tempfile
        >>> import numpy as np
        >>> import keras_dist as kd
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "exported"
        >>> model = kd.Sequential([kd.Input((3,), name="x"), kd.layers.Dense(2, name="d1")])
        >>> model.export(path)
        >>> predict = kd.export.load(path)
        >>> predict
        <ExportedProgram x float32(batch, 3) -> d1 float32(batch, 2), for cpu, cuda, tpu>
        >>> predict(np.ones((5, 3))).shape
        (5, 2)
    """
    folder = pathlib.Path(check_path("path", path, "exported"))
    manifest = Manifest.read(folder)
    try:
        program = jax.export.deserialize(bytearray((folder / PROGRAM).read_bytes()))
    except Exception as error:
        raise damaged(folder, f"{PROGRAM!r}, for jax {jax.__version__}: {type(error).__name__}: {error}") from error
    reader = TensorReader("export.load", folder / WEIGHTS)
    _check_signature(folder, manifest, program, reader)
    return ExportedProgram(manifest, program, reader.read_checked(list(reader.shapes)))


def _check_signature(folder: pathlib.Path, manifest: Manifest, program: Any, reader: TensorReader) -> None:
    """Raise if the program has other weights, inputs, outputs or platforms than the manifest."""
    recorded = {
        WEIGHTS: {name: (shape, reader.dtype(name).name) for name, shape in sorted(reader.shapes.items())},
        "inputs": [(spec.shape, spec.dtype) for spec in manifest.inputs],
        "outputs": [(spec.shape, spec.dtype) for spec in manifest.outputs],
        "platforms": list(manifest.platforms),
    }
    try:
        (weights, inputs), _ = program.in_tree.unflatten(map(_array_of, program.in_avals))
        outputs = program.out_tree.unflatten(map(_array_of, program.out_avals))
        taken = {WEIGHTS: weights, "inputs": inputs, "outputs": outputs, "platforms": list(program.platforms)}
    except Exception as error:
        raise damaged(folder, f"{PROGRAM!r}: {type(error).__name__}: {error}") from error
    for name, value in recorded.items():
        if taken[name] != value:
            raise damaged(folder, f"{name}: {PROGRAM!r} has {shorten(taken[name])}, not {shorten(value)}")


def _array_of(aval: Any) -> tuple[tuple[int | str, ...], str]:
    return tuple(size if isinstance(size, int) else str(size) for size in aval.shape), aval.dtype.name


def _checked(spec: ArraySpec, value: ArrayLike, sizes: dict[str, int]) -> jax.Array:
    """Return an input in the dtype of the program; add the sizes of its named dims to `sizes`."""
    value = value if isinstance(value, jax.Array) else np.asarray(value)
    shape = tuple(value.shape)
    fits = len(shape) == len(spec.shape) and all(
        size == (sizes.setdefault(wanted, size) if isinstance(wanted, str) else wanted)
        for wanted, size in zip(spec.shape, shape, strict=True)
    )
    if not fits or not _holds(jnp.dtype(spec.dtype), value.dtype):
        known = ", ".join(f"{name}={size}" for name, size in sizes.items())
        raise ModelError(
            f"input {spec.name!r} does not fit the program",
            given=f"{value.dtype}{shorten(shape)}",
            expected=_described(spec) + (f", where {known}" if known else ""),
            fix="pass arrays of this rank, and one size for all dims of one name",
        )
    return jnp.asarray(value, spec.dtype)


def _holds(wanted: DTypeLike, given: DTypeLike) -> bool:
    """Whether numbers of the dtype `given` are cast without an error: as JAX promotes them, or to fewer bits."""
    kinds = [jnp.bool_, jnp.integer, jnp.floating, jnp.complexfloating]
    ranks = [
        next((rank for rank, kind in enumerate(kinds) if jnp.issubdtype(dtype, kind)), 9) for dtype in (given, wanted)
    ]
    return ranks[0] <= ranks[1] < 9


def _described(spec: ArraySpec) -> str:
    return f"{spec.name} {spec.dtype}({', '.join(map(str, spec.shape))})"
