"""`TextVectorization`: indices of words in texts, or vectors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np

from keras_dist._support.arguments import argument_error, check_int, check_option, check_optional, is_int
from keras_dist._support.types import ArrayLike
from keras_dist.errors import DataError, ModelError, shorten
from keras_dist.layers.base.host_layer import HostLayer, as_rows, objects
from keras_dist.layers.preprocessing.category_encoding import OUTPUT_MODES, batches_of, check_dense, check_output_mode
from keras_dist.layers.preprocessing.index_lookup import StringLookup
from keras_dist.symbolic.tensors import KerasTensor

_STANDARDIZE = ("lower_and_strip_punctuation", "lower", "strip_punctuation", None)
_SPLIT = ("whitespace", "character", None)

# only ASCII letters, punctuation and spaces, as TensorFlow does for bytes
_LOWER = {ord(letter): letter.lower() for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}
_STRIP = dict.fromkeys(map(ord, "!\"#$%&()*+,-./:;<=>?@[\\]^_`{|}~'"))
_WORD = re.compile(r"[^ \t\n\v\f\r]+")


class TextVectorization(HostLayer):
    """Map texts to indices of words in a vocabulary, or to vectors; runs on the host.

    Each text is standardized, split into words, and its words or n-grams are looked up.

    Args:
        max_tokens, pad_to_max_tokens, vocabulary, encoding: as in `StringLookup`.
        standardize: `"lower_and_strip_punctuation"`, `"lower"` or `"strip_punctuation"`, for ASCII; a function of an
            array of text; or None.
        split: `"whitespace"`, `"character"`, a function of an array of texts that returns lists, or None for words.
        ngrams: largest number of words in an n-gram, or a tuple of numbers; None for words.
        output_mode: `"int"` for indices, padded with 0, with 1 for unknown words; `"multi_hot"`, `"count"` or
            `"tf_idf"` for a vector for each text; `"one_hot"` for inputs that are words.
        output_sequence_length: number of indices to which texts are cut or padded, for `"int"`; by default the largest
            number in the batch.
        idf_weights: inverse document frequencies of the words of `vocabulary`, for `"tf_idf"`.
        sparse, ragged: must be False.
        name, **kwargs: see `Layer`.

    Example:
        >>> from keras_dist import layers
        >>> layer = layers.TextVectorization(output_sequence_length=4)
        >>> layer.adapt(["the cat sat", "The dog sat, too."])
        >>> layer.get_vocabulary()
        ['', '[UNK]', 'the', 'sat', 'too', 'dog', 'cat']
        >>> layer(["the bird sat!"]).tolist()
        [[2, 1, 3, 0]]
    """

    def __init__(
        self,
        max_tokens: int | None = None,
        standardize: str | Callable[..., Any] | None = "lower_and_strip_punctuation",
        split: str | Callable[..., Any] | None = "whitespace",
        ngrams: int | Sequence[int] | None = None,
        output_mode: str = "int",
        output_sequence_length: int | None = None,
        pad_to_max_tokens: bool = False,
        vocabulary: Any = None,
        idf_weights: ArrayLike | None = None,
        sparse: bool = False,
        ragged: bool = False,
        encoding: str = "utf-8",
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        state = {key: kwargs.pop(key) for key in ("vocabulary_size", "has_input_vocabulary") if key in kwargs}
        super().__init__(name=name, **kwargs)
        self.standardize = self._check_function("standardize", standardize, _STANDARDIZE)
        self.split = self._check_function("split", split, _SPLIT)
        self.ngrams = self._check_ngrams(ngrams)
        self.output_mode = check_output_mode(output_mode, OUTPUT_MODES, self.name)
        self.output_sequence_length = check_optional(
            check_int, "output_sequence_length", output_sequence_length, 1, layer=self.name, example=200
        )
        if output_sequence_length is not None and self.output_mode != "int":
            expected = f'None with output_mode="{self.output_mode}"'
            raise argument_error("output_sequence_length", output_sequence_length, expected, layer=self.name)
        check_dense(sparse, ragged, self.name)
        self.encoding = encoding
        self._lookup_layer = StringLookup(
            max_tokens=max_tokens,
            mask_token="",
            vocabulary=vocabulary,
            idf_weights=idf_weights,
            output_mode=self.output_mode,
            pad_to_max_tokens=pad_to_max_tokens,
            encoding=encoding,
            name=f"{self.name}_lookup",
            **state,
        )

    def transform(self, inputs: Any) -> np.ndarray:
        """Return indices (batch, words), or vectors (batch, vocabulary size)."""
        documents = self._documents(inputs)
        is_one = isinstance(inputs, str | bytes) or np.ndim(inputs) == 0
        lookup = self._lookup_layer
        if self.output_mode == "one_hot" and self.split is not None:
            summary = f"layer {self.name!r} gives a vector for each word, and texts have different numbers of words"
            fix = 'output_mode="int" or "multi_hot"; or split=None for inputs that are words'
            raise ModelError(summary, given='output_mode="one_hot" with split', fix=fix)
        lengths = [len(document) for document in documents]
        flat = lookup.indices([word for document in documents for word in document])
        length = self.output_sequence_length
        filled = 0 if self.output_mode == "int" else -1
        if length is None:
            length = max(lengths, default=0)
        indices = np.full((len(documents), length), filled, "int64")
        for row, end, size in zip(indices, np.cumsum(lengths), lengths, strict=True):
            row[: min(size, length)] = flat[end - size : end - size + min(size, length)]
        outputs = lookup.encode(indices)
        return outputs[0] if is_one else outputs

    def output_like(self, inputs: KerasTensor) -> KerasTensor:
        shape: Any = inputs.shape
        if self.output_mode == "int":
            is_split = self.split is not None or len(inputs.shape) < 2
            length = None if is_split or self.ngrams else shape[-1]
            return KerasTensor((shape[0], self.output_sequence_length or length), "int32")
        rows = KerasTensor((shape[0], None), "string")
        return self._lookup_layer.output_like(rows)

    def adapt(self, data: Any, batch_size: int | None = None, steps: int | None = None) -> None:
        """Learn the vocabulary: the words of texts, sorted by frequency.

        Args:
            data: an array or a list of texts, or an iterable of batches.
            batch_size: unused, as in Keras.
            steps: number of batches to read; by default all.

        Raises:
            ModelError: the layer was given a vocabulary.
        """
        self.reset_state()
        for batch in batches_of(data, steps):
            self.update_state(batch)
        self.finalize_state()

    def update_state(self, data: Any) -> None:
        """Count the words of a batch of texts."""
        self._lookup_layer.count(self._documents(data))

    def finalize_state(self) -> None:
        """Create the vocabulary from the counts."""
        self._lookup_layer.finalize_state()

    def reset_state(self) -> None:
        """Clear the counts."""
        self._lookup_layer.reset_state()

    def get_vocabulary(self, include_special_tokens: bool = True) -> list[str]:
        """Return the word of each index; see `StringLookup`."""
        return self._lookup_layer.get_vocabulary(include_special_tokens)

    def vocabulary_size(self) -> int:
        """Return the number of words, including special tokens."""
        return self._lookup_layer.vocabulary_size()

    def set_vocabulary(self, vocabulary: Any, idf_weights: ArrayLike | None = None) -> None:
        """Set the vocabulary; see `StringLookup`."""
        self._lookup_layer.set_vocabulary(vocabulary, idf_weights)

    def save_assets(self, dir_path: str) -> None:
        """Write a learned vocabulary to `vocabulary.txt` in a folder; see `StringLookup`."""
        self._lookup_layer.save_assets(dir_path)

    def load_assets(self, dir_path: str) -> None:
        """Load the vocabulary from a folder, unless the config contains one; see `StringLookup`."""
        self._lookup_layer.load_assets(dir_path)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructor, with the current vocabulary."""
        learned = self._lookup_layer.get_config()
        return super().get_config() | {
            name: learned[name] for name in ("vocabulary", "idf_weights", "has_input_vocabulary") if name in learned
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Return a layer from a config of `get_config`.

        Raises:
            ConfigError: the vocabulary is a path: configs of others must not read files.
        """
        StringLookup.check_config(config)
        return super().from_config(config)

    def _documents(self, inputs: Any) -> list[list[str]]:
        rows: Any = as_rows(inputs, self.name, self.encoding)
        rows = self._texts(self.standardize(rows.astype(str)) if callable(self.standardize) else rows)
        if self.split is not None and rows.ndim > 1:
            if rows.shape[-1] != 1:
                summary = f"layer {self.name!r} splits one text of each example: inputs must be (batch,) or (batch, 1)"
                fix = "split=None where the words are apart already; or join the texts"
                raise DataError(summary, given=f"inputs of shape {rows.shape}", fix=fix)
            rows = rows[..., 0]
        if not callable(self.standardize) and self.standardize is not None:
            table: Mapping[int, Any] = {
                **(_LOWER if "lower" in self.standardize else {}),
                **(_STRIP if "strip" in self.standardize else {}),
            }
            rows = objects([text.translate(table) for text in rows.flat], rows.shape)
        return [self._joined(words) for words in self._words(np.atleast_1d(rows))]

    def _words(self, rows: Any) -> Iterator[list[str]]:
        if callable(self.split):
            split: Any = self.split
            for words in split(rows.astype(str)):
                yield self._texts(words).ravel().tolist()
        elif self.split is None:
            yield from rows.reshape(len(rows), -1).tolist()
        else:
            yield from (list(text) if self.split == "character" else _WORD.findall(text) for text in rows.flat)

    def _joined(self, words: list[str]) -> list[str]:
        if self.ngrams is None:
            return words
        widths = range(1, self.ngrams + 1) if isinstance(self.ngrams, int) else self.ngrams
        return [" ".join(words[at : at + width]) for width in widths for at in range(len(words) - width + 1)]

    def _texts(self, values: Any) -> Any:
        rows = as_rows(values, self.name, self.encoding)
        if rows.dtype == object or rows.size == 0:
            return rows.astype(object)
        given = f"an array of {rows.dtype}, {shorten(values)}"
        fix = "convert it: array.astype(str)"
        raise DataError(f"layer {self.name!r} gets something else than text", given=given, fix=fix)

    def _check_function(self, argument: str, value: Any, options: Sequence[str | None]) -> Any:
        return value if callable(value) else check_option(argument, value, options, self.name)

    def _check_ngrams(self, ngrams: Any) -> int | tuple[int, ...] | None:
        if isinstance(ngrams, list | tuple) and ngrams and all(is_int(width, 1) for width in ngrams):
            return tuple(map(int, ngrams))
        if ngrams is None or is_int(ngrams, 1):
            return None if ngrams is None else int(ngrams)
        raise argument_error("ngrams", ngrams, "an integer, a tuple of integers, or None", layer=self.name, example=2)
