"""Vocabularies, text, hashes and bins: what they give for known words, as Keras documents it."""

import numpy as np
import pytest

import keras_dist as kd
from keras_dist import layers
from keras_dist.errors import ConfigError, DataError, ModelError
from keras_dist.layers.preprocessing.text_hashes import farmhash64, siphash64

WORDS = ["a", "b", "c"]


def test_words_and_their_indices():
    layer = layers.StringLookup(vocabulary=WORDS)
    found = layer([["a", "c", "d"], ["d", "z", "b"]])
    assert found.tolist() == [[1, 3, 0], [0, 0, 2]] and found.dtype == "int32"
    assert layer.get_vocabulary() == ["[UNK]", *WORDS] and layer.vocabulary_size() == 4
    assert layer(np.array([b"a", b"c"])).tolist() == [1, 3] and layer("b").tolist() == 2
    masked = layers.StringLookup(vocabulary=WORDS, mask_token="", num_oov_indices=2)
    assert masked.get_vocabulary() == ["", "[UNK]", "[UNK]", *WORDS]
    assert masked([["", "a", "x", "y"]])[0, :2].tolist() == [0, 3] and set(masked(["x", "y"])) <= {1, 2}
    back = layers.StringLookup(vocabulary=layer.get_vocabulary(), invert=True)
    assert back([[1, 3, 0, 99]]).tolist() == [["a", "c", "[UNK]", "[UNK]"]]


def test_integers_and_their_indices():
    vocabulary = [12, 36, 1138, 2**40]
    layer = layers.IntegerLookup(vocabulary=vocabulary)
    assert layer([[12, 1138, 42], [42, 2**40, 36]]).tolist() == [[1, 3, 0], [0, 4, 2]]
    several = layers.IntegerLookup(vocabulary=vocabulary, num_oov_indices=3, mask_token=-7)
    assert several([[-7, 12, 40, 41, 42]]).tolist() == [[0, 4, 2, 3, 1]]
    back = layers.IntegerLookup(vocabulary=vocabulary, invert=True)
    assert back([[1, 4, 0]]).tolist() == [[12, 2**40, -1]]
    with pytest.raises(DataError, match="does not know all tokens"):
        layers.IntegerLookup(vocabulary=vocabulary, num_oov_indices=0)([12, 13])


def test_vectors_of_words():
    rows = [["a", "c", "c"], ["b", "z", "z"]]
    make = lambda mode, **options: layers.StringLookup(vocabulary=WORDS, output_mode=mode, **options)  # noqa: E731
    assert make("multi_hot")(rows).tolist() == [[0, 1, 0, 1], [1, 0, 1, 0]]
    assert make("count")(rows).tolist() == [[0, 1, 0, 2], [2, 0, 1, 0]]
    assert make("one_hot")(["a", "z"]).tolist() == [[0, 1, 0, 0], [1, 0, 0, 0]]
    assert make("one_hot")([["a"], ["z"]]).shape == (2, 4) and make("one_hot")(rows).shape == (2, 3, 4)
    assert make("count", max_tokens=6, pad_to_max_tokens=True)(rows).shape == (2, 6)
    weighted = make("tf_idf", idf_weights=[1.0, 2.0, 3.0])(rows)
    assert weighted.tolist() == [[0, 1, 0, 6], [4, 0, 2, 0]]
    assert make("count", mask_token="d")(["a", "d"]).tolist() == [0, 1, 0, 0]


def test_words_are_learned_the_most_frequent_first():
    layer = layers.StringLookup(max_tokens=4)
    layer.adapt(np.array([["b", "c"], ["c", "d"], ["c", "b"], ["a", "[UNK]"]]))
    assert layer.get_vocabulary() == ["[UNK]", "c", "b", "d"]
    layer.adapt(iter([np.array([["x"]]), np.array([["y"]])]), steps=1)
    assert layer.get_vocabulary() == ["[UNK]", "x"]
    weighted = layers.StringLookup(output_mode="tf_idf")
    weighted.adapt([["a", "b"], ["b", "b"], ["c", "b"]])
    # log(1 + documents / (1 + documents with the word)); their mean for unknown words
    expected = np.log(1 + 3 / (1 + np.array([3, 1, 1])))
    np.testing.assert_allclose(weighted([["b"], ["c"], ["a"]]).sum(1), expected, rtol=1e-6)
    np.testing.assert_allclose(weighted([["?"]]).sum(), expected.mean(), rtol=1e-6)
    again = layers.StringLookup.from_config(weighted.get_config())
    np.testing.assert_allclose(again([["b", "?"]]), weighted([["b", "?"]]))


