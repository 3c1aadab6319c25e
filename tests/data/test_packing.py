"""Packed rows: every token once, in segments of one sequence, with exact positions in the data."""

import json
import re
from typing import Any

import grain
import hypothesis
import hypothesis.strategies as st
import jax
import numpy as np
import pytest

from keras_dist.data import DataLoader, mix, pack, packed_streams
from keras_dist.errors import DataError
from tests.data.rows import source_of

DRAWS = np.random.default_rng(0)


def sequences(lengths) -> list[np.ndarray]:
    """Sequences of different tokens, counted from 1."""
    ends = np.cumsum(lengths)
    return [np.arange(end - length + 1, end + 1) for end, length in zip(ends, lengths, strict=True)]


FEW = sequences(DRAWS.integers(0, 30, 60))


def rows_of(packed: Any) -> list[Any]:
    """All rows, of rows by number or batches."""
    if hasattr(packed, "__len__"):
        return [packed[row] for row in range(len(packed))]
    return [jax.tree.map(lambda leaf, row=row: leaf[row], batch) for batch in packed for row in range(len(batch[1]))]


def segments_of(rows: list[Any], length: int, pad_id: int = 0) -> list[list[int]]:
    """The segments of all rows; checks everything else in them."""
    found = []
    for x, y, weights in rows:
        assert {leaf.shape for leaf in jax.tree.leaves((x, y, weights))} == {(length,)}
        assert {leaf.dtype for leaf in jax.tree.leaves((x, y))} == {np.dtype("int32")} and weights.dtype == np.float32
        np.testing.assert_array_equal(x["tokens"], y)
        count = x["segments"].max()
        sizes = [int(np.sum(x["segments"] == segment)) for segment in range(1, count + 1)]
        padding = length - sum(sizes)
        expected = [segment for segment, size in enumerate(sizes, 1) for _ in range(size)] + [0] * padding
        assert x["segments"].tolist() == expected and all(sizes)
        assert x["positions"].tolist() == [place for size in sizes for place in range(size)] + [0] * padding
        assert weights.tolist() == [float(place > 0) for size in sizes for place in range(size)] + [0.0] * padding
        assert (y[length - padding :] == pad_id).all()
        ends = np.cumsum(sizes)
        found += [y[end - size : end].tolist() for end, size in zip(ends, sizes, strict=True)]
    return found


def pieces(tokens, length):
    return [tokens[start : start + length].tolist() for start in range(0, len(tokens), length)]


@hypothesis.settings(max_examples=40)
@hypothesis.given(
    lengths=st.lists(st.integers(0, 25), min_size=1, max_size=30).filter(any),
    length=st.integers(2, 12),
    counted=st.booleans(),
)
def test_every_piece_is_one_segment_of_one_row(lengths, length, counted):
    given = sequences(lengths)
    packed: Any = pack(given, length, pad_id=-1) if counted else pack(lambda: iter(given), length, pad_id=-1)
    rows = rows_of(packed)
    found = segments_of(rows, length, pad_id=-1)
    assert sorted(found) == [piece for one in given for piece in pieces(one, length)]
    assert packed.efficiency == pytest.approx(sum(lengths) / (len(rows) * length))
    assert len(rows) * length < 2 * sum(lengths) + length  # no two rows would fit into one


def test_a_piece_is_in_the_latest_of_the_fullest_rows():
    rows = pack(sequences([6, 7, 3, 6, 8, 1, 2]), 8)
    found = [np.unique(np.searchsorted([6, 13, 16, 22, 30, 31], y[y > 0])).tolist() for _, y, _ in rows]
    assert found == [[0], [1, 5], [2], [3, 6], [4]]


@pytest.mark.parametrize(("counted", "least"), [(True, 0.96), (False, 0.89)])
def test_little_is_padding(counted, least):
    given = sequences(DRAWS.integers(1, 129, 3000))
    packed: Any = pack(given, 128) if counted else pack(lambda: iter(given), 128)
    if not counted:
        assert packed.efficiency == 0
        list(packed)
    assert least < packed.efficiency < 1


def test_bytes_lists_and_arrays_in_dicts():
    rows = pack([b"\x01\xff", bytearray(b"a"), [7, 8], np.array([9], "u2")], 6)
    assert segments_of(rows_of(rows), 6) == [[1, 255], [97], [7, 8], [9]]
    rows = pack([{"input_ids": [1, 2]}, {"input_ids": [3]}], 3, tokens="input_ids")
    assert segments_of(rows_of(rows), 3) == [[1, 2], [3]]
    assert len(pack(np.arange(12).reshape(3, 4), 4)) == 3


@pytest.mark.parametrize("counted", [True, False])
def test_weights_of_answers_alone(counted):
    given = [{"tokens": [1, 2, 3, 4, 5], "mask": [0, 0, 1, 1, 1]}, {"tokens": [6, 7], "mask": [True, True]}]
    packed = pack(given if counted else lambda: iter(given), 4, loss_mask="mask")
    rows = rows_of(packed)
    weights = np.concatenate([row[2][row[0]["segments"] > 0] for row in rows])
    assert sorted(zip(np.concatenate([row[1][row[0]["segments"] > 0] for row in rows]), weights, strict=True)) == [
        (1, 0), (2, 0), (3, 1), (4, 1), (5, 0), (6, 0), (7, 1),
    ]  # fmt: skip  # 5 is the first of a piece


