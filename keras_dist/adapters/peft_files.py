"""Adapters of LoRA in the format of `peft`: `adapter_config.json` and `adapter_model.safetensors`.

A module of torch keeps its weight as (outputs, inputs), and peft the factors as `lora_A.weight` (rank, inputs) and
`lora_B.weight` (outputs, rank). Dims of heads are joined, and each layer of a stack is a module. Several weights may be
parts of one module; see `peft_modules`.
"""

from __future__ import annotations

import json
import math
import pathlib
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from keras_dist._support.arguments import LARGEST_SIZE, is_int, is_number
from keras_dist._support.safe_patterns import Patterns, pattern
from keras_dist.errors import FileMissingError, ModelError, cause, shorten
from keras_dist.files.buckets import in_bucket
from keras_dist.files.drafts import writing_to
from keras_dist.files.regular_files import read_regular
from keras_dist.files.tensor_format import SUFFIX
from keras_dist.files.tensor_reader import TensorReader
from keras_dist.files.tensor_writer import TensorWriter
from keras_dist.formats.save_formats import check_file_path, model_folder
from keras_dist.jobs.rendezvous import Rendezvous
from keras_dist.layers.base.lora import Vector

CONFIG, ARRAYS = "adapter_config.json", f"adapter_model{SUFFIX}"
_MOST_CONFIG_BYTES = 2**20

_ONLY: dict[str, tuple[Any, ...]] = {
    "bias": (None, "none"),
    "use_dora": (None, False, True),
    "use_rslora": (None, False, True),
    "use_qalora": (None, False),
    "lora_bias": (None, False, True),
    "alora_invocation_tokens": (None, []),
    "layer_replication": (None, []),
    "trainable_token_indices": (None, []),
    "init_lora_weights": (None, True, False, "gaussian", "orthogonal", "eva"),
}
"""Entries of the config that change what a file means, with the supported values."""

VECTORS: dict[Vector, str] = {"magnitude": "use_dora", "bias": "lora_bias"}
"""Entries of the config by the third array of a module that they add."""

_PATTERNS = {"rank_pattern": "integer", "alpha_pattern": "number"}
_CHECKS = {
    "r": lambda value: is_int(value, 1, LARGEST_SIZE),
    "lora_alpha": lambda value: is_number(value) and 0 < value < math.inf,
}


class AdapterFiles:
    """The config of an adapter, and the reader of its arrays."""

    def __init__(self, folder: pathlib.Path, config: Mapping[str, Any]) -> None:
        self.folder = folder
        self.dropout: float = config.get("lora_dropout", 0.0)
        self.reader = TensorReader("load_adapter", folder / ARRAYS)
        self._config = config
        self._rules = {name: {_peft_rule(key): key for key in config.get(name) or {}} for name in _PATTERNS}
        self._patterns = {name: Patterns(rules) for name, rules in self._rules.items()}

    def rank_and_alpha(self, module: str) -> tuple[int, float]:
        """Return the rank of a module, and the alpha for which `alpha / rank` is the scaling factor."""
        rank = self._of_module(module, "rank_pattern", "r")
        alpha = self._of_module(module, "alpha_pattern", "lora_alpha")
        return rank, alpha * math.sqrt(rank) if self._config.get("use_rslora") else alpha

    @property
    def vector(self) -> Vector:
        """The kind of a third array of each module."""
        found: list[Vector] = [kind for kind, option in VECTORS.items() if self._config.get(option)]
        return found[0] if found else ""

    def has_parameter(self, name: str) -> bool:
        """Return whether a parameter of torch, such as the weights of experts, is adapted."""
        return any(f".{name}".endswith(f".{target}") for target in self._config.get("target_parameters") or ())

    def has_whole(self, module: str) -> bool:
        """Return whether all of a module is trained, and a part of the files."""
        return any(module.endswith(name) for name in self.whole)

    @property
    def whole(self) -> list[str]:
        """The ends of names of modules that are trained whole."""
        return self._config.get("modules_to_save") or []

    def _of_module(self, module: str, patterns: str, default: str) -> Any:
        matching = self._patterns[patterns].matching(module)
        return self._config[patterns][self._rules[patterns][matching[0]]] if matching else self._config[default]


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


