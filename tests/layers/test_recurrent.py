"""RNN, its cells, SimpleRNN, GRU, LSTM, StackedRNNCells, Bidirectional, TimeDistributed."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from keras_dist import layers
from keras_dist.errors import ModelError
from keras_dist.variables import call_context


def draw(*shape: int, seed: int = 0) -> jnp.ndarray:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def cell(path: str, *shapes: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    return {f"{path}/{name}": shape for name, shape in zip(("kernel", "recurrent_kernel", "bias"), shapes, strict=True)}


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (
            layers.RNN([layers.GRUCell(3), layers.SimpleRNNCell(4)]),
            cell("stacked_rnn_cells/gru_cell", (3, 9), (3, 9), (2, 9))
            | cell("stacked_rnn_cells/simple_rnn_cell", (3, 4), (4, 4), (4,)),
        ),
        (
            layers.Bidirectional(layers.LSTM(2)),
            cell("forward_lstm/lstm_cell", (3, 8), (2, 8), (8,))
            | cell("backward_lstm/lstm_cell", (3, 8), (2, 8), (8,)),
        ),
        (layers.TimeDistributed(layers.Dense(4)), {"dense/kernel": (3, 4), "dense/bias": (4,)}),
    ],
)
def test_weights_have_the_paths_and_shapes_of_keras(layer: Any, expected: dict[str, tuple[int, ...]]) -> None:
    layer.build((2, 5, 3))
    assert [(weight.path, weight.shape) for weight in layer.weights] == [*expected.items()]


def test_symbolic_shapes_of_sequences_and_states() -> None:
    x = layers.Input((None, 3))
    outputs, memory, carry = layers.LSTM(4, return_sequences=True, return_state=True)(x)
    assert (outputs.shape, memory.shape, carry.shape) == ((None, None, 4), (None, 4), (None, 4))
    assert layers.GRU(4)(x, initial_state=memory).shape == (None, 4)
    first, second = layers.Bidirectional(layers.GRU(4), merge_mode=None)(x)
    assert first.shape == second.shape == (None, 4)
    assert layers.TimeDistributed(layers.BatchNormalization())(layers.Input((5, 3))).shape == (None, 5, 3)


@pytest.mark.parametrize("kind", ["SimpleRNN", "GRU", "LSTM"])
def test_layouts_reach_the_weights_of_the_cell(kind: str) -> None:
    layer = getattr(layers, kind)(
        4, kernel_layout=(None, "model"), recurrent_kernel_layout=("data", "model"), bias_layout=("model",)
    )
    layer.build((2, 5, 3))
    found = [getattr(layer.cell, name).get_metadata()["layout"] for name in ("kernel", "recurrent_kernel", "bias")]
    assert found == [(None, "model"), ("data", "model"), ("model",)]
    both = layers.Bidirectional(getattr(layers, kind)(4, kernel_layout=(None, "model")))
    both.build((2, 5, 3))
    for one in (both.forward_layer, both.backward_layer):
        assert list(one.cell.kernel.get_metadata()["layout"]) == [None, "model"]


def masks_after(layer: Any, x: Any, mask: Any) -> Any:
    """Trace a layer for an array with a mask, and return the masks of its outputs."""
    found = []

    def call(x: Any) -> None:
        with call_context.entered(False) as context:
            context.set_mask(x, mask)
            found.append(context.mask_of(layer(x)))

    layer.build(x.shape)
    jax.eval_shape(call, x)
    return found[0]


def test_masks_go_on_with_sequences_and_not_with_states() -> None:
    x, mask = draw(2, 3, 3), jnp.array([[True, True, False], [True, False, False]])
    for make in (lambda **o: layers.GRU(4, **o), lambda **o: layers.Bidirectional(layers.LSTM(4, **o))):
        assert masks_after(make(), x, mask) is None
        assert masks_after(make(return_sequences=True), x, mask) is mask
        masks = masks_after(make(return_sequences=True, return_state=True), x, mask)
        assert masks[0] is mask
        assert all(one is None for one in masks[1:])
    pair = layers.Bidirectional(layers.GRU(4, return_sequences=True), merge_mode=None)
    assert all(one is mask for one in masks_after(pair, x, mask))
    assert masks_after(layers.TimeDistributed(layers.Dense(2)), x, mask) is mask


class Doubling(layers.Layer):
    """A cell without weights, whose state is a running sum."""

    state_size = 3

    def call(self, inputs: Any, states: Any) -> Any:
        self.add_loss(jnp.sum(inputs))
        total = states[0] + inputs
        return 2 * total, [total]


def test_a_cell_of_ones_own_and_its_losses() -> None:
    x = draw(2, 4, 3)
    with call_context.entered(False) as context:
        outputs, state = layers.RNN(Doubling(), return_state=True)(x)
        np.testing.assert_allclose(sum(context.losses), x.sum(), rtol=1e-5)
    np.testing.assert_allclose(state, x.sum(1), rtol=1e-5)
    np.testing.assert_allclose(outputs, 2 * x.sum(1), rtol=1e-5)


class Nested(layers.Layer):
    """A cell with a layer inside that has weights, too."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.state_size = 2
        self.inner = layers.Dense(2)

    def call(self, inputs: Any, states: Any) -> Any:
        outputs = self.inner(inputs) + states[0]
        return outputs, outputs


