"""`Manifest`: the contents of `export.json`."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pathlib
from typing import Any

import jax.numpy as jnp

from keras_dist.errors import ModelError
from keras_dist.export.structure import Structure, is_structure
from keras_dist.files.regular_files import open_regular, read_regular

PROGRAM = "program.jax_export"
WEIGHTS = "weights.safetensors"
MANIFEST = "export.json"
FORMAT = "keras_dist.export"
VERSION = 1


@dataclasses.dataclass(frozen=True)
class ArraySpec:
    """An input or output."""

    name: str
    shape: tuple[int | str, ...]  # dims of any size are names, or expressions of names
    dtype: str


@dataclasses.dataclass(frozen=True)
class Manifest:
    """Inputs, outputs and files of an exported program."""

    inputs: tuple[ArraySpec, ...]
    outputs: tuple[ArraySpec, ...]
    input_structure: Structure
    output_structure: Structure
    platforms: tuple[str, ...]
    versions: dict[str, str]  # of the packages that made it
    sha256: dict[str, str]  # of each other file

    def write(self, folder: pathlib.Path) -> None:
        """Write the manifest to a folder."""
        content = {"format": FORMAT, "version": VERSION, "call": f"{PROGRAM}({WEIGHTS}, [inputs]) -> [outputs]"}
        text = json.dumps(content | dataclasses.asdict(self), indent=2)
        (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: pathlib.Path) -> Manifest:
        """Read the manifest of a folder, and compare its files with their checksums."""
        if not (folder / MANIFEST).is_file():
            kind = "a file" if folder.is_file() else f"a folder without {MANIFEST!r}" if folder.is_dir() else "nothing"
            raise damaged(folder, f"{kind} is there")
        try:
            content = json.loads(read_regular(folder / MANIFEST))
        except (OSError, ValueError, RecursionError) as error:
            raise damaged(folder, f"{MANIFEST!r}: {type(error).__name__}: {error}") from error
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise damaged(folder, f"{MANIFEST!r} is of another format")
        if content.get("version") != VERSION:
            raise damaged(folder, f"{MANIFEST!r} of version {content.get('version')!r}, not {VERSION}")
        try:
            manifest = cls._of(content)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise damaged(folder, f"{MANIFEST!r}: {type(error).__name__}: {error}") from error
        for name in (PROGRAM, WEIGHTS):
            _check_file(folder, name, manifest.sha256.get(name))
        return manifest

    @classmethod
    def _of(cls, content: dict[str, Any]) -> Manifest:
        inputs, outputs = (tuple(map(_array_of, content[name])) for name in ("inputs", "outputs"))
        for name, arrays in (("input_structure", inputs), ("output_structure", outputs)):
            if not is_structure(content[name], len(arrays)):
                raise ValueError(f"{name!r} does not fit")
        return cls(
            inputs,
            outputs,
            content["input_structure"],
            content["output_structure"],
            tuple(map(str, content["platforms"])),
            dict(content["versions"]),
            dict(content["sha256"]),
        )


def sha256_of(file: pathlib.Path) -> str:
    """Return the checksum of a file."""
    with open_regular(file) as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def damaged(folder: pathlib.Path, given: str) -> ModelError:
    """Return the error for a folder that is not an exported model."""
    fix = "check that it was copied completely, or export the model again; a program is code: load only what you trust"
    return ModelError(f"export.load: {str(folder)!r} cannot be read", given=given, fix=fix)


def _check_file(folder: pathlib.Path, name: str, expected: str | None) -> None:
    try:
        found = sha256_of(folder / name)
    except FileNotFoundError:
        raise damaged(folder, f"{name!r} is missing") from None
    except OSError as error:
        raise damaged(folder, f"{name!r}: {error}") from error
    if found != expected:
        raise damaged(folder, f"{name!r} has the sha256 checksum {found}, not {expected}")


def _array_of(content: dict[str, Any]) -> ArraySpec:
    shape = tuple(content["shape"])
    if not all(isinstance(size, int | str) for size in shape):
        raise ValueError(f"shape {shape}")
    jnp.dtype(content["dtype"])  # raises for an unknown dtype
    return ArraySpec(str(content["name"]), shape, str(content["dtype"]))