@pytest.mark.parametrize("counted", [True, False])
def test_sequences_that_are_too_long(counted):
    given = sequences([3, 9, 4, 5])
    source = given if counted else lambda: iter(given)
    kept = pack(source, 4, overlong="drop")
    assert sorted(segments_of(rows_of(kept), 4)) == [given[0].tolist(), given[2].tolist()]
    listed = "sequence 1: 9 tokens, sequence 3: 5 tokens" if counted else "9 tokens"
    with pytest.raises(DataError, match=f"longer than 4 tokens\n.*{listed}"):
        rows_of(pack(source, 4, overlong="error"))


class TestReading:
    def test_fit_shuffles_the_rows_in_each_epoch(self):
        def epochs(seed):
            loader = DataLoader(pack(FEW, 16), batch_size=4, shuffle=True, seed=seed)
            return [np.concatenate([y for _, y, _ in loader]).tolist() for _ in range(2)]

        first, second = epochs(0)
        assert first != second and sorted(first) == sorted(second)
        assert epochs(0) == [first, second] and epochs(1)[0] != first

    def test_a_source_that_changes(self):
        given = [[1, 2, 3], [4, 5]]
        packed = pack(given, 8)
        given[1] = [4]
        with pytest.raises(DataError, match=r"another length than when it was packed\n.*sequence 1: 1 tokens"):
            packed[0]


def assert_equal(found, expected):
    assert len(found) == len(expected)
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_a_mixture_of_rows_has_its_proportion_of_tokens():
    mixed = mix({"a": pack([[1] * 4] * 9, 8), "b": pack([[2] * 8] * 9, 8)}, (1, 2), seed=None)
    (batch,) = source_of(mixed).batches(len(mixed), 1)
    assert batch.arrays[1][:, 0].tolist() == [2, 1, 2] * 4 + [2, 1]


STREAMS = {
    "function": lambda: lambda: iter(FEW),
    "iterable": lambda: _Iterable(),
    "grain": lambda: grain.MapDataset.source(FEW).shuffle(seed=3).to_iter_dataset(),
    "endless": lambda: grain.MapDataset.source(FEW).shuffle(seed=3).repeat(),
    "mixture": lambda: mix({"a": FEW[:20], "b": lambda: iter(FEW[20:])}, (1, 2)),
}


class _Iterable:
    def __iter__(self):
        return iter(FEW)


class TestStreams:
    @pytest.mark.first_cases(1)
    @pytest.mark.parametrize("kind", STREAMS)
    def test_batches_from_any_position(self, kind, monkeypatch):
        monkeypatch.setattr(packed_streams, "_OPEN_ROWS", 5)
        packed: Any = pack(STREAMS[kind](), 8, batch_size=3)
        iterator, whole, states = iter(packed), [], []
        for _, batch in zip(range(40), iterator, strict=False):
            whole.append(batch)
            states.append(json.loads(json.dumps(iterator.get_state())))
        assert len(whole) == 40 or kind != "endless"
        assert any(state["parent"]["piece"] for state in map(_packing, states))  # in the middle of a sequence
        for done in range(0, len(whole), 3):
            left = iter(pack(STREAMS[kind](), 8, batch_size=3))
            left.set_state(states[done])
            following = whole[done + 1 : done + 4]
            assert_equal([batch for _, batch in zip(following, left, strict=False)], following)

    def test_a_cursor_holds_the_state(self):
        loader = DataLoader(pack(STREAMS["grain"](), 8, batch_size=7))
        begun = iter(loader)
        whole = [next(begun), next(begun)]
        left = iter(DataLoader(pack(STREAMS["grain"](), 8, batch_size=7)))
        state = begun.get_state()
        assert state["source"] is not None
        left.set_state(state)
        whole += begun
        assert_equal(list(left), whole[2:])


def _packing(state: Any) -> Any:
    """The state of the packer in the state of batches."""
    while "next_row" not in state:
        (state,) = (value for value in state.values() if isinstance(value, dict))
    return state


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (((1, 2), 8), "source of sequences of tokens"),
        ((iter([[1, 2]]), 8), "pass a function that makes the iterator: source=lambda"),
        (({"a": [1]}, 8), "pass a list, an object with __len__"),
        (([1, 2, 3], 8), r"integers of shape \(tokens,\), or bytes(.|\n)*put one sequence in a list\nin sequence 0"),
        ((np.arange(5), 8), "put one sequence in a list"),
        ((["text"], 8), r"text\.encode\(\)"),
        (([[1], [0.5]], 8), "(.|\n)*in sequence 1"),
        (([[2**40]], 8), "does not fit int32"),
        (([], 8), "no token to pack\n.*0 sequences"),
        (([[1, 2, 3]], 2, {"overlong": "drop"}), "no token to pack\n.*1 sequences, 3 tokens"),
        (([[1]], 1), "`length` must be an integer from 2 to 16777216"),
        (([[1]], 8, {"overlong": "cut"}), "'split', 'drop', 'error'"),
        (([[1]], 8, {"pad_id": 2**31}), "`pad_id`"),
        (([[1]], 8, {"batch_size": 4}), "pass batch_size to fit"),
        (([{"ids": [1]}], 8), "no key 'tokens'(.|\n)*pack\\(tokens=...\\)"),
        (([{"tokens": [1]}], 8, {"loss_mask": "mask"}), "no key 'mask'"),
        (([{"tokens": [1], "mask": [1, 0]}], 8, {"loss_mask": "mask"}), "a finite number for each token"),
        (([{"tokens": [1, 2], "mask": [1, 1e39]}], 8, {"loss_mask": "mask"}), "a finite number for each token"),
    ],
)
def test_mistakes(arguments, words):
    source, length, *options = arguments
    with pytest.raises(DataError) as caught:
        pack(source, length, **(options[0] if options else {}))
    assert re.search(words, "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])]))
