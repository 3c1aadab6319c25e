"""Export of a model as a program that runs without its code."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from keras_dist._support.arguments import check_option, check_path
from keras_dist._support.types import PyTree
from keras_dist._unstable.jax_internals import is_key_dtype
from keras_dist.data.conversion import check_batch_size
from keras_dist.distribution.data_parallel import DataParallel
from keras_dist.distribution.variables import leaf_paths
from keras_dist.errors import ModelError, shorten
from keras_dist.export.structure import Structure, described, filled
from keras_dist.export.writing import Dims, Lowered, write
from keras_dist.files.buckets import is_elsewhere
from keras_dist.files.tensor_format import fetched
from keras_dist.formats.save_formats import check_free
from keras_dist.jobs.job import print_message
from keras_dist.jobs.rendezvous import Rendezvous
from keras_dist.models.model_base import ModelBase
from keras_dist.training.built_model import BuiltModel
from keras_dist.training.outputs import Outputs

FORMAT = "jax_export"


def export(
    model: ModelBase,
    filepath: str | os.PathLike[str],
    format: str = FORMAT,
    verbose: bool | None = None,
    input_signature: PyTree = None,
    *,
    batch_size: int | None = None,
    platforms: str | Sequence[str] | None = None,
) -> None:
    """Export the computation of `predict` as a program that runs without the model code, and its weights.

    The program runs on one device; weights are gathered on the host. In a job all processes must call it; the
    first one writes, and all raise its error. Batches and other dims of unknown size may have any size. See
    `kd.export` for the folder, and `kd.export.load` to load it.

    Args:
        filepath: path of a new folder, whose parent folder must exist.
        format: `"jax_export"`, a program of StableHLO.
        verbose: whether to print the path.
        input_signature: shapes and dtypes of the inputs, None for dims of any size: an `InputSpec`, or any object
            with `shape` and `dtype`, in the structure of the inputs; a list of one is unwrapped. By default the
            inputs for which the model was built; required for models of `from_nnx`.
        batch_size: the size of all batches; None for any size.
        platforms: some of `"cpu"`, `"cuda"`, `"rocm"` and `"tpu"`. By default `cpu`, `cuda` and `tpu`; if that
            fails, the current platform, with a warning.

    Raises:
        ModelError: the path exists, the weights do not exist yet, the inputs are unknown, an argument is invalid,
            or the model cannot be lowered; for batches of any size, the error asks for `batch_size`.
        OSError: a file cannot be written.

    Differs from Keras: the format; existing folders are not replaced.

    Source: `keras.Model.export`; `jax.export`.
    """
    place = check_path("filepath", filepath, "exported")
    if is_elsewhere(place):
        given = "a path in a bucket or of another kind of storage"
        fix = "export to a folder, and copy that; a folder of such a name is './name'"
        raise ModelError(f"{place!r} cannot hold an exported program", given=given, fix=fix)
    path = pathlib.Path(os.path.abspath(place))
    job = Rendezvous("an export")
    job.first(lambda: check_free("export", path, ModelError, "choose another path, or remove what is there"))
    check_option("format", format, (FORMAT,))
    if batch_size is not None:
        check_batch_size(batch_size)
    wanted = (platforms,) if isinstance(platforms, str) else platforms
    built = model._with_weights()
    structure, arrays = _signature(model, input_signature)
    shapes = [(batch_size, *shape[1:]) if shape and shape[0] is None else shape for shape, _ in arrays]
    handles = {row.path: built.variable(row.path) for row in built.cell.plan.rows}
    with built.cell.lock:
        function, weights = _predict_of(built)
        lowered = Lowered(function, weights, structure, shapes, [dtype for _, dtype in arrays], wanted)
        names = leaf_paths(filled(structure, [np.zeros(())] * len(arrays)))
        outputs = filled(lowered.output_structure, list(lowered.program.out_avals))
        input_names = model.input_names if model._graph is not None else [name or "inputs" for name in names]
        output_names = [name or "outputs" for name in Outputs(outputs, model.output_names).names]
        values: dict[str, np.ndarray] = {}
        job.each(lambda: values.update(fetched(list(weights), lambda name: handles[name].numpy())))
        job.first(lambda: write(path, lowered, structure, input_names, output_names, values))
    if verbose:
        print_message(f"Saved artifact at {str(path)!r}.")


def _signature(model: ModelBase, given: PyTree) -> tuple[Structure, list[tuple[Dims, Any]]]:
    """The structure of the inputs, and shape and dtype of each."""
    if model._graph is not None and model._graph.host_nodes:
        raise ModelError(
            f"model {model.name!r} cannot be exported: it begins with layers that run on the host",
            given=f"layers {', '.join(repr(node.operation.name) for node in model._graph.host_nodes)}",
            fix="export the model of the other layers, and call the first ones on what goes into the program",
        )
    known = model.input if model._graph is not None else model._record.built_for
    if given is None and known is None:
        raise ModelError(
            f"export: it is not known what model {model.name!r} takes",
            given="a model that was made by from_nnx, or is called with several arguments",
            fix='model.export(path, input_signature=kd.InputSpec(shape=(None, 8), dtype="float32"))',
        )
    structure, specs = described("`input_signature`", known if given is None else given)
    defaults = [None] * len(specs)
    if model._graph is not None:
        structure, symbols = described("the input of the model", known)
        if len(specs) != len(symbols):
            raise _no_signature(given, f"{len(symbols)} input(s): {', '.join(model.input_names)}")
        defaults = [tensor.dtype for tensor in symbols]
    elif given is not None and structure in ({"list": [0]}, {"tuple": [0]}):
        structure = 0
    return structure, [_array_of(spec, dtype) for spec, dtype in zip(specs, defaults, strict=True)]


def _array_of(spec: Any, default: Any) -> tuple[Dims, Any]:
    """Shape and dtype of an input."""
    shape = getattr(spec, "shape", None)
    if shape is None:
        raise _no_signature(spec, "an InputSpec with a shape, or anything else with `shape` and `dtype`")
    dtype = default if getattr(spec, "dtype", None) is None else spec.dtype
    return tuple(shape), jax.dtypes.canonicalize_dtype("float32" if dtype is None else dtype)


def _predict_of(
    built: BuiltModel,
) -> tuple[Callable[[dict[str, jax.Array], PyTree], PyTree], dict[str, jax.ShapeDtypeStruct]]:
    """Return `predict` as a function of weights by path and inputs, on one device, and the shapes of the weights."""
    cell, step = built.cell, built.cell.steps_taken
    device = cell.mesh.backend_mesh.local_devices[0]
    forward = dataclasses.replace(built.forward, distribution=DataParallel(devices=[device]).snapshot(), plan=None)
    paths = [row.path for row in cell.plan.rows]
    arrays = dict(zip(paths, cell.leaves(), strict=True))
    implementations = {path: jax.random.key_impl(array) for path, array in arrays.items() if is_key_dtype(array.dtype)}

    def predict(weights: dict[str, jax.Array], inputs: PyTree) -> PyTree:
        values = dict(weights)
        for path, implementation in implementations.items():
            values[path] = jax.random.wrap_key_data(values[path], impl=implementation)
        trainable, rest = cell.graph.nest([values[path] for path in paths])
        return forward(trainable, rest, step, inputs, False)[0]

    shapes = {
        path: jax.eval_shape(jax.random.key_data, array) if path in implementations else array
        for path, array in arrays.items()
    }
    return predict, {path: jax.ShapeDtypeStruct(shape.shape, shape.dtype) for path, shape in shapes.items()}


def _no_signature(given: Any, expected: str) -> ModelError:
    summary = "export: `input_signature` does not describe what the model takes"
    fix = 'for example input_signature=kd.InputSpec(shape=(None, 8), dtype="float32")'
    return ModelError(summary, given=shorten(given), expected=expected, fix=fix)
