"""What the backward pass computes again instead of keeping it: the argument `remat` of `compile`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Any

import jax
from flax import nnx

from keras_dist import _jax
from keras_dist._patterns import Pattern
from keras_dist._types import PyTree
from keras_dist.errors import ModelError, did_you_mean, shorten
from keras_dist.layers import call_context
from keras_dist.layers.record import Recorded
from keras_dist.training.activations import named_submodules
from keras_dist.training.graph import compile_rule

FULL = "full"
"""Keep nothing but the inputs of the model."""

POLICIES = (
    "checkpoint_dots",
    "checkpoint_dots_with_no_batch_dims",
    "dots_saveable",
    "dots_with_no_batch_dims_saveable",
    "everything_saveable",
    "nothing_saveable",
)
"""The policies in `jax.checkpoint_policies` that take no arguments."""

_NOT_STATE = (nnx.Param, nnx.Intermediate)
"""Variables that a call does not change for good."""


@dataclasses.dataclass(frozen=True)
class Remat:
    """What is computed again: the whole forward pass, but for what a policy keeps, or some layers.

    Attributes:
        given: the argument of `compile`.
        pattern: matches the whole paths of layers; None for the whole forward pass.
    """

    given: str
    pattern: Pattern | None = None

    def whole(self, forward: Callable[..., PyTree]) -> Callable[..., PyTree]:
        """`forward`, computed again in the backward pass, unless only layers are."""
        if self.pattern is not None:
            return forward
        policy = getattr(jax.checkpoint_policies, self.given) if self.given in POLICIES else None
        return jax.checkpoint(forward, policy=policy)

    def mark(self, module: nnx.Module) -> None:
        """Make the layers of `module` that `pattern` matches compute again. Changes `module`."""
        if self.pattern is None:
            return
        for node, names in named_submodules(module):
            if node is not module and callable(node) and any(map(self.pattern.fullmatch, names)):
                node.__class__ = _checkpointed_class(type(node))

    def check(self, module: nnx.Module) -> None:
        """Check that a layer of `module` is meant."""
        if self.pattern is None:
            return
        paths = [names[0] for node, names in named_submodules(module) if node is not module and callable(node)]
        names = [name for node, names in named_submodules(module) if node is not module for name in names]
        if not any(map(self.pattern.fullmatch, names)):
            raise _unknown(self.given, paths)


def resolve_remat(given: Any) -> Remat | None:
    """What the argument `remat` of `compile` means; None for nothing."""
    if given is None or given == "none":
        return None
    if not isinstance(given, str):
        raise _unknown(given, ())
    is_whole = given == FULL or given in POLICIES
    return Remat(given, None if is_whole else compile_rule(given, "remat"))


def _unknown(given: Any, paths: Iterable[str]) -> ModelError:
    paths, known = list(paths), [FULL, *POLICIES]
    near = did_you_mean(given, [*known, *paths]) if isinstance(given, str) else ""
    layers = f", or a regular expression for whole paths such as {paths[:5]}" if paths else ", or one for paths"
    return ModelError(
        f"`remat` is neither a policy nor the path of a layer{near}",
        given=f"remat={shorten(given)}",
        expected=f"'none', {', '.join(map(repr, known))}{layers}",
        fix='for example remat="full", remat="dots_saveable" or remat="block_.*"',
    )


@functools.lru_cache(maxsize=256)
def _checkpointed_class(cls: type) -> type:
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        return checkpointed(cls, self, args, kwargs)

    return type(cls.__name__, (cls,), {"__call__": __call__, "__module__": cls.__module__})


def checkpointed(cls: Any, layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> PyTree:
    """What `layer` gives; its statistics, masks and losses come out of the checkpoint as arrays."""
    context = call_context.current() or call_context.CallContext()
    leaves, structure = jax.tree.flatten((args, kwargs))
    arrays = [leaf if isinstance(leaf, jax.Array) else None for leaf in leaves]
    graphdef, state = nnx.split(layer)
    values, state_structure = jax.tree.flatten(state)
    order, after = _jax.attribute_order(layer), []

    def call(values: PyTree, arrays: list[jax.Array], masks: list[jax.Array]) -> PyTree:
        with _jax.without_eager_sharding():
            module = nnx.merge(graphdef, state_structure.unflatten(values), copy=True)
        _jax.restore_order(module, order)
        filled = [leaf if array is None else array for leaf, array in zip(leaves, arrays, strict=True)]
        given, options = structure.unflatten(filled)
        with call_context.entered(context.training, anew=True) as inner:
            for array, mask in zip(arrays, masks, strict=True):
                inner.set_mask(array, mask)
            with call_context.calling(context.caller, context.weights_dtype):
                outputs = cls.__call__(module, *given, **options)
            changed, structure_after = jax.tree.flatten(nnx.state(module, nnx.Not(_NOT_STATE)))
            after.append(structure_after)
            return outputs, inner.mask_of(outputs), changed, inner.losses

    masks = [context.mask_of(array) for array in arrays]
    outputs, output_masks, changed, losses = jax.checkpoint(call)(values, arrays, masks)
    nnx.update(layer, after[-1].unflatten(changed))
    context.set_mask(outputs, output_masks)
    if losses:
        context.losses.extend(losses)
        if isinstance(layer, Recorded):
            layer._outside.added += losses
    return outputs
