"""`StringLookup` and `IntegerLookup`: indices of tokens in a vocabulary."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import Any, Self

import numpy as np

from keras_dist._support.arguments import argument_error, check_int, check_option, check_optional
from keras_dist._support.types import ArrayLike
from keras_dist.errors import ConfigError, DataError, ModelError, shorten
from keras_dist.files.drafts import write_file
from keras_dist.layers.base.attributes import unknown_arguments
from keras_dist.layers.base.host_layer import HostLayer, as_rows, objects
from keras_dist.layers.preprocessing.category_encoding import (
    OUTPUT_MODES,
    batches_of,
    check_dense,
    check_output_mode,
    check_salt,
    encoded,
    encoded_like,
)
from keras_dist.layers.preprocessing.text_hashes import bins_of
from keras_dist.layers.preprocessing.vocabulary import (
    Token,
    VocabularyTable,
    as_token,
    check_tokens,
    lines_of,
    tokens_of,
)
from keras_dist.symbolic.tensors import KerasTensor

_LEFT_OUT = 2**62  # the index of tokens that vectors ignore
_VOCABULARY = "vocabulary.txt"  # keras's name for the file of a learned vocabulary


class IndexLookup(HostLayer):
    """The base of layers that look up the indices of tokens in a vocabulary, with the arguments of `StringLookup`.

    Further ones are `oov_method`, and in configs `has_input_vocabulary`, whether `vocabulary` was given, not learned,
    and `vocabulary_size`, the number of tokens that a file will provide.
    """

    kind: str  # "string" or "int64"

    def __init__(
        self,
        max_tokens: int | None = None,
        num_oov_indices: int = 1,
        mask_token: Any = None,
        oov_token: Any = "[UNK]",
        vocabulary: Any = None,
        idf_weights: ArrayLike | None = None,
        invert: bool = False,
        output_mode: str = "int",
        pad_to_max_tokens: bool = False,
        sparse: bool = False,
        encoding: str = "utf-8",
        name: str | None = None,
        salt: Any = None,
        **kwargs: Any,
    ) -> None:
        oov_method = kwargs.pop("oov_method", "floormod")
        vocabulary_size, is_given = (kwargs.pop(key, None) for key in ("vocabulary_size", "has_input_vocabulary"))
        super().__init__(name=name, **kwargs)
        self.encoding = encoding
        self.max_tokens = check_optional(check_int, "max_tokens", max_tokens, 2, layer=self.name, example=20000)
        self.num_oov_indices = check_int("num_oov_indices", num_oov_indices, 0, layer=self.name)
        self.mask_token, self.oov_token = mask_token, oov_token
        self.invert = bool(invert)
        self.output_mode = check_output_mode(output_mode, OUTPUT_MODES, self.name)
        self.sparse = check_dense(sparse, False, self.name)
        self.pad_to_max_tokens = bool(pad_to_max_tokens)
        self.oov_method = check_option("oov_method", oov_method, ("floormod", "farmhash"), self.name)
        self.salt = check_salt(salt, self.name)
        self._table = VocabularyTable()
        self._table.expected = vocabulary_size
        self._check_together(idf_weights, vocabulary)
        if vocabulary is not None:
            self.set_vocabulary(vocabulary, idf_weights)
        self._table.is_given = vocabulary is not None if is_given is None else bool(is_given)

    def transform(self, inputs: Any) -> np.ndarray:
        rows = self._rows(inputs)
        if self.invert:
            words = self.get_vocabulary()
            known = [words[index] if 0 <= index < len(words) else self.oov_token for index in rows.flat]
            return objects(known, rows.shape) if self.kind == "string" else np.array(known).reshape(rows.shape)
        return self.encode(self.indices(rows.ravel().tolist()).reshape(rows.shape))

    def indices(self, tokens: Sequence[Token]) -> np.ndarray:
        """Return the index of each token; refuse unknown tokens if they have no index."""
        table, start = self._table, self._oov_start
        default = start if self.num_oov_indices == 1 else -1
        places = table.places
        found = np.array([places.get(token, default) for token in tokens], "int64")
        if self.mask_token is not None:
            masked = np.array([token == self.mask_token for token in tokens], bool)
            found[masked] = 0 if self.output_mode == "int" else _LEFT_OUT
        unknown = np.flatnonzero(found < 0)
        if not unknown.size:
            return found
        words = [tokens[index] for index in unknown.tolist()]
        if self.num_oov_indices == 0:
            given = f"{shorten(sorted(set(map(str, words))))}"
            fix = "num_oov_indices=1 gives unknown tokens an index, or adapt the layer to such data"
            raise DataError(f"layer {self.name!r} does not know all tokens", given=given, fix=fix)
        if self.kind == "int64" and self.oov_method == "floormod":
            bins = np.array(words, "int64") % self.num_oov_indices
        else:
            bins = bins_of(map(str, words), self.num_oov_indices, self.salt)
        found[unknown] = bins + start
        return found

    def encode(self, indices: np.ndarray) -> np.ndarray:
        """Encode indices as `output_mode` requires."""
        if self.output_mode == "int":
            return indices.astype("int32")
        if self.output_mode != "tf_idf":
            return encoded(indices, self.output_mode, self._depth())
        weights, depth = self._table.weights, self._depth()
        if weights is None:
            raise self._needs_weights()
        return encoded(indices, "count", depth) * np.pad(weights, (0, depth - len(weights)))

    def output_like(self, inputs: KerasTensor) -> KerasTensor:
        if self.invert:
            return KerasTensor(inputs.shape, self.kind)
        return encoded_like(inputs, self.output_mode, self._depth() if self.output_mode != "int" else 0, "int32")

    def get_vocabulary(self, include_special_tokens: bool = True) -> list[Any]:
        """Return the token of each index, or only tokens that are not special."""
        return [*(self._special if include_special_tokens else ()), *self._table.tokens]

    def vocabulary_size(self) -> int:
        """Return the number of tokens, including special tokens."""
        return len(self._table.tokens) + len(self._special)

    def set_vocabulary(self, vocabulary: Any, idf_weights: ArrayLike | None = None) -> None:
        """Set the vocabulary.

        Args:
            vocabulary: tokens in order, with all special tokens in front or none; or a file with one token per line.
            idf_weights: inverse document frequencies of the tokens, for `"tf_idf"`.

        Raises:
            ModelError: the vocabulary is empty or too large, or contains a token twice or at a wrong position.
        """
        if self.output_mode == "tf_idf" and idf_weights is None:
            raise self._needs_weights()
        if self.output_mode != "tf_idf" and idf_weights is not None:
            expected = f'None with output_mode="{self.output_mode}"'
            raise argument_error("idf_weights", idf_weights, expected, layer=self.name)
        special = self._special
        if isinstance(vocabulary, str | pathlib.Path):
            if self.output_mode == "tf_idf":
                expected = "tokens with idf_weights: a file has none"
                raise argument_error("vocabulary", vocabulary, expected, layer=self.name)
            vocabulary = tokens_of(lines_of(vocabulary, self.name), self.kind, vocabulary, self.name)
        given = self._rows(vocabulary).ravel().tolist() if not isinstance(vocabulary, list) else vocabulary
        given = [as_token(token, self.encoding) for token in given]
        with_special = len(special) > 0 and given[: len(special)] == special
        tokens = given[len(special) :] if with_special else given
        reserved = [self.mask_token] * (self.mask_token is not None)
        reserved += [self.oov_token] * (self.invert and self.oov_token is not None)
        check_tokens(given, tokens, special, reserved, self.kind, self.max_tokens, self.name)
        weights = None
        if idf_weights is not None:
            weights = np.asarray(idf_weights, "float32")
            if weights.shape != (len(given),):
                raise argument_error("idf_weights", idf_weights, f"{len(given)} numbers", layer=self.name)
            if not with_special:
                weights = np.concatenate([np.full(len(special), weights.mean(), "float32"), weights])
        self._take(tokens, weights)
        self._table.is_given = True

    def adapt(self, data: Any, steps: int | None = None) -> None:
        """Learn the vocabulary: the tokens of data, sorted by frequency.

        Args:
            data: an array or a list, or an iterable of batches.
            steps: number of batches to read; by default all.

        Raises:
            ModelError: the layer was given a vocabulary.
        """
        self.reset_state()
        for batch in batches_of(data, steps):
            rows = self._rows(batch)
            self.update_state(rows[:, None] if rows.ndim == 1 and batch is data else rows)
        self.finalize_state()

    def update_state(self, data: Any) -> None:
        """Count the tokens of a batch; a 1-D batch is one document."""
        rows = self._rows(data)
        rows = rows.reshape(1, -1) if rows.ndim < 2 else rows.reshape(len(rows), math.prod(rows.shape[1:]))
        self.count(rows.tolist())

    def count(self, documents: Iterable[Sequence[Token]]) -> None:
        table = self._table
        if table.is_given:
            summary = f"layer {self.name!r} cannot adapt: its vocabulary was given"
            raise ModelError(summary, given="a vocabulary, and adapt(data)", fix="make the layer without a vocabulary")
        for document in documents:
            table.counts.update(document)
            if self.output_mode == "tf_idf":
                table.documents.update(set(document))
                table.size += 1

    def finalize_state(self) -> None:
        """Create the vocabulary from the counts."""
        table = self._table
        if table.is_given or not table.counts:
            return
        for token in (self.mask_token, self.oov_token):
            table.counts.pop(token, None)
        special = len(self._special)
        tokens = table.learned(None if self.max_tokens is None else self.max_tokens - special)
        weights = table.inverse_frequencies(tokens, special) if self.output_mode == "tf_idf" else None
        self._take(tokens, weights)
        table.forget()

    def reset_state(self) -> None:
        """Clear the counts."""
        self._table.forget()

    def save_assets(self, dir_path: str) -> None:
        """Write a learned vocabulary to `vocabulary.txt` in a folder; a given one is in the config."""
        if self._table.tokens and not self._table.is_given:
            path = pathlib.Path(dir_path) / _VOCABULARY
            write_file(path, "\n".join(map(str, self.get_vocabulary())).encode("utf-8", "surrogateescape"))

    def load_assets(self, dir_path: str) -> None:
        """Load the vocabulary from a folder, unless the config contains one.

        Raises:
            DataError: the file cannot be read.
        """
        table, path = self._table, pathlib.Path(dir_path) / _VOCABULARY
        if table.tokens or not path.exists():
            return
        lines = lines_of(path, self.name)
        while lines and not lines[-1]:  # as in Keras
            lines.pop()
        self.set_vocabulary(tokens_of(lines, self.kind, path, self.name), table.weights)
        table.is_given = False

    def save_own_variables(self, store: MutableMapping[str, Any]) -> None:
        """Save the inverse document frequencies in `store`, if there are any."""
        if self.output_mode == "tf_idf" and self._table.weights is not None:
            store["idf_weights"] = self._table.weights

    def load_own_variables(self, store: Mapping[str, Any]) -> None:
        """Load the inverse document frequencies from `store`; see `load_assets`."""
        if "idf_weights" in store and not self._table.tokens:
            self._table.weights = np.asarray(store["idf_weights"], "float32")

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructor, with the current vocabulary."""
        config = super().get_config()
        table = self._table
        if table.tokens:
            config["vocabulary"] = self.get_vocabulary() if table.weights is not None else list(table.tokens)
            config["idf_weights"] = table.weights.tolist() if table.weights is not None else None
            config["has_input_vocabulary"] = table.is_given
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Return a layer from a config of `get_config`.

        Raises:
            ConfigError: the vocabulary is a path: configs of others must not read files.
        """
        cls.check_config(config)
        return super().from_config(config)

    @classmethod
    def check_config(cls, config: Mapping[str, Any]) -> None:
        if isinstance(config.get("vocabulary"), str):
            given = f"vocabulary={shorten(config['vocabulary'])}"
            fix = "leave the file out, and call set_vocabulary(path)"
            raise ConfigError(f"a config of {cls.__name__} names a file", given=given, fix=fix)

    def _rows(self, inputs: Any) -> np.ndarray:
        rows = as_rows(inputs, self.name, self.encoding)
        wanted = "int64" if self.invert else self.kind
        if wanted == "int64" and rows.dtype.kind in "biuf":
            return rows.astype("int64")
        if rows.size == 0 or (wanted == "string" and rows.dtype == object):
            return rows
        given = f"an array of {'text' if rows.dtype == object else rows.dtype}"
        fix = f"use {'IntegerLookup' if wanted == 'string' else 'StringLookup'}, or convert them"
        raise DataError(f"layer {self.name!r} gets another kind of tokens than it looks up", given=given, fix=fix)

    @property
    def _oov_start(self) -> int:
        return int(self.mask_token is not None and self.output_mode == "int")

    @property
    def _special(self) -> list[Any]:
        return [self.mask_token] * self._oov_start + [self.oov_token] * self.num_oov_indices

    def _depth(self) -> int:
        if self.pad_to_max_tokens and self.max_tokens is not None:
            return self.max_tokens
        if not self._table.tokens and self._table.expected is not None:
            return self._table.expected
        if not self._table.tokens:
            summary = f"layer {self.name!r} has no vocabulary yet, so that the length of its vectors is unknown"
            given = f'output_mode="{self.output_mode}", and neither a vocabulary nor adapt(data)'
            fix = "layer.adapt(data), vocabulary=[...], or max_tokens=n with pad_to_max_tokens=True"
            raise ModelError(summary, given=given, fix=fix)
        return self.vocabulary_size()

    def _take(self, tokens: list[Any], weights: np.ndarray | None) -> None:
        table, start = self._table, len(self._special)
        is_fixed = bool(self._record.nodes) and self.output_mode != "int" and not self.pad_to_max_tokens
        before = len(table.tokens) or (table.expected or start) - start
        if is_fixed and len(tokens) != before:
            summary = f"the vocabulary of layer {self.name!r} must keep its size: models are built with it"
            fix = "adapt the layer before it is part of a model, or use pad_to_max_tokens=True"
            raise ModelError(summary, given=f"{len(tokens) + start} tokens in place of {before + start}", fix=fix)
        table.tokens, table.weights = tokens, weights
        table.places = {token: index for index, token in enumerate(tokens, start)}

    def _check_together(self, idf_weights: Any, vocabulary: Any) -> None:
        mode, is_tf_idf = f'output_mode="{self.output_mode}"', self.output_mode == "tf_idf"
        lacks_weights = idf_weights is None and not isinstance(vocabulary, str | pathlib.Path | None)
        hashes = self.kind == "string" or self.oov_method == "farmhash"
        wrong = {
            "pad_to_max_tokens=True without max_tokens": self.pad_to_max_tokens and self.max_tokens is None,
            f"invert=True with {mode}": self.invert and self.output_mode != "int",
            f"idf_weights with {mode}": idf_weights is not None and not is_tf_idf,
            f"{mode} with a vocabulary and without idf_weights": is_tf_idf and lacks_weights,
            'salt with oov_method="floormod", which does not hash': self.salt is not None and not hashes,
        }
        for given, is_so in wrong.items():
            if is_so:
                fix = "leave one of them out, or give the other, too"
                raise ModelError(f"arguments of layer {self.name!r} do not fit together", given=given, fix=fix)

    def _needs_weights(self) -> ModelError:
        given = 'output_mode="tf_idf" without idf_weights'
        fix = "layer.adapt(data), or set_vocabulary(tokens, idf_weights)"
        return ModelError(f"layer {self.name!r} has no inverse document frequencies", given=given, fix=fix)


class StringLookup(IndexLookup):
    """Map words to indices in a vocabulary, or to vectors; runs on the host.

    Args:
        max_tokens: largest size of the vocabulary, including special tokens; None for any size.
        num_oov_indices: number of indices for unknown words, which are hashed; 0 to refuse unknown words.
        vocabulary: words, or a file with one word in each line; by default `adapt` learns it.
        encoding: encoding of bytes.
        salt: one or two integers: a key for SipHash, which replaces FarmHash.
        mask_token: the token with index 0, for masks; None for no such token.
        oov_token: the token that represents unknown tokens.
        idf_weights: inverse document frequencies of the tokens of `vocabulary`, for `"tf_idf"`.
        invert: whether to map indices to tokens.
        output_mode: `"int"` for indices; `"one_hot"` for a vector for each token; `"multi_hot"`, `"count"` or
            `"tf_idf"` for a vector for the tokens of the last dim.
        pad_to_max_tokens: whether vectors have size `max_tokens`, even for a smaller vocabulary.
        sparse: must be False.
        name, **kwargs: see `Layer`.

    Example:
        >>> from keras_dist import layers
        >>> layer = layers.StringLookup(vocabulary=["a", "b", "c"])
        >>> layer([["a", "c", "d"], ["d", "a", "b"]]).tolist()
        [[1, 3, 0], [0, 1, 2]]
    """

    kind = "string"


class IntegerLookup(IndexLookup):
    """Map integers to indices in a vocabulary, or to vectors; runs on the host, with 64-bit integers.

    Args:
        num_oov_indices: number of indices for unknown integers; 0 to refuse unknown integers.
        vocabulary: integers, or a file with one integer in each line; by default `adapt` learns it.
        vocabulary_dtype: `"int64"`.
        oov_method: assignment of unknown integers to several indices: `"floormod"` (remainder) or `"farmhash"`.
        salt: one or two integers, with `"farmhash"`: a key for SipHash, which replaces it.
        max_tokens, mask_token, oov_token, idf_weights, invert, output_mode, sparse, pad_to_max_tokens, name, **kwargs:
            as in `StringLookup`.

    Example:
        >>> from keras_dist import layers
        >>> layers.IntegerLookup(vocabulary=[12, 36, 1138])([[12, 1138, 42], [42, 1000, 36]]).tolist()
        [[1, 3, 0], [0, 0, 2]]
    """

    kind = "int64"

    def __init__(
        self,
        max_tokens: int | None = None,
        num_oov_indices: int = 1,
        mask_token: int | None = None,
        oov_token: int | None = -1,
        vocabulary: Any = None,
        vocabulary_dtype: str = "int64",
        idf_weights: ArrayLike | None = None,
        invert: bool = False,
        output_mode: str = "int",
        sparse: bool = False,
        pad_to_max_tokens: bool = False,
        oov_method: str = "floormod",
        salt: Any = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        if "encoding" in kwargs:
            raise unknown_arguments(self, kwargs)
        tokens = (max_tokens, num_oov_indices, mask_token, oov_token, vocabulary, idf_weights)
        encoding = (invert, output_mode, pad_to_max_tokens, sparse, "utf-8")
        super().__init__(*tokens, *encoding, name, salt, oov_method=oov_method, **kwargs)
        self.vocabulary_dtype = check_option("vocabulary_dtype", vocabulary_dtype, ("int64",), self.name)
