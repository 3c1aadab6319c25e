"""`IntegerLookup`: the places of integers in a vocabulary."""

from __future__ import annotations

from typing import Any

from keras_dist._support.arguments import check_option
from keras_dist._support.types import ArrayLike
from keras_dist.layers.preprocessing.index_lookup import IndexLookup


class IntegerLookup(IndexLookup):
    """The index of integers in a vocabulary, or vectors of them; runs on the host, where integers have 64 bits.

    Args:
        num_oov_indices: how many indices there are for integers that are not in the vocabulary; 0 to refuse them.
        vocabulary: integers, or a file with one in each line; by default those that `adapt` finds.
        vocabulary_dtype: `"int64"`.
        oov_method: which of several indices an unknown integer gets: `"floormod"`, the remainder of a division, or
            `"farmhash"`.
        salt: with `"farmhash"`, one or two integers: hash by SipHash with this key.
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
        tokens = (max_tokens, num_oov_indices, mask_token, oov_token, vocabulary, idf_weights)
        encoding = (invert, output_mode, sparse, pad_to_max_tokens, oov_method, salt)
        super().__init__(*tokens, *encoding, name=name, **kwargs)
        self.vocabulary_dtype = check_option("vocabulary_dtype", vocabulary_dtype, ("int64",), self.name)
