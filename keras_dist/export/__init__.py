"""Exported models: a program that runs without the code of the model, and its weights.

`model.export(path)` writes a folder of three files, none of which holds Python code or pickles:

- `program.jax_export`: StableHLO in the form of `jax.export`, `program(weights, inputs) -> outputs`;
- `weights.safetensors`: the weights by path;
- `export.json`: names, shapes, dtypes and structure of inputs and outputs, platforms, versions, a sha256 of each file.

`load(path)` returns it as a callable, with the model's structure of inputs. jax and safetensors alone can run it:

    import jax.export, safetensors.numpy

    with open("path/program.jax_export", "rb") as file:
        program = jax.export.deserialize(bytearray(file.read()))
    weights = safetensors.numpy.load_file("path/weights.safetensors")
    outputs = program.call(weights, [x])  # inputs and outputs are lists, in the order of export.json

Weights are arguments of the program, and inputs and outputs are flat lists whose structure is JSON: the file is small,
jax alone can call it, and nothing in it is code.
"""

from typing import TYPE_CHECKING

from keras_dist._support.missing_names import missing_from
from keras_dist.export.loading import ExportedProgram, load

__all__ = ["ExportedProgram", "load"]

if not TYPE_CHECKING:
    __getattr__ = missing_from(__name__)
