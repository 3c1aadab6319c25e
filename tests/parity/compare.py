"""One layer of Keras and one of ours, with the same weights on the same inputs."""

import functools
import inspect
import os
import types
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax

from keras_dist import layers

TOLERANCE = 1e-5

Functions: TypeAlias = Mapping[str, Callable[..., Any]]

few_examples = hypothesis.settings(max_examples=15 if os.environ.get("CI") else 5, deadline=None)
"""Each example of a layer compiles two programs: fewer than the profile's."""


def cases(**strategies: Any) -> Callable[[Any], Any]:
    """Draw the argument `case` of a test, with an attribute for each strategy."""
    drawn = st.fixed_dictionaries(strategies).map(lambda values: types.SimpleNamespace(**values))
    return lambda test: few_examples(hypothesis.given(case=drawn)(test))


def picked(case: Any, *names: str) -> dict[str, Any]:
    """Return some attributes of a case, as arguments by name."""
    return {name: getattr(case, name) for name in names}


def assert_close(ours: Any, theirs: Any, tolerance: float = TOLERANCE) -> None:
    """Both hold the same numbers, up to `tolerance` of the larger of 1 and their size."""
    ours, theirs = jax.tree.leaves(ours), jax.tree.leaves(theirs)
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        a, b = np.asarray(a), np.asarray(b)
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * max(1.0, float(np.abs(b).max(initial=0))))


def values_and_gradients(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function gives, and the gradients of a number made of it for the floats among its arguments."""
    leaves, treedef = jax.tree.flatten(arguments)
    floats = [index for index, leaf in enumerate(leaves) if jnp.issubdtype(leaf.dtype, jnp.floating)]

    def probed(chosen: list[Any]) -> Any:
        given = dict(enumerate(leaves)) | dict(zip(floats, chosen, strict=True))
        outputs = function(*treedef.unflatten(given.values()))
        return _probe(outputs), outputs

    gradients, outputs = jax.grad(probed, has_aux=True)([leaves[index] for index in floats])
    found = dict(zip(floats, gradients, strict=True))
    return outputs, treedef.unflatten([found.get(index) for index in range(len(leaves))])


def compare_functions(ours: Functions, theirs: Functions, *arguments: Any, tolerance: float = TOLERANCE) -> None:
    """Functions of the same names give the same values and gradients: all of them in one program."""
    assert ours.keys() == theirs.keys()

    @jax.jit
    def both(*arguments: Any) -> Any:
        return [{name: values_and_gradients(of[name], *arguments) for name in of} for of in (ours, theirs)]

    assert_close(*both(*arguments), tolerance)


def calls_of(make: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Return a function that makes a layer without weights, and calls it."""
    return lambda *inputs: make(**options)(*inputs)


def zeros(shape: tuple[int, ...], dtype: Any = None, **_: Any) -> np.ndarray:
    """Return zeros that NumPy makes: jax compiles a program for each shape that it draws."""
    return np.zeros(shape, dtype)


def build(keras: types.ModuleType, theirs: Any, ours: Any, *shapes: Any) -> None:
    """Build both layers for inputs of these shapes, with zeros for weights, if they are not built yet."""
    for layer, cls in ((theirs, keras.layers.Layer), (ours, layers.Layer)):

        def add_zeros(self: Any, shape: Any = (), initializer: Any = None, *args: Any, add: Any, **kwargs: Any) -> Any:
            return add(self, shape, zeros, *args, **kwargs)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cls, "add_weight", functools.partialmethod(add_zeros, add=cls.add_weight))
            if not layer.built:
                layer.build(*shapes)


def compare_layers(
    keras: types.ModuleType,
    theirs: Any,
    ours: Any,
    inputs: Any,
    *,
    apart: bool = False,
    weights_from: float = 0.1,
    weights_seed: int = 0,
    training: bool = False,
    gradients: bool = True,
    **call: Any,
) -> None:
    """Both layers give the same outputs, new statistics, and gradients for inputs and weights.

    Args:
        keras: the package.
        theirs: a layer of Keras.
        ours: the same of keras_dist.
        inputs: arrays, float ones are differentiated.
        apart: whether `inputs` are several arguments of the call.
        weights_from: the least weight; they are positive by default, so that they serve as variances, too.
        weights_seed: random weights of this seed are given to both.
        training: whether both are called in training.
        gradients: whether gradients are compared.
        **call: further arguments of the call.
    """
    arguments = tuple(inputs) if apart else (inputs,)
    build(keras, theirs, ours, *(jax.tree.map(np.shape, argument) for argument in arguments))
    assert [w.name for w in ours.weights] == [w.name for w in theirs.weights]
    assert [w.trainable for w in ours.weights] == [w.trainable for w in theirs.weights]
    random = np.random.default_rng(weights_seed)
    values = [random.uniform(weights_from, 0.9, weight.shape).astype(weight.dtype) for weight in theirs.weights]
    theirs.set_weights(values)
    ours.set_weights(values)

    extra = {"training": training} if _takes_training(theirs) else {}
    trained = [variable.value for variable in theirs.trainable_variables]
    fixed = [variable.value for variable in theirs.non_trainable_variables]
    graph, params, rest = nnx.split(ours, nnx.Param, ...)

    def keras_call(trained: Any, arguments: Any) -> Any:
        outputs, after = theirs.stateless_call(trained, fixed, *arguments, **extra, **call)
        named = zip(theirs.non_trainable_variables, after, strict=True)
        return outputs, [
            lax.stop_gradient(value) for variable, value in named if variable.name != "seed_generator_state"
        ]

    def our_call(params: Any, arguments: Any) -> Any:
        layer = nnx.merge(graph, params, rest, copy=True)
        outputs = layer(*arguments, **extra, **call)
        after = {weight.path: weight.value for weight in layer.weights}  # merged, it has forgotten their order
        return outputs, lax.stop_gradient([after[weight.path] for weight in ours.non_trainable_weights])

    # one program: compiling every operation for every shape would take ten times as long
    @jax.jit
    def both(trained: Any, params: Any, arguments: Any) -> Any:
        find = values_and_gradients if gradients else lambda function, *given: (function(*given), None)
        return find(keras_call, trained, arguments), find(our_call, params, arguments)

    (expected, their_gradients), (found, our_gradients) = both(trained, params, arguments)
    assert_close(found, expected)
    if gradients:
        by_path = {weight.path: index for index, weight in enumerate(ours.trainable_weights)}
        ordered: list[Any] = [None] * len(by_path)
        for parts, gradient in nnx.to_flat_state(our_gradients[0]):
            path = "/".join(str(part) for part in parts if part != "_members")
            ordered[by_path[path]] = gradient[...]
        assert_close(ordered, their_gradients[0])
        assert_close(our_gradients[1], their_gradients[1])


def _probe(outputs: Any) -> Any:
    """A scalar that depends on every output in its own way."""
    return sum(
        jnp.sum(jnp.asarray(leaf, jnp.float32) * jnp.cos(jnp.arange(leaf.size, dtype=jnp.float32)).reshape(leaf.shape))
        for leaf in jax.tree.leaves(outputs)
    )


def _takes_training(layer: Any) -> bool:
    return "training" in inspect.signature(layer.call).parameters
