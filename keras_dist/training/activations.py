"""Activations: their layout rules, `rules["d2/output"]`, `rules["input/image"]`, and `remat`, which recomputes them.

The last, partial batch is not constrained where the mesh does not divide it: with another dim sharded, XLA computes
wrong gradients of convolutions.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx

from keras_dist._support import tree_paths
from keras_dist._support.safe_patterns import Pattern
from keras_dist._support.types import PyTree
from keras_dist.distribution import lint, trace_context
from keras_dist.distribution.layout import TensorLayout
from keras_dist.distribution.placement import distribute_tensor
from keras_dist.distribution.strategy import Distribution
from keras_dist.distribution.variables import VariableSpec, leaf_paths
from keras_dist.errors import ModelError, did_you_mean, shorten
from keras_dist.layers.base.names import keras_paths
from keras_dist.layers.base.remat_scope import checkpointed
from keras_dist.training.graph import compile_rule
from keras_dist.variables import call_context

UPDATE = "step_of_optimizer"  # scope around the scope of an optimizer
_SCOPE, _WEIGHT = "module ", "weight "
_CODED = str.maketrans("/()", "|\u27e8\u27e9")  # JAX puts slashes and parentheses between and around scopes
_DECODED = str.maketrans("|\u27e8\u27e9", "/()")
LONE_INPUT = "input/x"  # the name in rules of an input that is one array


def input_names(x: PyTree) -> list[str]:
    """Return the names in rules of the arrays in `x`: `input/image` for `{"image": ...}`, `input/x` for an array."""
    return [f"input/{path}" if path else LONE_INPUT for path in leaf_paths(x)]


def tensor_names(module_paths: Sequence[str], x: PyTree) -> list[str]:
    """Return the names in rules of the outputs of modules and of the arrays in `x`."""
    return [*map(output_name, module_paths), *input_names(x)]


def output_name(path: str) -> str:
    """Return the name in rules of the output of the module at a path."""
    return f"{path}/output" if path else "output"


def input_layout(name: str, shape: Sequence[int], distribution: Distribution) -> TensorLayout:
    """Return the layout of an input: by its rule, else with the batch dim over the batch axis."""
    return _checked(name, shape, distribution) or distribution.get_data_layout(shape)


def constrain_inputs(x: PyTree, distribution: Distribution) -> PyTree:
    """Constrain `x` to the layouts of the rules `input/...` (traced)."""
    leaves, treedef = jax.tree.flatten(x)
    return treedef.unflatten(
        [_constrain(name, leaf, distribution) for name, leaf in zip(input_names(x), leaves, strict=True)]
    )


def constrain_outputs(module: nnx.Module, distribution: Distribution) -> None:
    """Make the submodules that a rule `<path>/output` names constrain their outputs. Changes `module`."""
    for node, paths in named_submodules(module):
        for name in map(output_name, paths):
            if distribution.get_tensor_layout(name) is not None:
                node.__class__ = _constrained_class(type(node), name, distribution)
        if trace_context.current().names_scopes and paths[0]:
            node.__class__ = _scoped_class(type(node), scope_of(paths[0]))


def naming_scopes() -> contextlib.AbstractContextManager[object]:
    """Context manager that names the operations of traced steps by their submodules, for reports."""
    return trace_context.traced_with(names_scopes=True)


def scope_of(path: str) -> str:
    """Return the scope of a submodule in names of operations; `path_of_scope` is the inverse."""
    return _SCOPE + path.translate(_CODED)


def path_of_scope(scope: str) -> str | None:
    """Return the path of the submodule with this scope; None for any other scope."""
    return scope.removeprefix(_SCOPE).translate(_DECODED) if scope.startswith(_SCOPE) else None


def weight_scope(path: str) -> contextlib.AbstractContextManager[Any]:
    """Context manager that names traced constraints by their weight, within `naming_scopes`."""
    is_named = trace_context.current().names_scopes
    return jax.named_scope(_WEIGHT + path.translate(_CODED)) if is_named else contextlib.nullcontext()


def optimizer_scope(name: str) -> contextlib.AbstractContextManager[Any]:
    """Context manager that names traced operations by their optimizer, as a submodule, within `naming_scopes`."""
    is_named = trace_context.current().names_scopes
    return jax.named_scope(f"{UPDATE}/{scope_of(name)}") if is_named else contextlib.nullcontext()


def weight_of_scope(scope: str) -> str | None:
    """Return the path of the weight with this scope; None for any other scope."""
    return scope.removeprefix(_WEIGHT).translate(_DECODED) if scope.startswith(_WEIGHT) else None


def named_submodules(module: nnx.Module) -> list[tuple[nnx.Module, list[str]]]:
    """Return the modules in `module`, itself included, each with its path and its path in Keras."""
    in_keras = keras_paths(module).layers
    found = ((tree_paths.join(tree_paths.visible(parts)), node) for parts, node in nnx.iter_graph(module))
    return [
        (node, list(dict.fromkeys((path, in_keras.get(id(node), path)))))
        for path, node in found
        if isinstance(node, nnx.Module)
    ]


def check_tensor_rules(
    specs: Sequence[VariableSpec], module_paths: Sequence[str], x: PyTree, distribution: Distribution
) -> None:
    """Warn of rules for activations and inputs that match none; raise under `strict`."""
    rules = distribution.layout_map
    if rules is None or not any(lint.names_tensor(rule) for rule in rules):
        return
    tensors = tensor_names(module_paths, x)
    dead = lint.check_rules(rules, specs, tensors, lint.names_tensor)
    lint.report([], dead, distribution.device_mesh, strict=distribution.strict)


def with_call(cls: type, call: Callable[..., Any]) -> type:
    """Return a subclass of the same name whose instances are called by `call(self, *args, **kwargs)`."""
    return type(cls.__name__, (cls,), {"__call__": call, "__module__": cls.__module__})


@functools.lru_cache(maxsize=1024)
def _scoped_class(cls: type, scope: str) -> type:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        with jax.named_scope(scope):
            return cls.__call__(self, *args, **kwargs)

    return with_call(cls, call)


@functools.lru_cache(maxsize=1024)
def _constrained_class(cls: type, name: str, distribution: Distribution) -> type:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        outputs, context = cls.__call__(self, *args, **kwargs), call_context.current()
        constrained = jax.tree.map(lambda output: _constrain(name, output, distribution), outputs)
        if context is not None:
            context.pass_on(outputs, constrained)
        return constrained

    return with_call(cls, call)


def _constrain(name: str, value: PyTree, distribution: Distribution) -> PyTree:
    layout = _checked(name, np.shape(value), distribution)
    if layout is None:
        return value
    if np.shape(value)[0] % distribution.device_mesh.axis_size(layout.axes[0]):
        # a partial batch. JAX constrains only what divides; with another dim sharded, XLA computes wrong gradients of
        # convolutions for rows that do not divide: `real_rows` has replicated them
        return value
    return distribute_tensor(value, layout)


def _checked(name: str, shape: Sequence[int], distribution: Distribution) -> TensorLayout | None:
    layout = distribution.get_tensor_layout(name)
    if layout is None:
        return None
    layout = layout.because(name)
    mesh = distribution.device_mesh
    padded = (mesh.axis_size(layout.axes[0]), *shape[1:]) if shape and layout.axes else shape
    lint.report(lint.check_layout(name, padded, layout, mesh), [], mesh, strict=False)
    return layout


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
