"""Parquet files of conversations and pairs, as pyarrow and `datasets` write them."""

import contextlib
import os
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

import keras_dist as kd
from keras_dist.data import parquet_files
from keras_dist.errors import DataError, MissingExtraError
from tests.data.test_chat import CONVERSATIONS, folder
from tests.data.test_preferences import RECORDED as RECORDED_PAIRS
from tests.data.test_preferences import model, parts

__all__ = ["model"]  # a fixture

TOOL = {"type": "function", "function": {"name": "add", "parameters": {"x": {"type": "int"}}}}
CALL = [{"id": "1", "function": {"name": "add", "arguments": {"x": "2"}}}]
WITH_TOOLS = [
    {"role": "user", "content": "add"},
    {"role": "assistant", "content": None, "tool_calls": CALL},
    {"role": "tool", "content": "2", "name": "add", "tool_call_id": "1"},
    {"role": "assistant", "content": "two"},
]
TEMPLATE = """{% if tools is defined and tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{{ m.role }}:
{% generation %}{{ m | tojson(sort_keys=true) }}{% endgeneration %}{% endfor %}"""
"""Shows each key of each message."""

CONTENT = "chat.list.element.content"
FORMS = [
    ("string", "list_", {}),
    ("large_string", "list_", {"row_group_size": 2}),
    ("large_string", "large_list", {"use_dictionary": False, "compression": "zstd", "data_page_version": "2.0"}),
    ("string", "list_", {"dictionary_pagesize_limit": 20, "data_page_size": 50, "write_page_checksum": True}),
    ("string", "large_list", {"use_dictionary": False, "column_encoding": {CONTENT: "DELTA_BYTE_ARRAY"}}),
]


def equal(found, expected):
    assert len(found) == len(expected)
    for number in range(len(expected)):
        for one, two in zip(*map(leaves, (found[number], expected[number])), strict=True):
            np.testing.assert_array_equal(one, two)


def leaves(row):
    x, *others = row
    return [*x.values(), *others]


def written(path, rows, kind="string", listed="list_", **options):
    """A file in which each message has all keys, of types that `datasets` chooses."""
    text, many = getattr(pa, kind)(), getattr(pa, listed)
    function = pa.struct([("name", text), ("arguments", pa.struct([("x", text)]))])
    keys = [("role", text), ("content", text), ("tool_calls", many(pa.struct([("id", text), ("function", function)])))]
    message = pa.struct([*keys, ("name", text), ("tool_call_id", text)])
    parameters = pa.struct([("x", pa.struct([("type", text)]))])
    tool = pa.struct([("type", text), ("function", pa.struct([("name", text), ("parameters", parameters)]))])
    columns = {"chat": many(message), "tools": many(tool)}
    table = {name: pa.array([row.get(name) for row in rows], type_) for name, type_ in columns.items()}
    parquet.write_table(pa.table(table | {"score": [0.5] * len(rows)}), path, **options)
    return path


@pytest.mark.parametrize(("kind", "listed", "options"), FORMS)
def test_rows_equal_those_of_lists(tmp_path, kind, listed, options):
    conversations = [{"chat": each} for each in CONVERSATIONS.values()]
    conversations.insert(1, {"chat": WITH_TOOLS, "tools": [TOOL]})
    path = written(tmp_path / "chats.parquet", conversations, kind, listed, **options)
    arguments = {"length": 4096, "messages": "chat", "template": TEMPLATE}
    for source in (path, str(path)):
        rows = kd.data.chat(source, folder(tmp_path), **arguments)
        equal(rows, kd.data.chat(conversations, folder(tmp_path), **arguments))


@pytest.mark.parametrize("name", list(RECORDED_PAIRS))
def test_pairs_equal_those_of_lists(tmp_path, model, name):
    pairs, path = RECORDED_PAIRS[name]["pairs"], tmp_path / "pairs.parquet"
    parquet.write_table(pa.Table.from_pylist(pairs), path)
    found, expected = (kd.data.preferences(each, folder(tmp_path), model) for each in (path, pairs))
    assert list(parts(found)) == list(parts(expected))
    np.testing.assert_array_equal(found.reference, expected.reference)


def test_a_prompt_may_be_null(tmp_path, model):
    pairs, path = RECORDED_PAIRS["conversations"]["pairs"], tmp_path / "pairs.parquet"
    parquet.write_table(pa.Table.from_pylist([pair | {"prompt": None} for pair in pairs]), path)
    found, expected = (kd.data.preferences(each, folder(tmp_path), model) for each in (path, pairs))
    assert list(parts(found)) == list(parts(expected))


def table(**columns):
    return pa.table({name: pa.array(*value) for name, value in columns.items()})


MESSAGES = [[[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]]]
OF_BYTES = pa.list_(pa.struct([("role", pa.string()), ("content", pa.binary())]))