def test_layers_inside_of_cells_are_built_before_the_loop() -> None:
    layer = layers.RNN(Nested())
    assert layer(draw(2, 4, 3)).shape == (2, 2)
    assert [weight.path for weight in layer.weights] == ["nested/inner/kernel", "nested/inner/bias"]


class Forgetful(Nested):
    """A cell with noise of its own."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.dropout = layers.Dropout(0.5)

    def call(self, inputs: Any, states: Any) -> Any:
        return super().call(self.dropout(inputs), states)


def test_cells_that_draw_inside_of_the_loop_are_refused() -> None:
    layer = layers.RNN(Forgetful())
    layer(draw(2, 4, 3))
    with pytest.raises(ModelError, match=r"(?s)'forgetful' changes a variable.*draw_noise"):
        layer(draw(2, 4, 3), training=True)


class Noisy(Nested):
    """A cell whose noise is drawn before the loop."""

    def draw_noise(self, input_shape: tuple[int, ...]) -> Any:
        return jnp.zeros(input_shape)

    def call(self, inputs: Any, states: Any, noise: Any = None) -> Any:
        return super().call(inputs if noise is None else inputs * noise, states)


def test_noise_is_drawn_before_the_loop() -> None:
    layer, x = layers.RNN(Noisy()), draw(2, 4, 3)
    assert (layer(x) != 0).all()
    np.testing.assert_array_equal(layer(x, training=True), 0)


def test_a_compiled_step_leaves_the_module_as_it_was() -> None:
    layer, x = layers.LSTM(4, dropout=0.5), draw(2, 5, 3)
    layer(x)
    np.testing.assert_allclose(jax.jit(lambda x: layer(x))(x), layer(x), rtol=1e-6)


def test_statistics_move_at_every_position() -> None:
    x = draw(4, 3, 2)
    layer = layers.TimeDistributed(layers.BatchNormalization(momentum=0.0))
    layer(x, training=True)
    np.testing.assert_allclose(layer.layer.moving_mean[...], x[:, -1].mean(0), rtol=1e-5, atol=1e-6)


def test_losses_of_a_distributed_layer_count_for_each_position() -> None:
    x = draw(4, 3, 2)
    for inner in (
        layers.Dense(2, kernel_initializer="identity", activity_regularizer=jnp.sum),
        layers.BatchNormalization(epsilon=0, activity_regularizer=jnp.sum),
    ):
        with call_context.entered(False) as context:
            layers.TimeDistributed(inner)(x)
            np.testing.assert_allclose(sum(context.losses), x.sum() / len(x), rtol=1e-4, atol=1e-5)
