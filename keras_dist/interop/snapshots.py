"""`snapshot`: a repository of Hugging Face as a folder of weights, configs and tokenizers.

Files are data: patterns that would bring pickles or code are refused, and subfolders are left out, which hold
copies for other programs.
"""

from __future__ import annotations

import os
import pathlib
import re
from collections.abc import Sequence

from keras_dist._support.extras import import_extra
from keras_dist.errors import FileMissingError, ModelError, cause, shorten

FILES = ("*.safetensors", "*.json", "merges.txt", "vocab.txt", "tokenizer.model", "*.jinja")
"""Weights, configs and tokenizers."""

_NEVER = (
    *("*.py", "*.sh", "*.so", "*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.pickle", "*.joblib", "*.npy", "*.npz"),
    *("*/*", "consolidated*"),  # other forms of the same weights
)
_SAFE = re.compile(r".*\.(safetensors|json|txt|model|jinja|md)")
_REPOSITORY = re.compile(r"(?!\.)[\w.-]+/(?!\.)[\w.-]+")


def snapshot(name: str | os.PathLike[str], allow: Sequence[str] = FILES, revision: str | None = None) -> pathlib.Path:
    """Return the folder of a model: `name` itself, or the files of a repository of Hugging Face with this name.

    What is in the cache of `huggingface_hub` is not downloaded again. With `HF_HUB_OFFLINE=1`, nothing is. Nothing that
    is downloaded is run. That needs the extra `hub`.

    Args:
        name: a folder that exists, or the name of a repository, `"Qwen/Qwen3-0.6B"`.
        allow: patterns for names of files that end in `.safetensors`, `.json`, `.txt`, `.model`, `.jinja` or `.md`.
        revision: branch, tag or commit; by default the main branch.

    Returns:
        A folder for `model.load_weights`.

    Raises:
        FileMissingError: the folder does not exist, and the repository cannot be read.
        ModelError: `allow` would bring files of other kinds: pickles and code could be run.
        MissingExtraError: `huggingface_hub` is not installed.

    Example:
        >>> import tempfile
        >>> import keras_dist as kd
        >>> folder = tempfile.mkdtemp()
        >>> str(kd.interop.snapshot(folder)) == folder
        True

    Source: `huggingface_hub.snapshot_download`.
    """
    refused = [pattern for pattern in allow if not _SAFE.fullmatch(pattern)] if not isinstance(allow, str) else [allow]
    if refused:
        summary = "snapshot: `allow` must be patterns for files of weights, configs and tokenizers"
        raise ModelError(summary, given=shorten(refused), fix=f"for example allow={FILES[:2]}")
    path = pathlib.Path(name)
    if path.is_dir():
        return path
    if not isinstance(name, str) or not _REPOSITORY.fullmatch(name):
        fix = 'the path of a folder, or the name of a repository, "Qwen/Qwen3-0.6B"'
        raise FileMissingError(f"snapshot: the folder {os.fspath(name)!r} does not exist", given=shorten(name), fix=fix)
    hub = import_extra("huggingface_hub", "hub", f"snapshot({name!r})")
    options = {"revision": revision, "allow_patterns": list(allow), "ignore_patterns": list(_NEVER)}
    try:
        return pathlib.Path(hub.snapshot_download(name, **options))
    except (OSError, ValueError) as error:  # of the network, the repository, or the cache
        raise FileMissingError(
            f"snapshot: {name!r} is not a folder, and cannot be downloaded from Hugging Face",
            given=cause(error),
            fix="check the name and the network; hf auth login for a gated repository; or pass a folder with its files",
        ) from error
