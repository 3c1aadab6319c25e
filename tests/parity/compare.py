"""One layer of Keras and one of ours, with the same weights on the same inputs."""

import contextlib
import functools
import inspect
import types
from collections.abc import Callable, Iterator, Mapping
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
from keras_dist.variables import call_context

TOLERANCE = 1e-5

Functions: TypeAlias = Mapping[str, Callable[..., Any]]

few_examples = hypothesis.settings(max_examples=6, deadline=None)
"""Both libraries are traced for each example: fewer than the profile's."""

_waiting: list[tuple[Callable[..., Any], tuple[Any, ...], Callable[..., None], str]] = []


@contextlib.contextmanager
def one_program() -> Iterator[None]:
    """Compile all that is given to `compare` in this context as one program: each costs some 20 ms, however small."""
    _waiting.clear()
    yield
    if not _waiting:
        return
    functions, arguments, checks, notes = zip(*_waiting, strict=True)
    _waiting.clear()
    found = jax.jit(lambda several: list(map(_noted, notes, functions, several)))(arguments)
    for note, check, values in zip(notes, checks, found, strict=True):
        _noted(note, check, values)


def _noted(note: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Call a function, and tell in a note of its error what was compared."""
    try:
        return function(*arguments)
    except Exception as error:
        error.add_note(note)
        raise


def compare(
    function: Callable[..., Any], *arguments: Any, check: Callable[..., None] | None = None, note: str = ""
) -> None:
    """Check the outputs of a function of arrays at the end of the test; by default, that there are two that are close.

    Args:
        function: is traced with what else the test compares.
        *arguments: trees of arrays.
        check: is called with the outputs.
        note: is added to errors.
    """
    _waiting.append((function, arguments, check or assert_close, note))


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
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        wide = "complex128" if a.dtype.kind == "c" else "float64"
        a, b = a.astype(wide), b.astype(wide)
        largest = float(np.abs(b[np.isfinite(b)]).max(initial=1))
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * largest)


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

    def both(*arguments: Any) -> Any:
        return [{name: values_and_gradients(of[name], *arguments) for name in of} for of in (ours, theirs)]

    compare(both, *arguments, check=functools.partial(assert_close, tolerance=tolerance))


def calls_of(make: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Return a function that makes a layer without weights, and calls it."""
    return lambda *inputs: make(**options)(*inputs)


def zeros(shape: tuple[int, ...], dtype: Any = None, **_: Any) -> jax.Array:
    """Return zeros of NumPy, on a device: jax compiles a program for each shape that it draws or takes from NumPy."""
    return jax.device_put(np.zeros(shape, dtype))


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
    calls: int = 1,
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
        calls: how often both are called, one call after the other.
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
        outputs, after = [], fixed
        for _ in range(calls):
            output, after = theirs.stateless_call(trained, after, *arguments, **extra, **call)
            outputs.append(output)
        named = zip(theirs.non_trainable_variables, after, strict=True)
        return outputs, [
            lax.stop_gradient(value) for variable, value in named if variable.name != "seed_generator_state"
        ]

    def our_call(params: Any, arguments: Any) -> Any:
        layer = nnx.merge(graph, params, rest, copy=True)
        outputs = [layer(*arguments, **extra, **call) for _ in range(calls)]
        after = {weight.path: weight.value for weight in layer.weights}  # merged, it has forgotten their order
        return outputs, lax.stop_gradient([after[weight.path] for weight in ours.non_trainable_weights])

    def both(trained: Any, params: Any, arguments: Any) -> Any:
        find = values_and_gradients if gradients else lambda function, *given: (function(*given), None)
        return find(keras_call, trained, arguments), find(our_call, params, arguments)

    by_path = {weight.path: index for index, weight in enumerate(ours.trainable_weights)}

    def check(theirs: Any, ours: Any) -> None:
        (expected, their_gradients), (found, our_gradients) = theirs, ours
        assert_close(found, expected)
        if gradients:
            ordered: list[Any] = [None] * len(by_path)
            for parts, gradient in nnx.to_flat_state(our_gradients[0]):
                path = "/".join(str(part) for part in parts if part != "_members")
                ordered[by_path[path]] = gradient[...]
            assert_close(ordered, their_gradients[0])
            assert_close(our_gradients[1], their_gradients[1])

    compare(both, trained, params, arguments, check=check, note=f"{ours.get_config()}, training={training}, {call}")


def compare_masked(
    keras: types.ModuleType, theirs: Any, ours: Any, x: Any, mask: Any, *, twice: bool = False, **call: Any
) -> None:
    """Both layers give the same outputs, mask of the first, and statistics, for an array that has a mask.

    Args:
        keras: the package.
        theirs: a layer of Keras.
        ours: the same of keras_dist.
        x: the array.
        mask: its mask.
        twice: whether the call takes the array two times, as query and value.
        **call: further arguments of the call.
    """
    build(keras, theirs, ours, *[x.shape] * (1 + twice))
    random = np.random.default_rng(0)
    values = [random.uniform(0.1, 0.9, weight.shape).astype(weight.dtype) for weight in theirs.weights]
    theirs.set_weights(values)
    ours.set_weights(values)
    graph, state = nnx.split(ours)

    def first(outputs: Any) -> Any:
        return outputs[0] if isinstance(outputs, list | tuple) else outputs

    def both(x: Any, mask: Any) -> Any:
        tensor, array = x + 0, x + 0
        keras.src.backend.set_keras_mask(tensor, mask)
        with keras.StatelessScope():  # `stateless_call` takes no masks of tensors
            expected = theirs(*[tensor] * (1 + twice), **call)
            kept = [v.value for v in theirs.non_trainable_variables if v.name != "seed_generator_state"]
        layer = nnx.merge(graph, state, copy=True)
        with call_context.entered(call.get("training", False)) as context:
            context.set_mask(array, mask)
            found = layer(*[array] * (1 + twice), **call)
            masks = context.mask_of(first(found)), keras.src.backend.get_keras_mask(first(expected))
        moved = {weight.path: weight.value for weight in layer.weights}
        assert masks[0] is not None
        return (found, masks[0], [moved[w.path] for w in ours.non_trainable_weights]), (expected, masks[1], kept)

    compare(both, x, mask)


def _probe(outputs: Any) -> Any:
    """A scalar that depends on every output in its own way."""
    return sum(
        jnp.sum(jnp.asarray(leaf, jnp.float32) * jnp.cos(jnp.arange(leaf.size, dtype=jnp.float32)).reshape(leaf.shape))
        for leaf in jax.tree.leaves(outputs)
    )


def _takes_training(layer: Any) -> bool:
    return "training" in inspect.signature(layer.call).parameters
