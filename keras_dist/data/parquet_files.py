"""Rows of Parquet files with conversations, as the library `datasets` writes them, read by pyarrow.

Few rows are decoded at a time, of one row group after another. A value that a file repeats takes no bytes in it, so
decoded rows have a bound of bytes, which holds before they become objects of Python. pyarrow has expanded them by then,
and a small file can take gigabytes for a moment. The counts in the metadata cannot be checked before: where they are
damaged, reading them aborts the process (pyarrow 26).

A struct has all keys: null stands for an absent one, except for `content`.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

from keras_dist._support.extras import import_extra
from keras_dist.errors import DataError, cause, shorten
from keras_dist.files.regular_files import open_regular

_ROWS, _MOST_BYTES = 8, 2**26
_TEXTS, _BYTES = ("string", "large_string"), ("binary", "large_binary")


def parquet_rows(path: pathlib.Path, needed: Sequence[str], takes_text: bool, fix: str) -> Iterator[Any]:
    """Yield the rows as dicts with these columns, and `tools` and `prompt` if there are any."""
    name = repr(str(path))
    arrow, parquet = (import_extra(module, "parquet", name) for module in ("pyarrow", "pyarrow.parquet"))
    # with a buffer of all row groups, as by default, the whole file would be in memory
    options = {"pre_buffer": False, "buffer_size": 2**20, "page_checksum_verification": True}
    try:
        with open_regular(path, follow_links=True) as opened:
            file = parquet.ParquetFile(opened, **options)
            kinds = {field.name: field.type for field in file.schema_arrow}
            columns = [*needed, *({"prompt"} & {*kinds} if takes_text else ())]
            wrong = [each for each in columns if not _fits(kinds.get(each), takes_text)]
            wrong += [each for each in (*columns, "tools") if "dictionary<" in str(kinds.get(each))]  # has no bound
            if wrong:
                given = shorten({each: str(kind) for each, kind in kinds.items()})
                raise DataError(
                    f"columns of {name} are missing or of another type: {', '.join(dict.fromkeys(wrong))}",
                    given=given,
                    fix=fix,
                )
            for batch in file.iter_batches(_ROWS, columns=[*columns, "tools"], use_threads=False):
                if batch.nbytes > _MOST_BYTES:
                    raise OverflowError(f"{len(batch)} rows have {batch.nbytes} bytes, more than {_MOST_BYTES}")
                yield from map(_without_nulls, batch.to_pylist())
    except (OSError, OverflowError, UnicodeDecodeError, arrow.ArrowException) as error:
        raise DataError(f"{name} cannot be read", given=cause(error), fix="write it again, or JSON lines") from error


def _fits(kind: Any, takes_text: bool) -> bool:
    """Whether a column has messages, or texts if these are taken."""
    if str(kind) in (*_TEXTS, "null"):
        return takes_text
    inner = getattr(kind, "value_type", None)
    fields: Any = inner if str(inner).startswith("struct<") else ()
    keys = {field.name: str(field.type) for field in fields}
    return keys.get("role") in _TEXTS and keys.get("content") not in _BYTES


def _without_nulls(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_nulls(each) for each in value]
    if not isinstance(value, dict):
        return value
    kept = "content" if "role" in value else None
    return {key: _without_nulls(each) for key, each in value.items() if each is not None or key == kept}
