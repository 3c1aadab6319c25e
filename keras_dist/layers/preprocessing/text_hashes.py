"""Hashes of text that are equal on all machines: FarmHash64 and keyed SipHash-2-4."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

_ALL = 2**64 - 1
_K0, _K1, _K2 = 0xC3A5C85C97CB3127, 0xB492B66FBE98F273, 0x9AE16A3B2F90404F


def farmhash64(data: bytes) -> int:
    """Return `Fingerprint64` of https://github.com/google/farmhash, as in `tf.strings.to_hash_bucket_fast`."""
    size = len(data)
    if size <= 16:
        return _short(data, size)
    mul = _K2 + size * 2
    if size <= 32:
        a, b, c, d = _word(data, 0) * _K1, _word(data, 8), _word(data, -8) * mul, _word(data, -16) * _K2
        return _pair(_turn(a + b, 43) + _turn(c, 30) + d, a + _turn(b + _K2, 18) + c, mul)
    if size <= 64:
        a, b, c, d = _word(data, 0) * _K2, _word(data, 8), _word(data, -8) * mul, _word(data, -16) * _K2
        y = _turn(a + b, 43) + _turn(c, 30) + d
        z = _pair(y, a + _turn(b + _K2, 18) + c, mul)
        e, f = _word(data, 16) * mul, _word(data, 24)
        g, h = (y + _word(data, -32)) * mul, (z + _word(data, -24)) * mul
        return _pair(_turn(e + f, 43) + _turn(g, 30) + h, e + _turn(f + a, 18) + g, mul)
    return _long(data, size)


def siphash64(data: bytes, key: tuple[int, int]) -> int:
    """Return SipHash-2-4 (https://www.aumasson.jp/siphash/siphash.pdf), as in `tf.strings.to_hash_bucket_strong`."""
    k0, k1 = (number & _ALL for number in key)
    state = (k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D, k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573)
    padded = data + bytes(-(len(data) + 1) % 8) + bytes([len(data) & 255])
    for start in range(0, len(padded), 8):
        word = int.from_bytes(padded[start : start + 8], "little")
        a, b, c, d = state
        a, b, c, d = _sip_round(*_sip_round(a, b, c, d ^ word))
        state = (a ^ word, b, c, d)
    a, b, c, d = state
    state = (a, b, c ^ 0xFF, d)
    for _ in range(4):
        state = _sip_round(*state)
    a, b, c, d = state
    return a ^ b ^ c ^ d


def bins_of(texts: Iterable[str], count: int, key: tuple[int, int] | None = None) -> np.ndarray:
    """Hash each text to one of `count` bins, by FarmHash64, or with a key by SipHash."""
    known: dict[str, int] = {}
    found = []
    for text in texts:
        if text not in known:
            data = text.encode("utf-8", "surrogateescape")
            known[text] = (farmhash64(data) if key is None else siphash64(data, key)) % count
        found.append(known[text])
    return np.array(found, "int64")


def _word(data: bytes, start: int, size: int = 8) -> int:
    start = start if start >= 0 else len(data) + start
    return int.from_bytes(data[start : start + size], "little")


def _turn(value: int, by: int) -> int:
    """Rotate to the right."""
    value &= _ALL
    return (value >> by | value << (64 - by)) & _ALL


def _shift(value: int) -> int:
    value &= _ALL
    return value ^ (value >> 47)


def _pair(u: int, v: int, mul: int) -> int:
    a = _shift((u ^ v) * mul)
    return _shift((v ^ a) * mul) * mul & _ALL


def _short(data: bytes, size: int) -> int:
    mul = _K2 + size * 2
    if size >= 8:
        a, b = _word(data, 0) + _K2, _word(data, -8)
        return _pair(_turn(b, 37) * mul + a, (_turn(a, 25) + b) * mul, mul)
    if size >= 4:
        return _pair(size + (_word(data, 0, 4) << 3), _word(data, -4, 4), mul)
    if size:
        y, z = data[0] + (data[size >> 1] << 8), size + (data[-1] << 2)
        return _shift(y * _K2 ^ z * _K0) * _K2 & _ALL
    return _K2


def _long(data: bytes, size: int) -> int:
    x, y = 81, 81 * _K1 + 113
    z = _shift(y * _K2 + 113) * _K2
    v, w = (0, 0), (0, 0)
    x = x * _K2 + _word(data, 0)
    for start in range(0, (size - 1) // 64 * 64, 64):
        x = _turn(x + y + v[0] + _word(data, start + 8), 37) * _K1
        y = _turn(y + v[1] + _word(data, start + 48), 42) * _K1
        x ^= w[1]
        y += v[0] + _word(data, start + 40)
        z = _turn(z + w[0], 33) * _K1
        v = _weak(data, start, v[1] * _K1, x + w[0])
        w = _weak(data, start + 32, z + w[1], y + _word(data, start + 16))
        x, z = z, x
    mul = _K1 + ((z & 0xFF) << 1)
    start = size - 64
    w = (w[0] + ((size - 1) & 63), w[1])
    v = (v[0] + w[0], v[1])
    w = (w[0] + v[0], w[1])
    x = _turn(x + y + v[0] + _word(data, start + 8), 37) * mul
    y = _turn(y + v[1] + _word(data, start + 48), 42) * mul
    x ^= w[1] * 9
    y += v[0] * 9 + _word(data, start + 40)
    z = _turn(z + w[0], 33) * mul
    v = _weak(data, start, v[1] * mul, x + w[0])
    w = _weak(data, start + 32, z + w[1], y + _word(data, start + 16))
    x, z = z, x
    return _pair(_pair(v[0], w[0], mul) + _shift(y) * _K0 + z, _pair(v[1], w[1], mul) + x, mul)


def _weak(data: bytes, start: int, a: int, b: int) -> tuple[int, int]:
    w, x, y, z = (_word(data, start + 8 * index) for index in range(4))
    a += w
    b = _turn(b + a + z, 21)
    c = a
    a += x + y
    b += _turn(a, 44)
    return (a + z) & _ALL, (b + c) & _ALL


def _sip_round(a: int, b: int, c: int, d: int) -> tuple[int, int, int, int]:
    a = (a + b) & _ALL
    c = (c + d) & _ALL
    b, d = _turn(b, 51) ^ a, _turn(d, 48) ^ c
    a, c = _turn(a, 32), (c + b) & _ALL
    a = (a + d) & _ALL
    b, d = _turn(b, 47) ^ c, _turn(d, 43) ^ a
    return a, b, _turn(c, 32), d
