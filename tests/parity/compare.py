"""One layer of Keras and one of ours, with the same weights on the same inputs."""

import functools
import inspect
import os
import types
from collections.abc import Callable
from typing import Any

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from keras_dist import layers

TOLERANCE = 1e-5

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
    leaves, treedef = jax.tree.flatten(arguments)
    floats = [index for index, leaf in enumerate(leaves) if gradients and np.issubdtype(leaf.dtype, np.floating)]

    def keras_call(trained: Any, arguments: Any) -> Any:
        return theirs.stateless_call(trained, fixed, *arguments, **extra, **call)

    def our_call(params: Any, arguments: Any) -> Any:
        layer = nnx.merge(graph, params, rest, copy=True)
        outputs = layer(*arguments, **extra, **call)
        after = {weight.path: weight.value for weight in layer.weights}  # merged, it has forgotten their order
        return outputs, [after[weight.path] for weight in ours.non_trainable_weights]

    def outcome(layer: Any, weights: Any, leaves: Any) -> Any:
        """What a layer gives, and its gradients."""

        def loss(weights: Any, chosen: Any) -> Any:
            given = dict(enumerate(leaves)) | dict(zip(floats, chosen, strict=True))
            outputs = layer(weights, treedef.unflatten(given.values()))
            return _probe(outputs[0]), outputs

        chosen = [leaves[index] for index in floats]
        if not gradients:
            return loss(weights, chosen)[1], None
        found, outputs = jax.grad(loss, argnums=(0, 1), has_aux=True)(weights, chosen)
        return outputs, found

    # one program: compiling every operation for every shape would take ten times as long
    @jax.jit
    def both(trained: Any, params: Any, leaves: Any) -> Any:
        return outcome(keras_call, trained, leaves), outcome(our_call, params, leaves)

    theirs_found, ours_found = both(trained, params, leaves)
    (their_outputs, fixed_after), their_gradients = theirs_found
    (our_outputs, statistics), our_gradients = ours_found
    assert_close(our_outputs, their_outputs)
    known = [
        value
        for variable, value in zip(theirs.non_trainable_variables, fixed_after, strict=True)
        if variable.name != "seed_generator_state"
    ]
    assert_close(statistics, known)
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
