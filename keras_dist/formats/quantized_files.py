"""`DequantizedFile`: files of weights that other programs have quantized, read in floating point.

Two forms are known: fp8 with a scale for each block (DeepSeek-V3, Qwen3-FP8), beside a weight as `<name>_scale_inv`;
and nf4 of bitsandbytes, with arrays `<name>.absmax`, `<name>.quant_map` and a small JSON document. A weight is
dequantized as a whole when it is read, and the next one after it.
"""

from __future__ import annotations

import json
import math
import pathlib
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from keras_dist._support.arguments import is_int, is_number
from keras_dist.errors import ModelError
from keras_dist.files.tensor_reader import TensorReader

_BLOCKS = "_scale_inv"
_BLOCK = 128
"""Rows and columns of a block; `is_readable` refuses others."""
_STATE = ".quant_state.bitsandbytes__nf4"
_PARTS = (".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map", _STATE)
_DTYPES = ("bfloat16", "float16", "float32")
_LONGEST_STATE = 4096
"""Most bytes of a document beside a weight."""


def is_readable(config: Any) -> bool:
    """Whether a `quantization_config` in a `config.json` is of a form that `DequantizedFile` reads."""
    if not isinstance(config, Mapping):
        return False
    if config.get("quant_method") == "fp8":
        return config.get("weight_block_size") == [_BLOCK, _BLOCK]
    is_nf4 = config.get("bnb_4bit_quant_type") == "nf4" and config.get("load_in_4bit") is True
    return config.get("quant_method") == "bitsandbytes" and is_nf4


class DequantizedFile(TensorReader):
    """Arrays by name as `TensorReader` returns them, but quantized ones in floating point, and without their scales."""

    def __init__(self, caller: str, path: pathlib.Path) -> None:
        super().__init__(caller, path)
        stored = self.shapes
        fp8 = [name for name in stored if f"{name}{_BLOCKS}" in stored]
        nf4 = [name for name in stored if f"{name}{_STATE}" in stored]
        self._states = {name: self._state(name) for name in nf4}
        parts = {f"{name}{_BLOCKS}": name for name in fp8}
        parts |= {f"{name}{part}": name for name in nf4 for part in _PARTS}
        self._parts = {part: name for part, name in parts.items() if part in stored}
        self._fp8 = set(fp8)
        shapes = {name: shape for name, shape in stored.items() if name not in self._parts}
        self._stored, self.shapes = stored, shapes | {name: tuple(one["shape"]) for name, one in self._states.items()}

    def view(self, name: str) -> np.ndarray:
        """Return an array, dequantized if it is quantized."""
        if name in self._fp8:
            return self._from_fp8(name)
        return self._from_nf4(name) if name in self._states else super().view(name)

    def dtype(self, name: str) -> np.dtype[Any]:
        """Return the dtype of an array as it is read."""
        if name in self._states:
            return jnp.dtype(self._states[name]["dtype"])
        return np.dtype(np.float32) if name in self._fp8 else super().dtype(name)

    def _from_fp8(self, name: str) -> np.ndarray:
        values, scale = super().view(name), super().view(f"{name}{_BLOCKS}")
        if self._stored_dtype(name).name != "float8_e4m3fn" or values.ndim != 2 or scale.ndim != 2:
            given = f"{name!r} of {self._stored_dtype(name)} {values.shape}, scales {scale.shape}"
            raise self._unknown(given, "a matrix of float8_e4m3fn, and a matrix of scales")
        if tuple(math.ceil(size / _BLOCK) for size in values.shape) != scale.shape:
            given = f"{name!r} of shape {values.shape}, scales of shape {scale.shape}"
            raise self._unknown(given, f"a scale for each {_BLOCK} x {_BLOCK} numbers")
        wide = np.repeat(np.repeat(scale.astype(np.float32), _BLOCK, 0)[: len(values)], _BLOCK, 1)
        return values.astype(np.float32) * wide[:, : values.shape[1]]

    def _from_nf4(self, name: str) -> np.ndarray:
        state = self._states[name]
        size, blocksize = math.prod(state["shape"]), state["blocksize"]
        packed, codes = super().view(name).reshape(-1), super().view(f"{name}.quant_map").astype(np.float32)
        scale = self._absmax(name, state)
        if packed.dtype != np.uint8 or 2 * packed.size != size or codes.shape != (16,) or scale.size * blocksize < size:
            given = f"{name!r}: {packed.size} bytes, {codes.size} codes and {scale.size} scales for {size} numbers"
            raise self._unknown(given, "two numbers in each byte, and 16 codes")
        found = np.empty(size, np.float32)
        found[0::2], found[1::2] = codes[packed >> 4], codes[packed & 15]
        found *= np.repeat(scale, blocksize)[:size]
        return found.reshape(state["shape"]).astype(self.dtype(name))  # bitsandbytes rounds so

    def _absmax(self, name: str, state: dict[str, Any]) -> np.ndarray:
        """Return the scales, which may be quantized themselves."""
        scale = super().view(f"{name}.absmax").reshape(-1)
        if f"{name}.nested_absmax" not in self._stored:
            return scale.astype(np.float32)
        outer = super().view(f"{name}.nested_absmax").reshape(-1).astype(np.float32)
        codes = super().view(f"{name}.nested_quant_map").astype(np.float32)
        offset, blocksize = state.get("nested_offset"), state.get("nested_blocksize")
        is_known = scale.dtype == np.uint8 and codes.shape == (256,) and is_number(offset)
        size = blocksize if isinstance(blocksize, int) and 0 < blocksize <= 2**20 else 0
        if not is_known or outer.size * size < scale.size:
            raise self._unknown(f"{name!r}: scales of {scale.dtype}, {outer.size} scales of these", "nested scales")
        return codes[scale] * np.repeat(outer, size)[: scale.size] + np.float32(offset)

    def _state(self, name: str) -> dict[str, Any]:
        """Return the document beside a weight of bitsandbytes."""
        array = super().view(f"{name}{_STATE}")
        try:
            read = json.loads(array.tobytes()) if array.nbytes <= _LONGEST_STATE else None
        except (ValueError, RecursionError):
            read = None
        state = read if isinstance(read, dict) else {}
        shape = state.get("shape")
        is_shape = isinstance(shape, list) and 0 < len(shape) <= 8 and all(is_int(size, 1, 2**40) for size in shape)
        if not is_shape or state.get("dtype") not in _DTYPES or not is_int(state.get("blocksize"), 1, 2**20):
            raise self._unknown(f"{name}{_STATE}", "a JSON document with `shape`, `dtype` and `blocksize`")
        return state

    def _unknown(self, given: str, expected: str) -> ModelError:
        summary = f"{self.caller}: {str(self.path)!r} has a quantized weight of an unknown form"
        fix = "check that the files were copied whole, or dequantize them with transformers"
        return ModelError(summary, given=given, expected=expected, fix=fix)