def written_config(
    scales: Mapping[str, tuple[int, float]],
    others: Collection[str],
    parameters: Collection[str],
    whole: Collection[str],
    vector: Vector,
    dropout: float,
    fan_in_fan_out: bool,
    **more: Any,
) -> dict[str, Any]:
    """Return the content of `adapter_config.json`, for ranks and alphas of modules and `parameters`, beside others.

    The modules `whole` are trained whole.
    """
    targets = {"target_modules": _targets([module for module in scales if module not in parameters], others, 1)}
    targets |= {"target_parameters": _targets(parameters, others, 2)} if parameters else {}
    targets |= {"modules_to_save": _targets(whole, {*others, *scales} - {*whole}, 1)} if whole else {}
    ranks = {module: rank for module, (rank, _) in scales.items()}
    alphas = {module: int(alpha) if float(alpha).is_integer() else alpha for module, (_, alpha) in scales.items()}
    (rank, rank_pattern), (alpha, alpha_pattern) = map(common_and_others, (ranks, alphas))
    return {
        "peft_type": "LORA",
        **more,
        "r": rank,
        "lora_alpha": alpha,
        "rank_pattern": _shortened(rank_pattern, ranks),
        "alpha_pattern": _shortened(alpha_pattern, alphas),
        "lora_dropout": dropout,
        **targets,
        **({VECTORS[vector]: True} if vector else {}),
        "bias": "none",
        "fan_in_fan_out": fan_in_fan_out,
        "inference_mode": True,
    }


def _targets(modules: Collection[str], others: Iterable[str], count: int) -> list[str]:
    """Return the last `count` parts of names, or the names if these are ambiguous."""

    def end(module: str) -> str:
        return ".".join(module.split(".")[-count:])

    names = dict.fromkeys(map(end, modules))
    return sorted(modules if {*map(end, others)} & names.keys() or any(map(str.isdigit, names)) else names)


def common_and_others(values: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the most common value, and the other ones by name."""
    ((common, _),) = Counter(values.values()).most_common(1)
    return common, {name: value for name, value in values.items() if value != common}


def _shortened(others: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by peft rule: the last name of a module, unless it is a number or has several values."""
    found: dict[str, set[Any]] = {}
    for module, value in values.items():
        found.setdefault(module.rpartition(".")[2], set()).add(value)

    def rule(module: str) -> str:
        last = module.rpartition(".")[2]
        return re.escape(last) if len(found[last]) == 1 and not last.isdigit() else f"^{re.escape(module)}"

    return {rule(module): value for module, value in others.items()}


def _peft_rule(key: str) -> str:
    """Return the regular expression for whole names of modules that a key of a pattern means in peft."""
    return rf"(.*\.)?({key})"


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
    return AdapterFiles(folder, config)


def _unsupported(config: Mapping[str, Any]) -> Iterator[str]:
    if config.get("peft_type") != "LORA":
        yield f"peft_type={shorten(config.get('peft_type'))} is not 'LORA'"
    dropout = config.get("lora_dropout", 0.0)
    if not is_number(dropout) or not 0 <= dropout < 1:
        yield f"lora_dropout={shorten(dropout)} is not a fraction below 1"
    for entry in ("target_parameters", "modules_to_save"):
        names = config.get(entry) or []
        if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
            yield f"{entry}={shorten(names)} is not a list of names"
    for (name, kind), (default, is_valid) in zip(_PATTERNS.items(), _CHECKS.items(), strict=True):
        values, one = config.get(name) or {}, config.get(default)
        if not is_valid(one):
            yield f"{default}={shorten(one)} is not a positive {kind}"
        if not isinstance(values, dict) or not all(map(is_valid, values.values())):
            yield f"{name}={shorten(values)} is not a dict to positive {kind}s"
        elif not all(map(_is_rule, values)):
            yield f"{name}={shorten(values)} has a key that is not a regular expression"
    if config.get("use_dora") and config.get("lora_bias"):
        yield "use_dora=True with lora_bias=True"
    for name, supported in _ONLY.items():
        if not any(type(config.get(name)) is type(one) and config.get(name) == one for one in supported):
            yield f"{name}={shorten(config[name])}"


def _is_rule(key: str) -> bool:
    try:
        pattern(_peft_rule(key))
    except re.error:
        return False
    return True
