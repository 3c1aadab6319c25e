"""Text files as rows of tokens."""

import sys
import types

import pytest

from keras_dist import data
from keras_dist.datasets import text
from keras_dist.errors import DataError, MissingExtraError


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "inner").mkdir()
    for name, content in {"b.txt": "bbb", "a.txt": "aaaa", "inner/c.txt": "cc", "empty.txt": "", "ü.md": "ü"}.items():
        (tmp_path / name).write_bytes(content.encode())


def same(rows, expected):
    assert [[*map(int, row[1])] for row in rows] == [[*map(int, row[1])] for row in expected]


def test_files_are_packed_in_the_order_of_their_names():
    rows, test = text.load_data(["**/*.txt", "a.txt"], 8, test_files="*.md")
    same(rows, data.pack([b"aaaa", b"bbb", b"cc"], 8))  # once, without what is empty
    same(test, data.pack(["ü".encode()], 8))


def test_sources_are_mixed_in_rows():
    rows, _ = text.load_data({"one": "a.txt", "two": ["inner/*.txt"]}, 2, weights=(2, 1))
    assert rows.counts == {"one": 2, "two": 1}


class Tokenizer:
    """Stands for `tokenizers.Tokenizer`."""

    @classmethod
    def from_file(cls, path):
        if not path.endswith("tokenizer.json"):
            raise Exception("no such file")  # as the library does
        return cls()

    def encode(self, content):
        return types.SimpleNamespace(ids=[1000, *map(ord, content)])


def test_a_tokenizer_makes_the_tokens(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(MissingExtraError, match="pip install tokenizers"):
        text.load_data("a.txt", 8, tokenizer=tmp_path)
    monkeypatch.setitem(sys.modules, "tokenizers", types.SimpleNamespace(Tokenizer=Tokenizer))
    for tokenizer in (tmp_path, "tokenizer.json"):
        same(text.load_data("*.md", 8, tokenizer=tokenizer)[0], data.pack([[1000, ord("ü")]], 8))
    with pytest.raises(DataError, match=r"'other\.json' cannot be read"):
        text.load_data("a.txt", 8, tokenizer="other.json")
    (tmp_path / "latin.txt").write_bytes("ü".encode("latin-1"))
    with pytest.raises(DataError, match=r"(?s)'latin\.txt' cannot be read.*UTF-8"):
        text.load_data("latin.txt", 8, tokenizer=tmp_path)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"files": ["a.txt", "*.x", "y"]}, r"(?s)`files` matches no file.*'\*\.x', 'y'.*relative to"),
        ({"files": "inner"}, "`files` matches no file"),
        ({"files": []}, "`files` matches no file"),
        ({"files": {"one": "a.txt", "two": "x"}}, r"`files\['two'\]` matches no file"),
        ({"files": "a.txt", "test_files": "x"}, "`test_files` matches no file"),
        ({"files": "a.txt", "weights": (1, 2)}, "(?s)`weights` needs several sources.*files = {code"),
    ],
)
def test_wrong_arguments(arguments, said):
    with pytest.raises(DataError, match=said):
        text.load_data(length=8, **arguments)
