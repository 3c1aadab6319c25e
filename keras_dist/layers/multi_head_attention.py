"""`MultiHeadAttention`."""

from __future__ import annotations

from typing import Any

from keras_dist._arguments import check_axes, check_size, check_sizes
from keras_dist.layers.projected_attention import ProjectedAttention


class MultiHeadAttention(ProjectedAttention):
    """Attention of several heads, as of "Attention is all you need".

    Its projections are called `query`, `key`, `value` and `attention_output`: paths are `query/kernel` and so on. To
    shard the heads over an axis `model` of the mesh, without rules: `kernel_layout=(None, "model", None)`,
    `bias_layout=("model", None)`, `output_kernel_layout=("model", None, None)`.

    Args:
        num_heads: number of heads.
        key_dim: size of a head of query and key.
        value_dim: size of a head of the value; `key_dim` by default.
        dropout: which fraction of the scores is dropped in training.
        use_bias: whether the projections add a bias.
        output_shape: dims of the output after those of the sequence; by default the features of the query.
        attention_axes: the dims of the input over which attention goes; by default all between batch and features.
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

    Differs from Keras: a `query_mask` that is given is used. The causal mask follows `attention_axes`.

    Source: `keras.layers.MultiHeadAttention`.
    """

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        value_dim: int | None = None,
        dropout: float = 0.0,
        use_bias: bool = True,
        output_shape: Any = None,
        attention_axes: Any = None,
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
        self.num_heads = self.query_heads = self.shared_heads = check_size("num_heads", num_heads, self.name)
        self.key_dim = self.key_size = check_size("key_dim", key_dim, self.name)
        self.value_dim = self.value_size = check_size(
            "value_dim", key_dim if value_dim is None else value_dim, self.name
        )
        if output_shape:
            rank = len(output_shape) if isinstance(output_shape, list | tuple) else 1
            self.output_dims = check_sizes("output_shape", output_shape, rank, self.name)
        if attention_axes is not None:
            self.attention_axes = check_axes("attention_axes", attention_axes, self.name)
