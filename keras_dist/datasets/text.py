"""Text files as rows of tokens for language models: `data = {name = "text", files = "*.md", length = 512}` of a config.

Each process reads all files and keeps their tokens in memory; rows are made when they are read.
"""

from __future__ import annotations

import glob
import os
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from keras_dist._support.extras import import_extra
from keras_dist.data import mix, pack
from keras_dist.errors import DataError, cause, shorten

Patterns = str | Sequence[str]


def load_data(
    files: Patterns | Mapping[str, Patterns],
    length: int,
    *,
    test_files: Patterns | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    weights: Sequence[float] | Mapping[str, float] | None = None,
) -> tuple[Any, Any]:
    """Read text files, and pack them into rows of tokens, as `data.pack` returns them: `(train, test)`.

    Args:
        files: pattern of paths, such as `"docs/**/*.md"`, or several; or a dict of these, to mix sources.
        length: number of tokens in a row.
        test_files: patterns of the files of the test rows; without them, these are None.
        tokenizer: a `tokenizer.json`, or a folder with one; it needs `pip install tokenizers`. By default the tokens
            are bytes, 0 to 255.
        weights: proportion of the tokens of the sources, as for `data.mix`; the mixture ends with the first source.

    Raises:
        DataError: a pattern matches no file, or a file cannot be read.

    Example:
        >>> import pathlib, tempfile
        >>> import keras_dist as kd
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> for name in "abc":
        ...     _ = (folder / f"{name}.txt").write_text(10 * name)
        >>> train, test = kd.datasets.text.load_data(f"{folder}/*.txt", length=32)
        >>> train, test
        (<1 rows of 32 tokens, 93.8% packed>, None)
    """
    encode = _encoder(tokenizer)

    def packed(argument: str, patterns: Patterns) -> Any:
        return pack([_tokens(path, encode) for path in _paths(argument, patterns)], length)

    if isinstance(files, Mapping):
        sources = {name: packed(f"files[{name!r}]", patterns) for name, patterns in files.items()}
        train: Any = mix(sources, weights)
    elif weights is not None:
        given, fix = f"weights={shorten(weights)}", 'name the sources: files = {code = "*.py", prose = "*.md"}'
        raise DataError("`weights` needs several sources", given=given, fix=fix)
    else:
        train = packed("files", files)
    return train, None if test_files is None else packed("test_files", test_files)


def _paths(argument: str, patterns: Patterns) -> list[pathlib.Path]:
    """Return the files of patterns, sorted: all processes must have the same order."""
    listed = [patterns] if isinstance(patterns, str) else patterns
    found = {one: sorted(glob.glob(os.path.expanduser(one), recursive=True)) for one in listed}
    files = {one: [path for path in map(pathlib.Path, paths) if path.is_file()] for one, paths in found.items()}
    missing = [one for one, paths in files.items() if not paths]
    if missing or not files:
        fix = f"correct it; it is relative to {os.getcwd()!r}, and ** stands for folders"
        raise DataError(f"`{argument}` matches no file", given=", ".join(map(repr, missing or [patterns])), fix=fix)
    return list(dict.fromkeys(path for paths in files.values() for path in paths))


def _tokens(path: pathlib.Path, encode: Callable[[bytes], Iterable[int]]) -> np.ndarray:
    try:
        content = path.read_bytes()
        return np.frombuffer(content, np.uint8) if encode is bytes else np.array([*encode(content)], np.int32)
    except (OSError, UnicodeDecodeError) as error:
        fix = "leave the file out, or convert it to UTF-8"
        raise DataError(f"{str(path)!r} cannot be read", given=cause(error), fix=fix) from error


def _encoder(tokenizer: str | os.PathLike[str] | None) -> Callable[[bytes], Iterable[int]]:
    if tokenizer is None:
        return bytes
    tokenizers = import_extra("tokenizers", "tokenizers", "`tokenizer`")
    path = pathlib.Path(tokenizer).expanduser()
    path = path / "tokenizer.json" if path.is_dir() else path
    try:
        loaded = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises no other class
        raise DataError(f"{str(path)!r} cannot be read", given=cause(error), fix="give a tokenizer.json") from error
    return lambda content: loaded.encode(content.decode()).ids
