"""Layers that are said to treat each row by itself do; all others are not said to."""

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import keras_dist as kd
from keras_dist import layers
from keras_dist.layers import row_watch
from keras_dist.layers.row_by_row import keeps_rows_apart, unknown_in

ROWS, FILLED = 5, 8
_generator = np.random.default_rng(0)


def _normal(*shape: int) -> Any:
    return jnp.asarray(_generator.normal(size=(FILLED, *shape)), jnp.float32)


VECTORS, SEQUENCES, LINES, IMAGES, VOLUMES = (
    _normal(4),
    _normal(6, 4),
    _normal(6, 4),
    _normal(6, 6, 4),
    _normal(4, 4, 4, 2),
)
INTEGERS = jnp.asarray(_generator.integers(0, 5, (FILLED, 6)))

OF_SEQUENCES: dict[str, Callable[[], Any]] = {
    "Activation": lambda: layers.Activation("softmax"),
    "AlphaDropout": lambda: layers.AlphaDropout(0.4, seed=1),
    "BatchNormalization": lambda: layers.BatchNormalization(trainable=False),
    "Bidirectional": lambda: layers.Bidirectional(layers.LSTM(3, return_sequences=True)),
    "Dense": lambda: layers.Dense(3, "gelu"),
    "Dropout": lambda: layers.Dropout(0.4, seed=1),
    "Dropout of shapes": lambda: layers.Dropout(0.4, noise_shape=(None, 1, None), seed=1),
    "ELU": layers.ELU,
    "EinsumDense": lambda: layers.EinsumDense("abc,cd->abd", (None, 3), bias_axes="d"),
    "EinsumDense of an ellipsis": lambda: layers.EinsumDense("...b,bc->...c", 3),
    "Flatten": layers.Flatten,
    "GRU": lambda: layers.GRU(3, return_state=True),
    "GaussianDropout": lambda: layers.GaussianDropout(0.4, seed=1),
    "GaussianNoise": lambda: layers.GaussianNoise(0.4, seed=1),
    "GroupNormalization": lambda: layers.GroupNormalization(2),
    "Identity": layers.Identity,
    "LSTM": lambda: layers.LSTM(3, dropout=0.3, recurrent_dropout=0.3, seed=1),
    "LayerNormalization": lambda: layers.LayerNormalization((1, 2)),
    "LeakyReLU": layers.LeakyReLU,
    "Masking": layers.Masking,
    "Normalization": layers.Normalization,
    "PReLU": layers.PReLU,
    "Permute": lambda: layers.Permute((2, 1)),
    "RMSNormalization": layers.RMSNormalization,
    "RNN": lambda: layers.RNN([layers.GRUCell(3), layers.LSTMCell(2), layers.SimpleRNNCell(3)]),
    "ReLU": layers.ReLU,
    "Rescaling": lambda: layers.Rescaling(2.0, [1.0, 2.0, 3.0, 4.0]),
    "Reshape": lambda: layers.Reshape((-1, 3)),
    "SimpleRNN": lambda: layers.SimpleRNN(3),
    "Softmax": layers.Softmax,
    "SpatialDropout1D": lambda: layers.SpatialDropout1D(0.4, seed=1),
    "SpectralNormalization": lambda: layers.SpectralNormalization(layers.Dense(3)),
    "TimeDistributed": lambda: layers.TimeDistributed(layers.Dense(3)),
    "UnitNormalization": layers.UnitNormalization,
    "AdaptiveAveragePooling1D": lambda: layers.AdaptiveAveragePooling1D(2),
    "AdaptiveMaxPooling1D": lambda: layers.AdaptiveMaxPooling1D(2),
    "AveragePooling1D": lambda: layers.AveragePooling1D(2),
    "Conv1D": lambda: layers.Conv1D(3, 3, padding="causal"),
    "Conv1DTranspose": lambda: layers.Conv1DTranspose(3, 3),
    "Cropping1D": layers.Cropping1D,
    "DepthwiseConv1D": lambda: layers.DepthwiseConv1D(3),
    "GlobalAveragePooling1D": layers.GlobalAveragePooling1D,
    "GlobalMaxPooling1D": layers.GlobalMaxPooling1D,
    "MaxPooling1D": layers.MaxPooling1D,
    "SeparableConv1D": lambda: layers.SeparableConv1D(3, 3),
    "UpSampling1D": layers.UpSampling1D,
    "ZeroPadding1D": layers.ZeroPadding1D,
}
OF_IMAGES: dict[str, Callable[[], Any]] = {
    "AdaptiveAveragePooling2D": lambda: layers.AdaptiveAveragePooling2D(2),
    "AdaptiveMaxPooling2D": lambda: layers.AdaptiveMaxPooling2D(2),
    "AveragePooling2D": lambda: layers.AveragePooling2D(4, padding="same"),
    "Conv2D": lambda: layers.Conv2D(3, 3, data_format="channels_first"),
    "Conv2DTranspose": lambda: layers.Conv2DTranspose(3, 3),
    "Cropping2D": layers.Cropping2D,
    "DepthwiseConv2D": lambda: layers.DepthwiseConv2D(3),
    "GlobalAveragePooling2D": layers.GlobalAveragePooling2D,
    "GlobalMaxPooling2D": layers.GlobalMaxPooling2D,
    "MaxPooling2D": layers.MaxPooling2D,
    "SeparableConv2D": lambda: layers.SeparableConv2D(3, 3),
    "SpatialDropout2D": lambda: layers.SpatialDropout2D(0.4, seed=1),
    "UpSampling2D": lambda: layers.UpSampling2D(interpolation="bilinear"),
    "ZeroPadding2D": layers.ZeroPadding2D,
}
OF_VOLUMES: dict[str, Callable[[], Any]] = {
    "AdaptiveAveragePooling3D": lambda: layers.AdaptiveAveragePooling3D(2),
    "AdaptiveMaxPooling3D": lambda: layers.AdaptiveMaxPooling3D(2),
    "AveragePooling3D": lambda: layers.AveragePooling3D(2),
    "Conv3D": lambda: layers.Conv3D(3, 2),
    "Conv3DTranspose": lambda: layers.Conv3DTranspose(3, 2),
    "Cropping3D": layers.Cropping3D,
    "GlobalAveragePooling3D": layers.GlobalAveragePooling3D,
    "GlobalMaxPooling3D": layers.GlobalMaxPooling3D,
    "MaxPooling3D": layers.MaxPooling3D,
    "SpatialDropout3D": lambda: layers.SpatialDropout3D(0.4, seed=1),
    "UpSampling3D": layers.UpSampling3D,
    "ZeroPadding3D": layers.ZeroPadding3D,
}
OF_PAIRS: dict[str, Callable[[], Any]] = {
    **{name: getattr(layers, name) for name in ("Add", "Average", "Maximum", "Minimum", "Multiply", "Subtract")},
    "AdditiveAttention": layers.AdditiveAttention,
    "Attention": lambda: layers.Attention(use_scale=True, dropout=0.3, seed=1),
    "Concatenate": layers.Concatenate,
    "Dot": lambda: layers.Dot(2),
}
OF_TWO: dict[str, Callable[[], Any]] = {
    "GroupedQueryAttention": lambda: layers.GroupedQueryAttention(4, 4, 2),
    "MultiHeadAttention": lambda: layers.MultiHeadAttention(2, 4, dropout=0.3, seed=1),
}
STATES = [_normal(3), _normal(3)]
OTHERS: dict[str, tuple[Callable[[], Any], tuple[Any, ...]]] = {
    "CategoryEncoding": (lambda: layers.CategoryEncoding(5), (INTEGERS,)),
    "Embedding": (lambda: layers.Embedding(5, 3, mask_zero=True), (INTEGERS,)),
    "GRUCell": (lambda: layers.GRUCell(3), (VECTORS, STATES[:1])),
    "LSTMCell": (lambda: layers.LSTMCell(3), (VECTORS, STATES)),
    "RepeatVector": (lambda: layers.RepeatVector(3), (VECTORS,)),
    "ReversibleEmbedding": (lambda: layers.ReversibleEmbedding(5, 3), (INTEGERS,)),
    "SimpleRNNCell": (lambda: layers.SimpleRNNCell(3), (VECTORS, STATES[:1])),
    "StackedRNNCells": (lambda: layers.StackedRNNCells([layers.GRUCell(3)]), (VECTORS, [STATES[:1]])),
}
CLAIMED: dict[str, tuple[Callable[[], Any], tuple[Any, ...]]] = {
    **{name: (make, (SEQUENCES,)) for name, make in OF_SEQUENCES.items()},
    **{name: (make, (IMAGES,)) for name, make in OF_IMAGES.items()},
    **{name: (make, (VOLUMES,)) for name, make in OF_VOLUMES.items()},
    **{name: (make, ([SEQUENCES, LINES],)) for name, make in OF_PAIRS.items()},
    **{name: (make, (SEQUENCES, LINES)) for name, make in OF_TWO.items()},
    **OTHERS,
}
UNKNOWN = {"ActivityRegularization", "InputLayer", "Lambda", "Layer", "NNXLayer", "Wrapper"}


