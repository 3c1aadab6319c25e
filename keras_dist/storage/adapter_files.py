"""Adapters of LoRA in the format of `peft`: `adapter_config.json` and `adapter_model.safetensors`.

A module of torch keeps its weight as (outputs, inputs), and peft the factors as `lora_A.weight` (rank, inputs) and
`lora_B.weight` (outputs, rank). Dims of heads are joined, and each layer of a stack is a module.
"""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np

from keras_dist._support.arguments import LARGEST_SIZE, is_int, is_number
from keras_dist.distribution.jobs.rendezvous import Rendezvous
from keras_dist.errors import FileMissingError, ModelError, cause, shorten
from keras_dist.layers.lora import Dims
from keras_dist.saving.buckets import in_bucket
from keras_dist.saving.drafts import writing_to
from keras_dist.saving.regular_files import read_regular
from keras_dist.saving.tensor_format import SUFFIX
from keras_dist.saving.tensor_reader import TensorReader
from keras_dist.saving.tensor_writer import TensorWriter
from keras_dist.storage.save_formats import check_file_path, model_folder

CONFIG, ARRAYS = "adapter_config.json", f"adapter_model{SUFFIX}"
_PREFIX = "base_model.model."
_MOST_CONFIG_BYTES = 2**20

Kind = Literal["linear", "embedding", "convolution"]

_ENDS: dict[Kind, tuple[str, str]] = {
    "linear": (".lora_A.weight", ".lora_B.weight"),
    "convolution": (".lora_A.weight", ".lora_B.weight"),
    "embedding": (".lora_embedding_A", ".lora_embedding_B"),
}

_ONLY: dict[str, tuple[Any, ...]] = {
    "bias": (None, "none"),
    "use_dora": (None, False),
    "use_rslora": (None, False),
    "use_qalora": (None, False),
    "lora_bias": (None, False),
    "alora_invocation_tokens": (None, []),
    "layer_replication": (None, []),
    "target_parameters": (None, []),
    "rank_pattern": (None, {}),
    "alpha_pattern": (None, {}),
    "modules_to_save": (None, []),
    "trainable_token_indices": (None, []),
    "init_lora_weights": (None, True, False, "gaussian", "orthogonal", "eva"),
}
"""Entries of the config that change what a file means, with the supported values."""


