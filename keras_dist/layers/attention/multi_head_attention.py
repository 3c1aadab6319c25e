"""`MultiHeadAttention` and `GroupedQueryAttention`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from keras_dist._support.arguments import check_axes, check_size, check_sizes
from keras_dist.errors import ModelError
from keras_dist.layers.attention.projected_attention import ProjectedAttention, ProjectedAttentionArguments
from keras_dist.layers.input_spec import InputSpec


class MultiHeadAttention(ProjectedAttention):
    """Multi-head attention: https://arxiv.org/abs/1706.03762.

    Its projections are named `query`, `key`, `value` and `attention_output`, with paths such as `query/kernel`. These
    layouts shard the heads over the mesh axis `model`: `kernel_layout=(None, "model", None)`, `bias_layout=("model",
    None)`, `output_kernel_layout=("model", None, None)`.

    Args:
        num_heads: number of heads.
        key_dim: size of a head of query and key.
        value_dim: size of a head of the value; `key_dim` by default.
        dropout: fraction of the scores that is dropped in training.
        use_bias: whether the projections add a bias.
        output_shape: feature dims of the output; by default the feature dim of the query.
        attention_axes: the sequence dims; by default all dims between batch and features.
        sliding_window: how near a position must be to be attended to: 1 for itself alone; None for all.
        flash_attention: whether to insist on the fused kernel of cuDNN; by default jax chooses.
        use_gate: whether a projection of the query, `gate`, through a sigmoid, multiplies the result: arXiv:2505.06708.
        seed: fixes what is dropped.
        output_kernel_layout: as `kernel_layout`, of `attention_output/kernel`.
        output_bias_layout: as `bias_layout`, of `attention_output/bias`.
        activity_regularizer: a function of the output of each projection that is added to the loss.
        **kwargs: `kernel_initializer`, `kernel_regularizer` and `kernel_constraint` of all kernels, (features, heads,
            head size) and, for the output, (heads, head size, features); `kernel_layout` of all kernels except the one
            of the output; the same for biases, (heads, head size) and (features,); and the arguments of `Layer`.

    Differs from Keras: an explicit `query_mask` is used. The causal mask follows `attention_axes`.
    """

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        value_dim: int | None = None,
        dropout: float = 0.0,
        use_bias: bool = True,
        output_shape: int | Sequence[int] | None = None,
        attention_axes: int | Sequence[int] | None = None,
        **kwargs: Unpack[ProjectedAttentionArguments],
    ) -> None:
        super().__init__(dropout, use_bias, **kwargs)
        self.num_heads = self.query_heads = self.shared_heads = check_size("num_heads", num_heads, self.name)
        self.key_dim = self.key_size = check_size("key_dim", key_dim, self.name)
        value_dim = key_dim if value_dim is None else value_dim
        self.value_dim = self.value_size = check_size("value_dim", value_dim, self.name)
        if output_shape:
            rank = len(output_shape) if isinstance(output_shape, list | tuple) else 1
            self.output_dims = check_sizes("output_shape", output_shape, rank, self.name)
        if attention_axes is not None:
            self.attention_axes = check_axes("attention_axes", attention_axes, self.name)


class GroupedQueryAttention(ProjectedAttention):
    """Multi-head attention in which groups of heads share their key and value: https://arxiv.org/abs/2305.13245.

    Its weights have the same paths and layouts as the weights of `MultiHeadAttention`.

    Args:
        head_dim: size of a head.
        num_query_heads: number of heads of the query.
        num_key_value_heads: number of heads of key and value; a divisor of `num_query_heads`.
        dropout, use_bias, sliding_window, flash_attention, use_gate, seed, output_kernel_layout, output_bias_layout,
            activity_regularizer, **kwargs: as in `MultiHeadAttention`.

    Source: `keras.layers.GroupQueryAttention`.
    """

    def __init__(
        self,
        head_dim: int,
        num_query_heads: int,
        num_key_value_heads: int,
        dropout: float = 0.0,
        use_bias: bool = True,
        **kwargs: Unpack[ProjectedAttentionArguments],
    ) -> None:
        super().__init__(dropout, use_bias, **kwargs)
        self.head_dim = self.key_size = self.value_size = check_size("head_dim", head_dim, self.name)
        self.num_query_heads = self.query_heads = check_size("num_query_heads", num_query_heads, self.name)
        self.num_key_value_heads = self.shared_heads = check_size("num_key_value_heads", num_key_value_heads, self.name)
        if num_query_heads % num_key_value_heads:
            summary = f"`num_key_value_heads` of layer {self.name!r} must divide `num_query_heads`"
            given = f"num_query_heads={num_query_heads}, num_key_value_heads={num_key_value_heads}"
            raise ModelError(summary, given=given, fix=f"for example num_key_value_heads={num_query_heads}")
        self.input_spec = InputSpec(ndim=3)


GroupQueryAttention = GroupedQueryAttention
"""The name of the class in Keras."""
