"""`Stack`: equal layers one after the other, with stacked weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack

import jax
import jax.numpy as jnp

from keras_dist._support.arguments import argument_error, check_flag, check_size
from keras_dist._support.types import PyTree
from keras_dist.errors import ModelError, shorten
from keras_dist.layers.base.layer import Layer
from keras_dist.layers.base.shape_calls import example, shapes_of_call, stacked_weights
from keras_dist.layers.base.stacked_layers import scan_layers
from keras_dist.layers.base.weight_arguments import LayerArguments
from keras_dist.layers.core.wrapper import Wrapper
from keras_dist.variables import call_context


class Stack(Wrapper):
    """`depth` equal layers, one after the other, whose weights are stacked.

    One block is compiled, in a loop, so that compile time and program do not grow with the depth. The weights of block
    `dense` are `stack/dense/kernel` and so on, with the blocks as leading dim: (depth, ...). Each block has its own
    initial values, draws its own random numbers, and has its own statistics.

    Where layout rules shard the leading dim over an axis of the mesh, and `compile` is given `micro_batches`, compiled
    steps run the blocks as a pipeline: each device holds and computes its part of the blocks. A block must be
    independent of other rows then, and have no statistics. A last, partial batch is divided into fewer micro-batches.
    Losses that blocks add are averaged over the micro-batches. Other layers are computed on all stages, unless
    `batch_dim_name=("data", "stage")` divides their rows among them.

    Args:
        block: the layer that is repeated, such as a `Sequential` or functional model, or a class or function that
            makes it. A layer that has weights is made again from its config. The output has the shape of the
            input.
        depth: number of blocks.
        remat: whether the backward pass computes each block again, instead of keeping its intermediate values.
        repeats: times that a micro-batch passes all stages of a pipeline. With 1 the schedule is GPipe: a stage holds
            neighbouring blocks. With more it is circular: blocks are dealt to the stages in turn, which shortens the
            bubble. The leading dims of the weights are then (repeats, depth // repeats), and rules shard the second.
        **kwargs: see `Layer`.

    Raises:
        ModelError: `block` is not a layer, its output has another shape than its input, or a weight was not created by
            `add_weight`; or `repeats` does not divide `depth`.

    Example:
        >>> import keras_dist as kd, numpy as np
        >>> from keras_dist import layers
        >>> rules = kd.LayoutMap(kd.DeviceMesh("data=2,stage=4"))
        >>> rules["stack/.*kernel"], rules["stack/.*bias"] = ("stage", None, None), ("stage", None)
        >>> with kd.ModelParallel(rules, batch_dim_name="data").scope():
        ...     model = kd.Sequential([kd.Input((8,)), layers.Stack(layers.Dense(8, "tanh"), depth=12, name="stack")])
        >>> model.compile("sgd", "mse", micro_batches=8)
        >>> x = np.zeros((64, 8), "float32")
        >>> history = model.fit(x, x, batch_size=32, verbose=0)
        >>> [(weight.path, weight.shape) for weight in model.weights]
        [('stack/dense/kernel', (12, 8, 8)), ('stack/dense/bias', (12, 8))]
        >>> [str(pipeline) for pipeline in model.plan(x[:32], x[:32]).pipelines]
        ["'stack/dense' over 'stage': 4 stages, 8 micro-batches, gpipe, 11 turns, bubble 27.3%"]
    """

    def __init__(
        self,
        block: Layer | Callable[[], Layer],
        depth: int,
        remat: bool = False,
        repeats: int = 1,
        **kwargs: Unpack[LayerArguments],
    ) -> None:
        name = kwargs.get("name") or "stack"
        self.depth, self.repeats = check_size("depth", depth, name), check_size("repeats", repeats, name)
        if depth % repeats:
            raise argument_error("repeats", repeats, f"a divisor of depth={depth}", layer=name, example=1)
        super().__init__(_made_in_stack(block, self._dims), **kwargs)
        self.remat = check_flag("remat", remat)
        self.supports_masking, self.autocast = True, False

    @property
    def block(self) -> Layer:
        """The layer that is repeated, with stacked weights."""
        return self.layer

    def build(self, input_shape: PyTree) -> None:
        """Create the weights of all blocks, for inputs of this shape."""
        inputs = example(input_shape, self.compute_dtype)
        dims = self._dims
        with stacked_weights(*dims):
            outputs = shapes_of_call(self.block, inputs)
        if outputs.shape != inputs.shape:
            summary = f"the output of a block of layer {self.name!r} must have the shape of its input"
            given, expected = (f"shape {shape}" for shape in (outputs.shape, inputs.shape))
            raise ModelError(summary, given=given, expected=expected, fix="add a layer at the end of the block")
        self.output_dtype = str(outputs.dtype)  # a functional model adds to its inputs in float32
        foreign = [weight.path for weight in self.block._weights_so_far() if weight.shape[: len(dims)] != dims]
        if foreign:
            summary = f"the block of layer {self.name!r} has weights that `add_weight` did not create in `build`"
            fix = "write the block with layers of keras_dist, or make a list of modules instead of a Stack"
            raise ModelError(summary, given=shorten(foreign), fix=fix)

    @property
    def _dims(self) -> tuple[int, ...]:
        """The leading dims of the weights."""
        return (self.depth,) if self.repeats == 1 else (self.repeats, self.depth // self.repeats)

    def _config_arguments(self) -> dict[str, Any]:
        return super()._config_arguments() | {"block": self.block}

    def call(self, inputs: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        """Return the output of the last block."""

        def call(block: Layer, hidden: jax.Array, number: jax.Array, rows: PyTree) -> jax.Array:
            context: Any = call_context.current()
            context.set_mask(hidden, rows["mask"])
            return block(hidden)

        rows = {"mask": mask}
        options = {"repeats": self.repeats, "remat": self.remat}
        inputs = inputs.astype(self.output_dtype)
        return scan_layers(self.block, call, inputs, jnp.arange(self.depth), rows, pipelines=True, **options)


def _made_in_stack(block: Any, dims: tuple[int, ...]) -> Any:
    """Return the block that is given or that a function returns; made again from its config, if it has weights."""
    with stacked_weights(*dims):  # a functional block builds its layers when it is made
        if callable(block) and not isinstance(block, Layer):
            return block()
        if isinstance(block, Layer) and block._weights_so_far():
            block = type(block).from_config(block.get_config())
    return block