class Mixes(layers.Dense):
    """A layer of a user's that looks at all rows."""

    def call(self, inputs: Any) -> Any:
        return super().call(inputs - jnp.mean(inputs, 0))


class SaysSo(layers.Layer):
    """One that does not, and says so."""

    keeps_rows_apart = True

    def call(self, inputs: Any) -> Any:
        return inputs * 2


class SaysNothing(SaysSo):
    """One that is made of it."""


class Around(layers.Dense):
    """A layer that does something around its call, which the call does not see."""

    def __call__(self, inputs: Any) -> Any:
        return jnp.mean(inputs, 0, keepdims=True) * inputs


def called(layer: Any, *args: Any, **options: Any) -> tuple[Any, str | None]:
    """What a layer gives, and what in it may mix rows."""
    with row_watch.entered(row_watch.RowWatch(keeps_rows_apart)) as watch:
        return layer(*args, **options), watch.mixer


def born(make: Callable[[], Any]) -> Any:
    kd.set_random_seed(0)
    return make()


def first(tree: Any, rows: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[:rows], tree)


@pytest.mark.parametrize("name", CLAIMED)
def test_other_rows_change_nothing(name: str) -> None:
    make, inputs = CLAIMED[name]
    training = {"training": True} if "training" in inspect.signature(make().call).parameters else {}
    filled, mixer = called(born(make), *inputs, **training)
    assert mixer is None
    few, mixer = called(born(make), *first(inputs, ROWS), **training)
    assert mixer is None
    assert not list(unknown_in(make()))
    for mine, other in zip(jax.tree.leaves(filled), jax.tree.leaves(few), strict=True):
        np.testing.assert_allclose(mine[:ROWS], other, rtol=2e-6, atol=2e-6)


