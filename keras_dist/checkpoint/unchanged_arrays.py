"""Bases: checkpoints of arrays that training does not change, kept once beside the states that share them.

A base is a separate checkpoint, `base_00000012`, named by the step of the save that wrote it. It has large weights that
no gradient trains, with equal fingerprints (64 bits, computed on the devices: a digest on the host would gather shards)
at the begin and at a save. Roles do not say which: kernels under LoRA and moving averages are both untrained. States
refer to bases by name and by these fingerprints, so that a base with other arrays is detected.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

DOCUMENT = "bases"  # names the bases of a state
FINGERPRINTS = "fingerprints"  # document of a base: fingerprints of its arrays, by name
NAME = re.compile(r"base_\d{8,}_*")  # of the folder of a base
SHARED_BYTES = 2**16  # smaller arrays stay with the states, since each array makes hashing compile longer

_UNSIGNED = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint32}  # elements of 8 bytes are two integers

Bases = Mapping[str, Mapping[str, str]]  # fingerprints of arrays by name, by folder of a base


def bases_from_json(recorded: Any) -> Bases | None:
    """Return the bases in the document of a state; None if it is invalid."""
    if not isinstance(recorded, dict):
        return None
    for folder, arrays in recorded.items():
        if not (NAME.fullmatch(folder) and isinstance(arrays, dict)):
            return None
        if not all(isinstance(one, str) for one in arrays.values()):
            return None
    return recorded


def has_arrays(fingerprints: Any, arrays: Mapping[str, str]) -> bool:
    """Whether the base with this document has arrays with these fingerprints."""
    return isinstance(fingerprints, dict) and all(fingerprints.get(name) == one for name, one in arrays.items())


def fingerprints(arrays: Mapping[str, jax.Array | np.ndarray]) -> dict[str, str]:
    """Return dtype, shape and a hash of 64 bits of each array, which are equal on every mesh."""
    if not arrays:
        return {}
    hashes = jax.device_get(_hashes(dict(arrays)))
    return {
        name: f"{array.dtype}{list(array.shape)} {hashes[name][0]:08x}{hashes[name][1]:08x}"
        for name, array in arrays.items()
    }


@jax.jit
def _hashes(arrays: dict[str, jax.Array]) -> dict[str, tuple[jax.Array, jax.Array]]:
    return {name: _hash(array) for name, array in arrays.items()}


def _hash(array: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return two sums modulo 2**32 of numbers that depend on an element and its place, in any order of adding."""
    bits = _bits(array)
    place, stride = jnp.zeros(bits.shape, jnp.uint32), 1
    for dim in reversed(range(bits.ndim)):  # not flattened, so that shards stay where they are
        place += jax.lax.broadcasted_iota(jnp.uint32, bits.shape, dim) * np.uint32(stride % 2**32)
        stride *= bits.shape[dim]
    first = _mixed(bits ^ _mixed(place + np.uint32(0x9E3779B9)))
    second = _mixed(bits + _mixed(place ^ np.uint32(0x85EBCA6B)))
    return jnp.sum(first, dtype=jnp.uint32), jnp.sum(second, dtype=jnp.uint32)


def _bits(array: jax.Array) -> jax.Array:
    """Return the bits of each element, in the low bits of one or several integers of 32 bits."""
    dtype = array.dtype
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return _bits(jnp.stack([array.real, array.imag], axis=-1))
    if dtype == jnp.bool_ or (jnp.issubdtype(dtype, jnp.integer) and jnp.iinfo(dtype).bits < 8):
        array = array.astype(jnp.int8)
    elif jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 8:
        array = array.astype(jnp.float32)
    return jax.lax.bitcast_convert_type(array, _UNSIGNED[array.dtype.itemsize]).astype(jnp.uint32)


def _mixed(bits: jax.Array) -> jax.Array:
    """Mix 32 bits; source: the finalizer of MurmurHash3."""
    bits = (bits ^ (bits >> 16)) * np.uint32(0x85EBCA6B)
    bits = (bits ^ (bits >> 13)) * np.uint32(0xC2B2AE35)
    return bits ^ (bits >> 16)
