"""What the backward pass computes again instead of keeping it: the argument `remat` of `compile`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Any

import jax
from flax import nnx

from keras_dist._support.safe_patterns import Pattern
from keras_dist._support.types import PyTree
from keras_dist.errors import ModelError, did_you_mean, shorten
from keras_dist.layers.remat_scope import checkpointed
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


@dataclasses.dataclass(frozen=True)
class Remat:
    """Recomputation in the backward pass: of all but what a policy keeps, or of layers whose paths match."""

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
    summary = f"`remat` is neither a policy nor the path of a layer{near}"
    fix = f"one of 'none', {', '.join(map(repr, known))}{layers}"
    return ModelError(summary, given=f"remat={shorten(given)}", fix=fix)


@functools.lru_cache(maxsize=256)
def _checkpointed_class(cls: type) -> type:
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        return checkpointed(cls.__call__, self, args, kwargs)

    return type(cls.__name__, (cls,), {"__call__": __call__, "__module__": cls.__module__})
