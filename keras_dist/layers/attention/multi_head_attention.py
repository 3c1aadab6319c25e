"""`MultiHeadAttention` and `GroupedQueryAttention`, and their base `ProjectedAttention`."""

from __future__ import annotations

import functools
import math
import string
from collections.abc import Sequence
from typing import Any, ClassVar, Unpack

import jax
import jax.numpy as jnp

from keras_dist import regularizers
from keras_dist._support.arguments import check_axes, check_fraction, check_optional, check_size, check_sizes
from keras_dist._support.types import PyTree
from keras_dist.errors import ModelError
from keras_dist.layers.base.call_arguments import InputSpec
from keras_dist.layers.base.layer import Layer
from keras_dist.layers.base.weight_arguments import KernelAndBiasArguments, Layout, defaults_of
from keras_dist.layers.core.dense import EinsumDense
from keras_dist.layers.regularization.regularization import Dropout
from keras_dist.ops.attention import attend, positions_kept, ring_options
from keras_dist.ops.ring_attention import ring_for


class ProjectedAttentionArguments(KernelAndBiasArguments, total=False):
    """Keyword arguments of every `ProjectedAttention`."""

    sliding_window: int | None
    flash_attention: bool | None
    use_gate: bool
    seed: int | None
    output_kernel_layout: Layout
    output_bias_layout: Layout


