"""Layers that make one array of several against Keras."""

import functools
from typing import Any

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from keras_dist import layers
from keras_dist.variables import call_context
from tests.parity.compare import calls_of, compare, compare_functions

NAMES = ["Add", "Subtract", "Multiply", "Average", "Maximum", "Minimum", "Concatenate", "Dot"]
SHAPES = [[(2, 3, 4), (2, 3, 4)], [(2, 3, 4), (2, 1, 4)], [(2, 3, 4), (2, 4)], [(2,), (2, 3)], [(2, 1), (2, 3)]]


def draw(shapes: list[tuple[int, ...]], seed: int) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.normal(size=shape).astype("float32") for shape in shapes]


def compare_named(keras: Any, inputs: list[np.ndarray], *names: str, **options: Any) -> None:
    """Layers of these names, and the functions of the same names."""

    def made(package: Any) -> dict[str, Any]:
        functions = {name.lower(): functools.partial(getattr(package, name.lower()), **options) for name in names}
        return functions | {name: calls_of(getattr(package, name), **options) for name in names}

    compare_functions(made(layers), made(keras.layers), inputs)


@pytest.mark.parametrize("shapes", SHAPES)
def test_value_by_value(keras, shapes):
    compare_named(keras, draw(shapes, 0), *NAMES[:6])
    compare_named(keras, draw(shapes * 2, 1), *({*NAMES[:6]} - {"Subtract"}))


@hypothesis.given(axis=st.sampled_from([-1, 1, 2, -2]), count=st.integers(1, 3), seed=st.integers(0, 2**16))
def test_concatenate(keras, axis, count, seed):
    shapes = [[2, 3, 4] for _ in range(count)]
    for index, shape in enumerate(shapes):
        shape[axis] = index + 1
    compare_named(keras, draw([tuple(shape) for shape in shapes], seed), "Concatenate", axis=axis)


@pytest.mark.parametrize(
    ("first", "second", "axes"),
    [
        ((2, 3), (2, 3), 1),
        ((2, 3), (2, 3), -1),
        ((2, 3, 4), (2, 5, 3), (1, 2)),
        ((2, 3, 4), (2, 4, 5), (-1, -2)),
        ((2, 3), (2, 5, 3), (1, 2)),
        ((2, 3, 4), (2, 4), (2, 1)),
        ((2, 3, 4, 2), (2, 5, 3), (1, 2)),
        ((2, 3, 4), (2, 3, 5, 2), 1),
    ],
)
def test_dot(keras, first, second, axes):
    inputs = draw([first, second], 0)
    for normalize in (False, True):
        compare_named(keras, inputs, "Dot", axes=axes, normalize=normalize)


@hypothesis.given(
    masked=st.lists(st.booleans(), min_size=2, max_size=3), axis=st.sampled_from([1, -1]), seed=st.integers(0, 2**16)
)
def test_masks(keras, masked, axis, seed):
    inputs = draw([(2, 5, 3)] * len(masked), seed)
    masks = [np.random.default_rng(seed + index).random((2, 5)) < 0.5 for index in range(len(masked))]
    several = {name: inputs[: 2 if name in ("Subtract", "Dot") else None] for name in NAMES}
    options = {"Concatenate": {"axis": axis}, "Dot": {"axes": 2}}

    def theirs(name: str, inputs: list[Any]) -> Any:
        tensors = [keras.ops.copy(x) for x in inputs]
        for tensor, mask, is_wanted in zip(tensors, masks, masked, strict=False):
            if is_wanted:
                keras.src.backend.set_keras_mask(tensor, jnp.asarray(mask))
        outputs = getattr(keras.layers, name)(**options.get(name, {}))(tensors)
        return outputs, keras.src.backend.get_keras_mask(outputs)

    def ours(name: str, inputs: list[Any]) -> Any:
        with call_context.entered() as context:
            arrays = [x + 0 for x in inputs]
            context.set_mask(
                arrays, [m if wanted else None for m, wanted, _ in zip(masks, masked, inputs, strict=False)]
            )
            outputs = getattr(layers, name)(**options.get(name, {}))(arrays)
            return outputs, context.mask_of(outputs)

    def both(several: dict[str, list[Any]]) -> Any:
        found, expected = ({name: find(name, several[name]) for name in several} for find in (ours, theirs))
        assert jax.tree.structure(found) == jax.tree.structure(expected)  # as many masks
        return found, expected

    compare(both, several)