def test_every_layer_is_compared_or_unknown() -> None:
    exported = {getattr(layers, name) for name in layers.__all__ if isinstance(getattr(layers, name), type)}
    names = {cls.__name__ for cls in exported if issubclass(cls, layers.Layer)}
    assert names == {name.partition(" ")[0] for name in CLAIMED} | UNKNOWN


def test_what_is_unknown_claims_nothing() -> None:
    module = layers.NNXLayer(nnx.Linear(4, 4, rngs=nnx.Rngs(0)))
    for layer in (layers.ActivityRegularization(1.0), layers.Lambda(lambda x: x), module, layers.Layer()):
        assert list(unknown_in(layer))
        assert not keeps_rows_apart(layer, (SEQUENCES,), {})


REFUSED: dict[str, tuple[Any, Any]] = {
    "statistics of the batch": (lambda: layers.BatchNormalization(), SEQUENCES),
    "statistics of each row": (lambda: layers.BatchNormalization(axis=0, trainable=False), SEQUENCES),
    "a norm over rows": (lambda: layers.LayerNormalization(axis=(0, -1)), SEQUENCES),
    "a norm over rows from the end": (lambda: layers.RMSNormalization(axis=-3), SEQUENCES),
    "a length over rows": (lambda: layers.UnitNormalization(axis=0), SEQUENCES),
    "means of each row": (lambda: layers.Normalization(axis=0, mean=np.ones(8), variance=np.ones(8)), SEQUENCES),
    "rows behind each other": (lambda: layers.Concatenate(axis=-3), [SEQUENCES, LINES]),
    "probabilities over rows": (lambda: layers.Softmax(axis=0), SEQUENCES),
    "an activation of one's own": (lambda: layers.Dense(3, activation=lambda x: x - jnp.mean(x, 0)), SEQUENCES),
    "another activation of one's own": (lambda: layers.LSTM(3, recurrent_activation=lambda x: x), SEQUENCES),
    "a price of what comes out": (lambda: layers.Dense(3, activity_regularizer="l2"), SEQUENCES),
    "a price within": (lambda: layers.TimeDistributed(layers.Dense(3, activity_regularizer="l2")), SEQUENCES),
    "a sum over rows": (lambda: layers.EinsumDense("ab,ac->cb", (4,)), VECTORS),
    "rows of the bias": (lambda: layers.EinsumDense("abc,cd->abd", (6, 3), bias_axes="abd"), SEQUENCES),
    "noise of so many rows": (lambda: layers.Dropout(0.4, noise_shape=(8, 6, 4), seed=1), SEQUENCES),
    "rows as positions": (lambda: layers.Attention(), [VECTORS, VECTORS]),
    "scales of rows": (lambda: layers.Rescaling(np.ones((8, 4))), VECTORS),
    "one dim": (lambda: layers.Activation("softmax"), VECTORS[:, 0]),
    "a subclass": (lambda: Mixes(3), SEQUENCES),
    "a subclass of what says so": (SaysNothing, SEQUENCES),
    "a layer within": (lambda: layers.TimeDistributed(Mixes(3)), SEQUENCES),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_may_mix_rows_is_refused(case: str) -> None:
    make, inputs = REFUSED[case]
    training = {"training": True} if "training" in inspect.signature(make().call).parameters else {}
    assert called(make(), inputs, **training)[1] is not None


def test_a_mask_of_attention_without_rows_is_refused() -> None:
    layer = layers.MultiHeadAttention(2, 4)
    assert called(layer, SEQUENCES, LINES, attention_mask=jnp.ones((6, 6), bool))[1] is not None


def test_a_method_of_one_object_is_refused() -> None:
    layer = layers.Identity()
    object.__setattr__(layer, "call", lambda inputs: inputs - jnp.mean(inputs, 0))
    assert called(layer, SEQUENCES)[1] == "layer 'identity' (Identity)"


def test_a_class_whose_call_was_replaced_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers.Identity, "call", lambda self, inputs: inputs - jnp.mean(inputs, 0))
    assert called(layers.Identity(), SEQUENCES)[1] == "layer 'identity' (Identity)"


def test_a_class_of_ones_own_can_say_so() -> None:
    assert called(SaysSo(), SEQUENCES)[1] is None
    assert not list(unknown_in(SaysSo()))


def test_a_layer_that_calls_around_is_found() -> None:
    model = kd.Sequential([layers.Dense(3), Around(3, name="around")])
    assert list(unknown_in(model)) == ["layer 'around' (Around)"]
