"""JAX's persistent compilation cache, with settings for a second start without compilation."""

from __future__ import annotations

import os
import pathlib
import re
import sys
import tempfile

import jax
from jax.experimental.compilation_cache import compilation_cache

from keras_dist.errors import WriteError

_URL = re.compile(r"[a-zA-Z][\w+.-]+:/")
"""`gs://...`, also as a `pathlib` path; not a drive of Windows."""


def use_compilation_cache(path: str | os.PathLike[str] | None = None) -> pathlib.Path:
    """Keep compiled programs in a folder, from which later processes load them instead of compiling.

    Turns on JAX's persistent compilation cache for all programs that this process compiles later, also for small and
    fast ones. A program is reused if the model, the shapes, the devices and the versions are the same. A new seed needs
    no new program, except the seed of an initializer, and of `Model.from_nnx` if `call` draws from `rngs`.

    Programs in the folder run without further checks, so that only people you trust may write to it. A full disk leaves
    damaged files there, of which JAX warns at each start: delete them.

    Args:
        path: the folder, created if missing. By default `keras_dist/programs` in the user's cache folder, with access
            for the user only: `$XDG_CACHE_HOME` or `~/.cache`, `~/Library/Caches` on macOS, `%LOCALAPPDATA%` on
            Windows.

    Returns:
        The folder.

    Raises:
        WriteError: `path` is not a writable folder.

    Example:
        >>> import keras_dist as kd
        >>> folder = kd.use_compilation_cache()  # doctest: +SKIP
    """
    try:
        if path is not None and (not os.fspath(path) or _URL.match(str(path))):
            raise ValueError("an empty path or a URL")
        folder = pathlib.Path(_default() if path is None else path).expanduser().absolute()
        folder.mkdir(mode=0o700 if path is None else 0o777, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except (OSError, TypeError, ValueError, RuntimeError) as error:
        raise WriteError(
            "use_compilation_cache: programs cannot be kept there",
            given=f"path={path!r}: {error}",
            fix='name a folder that you may write to; a bucket: jax.config.update("jax_compilation_cache_dir", "gs://...")',
        ) from error
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_enable_compilation_cache", True)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    compilation_cache.reset_cache()  # JAX reads its settings once, before the first program
    return folder


def _default() -> pathlib.Path:
    """Return `keras_dist/programs` in the user's cache folder."""
    if sys.platform == "win32":
        caches = os.environ.get("LOCALAPPDATA") or pathlib.Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        caches = pathlib.Path.home() / "Library" / "Caches"
    else:
        caches = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(caches) / "keras_dist" / "programs"
