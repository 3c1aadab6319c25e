"""Layout rules for activations and inputs: `rules["d2/output"]`, `rules["input/image"]`."""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx

from keras_dist._support import tree_paths
from keras_dist._support.types import PyTree
from keras_dist.distribution import lint
from keras_dist.distribution.layout import TensorLayout
from keras_dist.distribution.placement import distribute_tensor
from keras_dist.distribution.strategy import Distribution
from keras_dist.distribution.variables import VariableSpec, leaf_paths
from keras_dist.layers.names import keras_paths

_SCOPE, _WEIGHT = "module ", "weight "
_CODED = str.maketrans("/()", "|\u27e8\u27e9")  # JAX puts slashes and parentheses between and around scopes
_DECODED = str.maketrans("|\u27e8\u27e9", "/()")
_names_scopes = contextvars.ContextVar("names_scopes", default=False)
LONE_INPUT = "input/x"
"""The name in rules of an input that is one array."""


def input_names(x: PyTree) -> list[str]:
    """The names in rules of the arrays in `x`: `input/image` for `{"image": ...}`, `input/x` for a lone array."""
    return [f"input/{path}" if path else LONE_INPUT for path in leaf_paths(x)]


def tensor_names(module_paths: Sequence[str], x: PyTree) -> list[str]:
    """The names in rules of what modules return, and of the arrays in `x`."""
    return [*(tree_paths.join(filter(None, (path, "output"))) for path in module_paths), *input_names(x)]


def input_layout(name: str, shape: Sequence[int], distribution: Distribution) -> TensorLayout:
    """The layout of one input: by its rule, else with the batch dim over the batch axis."""
    return _checked(name, shape, distribution) or distribution.get_data_layout(shape)


def constrain_inputs(x: PyTree, distribution: Distribution) -> PyTree:
    """`x` with the layout of each rule `input/...` (traced)."""
    leaves, treedef = jax.tree.flatten(x)
    return treedef.unflatten(
        [_constrain(name, leaf, distribution) for name, leaf in zip(input_names(x), leaves, strict=True)]
    )


def constrain_outputs(module: nnx.Module, distribution: Distribution) -> None:
    """Make the submodules that a rule `<path>/output` names constrain what they return. Changes `module`."""
    for node, paths in named_submodules(module):
        for name in (tree_paths.join(filter(None, (path, "output"))) for path in paths):
            if distribution.get_tensor_layout(name) is not None:
                node.__class__ = _constrained_class(type(node), name, distribution)
        if _names_scopes.get() and paths[0]:
            node.__class__ = _scoped_class(type(node), scope_of(paths[0]))


@contextlib.contextmanager
def naming_scopes() -> Iterator[None]:
    """Inside, operations of traced steps are in a scope of the submodule that they belong to, as reports need it."""
    token = _names_scopes.set(True)
    try:
        yield
    finally:
        _names_scopes.reset(token)


def scope_of(path: str) -> str:
    """The scope of a submodule, one part of an operation's name. `path_of_scope` takes it back."""
    return _SCOPE + path.translate(_CODED)


def path_of_scope(scope: str) -> str | None:
    """The path of the submodule whose scope it is; None for any other scope."""
    return scope.removeprefix(_SCOPE).translate(_DECODED) if scope.startswith(_SCOPE) else None


def weight_scope(path: str) -> contextlib.AbstractContextManager[Any]:
    """Inside, constraints of traced steps are in a scope of the weight that they lay out, if reports need it."""
    return jax.named_scope(_WEIGHT + path.translate(_CODED)) if _names_scopes.get() else contextlib.nullcontext()


def weight_of_scope(scope: str) -> str | None:
    """The path of the weight whose scope it is; None for any other scope."""
    return scope.removeprefix(_WEIGHT).translate(_DECODED) if scope.startswith(_WEIGHT) else None


def named_submodules(module: nnx.Module) -> list[tuple[nnx.Module, list[str]]]:
    """The modules in `module`, itself included, each with the paths that rules may know it by: here and in Keras."""
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
    """Warn of rules for activations and inputs that name none; raise under `strict`."""
    rules = distribution.layout_map
    if rules is None or not any(lint.names_tensor(rule) for rule in rules):
        return
    tensors = tensor_names(module_paths, x)
    dead = lint.check_rules(rules, specs, tensors, lint.names_tensor)
    lint.report([], dead, distribution.device_mesh, strict=distribution.strict)


@functools.lru_cache(maxsize=1024)
def _scoped_class(cls: type, scope: str) -> type:
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        with jax.named_scope(scope):
            return cls.__call__(self, *args, **kwargs)

    return type(cls.__name__, (cls,), {"__call__": __call__, "__module__": cls.__module__})


@functools.lru_cache(maxsize=1024)
def _constrained_class(cls: type, name: str, distribution: Distribution) -> type:
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        outputs = cls.__call__(self, *args, **kwargs)
        return jax.tree.map(lambda output: _constrain(name, output, distribution), outputs)

    return type(cls.__name__, (cls,), {"__call__": __call__, "__module__": cls.__module__})


def _constrain(name: str, value: PyTree, distribution: Distribution) -> PyTree:
    layout = _checked(name, np.shape(value), distribution)
    if layout is None:
        return value
    if np.shape(value)[0] % distribution.device_mesh.axis_size(layout.axes[0]):
        # The last, shorter batch. JAX constrains only what divides; and of rows that do not divide, with another dim
        # sharded, XLA computes wrong gradients of convolutions: `real_rows` has put them on every device
        return value
    return distribute_tensor(value, layout)


def _checked(name: str, shape: Sequence[int], distribution: Distribution) -> TensorLayout | None:
    """The layout by rule, checked against `shape`; the batch dim may be any length."""
    layout = distribution.get_tensor_layout(name)
    if layout is None:
        return None
    layout = layout.because(name)
    mesh = distribution.device_mesh
    padded = (mesh.axis_size(layout.axes[0]), *shape[1:]) if shape and layout.axes else shape
    lint.report(lint.check_layout(name, padded, layout, mesh), [], mesh, strict=False)
    return layout