def test_bytes_are_read_in_their_encoding():
    layer = layers.StringLookup(vocabulary=["é", "ü".encode("latin-1")], encoding="latin-1")
    assert layer(["ü".encode("latin-1"), "é", b"a"]).tolist() == [2, 1, 0]
    learned = layers.StringLookup.from_config(layers.StringLookup(encoding="latin-1").get_config())
    learned.adapt(["é".encode("latin-1")])
    assert learned.get_vocabulary() == ["[UNK]", "é"]


def test_nothing_is_learned_of_no_words():
    layer = layers.StringLookup()
    layer.adapt(iter([np.zeros((0, 2), str), np.array([["a", "b"]])]))
    assert sorted(layer.get_vocabulary()) == ["[UNK]", "a", "b"]


def test_vocabularies_in_files(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("a\nb\nc\n", "utf-8")
    layer = layers.StringLookup(vocabulary=str(path))
    assert layer.get_vocabulary() == ["[UNK]", *WORDS]
    config = layer.get_config()
    assert config["vocabulary"] == WORDS
    with pytest.raises(ConfigError, match="names a file"):
        layers.StringLookup.from_config({**config, "vocabulary": str(path)})
    with pytest.raises(ConfigError, match="names a file"):
        layers.TextVectorization.from_config({"vocabulary": "/etc/passwd"})
    with pytest.raises(DataError, match="cannot read its vocabulary"):
        layers.IntegerLookup(vocabulary=str(path))
    with pytest.raises(DataError, match="a regular file"):
        layers.StringLookup(vocabulary="/dev/zero")


@pytest.mark.parametrize(
    "make",
    [
        lambda: layers.StringLookup(vocabulary=[]),
        lambda: layers.StringLookup(vocabulary=["a", "a"]),
        lambda: layers.StringLookup(vocabulary=["a", "", "b"], mask_token=""),
        lambda: layers.StringLookup(vocabulary=WORDS, max_tokens=3),
        lambda: layers.StringLookup(vocabulary=WORDS).adapt(["a"]),
        lambda: layers.StringLookup(output_mode="one_hot")(["a"]),
        lambda: layers.StringLookup(vocabulary=WORDS, output_mode="tf_idf"),
        lambda: layers.StringLookup(pad_to_max_tokens=True),
        lambda: layers.StringLookup(output_mode="count", sparse=True),
        lambda: layers.IntegerLookup(vocabulary=[1.5]),
        lambda: layers.TextVectorization(ngrams="2"),
        lambda: layers.TextVectorization(output_mode="count", output_sequence_length=3),
        lambda: layers.TextVectorization(ragged=True),
        lambda: layers.Hashing(0),
        lambda: layers.Discretization(),
        lambda: layers.Discretization([1.0, 0.0]),
        lambda: layers.Discretization(num_bins=3)(np.ones(3)),
    ],
)
def test_wrong_arguments(make):
    with pytest.raises(ModelError):
        make()


def test_wrong_data():
    for layer, data in (
        (layers.StringLookup(vocabulary=WORDS), [1, 2]),
        (layers.IntegerLookup(vocabulary=[1]), ["a"]),
        (layers.StringLookup(vocabulary=WORDS), [["a"], ["a", "b"]]),
        (layers.TextVectorization(), np.array([["a", "b"]])),
        (layers.TextVectorization(), [None]),
        (layers.Hashing(5), np.array([1.5])),
    ):
        with pytest.raises(DataError):
            layer(data)


def test_text_becomes_words():
    text = ["Earth, wind & FIRE!", "fire and\twater\n"]
    layer = layers.TextVectorization()
    layer.adapt(text)
    assert layer.get_vocabulary()[:3] == ["", "[UNK]", "fire"]
    assert layer.get_vocabulary()[3:] == ["wind", "water", "earth", "and"]
    assert layer(text).tolist() == [[5, 3, 2], [2, 6, 4]]
    assert layer(["wind"]).tolist() == [[3]] and layer("wind ?").tolist() == [3] and layer([["wind x"]]).shape == (1, 2)
    fixed = layers.TextVectorization(vocabulary=["fire"], output_sequence_length=4, standardize="lower")
    assert fixed(text).tolist() == [[1, 1, 1, 1], [2, 1, 1, 0]]
    letters = layers.TextVectorization(split="character", standardize=None)
    letters.adapt(["abca"])
    assert letters.get_vocabulary() == ["", "[UNK]", "a", "c", "b"]
    # letters outside of ASCII and spaces that do not break stay as they are, as in TensorFlow
    other = layers.TextVectorization()
    other.adapt(["É\u00a0e"])
    assert other.get_vocabulary(include_special_tokens=False) == ["É\u00a0e"]


def test_words_are_joined():
    layer = layers.TextVectorization(
        ngrams=(2, 3), output_mode="count", standardize=np.char.lower, split=lambda texts: [t.split("-") for t in texts]
    )
    layer.adapt(["A-B-C", "a-b"])
    assert layer.get_vocabulary() == ["[UNK]", "a b", "b c", "a b c"]
    assert layer(["a-b-c-a"]).tolist() == [[2, 1, 1, 1]]
    whole = layers.TextVectorization(split=None, standardize=None, output_sequence_length=3, vocabulary=["a b", "c"])
    assert whole([["a b", "c"], ["c", "d"]]).tolist() == [[2, 3, 0], [3, 1, 0]]


def test_text_comes_back_from_its_config():
    layer = layers.TextVectorization(output_mode="tf_idf", ngrams=2)
    layer.adapt(["a b", "b c"])
    again = layers.TextVectorization.from_config(layer.get_config())
    np.testing.assert_allclose(again(["a b z"]), layer(["a b z"]))
    assert again.get_config() == layer.get_config()
    again.adapt(["z"])  # the vocabulary was learned, not given
    assert again.get_vocabulary() == ["[UNK]", "z"]


def test_hashes_are_those_of_tensorflow():
    assert farmhash64(b"Hello") == 15404698994557526151 and farmhash64(b"World") == 18308117990299812472
    assert siphash64(bytes(range(15)), (0x0706050403020100, 0x0F0E0D0C0B0A0908)) == 0xA129CA6149BE45E5
    letters = [["A"], ["B"], ["C"], ["D"], ["E"]]
    assert layers.Hashing(3)(letters)[:, 0].tolist() == [1, 0, 1, 1, 2]
    assert layers.Hashing(3, mask_value="")([["A"], ["B"], [""], ["C"], ["D"]])[:, 0].tolist() == [1, 1, 0, 2, 2]
    assert layers.Hashing(3, salt=[133, 137])(letters)[:, 0].tolist() == [1, 2, 1, 0, 2]
    assert layers.Hashing(3, salt=133)(letters)[:, 0].tolist() == [0, 0, 2, 1, 0]
    assert layers.Hashing(3)(np.arange(5)).tolist() == [1, 0, 1, 0, 2]
    assert layers.Hashing(3, output_mode="count")([["A", "C", "E"]]).tolist() == [[0, 2, 1]]


def test_hashes_of_all_lengths():
    # the test of https://github.com/google/guava, FarmHashFingerprint64Test.testMultipleLengths
    data, size, state = bytearray(3200), 0, 0
    for i in range(800):
        for power in range(1, 5):
            length = size if power == 4 else i**power % max(size, 1)
            state ^= farmhash64(bytes(data[:length]))
            state = (state ^ state >> 41) * 949921979 % 2**64
            data[size] = ord("a") + (state & 0xFFFFF) % 26
            size += 1
        a, b, c, d = data[size - 1], data[size - 2], data[size - 3], data[size // 2]
        data[((a << 16) + (b << 8) + c) % size] ^= d
        data[((b << 16) + (c << 8) + d) % size] ^= i % 256
    assert state == 0x7A1D67C50EC7E167


def test_bins_of_data_with_one_number():
    layer = layers.Discretization(num_bins=3)
    with pytest.raises(DataError, match="no data"):
        layer.adapt(np.zeros(0))
    layer.adapt(np.ones(1))
    again = layers.Discretization.from_config(layer.get_config())
    assert again(np.array([0.0, 5.0])).tolist() == layer([0.0, 5.0]).tolist() == [0, 0]


def test_symbolic_outputs_of_host_layers_are_told():
    spec = layers.IntegerLookup(vocabulary=[1, 2], output_mode="one_hot").compute_output_spec(kd.Input((3, 4)))
    assert (spec.shape, spec.dtype) == ((None, 3, 4, 3), "float32")
