"""`GroupedQueryAttention`."""

from __future__ import annotations

from typing import Any

from keras_dist._arguments import check_size
from keras_dist.errors import ModelError
from keras_dist.layers.input_spec import InputSpec
from keras_dist.layers.projected_attention import ProjectedAttention


class GroupedQueryAttention(ProjectedAttention):
    """Attention of several heads, of which groups share their key and value: arXiv:2305.13245.

    Its projections are called `query`, `key`, `value` and `attention_output`: paths are `query/kernel` and so on. To
    shard the heads over an axis `model` of the mesh, without rules: `kernel_layout=(None, "model", None)`,
    `bias_layout=("model", None)`, `output_kernel_layout=("model", None, None)`.

    Args:
        head_dim: size of a head.
        num_query_heads: number of heads of the query.
        num_key_value_heads: number of heads of key and value; a divisor of `num_query_heads`.
        dropout: which fraction of the scores is dropped in training.
        use_bias: whether the projections add a bias.
        sliding_window: how near a position must be to be attended to: 1 for itself alone; None for all.
        flash_attention: whether to insist on the fused kernel of cuDNN; by default jax chooses.
        kernel_initializer: gives the first values of all kernels: (features, heads, size of a head), that of the output
            (heads, size of a head, features).
        bias_initializer: gives the first values of all biases: (heads, size of a head), that of the output (features,).
        kernel_regularizer: a function of each kernel that is added to the loss.
        bias_regularizer: likewise.
        activity_regularizer: a function of the output of each projection that is added to the loss.
        kernel_constraint: a function of each kernel, applied after each update.
        bias_constraint: likewise.
        use_gate: whether a projection of the query, `gate`, through a sigmoid, multiplies the result: arXiv:2505.06708.
        seed: fixes what is dropped.
        kernel_layout: where the dims of the kernels of `query`, `key`, `value` and `gate` lie: a `TensorLayout`, or
            axes; layout rules win over it.
        bias_layout: likewise of their biases.
        output_kernel_layout: likewise of `attention_output/kernel`.
        output_bias_layout: likewise of `attention_output/bias`.
        **kwargs: as of `Layer`.

    Raises:
        ModelError: an argument is out of its range.

    Source: `keras.layers.GroupQueryAttention`.
    """

    def __init__(
        self,
        head_dim: int,
        num_query_heads: int,
        num_key_value_heads: int,
        dropout: float = 0.0,
        use_bias: bool = True,
        sliding_window: int | None = None,
        flash_attention: bool | None = None,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        kernel_constraint: Any = None,
        bias_constraint: Any = None,
        use_gate: bool = False,
        seed: int | None = None,
        *,
        kernel_layout: Any = None,
        bias_layout: Any = None,
        output_kernel_layout: Any = None,
        output_bias_layout: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            dropout=dropout,
            use_bias=use_bias,
            sliding_window=sliding_window,
            flash_attention=flash_attention,
            use_gate=use_gate,
            seed=seed,
            kernel_initializer=kernel_initializer,
            bias_initializer=bias_initializer,
            kernel_regularizer=kernel_regularizer,
            bias_regularizer=bias_regularizer,
            activity_regularizer=activity_regularizer,
            kernel_constraint=kernel_constraint,
            bias_constraint=bias_constraint,
            kernel_layout=kernel_layout,
            bias_layout=bias_layout,
            output_kernel_layout=output_kernel_layout,
            output_bias_layout=output_bias_layout,
            **kwargs,
        )
        self.head_dim = self.key_size = self.value_size = check_size("head_dim", head_dim, self.name)
        self.num_query_heads = self.query_heads = check_size("num_query_heads", num_query_heads, self.name)
        self.num_key_value_heads = self.shared_heads = check_size("num_key_value_heads", num_key_value_heads, self.name)
        if num_query_heads % num_key_value_heads:
            raise ModelError(
                f"`num_key_value_heads` of layer {self.name!r} does not divide `num_query_heads`",
                given=f"num_query_heads={num_query_heads}, num_key_value_heads={num_key_value_heads}",
                expected="as many heads of the query for each of key and value",
                fix=f"for example num_key_value_heads={num_query_heads}",
            )
        self.input_spec = InputSpec(ndim=3)


GroupQueryAttention = GroupedQueryAttention
"""Keras exports the class under this name."""
