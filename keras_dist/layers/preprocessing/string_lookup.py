"""`StringLookup`: the places of words in a vocabulary."""

from __future__ import annotations

from typing import Any

from keras_dist._support.types import ArrayLike
from keras_dist.layers.preprocessing.index_lookup import IndexLookup


class StringLookup(IndexLookup):
    """The index of words in a vocabulary, or vectors of them; runs on the host.

    Args:
        max_tokens: the largest size of the vocabulary, special tokens included; None for any.
        num_oov_indices: how many indices there are for words that are not in the vocabulary, which are hashed; 0 to
            refuse them.
        mask_token: the token of index 0, for masks; None for none.
        oov_token: what stands for unknown tokens in the vocabulary.
        vocabulary: words, or a file with one in each line; by default those that `adapt` finds.
        idf_weights: with `"tf_idf"`, the inverse document frequency of each token of `vocabulary`.
        invert: whether indices are turned back to tokens.
        output_mode: `"int"`, the index of each token; `"one_hot"`, a vector for each; `"multi_hot"`, `"count"` or
            `"tf_idf"`, a vector for the tokens of the last dim.
        pad_to_max_tokens: whether vectors have `max_tokens` entries, however small the vocabulary is.
        sparse: False; arrays are dense.
        encoding: of bytes.
        name: see `Layer`.
        salt: one or two integers: hash by SipHash with this key, in place of FarmHash.
        **kwargs: see `Layer`.

    Example:
        >>> from keras_dist import layers
        >>> layer = layers.StringLookup(vocabulary=["a", "b", "c"])
        >>> layer([["a", "c", "d"], ["d", "a", "b"]]).tolist()
        [[1, 3, 0], [0, 1, 2]]
    """

    kind = "string"

    def __init__(
        self,
        max_tokens: int | None = None,
        num_oov_indices: int = 1,
        mask_token: str | None = None,
        oov_token: str | None = "[UNK]",
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
        self.encoding = encoding
        tokens = (max_tokens, num_oov_indices, mask_token, oov_token, vocabulary, idf_weights)
        super().__init__(*tokens, invert, output_mode, sparse, pad_to_max_tokens, salt=salt, name=name, **kwargs)
