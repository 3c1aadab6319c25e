"""The argument `remat` of `compile`: values that the backward pass recomputes instead of storing them."""

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
from keras_dist.training.activations import named_submodules, with_call
from keras_dist.training.graph import compile_rule

FULL = "full"  # keep the inputs of the model only

POLICIES = (
    "checkpoint_dots",
    "checkpoint_dots_with_no_batch_dims",
    "dots_saveable",
    "dots_with_no_batch_dims_saveable",
    "everything_saveable",
    "nothing_saveable",
)
"""Policies in `jax.checkpoint_policies` without arguments."""


@dataclasses.dataclass(frozen=True)
class Remat:
    """Recomputation in the backward pass, by a policy, or in the layers whose paths match."""

    given: str
    pattern: Pattern | None = None

    def whole(self, forward: Callable[..., PyTree]) -> Callable[..., PyTree]:
        """Return `forward`, recomputed in the backward pass unless only layers are."""
        if self.pattern is not None:
            return forward
        policy = getattr(jax.checkpoint_policies, self.given) if self.given in POLICIES else None
        return jax.checkpoint(forward, policy=policy)

    def mark(self, module: nnx.Module) -> None:
        """Make the layers of `module` that `pattern` matches recompute. Changes `module`."""
        if self.pattern is None:
            return
        for node, names in named_submodules(module):
            if node is not module and callable(node) and any(map(self.pattern.fullmatch, names)):
                node.__class__ = _checkpointed_class(type(node))

    def check(self, module: nnx.Module) -> None:
        """Check that `pattern` matches a layer of `module`."""
        if self.pattern is None:
            return
        layers = [names for node, names in named_submodules(module) if node is not module and callable(node)]
        if not any(self.pattern.fullmatch(name) for names in layers for name in names):
            raise _unknown(self.given, [path for path, *_ in layers])


def resolve_remat(given: Any) -> Remat | None:
    """Resolve the argument `remat` of `compile`; None without recomputation."""
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
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return checkpointed(cls.__call__, self, args, kwargs)

    return with_call(cls, call)