@pytest.mark.parametrize(
    ("rows", "given"),
    [
        (table(chat=MESSAGES), "chat': 'list<"),
        (table(messages=[["a"]]), "messages': '.*string"),
        (table(messages=[[1]]), "messages': 'int64"),
        (table(messages=[[None]]), "messages': 'null"),
        (table(messages=[[["a"]]]), "messages': 'list<"),
        (table(messages=[[[{"content": "a"}]]]), "messages': 'list<"),
        (table(messages=[[{"role": "user", "content": "a"}]]), "messages': 'struct<"),
        (table(messages=[*MESSAGES, OF_BYTES]), "content: .*binary"),
    ],
)
def test_columns_of_others_are_an_error(tmp_path, rows, given):
    path = tmp_path / "rows.parquet"
    parquet.write_table(rows, path)
    with pytest.raises(
        DataError, match=rf"(?s)rows.parquet' are missing or of another type: messages.*{given}.*`messages`"
    ):
        kd.data.chat(path, folder(tmp_path))


def test_columns_of_pairs_are_checked_together(tmp_path, model):
    path = tmp_path / "rows.parquet"
    parquet.write_table(table(chosen=[[1]], prompt=[[2.0]], rejected=[["a"]]), path)
    with pytest.raises(
        DataError, match=r"(?s)are missing or of another type: chosen, prompt\n.*write texts, or messages"
    ):
        kd.data.preferences(path, folder(tmp_path), model)


def test_rows_that_are_no_conversation_are_an_error(tmp_path):
    path = tmp_path / "rows.parquet"
    parquet.write_table(table(messages=[[*MESSAGES[0], None]]), path)
    with pytest.raises(DataError, match="conversation 1 must be a list of messages"):
        kd.data.chat(path, folder(tmp_path))


@pytest.mark.parametrize("options", [{}, {"write_page_checksum": True, "use_dictionary": False, "compression": "none"}])
def test_damaged_files_are_an_error(tmp_path, options):
    path = written(tmp_path / "a.parquet", [{"chat": WITH_TOOLS}] * 9, **options)
    content = path.read_bytes()

    def read(changed):
        path.write_bytes(changed)
        return [*parquet_files.parquet_rows(path, ["chat"], False, "")]

    for size in range(0, len(content), 101):
        with pytest.raises(DataError, match=r"a.parquet' cannot be read"):
            read(content[:size])
    for place in range(0, len(content), 101):
        with contextlib.suppress(DataError):
            read(content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :])
    assert len(read(content)) == 9
    if options:
        with pytest.raises(DataError, match=r"a.parquet' cannot be read\n.*CRC checksum"):
            read(content.replace(b"two", b"tow"))


@pytest.mark.parametrize("place", ["nowhere.parquet", "folder.parquet", "pipe.parquet"])
def test_only_files_are_read(tmp_path, place):
    (tmp_path / "folder.parquet").mkdir()
    os.mkfifo(tmp_path / "pipe.parquet")
    with pytest.raises(DataError, match=rf"{place}' cannot be read"):
        kd.data.chat(tmp_path / place, folder(tmp_path))


def test_repeated_values_are_bounded(tmp_path):
    count = 2**16
    texts = pa.DictionaryArray.from_arrays(np.zeros(count, "int32"), ["x" * 2**11])
    message = pa.StructArray.from_arrays([texts, texts], ["role", "content"])
    path = tmp_path / "a.parquet"
    rows = pa.table({"messages": pa.ListArray.from_arrays(np.array([0, count], "int32"), message)})
    parquet.write_table(rows, path)
    with pytest.raises(DataError, match="are missing or of another type: messages"):
        kd.data.chat(path, folder(tmp_path))
    parquet.write_table(rows, path, store_schema=False)
    assert path.stat().st_size < 2**15
    with pytest.raises(DataError, match=r"(?s)a.parquet' cannot be read.*1 rows have \d{9} bytes, more than 67108864"):
        kd.data.chat(path, folder(tmp_path))


def test_few_rows_are_in_memory(tmp_path):
    path, rows = tmp_path / "a.parquet", np.arange(2000)
    generator = np.random.default_rng(0)
    chats = [{"chat": [{"role": "user", "content": f"{generator.bytes(2500).hex()} {number}"}]} for number in rows]
    written(path, chats, row_group_size=100, use_dictionary=False, compression="none")
    before, peak = pa.total_allocated_bytes(), 0
    for number, row in zip(rows, parquet_files.parquet_rows(path, ["chat"], False, ""), strict=True):
        assert row == chats[number]
        peak = max(peak, pa.total_allocated_bytes() - before)
    assert peak < 2**21 < 2**23 < path.stat().st_size


def test_pyarrow_is_an_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"(?s)a.parquet' needs the package pyarrow.*pip install pyarrow"):
        kd.data.chat(tmp_path / "a.parquet", folder(tmp_path))