@dataclasses.dataclass(frozen=True)
class Form:
    """The arrays of a weight's factors in a file.

    Attributes:
        path: of the weight.
        modules: names of torch's modules: one, or one for each layer of a stack.
        kind: of the module.
        shape: shape of the weight.
        dims: for each dim of the factors the dim of the weight; None for the rank.
        is_tied: whether the weight is also the head.
    """

    path: str
    modules: tuple[str, ...]
    kind: Kind
    shape: tuple[int, ...]
    dims: Dims
    is_tied: bool = False

    @property
    def problem(self) -> str:
        """Why the format cannot hold the factors; empty if it can."""
        both = [dim for dim in self.dims[0] if dim is not None and dim in self.dims[1]]
        count = self.shape[0] if both == [0] else 1
        if self.is_tied:
            return f"{self.path}: it is also the head, whose weight peft does not adapt with it"
        if both not in ([], [0]):
            return f"{self.path}: its factors share more than the dim of a stack"
        if len(self.modules) != count:
            return f"{self.path}: {count} modules in the file, not {len(self.modules)}: {shorten(self.modules)}"
        return ""

    def names(self) -> list[tuple[str, str]]:
        """Return the names of the two arrays of each module."""
        ends = _ENDS[self.kind]
        return [(f"{_PREFIX}{module}{ends[0]}", f"{_PREFIX}{module}{ends[1]}") for module in self.modules]

    def to_file(self, first: np.ndarray, second: np.ndarray) -> dict[str, np.ndarray]:
        """Return the arrays of a file for two factors."""
        found: dict[str, np.ndarray] = {}
        for names, a, b in zip(self.names(), *map(self._rows, (first, second)), strict=True):
            a = a if self.kind == "convolution" else a.reshape(-1, a.shape[-1])
            b = b.reshape(len(b), -1).T
            found |= zip(
                names, (np.moveaxis(a, (-1, -2), (0, 1)), b.reshape(*b.shape, *[1] * (a.ndim - 2))), strict=True
            )
        return found

    def from_file(self, arrays: Mapping[str, np.ndarray], rank: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the factors for the arrays of a file, which have been checked."""
        found = [(arrays[a].astype("float32"), arrays[b].astype("float32")) for a, b in self.names()]
        first = np.stack([np.moveaxis(a, (0, 1), (-1, -2)) for a, _ in found])
        second = np.stack([b.reshape(-1, rank).T for _, b in found])
        return first.reshape(self._shape(self.dims[0], rank)), second.reshape(self._shape(self.dims[1], rank))

    def expected(self, rank: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the arrays of a file."""
        both = set(self.dims[0]) & set(self.dims[1])
        inside, outside = (
            [self.shape[dim] for dim in dims if dim is not None and dim not in both] for dims in self.dims
        )
        inside = inside if self.kind == "convolution" else [math.prod(inside)]
        ones = [1] * (len(inside) - 1)
        shapes = (rank, inside[-1], *inside[:-1]), (math.prod(outside), rank, *ones)
        return {name: shape for names in self.names() for name, shape in zip(names, shapes, strict=True)}

    def _shape(self, dims: Sequence[int | None], rank: int) -> tuple[int, ...]:
        return tuple(rank if dim is None else self.shape[dim] for dim in dims)

    def _rows(self, factor: np.ndarray) -> np.ndarray:
        return factor if 0 in self.dims[0] and 0 in self.dims[1] else factor[None]


@dataclasses.dataclass(frozen=True)
class AdapterFiles:
    """The files of an adapter: its rank, scaling factor and dropout, and its arrays."""

    folder: pathlib.Path
    rank: int
    alpha: float
    dropout: float
    reader: TensorReader

    def modules(self) -> set[str]:
        """Return the modules of torch that have a first factor."""
        names = [name.removeprefix(_PREFIX) for name in self.reader.shapes]
        return {name.removesuffix(end) for end, _ in _ENDS.values() for name in names if name.endswith(end)}

    def problems(self, forms: Sequence[Form]) -> Iterator[str]:
        """Yield what does not fit factors of these forms: missing arrays, other ones, and other shapes."""
        expected = {name: shape for form in forms for name, shape in form.expected(self.rank).items()}
        for name, shape in expected.items():
            found = self.reader.shapes.get(name)
            if found is None:
                yield f"missing: {name}"
            elif found != shape:
                yield f"{name} has shape {found}, not {shape}"
            elif not jnp.issubdtype(self.reader.dtype(name), jnp.floating):
                yield f"{name} has elements of {self.reader.dtype(name)}"
        embeddings = (form for form in forms if form.kind == "embedding")  # of which peft writes a copy
        copies = {f"{_PREFIX}{module}.base_layer.weight": form.shape for form in embeddings for module in form.modules}
        others = (name for name, shape in self.reader.shapes.items() if copies.get(name) != shape)
        yield from (f"not in the model: {name}" for name in others if name not in expected)


def write_adapter(
    folder: pathlib.Path, config: Mapping[str, Any], arrays: Mapping[str, np.ndarray], overwrite: bool
) -> None:
    """Write the two files of an adapter; the first process of a job does."""
    for name in (CONFIG, ARRAYS):
        check_file_path("save_adapter", folder / name, overwrite, ModelError)

    def write() -> None:
        place, documents = folder / ARRAYS, {CONFIG: json.dumps(config, indent=2) + "\n"}
        with writing_to(folder):
            folder.mkdir(exist_ok=True)
        with writing_to(place), TensorWriter("save_adapter", place, arrays, [[*arrays]], None, documents) as writer:
            writer.write(0, arrays.__getitem__)
            writer.commit()

    Rendezvous("a save of an adapter").first(write)


def adapter_folder(caller: str, filepath: Any) -> pathlib.Path:
    """Check and return the path of the folder of an adapter."""
    folder = model_folder(caller, filepath)
    if in_bucket(folder):
        raise ModelError(f"{caller}: {str(folder)!r} is in a bucket", given=shorten(filepath), fix="copy the folder")
    return folder


def written_config(rank: int, alpha: float, dropout: float, modules: Sequence[str], **others: Any) -> dict[str, Any]:
    """Return the content of `adapter_config.json`."""
    return {
        "peft_type": "LORA",
        **others,
        "r": rank,
        "lora_alpha": int(alpha) if float(alpha).is_integer() else alpha,
        "lora_dropout": dropout,
        "target_modules": list(modules),
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }


def read_adapter(folder: pathlib.Path) -> AdapterFiles:
    """Read the config of an adapter and the header of its arrays; one error lists all unsupported entries."""
    path = folder / CONFIG
    try:
        if path.stat().st_size > _MOST_CONFIG_BYTES:
            raise ValueError(f"it has more than {_MOST_CONFIG_BYTES} bytes")
        config = json.loads(read_regular(path, follow_links=True))
    except FileNotFoundError as error:
        fix = "pass a folder that save_adapter, or save_pretrained of peft, wrote"
        raise FileMissingError(f"load_adapter: {str(path)!r} does not exist", given=str(folder), fix=fix) from error
    except (OSError, ValueError, RecursionError) as error:
        fix = "check that the folder was copied completely"
        raise ModelError(f"load_adapter: {str(path)!r} cannot be read", given=cause(error), fix=fix) from error
    problems = [*_unsupported(config)] if isinstance(config, dict) else [f"not a dict: {shorten(config)}"]
    if problems:
        fix = "train it again with plain LoRA; or merge it in peft, and load the merged weights"
        raise ModelError(f"load_adapter: {str(path)!r} is not supported", given="; ".join(problems), fix=fix)
    if not (folder / ARRAYS).exists():
        fix = "save it with safe_serialization: other files of torch are pickles, whose code would run"
        raise FileMissingError(f"load_adapter: {str(folder / ARRAYS)!r} does not exist", given=str(folder), fix=fix)
    options = config["r"], config["lora_alpha"], config.get("lora_dropout", 0.0)
    return AdapterFiles(folder, *options, TensorReader("load_adapter", folder / ARRAYS))


def _unsupported(config: Mapping[str, Any]) -> Iterator[str]:
    if config.get("peft_type") != "LORA":
        yield f"peft_type={shorten(config.get('peft_type'))} is not 'LORA'"
    if not is_int(config.get("r"), 1, LARGEST_SIZE):
        yield f"r={shorten(config.get('r'))} is not a positive integer"
    alpha, dropout = config.get("lora_alpha"), config.get("lora_dropout", 0.0)
    if not is_number(alpha) or not 0 < alpha < math.inf:
        yield f"lora_alpha={shorten(alpha)} is not a positive number"
    if not is_number(dropout) or not 0 <= dropout < 1:
        yield f"lora_dropout={shorten(dropout)} is not a fraction below 1"
    for name, supported in _ONLY.items():
        if not any(type(config.get(name)) is type(one) and config.get(name) == one for one in supported):
            yield f"{name}={shorten(config[name])}"
