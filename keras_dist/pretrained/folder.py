"""`describe`, `load` and `save`: networks in folders of `transformers`."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from keras_dist._support.arguments import argument_error, check_kind, check_option, check_path
from keras_dist._support.types import DTypeLike
from keras_dist.adapters.quantizing import quantize_unread
from keras_dist.distribution.strategy import Distribution
from keras_dist.distribution.strategy import distribution as current_distribution
from keras_dist.errors import ConfigError, FileMissingError, ModelError, cause, shorten
from keras_dist.files.regular_files import read_regular
from keras_dist.files.tensor_format import SUFFIX, index_path
from keras_dist.formats.quantized_files import DequantizedFile
from keras_dist.mixed_precision import DTypePolicy
from keras_dist.pretrained.config import IMPLEMENTATIONS, DecoderConfig, EncoderConfig, NetworkConfig
from keras_dist.pretrained.decoder import Decoder
from keras_dist.pretrained.encoder import Encoder
from keras_dist.pretrained.family import family_named
from keras_dist.pretrained.weight_maps import weight_map

CONFIG = "config.json"

_MOST_POSITIONS = 2048
"""Longest sequence for which a layout is found before weights are loaded."""

Policy = DTypeLike | DTypePolicy | None
Network = Decoder | Encoder


def describe(
    folder: str | os.PathLike[str],
    *,
    dtype: Policy = None,
    scan: bool = False,
    remat: bool = False,
    attention: str = "auto",
    capacity_factor: float | None = None,
    quantize: str | None = None,
) -> Network:
    """Return the network of a folder without its weights: only `config.json` is read, and nothing is allocated.

    `kd.plan` tells from it whether the network fits, before there is a file of weights. `fit` of the network
    warns if no weights were loaded; `fit` of a copy, or of a model that contains the network, does not.

    Args:
        folder: a folder with a `config.json` of `transformers`, or the path of the file.
        dtype, scan, remat, attention, capacity_factor, quantize: see `load`.

    Raises:
        ConfigError: the file cannot be read, or has options that are not supported; all are listed.
        FileNotFoundError: the file does not exist.
        UnknownNameError: the `model_type` is unknown.
    """
    config = _with_options(read_config(folder), attention, capacity_factor)
    network = _network(config, dtype=dtype, scan=scan, remat=remat, quantize=quantize)
    network._described = os.fspath(folder).removesuffix("config.json") or "."
    return network


def load(
    folder: str | os.PathLike[str],
    *,
    dtype: Policy = None,
    scan: bool = False,
    remat: bool = False,
    attention: str = "auto",
    capacity_factor: float | None = None,
    quantize: str | None = None,
    ignore: Sequence[str] = (),
) -> Network:
    """Load a network from a folder of `transformers`, on the current distribution.

    `config.json` names the family. Each process reads only the parts of the weights that its devices hold.

    `AutoParallel` first finds the layout, for Adam on one row per device of `max_length` positions, at most 2,048, with
    the loss `causal_lm` for decoders. For other batches search with `describe`, and load under what is found:
    `auto.search(lambda: describe(folder), (x, y), loss="causal_lm").distribution.scope()`.

    Args:
        folder: a folder with `config.json`, and `model.safetensors` or an index and the files that it names.
        dtype: the policy, such as `"bfloat16"` or `"mixed_bfloat16"`; by default the current policy. Weights are
            converted; the dtype in `config.json` is not used.
        scan: whether blocks are stacked, and one is compiled in a loop; see `Decoder`.
        remat: whether the backward pass computes each block again; see `Decoder`.
        attention: `"xla"`, `"cudnn"`, `"splash"`, `"ring"`, or `"auto"`: a ring where the strategy has a sequence axis,
            else the fastest on the platform of the mesh; see the `implementation` of `AttentionConfig`. The plan names
            the one that is used, and the reasons.
        capacity_factor: slots of experts in training, as a multiple of the choices of a row, such as 1.25; further
            choices are dropped. By default none are dropped, which takes `num_experts / top_k` times the memory and
            FLOPs of 1. Without training none are dropped in any case.
        quantize: `"int8"`, `"int4"`, `"nf4"` or `"fp8"`: kernels of blocks are stored so, and frozen; each is quantized
            shard by shard as it is read. Embeddings, head, norms and routers stay in `dtype`, and are trained unless
            `enable_lora` freezes them. See `Model.quantize`. This needs the extra `quantize`.
        ignore: regular expression, or several, for names in the files that are not loaded, such as other heads.

    Raises:
        ConfigError: `config.json` cannot be read, or has options that are not supported; all are listed.
        FileNotFoundError: a file does not exist.
        LayoutError: the layout rules cannot be applied.
        ModelError: arrays are missing in the files, are left over, or have another shape; all are listed.
        UnknownNameError: the `model_type` is unknown.

    Source: `transformers.AutoModelForCausalLM.from_pretrained`.
    """
    rules = _rules(ignore)
    config = _with_options(read_config(folder), attention, capacity_factor)
    asked, options = current_distribution(), {"dtype": dtype, "scan": scan, "remat": remat, "quantize": quantize}
    file = _file_in(folder)
    names = DequantizedFile("load", file).shapes
    if config.num_layers > len(names):
        summary = f"{str(folder)!r}: the files have fewer arrays than config.json has layers"
        given = f"{len(names)} arrays for {config.num_layers} layers"
        raise ModelError(summary, given=given, fix="check that all was copied whole")
    if asked is not None and asked.is_searched:
        asked, is_short = _found(asked, config, options)
        options["remat"] = remat or is_short
    try:
        with contextlib.nullcontext() if asked is None else asked.scope():
            model = _network(config, **options)
            model.build()
        model.load_weights(folder, weight_map=weight_map(model, rules, names))
    except ModelError as error:
        error.fix = _FIX if "strict" in error.fix else error.fix
        raise
    return model


def save(
    model: Network,
    folder: str | os.PathLike[str],
    *,
    max_shard_size: float | None = None,
    dtype: DTypeLike | None = None,
) -> None:
    """Save a network in a folder that `transformers` loads: `config.json`, and safetensors under its names.

    Of weights with LoRA the files have the sum of the frozen weight and the product, as after `merge_lora`. In a job
    all processes must call; the first one writes.

    Args:
        model: a network that `load` returned, or one that was made of a config.
        folder: a folder, which is created.
        max_shard_size: largest file of weights, in GB of 1024**3 bytes; more weights go to several files and an index.
        dtype: element type in the files; by default the dtype of the weights.

    Raises:
        ConfigError: the config cannot be written as JSON.
        ModelError: an argument cannot be used.
        OSError: a file cannot be written.

    Source: `transformers.PreTrainedModel.save_pretrained`.
    """
    check_kind("model", model, Decoder | Encoder, "a network of `kd.pretrained`")
    if pathlib.Path(check_path("folder", folder, "out/")).suffix in (SUFFIX, ".json", ".keras", ".h5"):
        fix = "for one file without config.json use model.save_weights"
        raise ModelError("`folder` must be the path of a folder", given=f"folder={shorten(folder)}", fix=fix)
    model.build()
    config = family_named(model.config.family).write(model.config)
    config["dtype"] = str(model.dtype) if dtype is None else DTypePolicy(getattr(dtype, "__name__", str(dtype))).name
    form: dict[str, Any] = {"weight_map": weight_map(model), "dtype": dtype, "config": config}
    model.save_weights(folder, max_shard_size=max_shard_size, **form)


def read_config(folder: str | os.PathLike[str]) -> NetworkConfig:
    """Return the config of a network in a folder."""
    path = pathlib.Path(check_path("folder", folder, "Qwen3-0.6B/"))
    path = path / CONFIG if path.is_dir() else path
    try:
        document = json.loads(read_regular(path, follow_links=True))
    except FileNotFoundError as error:
        fix = "give a folder that save_pretrained of transformers has written"
        if path.name != CONFIG and re.fullmatch(r"[\w.-]+/[\w.-]+", str(folder)):
            fix += f"; if this is a repository of the Hub: load(kd.interop.snapshot({str(folder)!r}))"
        raise FileMissingError(f"{str(path)!r} does not exist", given=f"folder={shorten(folder)}", fix=fix) from error
    except (OSError, ValueError, RecursionError) as error:
        fix = "check that all was copied whole"
        raise ConfigError(f"{str(path)!r} cannot be read", given=cause(error), fix=fix) from error
    if not isinstance(document, Mapping):
        fix = "check that it is the config.json of a network"
        raise ConfigError(f"{str(path)!r} must contain a dict", given=shorten(document), fix=fix)
    return family_named(document.get("model_type")).read(document)


def _with_options(config: NetworkConfig, implementation: str, capacity_factor: float | None) -> NetworkConfig:
    """Return the config with options that are not in `config.json`."""
    check_option("attention", implementation, IMPLEMENTATIONS)
    config = dataclasses.replace(config, attention=dataclasses.replace(config.attention, implementation=implementation))
    if capacity_factor is None:
        return config
    if config.experts is None:
        given, fix = f"capacity_factor={shorten(capacity_factor)}", "leave it out"
        raise ModelError(f"`capacity_factor` is for experts, and {config.family!r} has none", given=given, fix=fix)
    return dataclasses.replace(config, experts=dataclasses.replace(config.experts, capacity_factor=capacity_factor))


def _network(config: NetworkConfig, quantize: str | None = None, **options: Any) -> Network:
    kind: Any = Decoder if isinstance(config, DecoderConfig) else Encoder
    network = kind(config, **options)
    if not jnp.issubdtype(network.dtype, jnp.floating) or not jnp.issubdtype(network.compute_dtype, jnp.floating):
        fix = "for example dtype='bfloat16'; weights of other types are converted"
        raise ModelError("`dtype` must be floating-point", given=f"dtype={shorten(options['dtype'])}", fix=fix)
    if quantize is not None:
        quantize_unread(network, quantize, "layers/.*")
    return network


def _found(auto: Any, config: NetworkConfig, options: Mapping[str, Any]) -> tuple[Distribution, bool]:
    """Return the distribution that `AutoParallel` finds, and whether blocks are computed again."""
    rows, length = auto.device_mesh.size, min(config.max_length, _MOST_POSITIONS)
    batch: Any = jax.ShapeDtypeStruct((rows, length), "int32")
    if isinstance(config, EncoderConfig) and config.image_size:
        batch = jax.ShapeDtypeStruct((rows, config.image_size, config.image_size, config.channels), "float32")
    is_decoder = isinstance(config, DecoderConfig)
    batch, loss = ((batch, batch), "causal_lm") if is_decoder else (batch, None)
    found = auto.search(lambda: _network(config, **options), batch, "adam", loss)
    return found.distribution, found.best.remat is not None


_FIX = (
    "give the folder of a network like the one in config.json; arrays that are not needed, such as other heads, "
    r"are left out by load(ignore=(r'classifier\..*',))"
)


def _file_in(folder: str | os.PathLike[str]) -> pathlib.Path:
    """Return the file of weights in a folder, or their index."""
    path = pathlib.Path(folder) / f"model{SUFFIX}"
    if not path.exists() and not index_path(path).exists():
        given = f"{path.name} and {index_path(path).name} are missing; the folder holds {_content(path.parent)}"
        fix = "copy the files of weights; other forms are written as safetensors by save_pretrained of transformers"
        raise FileMissingError(f"{str(folder)!r} has no weights", given=given, fix=fix)
    return path if path.exists() else index_path(path)


def _rules(ignore: Any) -> Sequence[str]:
    rules = (ignore,) if isinstance(ignore, str) else ignore
    if not isinstance(rules, list | tuple) or not all(isinstance(rule, str) for rule in rules):
        raise argument_error("ignore", ignore, "a regular expression, or a list of them", example=(r"classifier\..*",))
    return rules


def _content(folder: pathlib.Path) -> str:
    return ", ".join(sorted(os.listdir(folder))[:8]) if folder.is_dir() else "no folder"
