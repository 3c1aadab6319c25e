"""One layer of Keras and one of ours, with the same weights on the same inputs."""

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
from flax import nnx

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


def compare_layers(
    keras: types.ModuleType,
    theirs: Any,
    ours: Any,
    inputs: Any,
    *,
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
        weights_seed: random weights of this seed are given to both.
        training: whether both are called in training.
        gradients: whether gradients are compared.
        **call: further arguments of the call.
    """
    inputs = jax.tree.map(jnp.asarray, inputs)
    theirs(inputs, **call)
    ours(inputs, **call)
    assert [w.name for w in ours.weights] == [w.name for w in theirs.weights]
    assert [w.trainable for w in ours.weights] == [w.trainable for w in theirs.weights]
    random = np.random.default_rng(weights_seed)
    # positive, so that they serve as variances, too
    values = [random.uniform(0.1, 0.9, weight.shape).astype(weight.dtype) for weight in theirs.weights]
    theirs.set_weights(values)
    ours.set_weights(values)

    extra = {"training": training} if _takes_training(theirs) else {}
    trained = [variable.value for variable in theirs.trainable_variables]
    fixed = [variable.value for variable in theirs.non_trainable_variables]

    def keras_loss(trained: Any, inputs: Any) -> Any:
        outputs, fixed_after = theirs.stateless_call(trained, fixed, inputs, **extra, **call)
        return _probe(outputs), (outputs, fixed_after)

    graph, params, rest = nnx.split(ours, nnx.Param, ...)

    def our_loss(params: Any, inputs: Any) -> Any:
        layer = nnx.merge(graph, params, rest, copy=True)
        outputs = layer(inputs, **extra, **call)
        after = {weight.path: weight.value for weight in layer.weights}  # merged, it has forgotten their order
        return _probe(outputs), (outputs, [after[weight.path] for weight in ours.non_trainable_weights])

    (_, (their_outputs, fixed_after)), their_gradients = _value_and_grad(keras_loss, gradients)(trained, inputs)
    (_, (our_outputs, statistics)), our_gradients = _value_and_grad(our_loss, gradients)(params, inputs)
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


def _value_and_grad(loss: Any, gradients: bool) -> Any:
    def both(weights: Any, inputs: Any) -> Any:
        if not gradients:
            return jax.jit(loss)(weights, inputs), None
        leaves, treedef = jax.tree.flatten(inputs)
        floats = [index for index, leaf in enumerate(leaves) if jnp.issubdtype(leaf.dtype, jnp.floating)]

        def of(weights: Any, chosen: list[Any]) -> Any:
            filled = list(leaves)
            for index, leaf in zip(floats, chosen, strict=True):
                filled[index] = leaf
            return loss(weights, treedef.unflatten(filled))

        # one program each: compiling every operation for every shape would take ten times as long
        step = jax.jit(jax.value_and_grad(of, argnums=(0, 1), has_aux=True))
        return step(weights, [leaves[index] for index in floats])

    return both


def _probe(outputs: Any) -> Any:
    """A scalar that depends on every output in its own way."""
    return sum(
        jnp.sum(jnp.asarray(leaf, jnp.float32) * jnp.cos(jnp.arange(leaf.size, dtype=jnp.float32)).reshape(leaf.shape))
        for leaf in jax.tree.leaves(outputs)
    )


def _takes_training(layer: Any) -> bool:
    return "training" in inspect.signature(layer.call).parameters