class ProjectedAttention(Layer):
    """Attention between heads that are projections of a query, a key and a value; see `MultiHeadAttention`.

    Heads are a separate dim of every weight, so that a layout can shard them.
    """

    weight_initializers: ClassVar = {"kernel": "glorot_uniform", "bias": "zeros"}
    query_heads: int
    shared_heads: int  # of key and value; a divisor of `query_heads`
    key_size: int
    value_size: int
    output_dims: tuple[int, ...] | None = None  # None for the features of the query
    attention_axes: tuple[int, ...] | None = None  # None for all dims between batch and features

    def __init__(
        self,
        dropout: float,
        use_bias: bool,
        *,
        sliding_window: int | None = None,
        flash_attention: bool | None = None,
        use_gate: bool = False,
        seed: int | None = None,
        output_kernel_layout: Layout = None,
        output_bias_layout: Layout = None,
        **kwargs: Unpack[KernelAndBiasArguments],
    ) -> None:
        regularizer = kwargs.pop("activity_regularizer", None)
        super().__init__(**kwargs)
        self.dropout = check_fraction("dropout", dropout, self.name)
        self.use_bias = use_bias
        self.sliding_window = check_optional(check_size, "sliding_window", sliding_window, self.name)
        self.flash_attention = flash_attention
        self.use_gate = use_gate
        self.seed = seed
        self.projection_regularizer = regularizers.get(regularizer)
        self.output_kernel_layout = output_kernel_layout
        self.output_bias_layout = output_bias_layout
        self.supports_masking = True
        if flash_attention and self.dropout:
            raise self._no_flash(f"dropout={dropout}", "dropout=0")

    query_dense = property(lambda self: self._members["query"], doc="The projection of the query.")
    key_dense = property(lambda self: self._members["key"], doc="The projection of the key.")
    value_dense = property(lambda self: self._members["value"], doc="The projection of the value.")
    output_dense = property(lambda self: self._members["attention_output"], doc="The projection of the result.")

    def build(
        self, query_shape: tuple[int, ...], value_shape: tuple[int, ...], key_shape: tuple[int, ...] | None = None
    ) -> None:
        """Create the projections, each with a `kernel` and a `bias`.

        `query`, `key`, `value` and `gate` are (features, heads, size of a head), their biases (heads, size of a head);
        `attention_output` is (heads, size of a head, features), its bias (features,).
        """
        key_shape = value_shape if key_shape is None else key_shape
        self._check_shapes(query_shape, value_shape, key_shape)
        rank = len(query_shape)
        output_dims = self.output_dims or (query_shape[-1],)
        members: dict[str, Layer] = {
            "query": self._projection("query", rank, 1, (self.query_heads, self.key_size)),
            "key": self._projection("key", rank, 1, (self.shared_heads, self.key_size)),
        }
        if self.use_gate:
            members["gate"] = self._projection(
                "gate", rank, 1, (self.query_heads, self.value_size), activation="sigmoid"
            )
        members["value"] = self._projection("value", rank, 1, (self.shared_heads, self.value_size))
        layouts = {"kernel_layout": self.output_kernel_layout, "bias_layout": self.output_bias_layout}
        members["attention_output"] = self._projection("attention_output", rank + 1, 2, output_dims, **layouts)
        members["dropout"] = Dropout(self.dropout, seed=self.seed, dtype=self.dtype_policy)
        self._members = members
        inputs = {"query": query_shape, "key": key_shape, "value": value_shape, "gate": query_shape}
        inputs["attention_output"] = (*query_shape[:-1], self.query_heads, self.value_size)
        inputs["dropout"] = query_shape  # any shape
        for name, shape in inputs.items():  # in the order in which random keys are drawn
            if name in members:
                members[name].build(shape)

    def call(
        self,
        query: jax.Array,
        value: jax.Array,
        key: jax.Array | None = None,
        query_mask: jax.Array | None = None,
        value_mask: jax.Array | None = None,
        key_mask: jax.Array | None = None,
        attention_mask: jax.Array | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        use_causal_mask: bool = False,
    ) -> PyTree:
        """Return `softmax(query @ key.T) @ value` of the heads, projected.

        Args:
            query: (batch, target, features), or with several sequence dims.
            value: (batch, source, features).
            key: (batch, source, features); the value by default.
            query_mask: boolean, valid query positions, (batch, target).
            value_mask: boolean, valid value positions, (batch, source).
            key_mask: boolean, valid key positions, (batch, source).
            attention_mask: boolean, True where a target may attend to a source: (target, source), (batch, target,
                source) or (batch, heads, target, source).
            return_attention_scores: whether to return `(outputs, scores)`.
            training: whether to drop scores.
            use_causal_mask: whether positions attend only to themselves and earlier ones.

        Returns:
            Outputs (batch, target, features); scores (batch, heads, target, source).

        Raises:
            ModelError: a mask does not fit.
        """
        axes = self._axes(query.ndim)
        heads = self._members["query"](query)
        keys, values = self._members["key"](value if key is None else key), self._members["value"](value)
        fits_kernel = heads.ndim == 4 and self.key_size == self.value_size
        is_plain = fits_kernel and not self.dropout and not return_attention_scores
        needs = [] if is_plain else ["dropout, returned scores, value_dim other than key_dim, or several sequence dims"]
        ring = ring_for("cudnn" if self.flash_attention else "auto", heads, keys, needs)
        causal, window = (use_causal_mask, self.sliding_window) if ring is None else (False, None)
        masks = query_mask, value_mask, key_mask, attention_mask
        mask = self._merged_mask(query, value, axes, *masks, causal, window)
        if ring is not None:
            options = ring_options(heads, keys, mask, self._scale, use_causal_mask, self.sliding_window)
            outputs, scores = ring.attend(heads, keys, values, options), None
        elif is_plain:
            implementation = "cudnn" if self.flash_attention else None
            chosen: dict[str, Any] = {"mask": mask, "scale": self._scale, "implementation": implementation}
            outputs, scores = jax.nn.dot_product_attention(heads, keys, values, **chosen), None
        elif self.flash_attention:
            expected = "return_attention_scores=False, value_dim=key_dim, one dim of positions"
            raise self._no_flash(f"return_attention_scores={return_attention_scores}, query {query.shape}", expected)
        else:
            drop = functools.partial(self._members["dropout"], training=training)
            outputs, scores = attend(heads, keys, values, mask, axes, self._scale, drop)
        if self.use_gate:
            outputs = outputs * self._members["gate"](query)
        outputs = self._members["attention_output"](outputs)
        return (outputs, scores) if return_attention_scores else outputs

    def _merged_mask(
        self,
        query: jax.Array,
        value: jax.Array,
        axes: tuple[int, ...],
        query_mask: jax.Array | None,
        value_mask: jax.Array | None,
        key_mask: jax.Array | None,
        attention_mask: jax.Array | None,
        causal: bool,
        window: int | None,
    ) -> jax.Array | None:
        """Combine all masks, with the rank of the scores."""
        masks = [] if query_mask is None else [self._of_positions(query_mask, query, axes)[..., :, None]]
        for mask, tensor in ((value_mask, value), (key_mask, value)):
            masks += [] if mask is None else [self._of_positions(mask, tensor, axes)[..., None, :]]
        if causal or window is not None:
            if len(axes) != 1:
                raise self._does_not_fit("a causal mask or a sliding window", f"attention over the dims {list(axes)}")
            targets, sources = (jnp.arange(tensor.shape[axes[0]]) for tensor in (query, value))
            masks += positions_kept(targets, sources, causal, window)
        masks += [] if attention_mask is None else [attention_mask]
        rank = query.ndim + len(axes)
        found = [self._as_scores(jnp.asarray(mask, bool), rank, len(axes)) for mask in masks]
        return functools.reduce(jnp.logical_and, found) if found else None

    def _of_positions(self, mask: jax.Array, tensor: jax.Array, axes: tuple[int, ...]) -> jax.Array:
        """Return the mask of an input; it must have one sequence dim."""
        if axes != (tensor.ndim - 2,) or mask.shape != tensor.shape[:-1]:
            to = f"an input of shape {tensor.shape}, attention over the dims {list(axes)}"
            raise self._does_not_fit(f"a mask of shape {mask.shape}", to)
        return mask

    def _as_scores(self, mask: jax.Array, rank: int, number_of_axes: int) -> jax.Array:
        """Insert dims for heads, so that the mask has the rank of the scores."""
        positions = 2 * number_of_axes
        if not positions <= mask.ndim <= rank:
            raise self._does_not_fit(f"a mask of shape {mask.shape}", f"scores of rank {rank}")
        batch = mask.ndim - positions
        ones = (1,) * (rank - mask.ndim)
        return mask.reshape(*mask.shape[:batch], *ones, *mask.shape[batch:])

    @property
    def _scale(self) -> float:
        return 1 / math.sqrt(self.key_size)

    def _axes(self, rank: int) -> tuple[int, ...]:
        """Return the sequence dims of an input of this rank."""
        return tuple(range(1, rank - 1) if self.attention_axes is None else (a % rank for a in self.attention_axes))

    def _projection(self, name: str, rank: int, bound: int, output_dims: Sequence[int], **options: Any) -> EinsumDense:
        inputs = string.ascii_lowercase[:rank]
        outputs = string.ascii_lowercase[rank : rank + len(output_dims)]
        free = inputs[: rank - bound]
        arguments: dict[str, Any] = {
            name: getattr(self, name) for weight in self.weight_initializers for name in defaults_of(weight, None)
        }
        arguments |= {"activity_regularizer": self.projection_regularizer, "dtype": self.dtype_policy, **options}
        projection = EinsumDense(
            f"{inputs},{inputs[rank - bound :]}{outputs}->{free}{outputs}",
            output_shape=(*[None] * (len(free) - 1), *output_dims),
            bias_axes=outputs if self.use_bias else None,
            name=name,
            **arguments,
        )
        projection.supports_masking = True  # masks are applied to the attention scores
        return projection

    def _check_shapes(
        self, query_shape: tuple[int, ...], value_shape: tuple[int, ...], key_shape: tuple[int, ...]
    ) -> None:
        ranks = {len(query_shape), len(value_shape), len(key_shape)}
        if len(ranks) > 1 or min(ranks) < 3 or value_shape[1:-1] != key_shape[1:-1]:
            summary = f"query, value and key of layer {self.name!r} must fit each other, with a rank of at least 3"
            given = f"query {tuple(query_shape)}, value {tuple(value_shape)}, key {tuple(key_shape)}"
            fix = "query is (batch, target, features), value and key alike are (batch, source, features)"
            raise ModelError(summary, given=given, fix=fix)
        rank = len(query_shape)
        if not all(0 < axis < rank - 1 for axis in self._axes(rank)):
            raise self._does_not_fit(f"attention_axes={list(self.attention_axes or ())}", f"inputs of rank {rank}")

    def _does_not_fit(self, what: str, to: str) -> ModelError:
        fix = "reshape it to (batch, target, source), attend to dims between batch and features, or leave it out"
        return ModelError(f"layer {self.name!r} cannot attend", given=f"{what} for {to}", fix=fix)

    def _no_flash(self, given: str, expected: str) -> ModelError:
        summary = f"`flash_attention` of layer {self.name!r} computes no scores"
        fix = "leave flash_attention out"
        return ModelError(summary, given=f"flash_attention=True with {given}", expected=expected, fix=fix)


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
        sliding_window: number of positions to attend to, including the position itself; None for all.
        flash_attention: whether to insist on the fused kernel of cuDNN; by default jax chooses.
        use_gate: whether a projection of the query, `gate`, through a sigmoid, multiplies the result: arXiv:2505.06708.
        seed: seed of the dropout.
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
