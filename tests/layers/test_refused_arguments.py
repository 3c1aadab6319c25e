"""Arguments and inputs that layers refuse: the error names the argument, what was given, and what was expected."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from keras_dist import layers
from keras_dist.errors import KerasDistError


def ones(*shape: int) -> jnp.ndarray:
    return jnp.ones(shape)


def several(*shapes: tuple[int, ...]) -> list[jnp.ndarray]:
    return [jnp.ones(shape) for shape in shapes]


def heads(**options: Any) -> layers.MultiHeadAttention:
    return layers.MultiHeadAttention(**{"num_heads": 2, "key_dim": 2, **options})


SEQUENCE = np.ones((2, 3, 6), "float32")
REFUSED: list[tuple[Any, tuple[str, ...]]] = [
    # activation
    (lambda: layers.ReLU(max_value=-1), ("`max_value`", "'re_lu'", "-1")),
    (lambda: layers.ReLU(negative_slope=None), ("`negative_slope`",)),
    (lambda: layers.ReLU(threshold=-0.1), ("`threshold`",)),
    (lambda: layers.LeakyReLU(-0.1), ("`negative_slope`", "'leaky_re_lu'")),
    (lambda: layers.ELU("steep"), ("`alpha`", "'steep'")),
    (lambda: layers.PReLU(shared_axes=[0]), ("`shared_axes`", "batch")),
    (lambda: layers.PReLU(shared_axes=[3])(ones(2, 3, 4)), ("`shared_axes`", "(2, 3, 4)")),
    (lambda: layers.Softmax("last"), ("`axis`",)),
    (lambda: layers.Softmax()(ones(2, 3, 4), mask=ones(2, 3)), ("`mask`", "(2, 3)", "(2, 3, 4)")),
    (lambda: layers.Softmax()(ones(2, 3, 4), mask=ones(1, 2, 3, 4)), ("`mask`", "dims")),
    (lambda: layers.Activation("tanhh"), ("tanhh", "did you mean 'tanh'")),
    # arguments that only the base takes
    (lambda: layers.IntegerLookup(vocabulary=[1], encoding="x"), ("`IntegerLookup` has no argument", "encoding='x'")),
    # attention
    (lambda: heads(num_heads=0), ("`num_heads`", "num_heads=0")),
    (lambda: heads(key_dim=0), ("`key_dim`", "key_dim=0")),
    (lambda: heads(value_dim=-1), ("`value_dim`", "value_dim=-1")),
    (lambda: heads(dropout=2), ("`dropout`", "dropout=2")),
    (lambda: heads(output_shape="6"), ("`output_shape`", "'6'")),
    (lambda: heads(attention_axes=1.5), ("`attention_axes`", "1.5")),
    (lambda: heads(attention_axes=2)(SEQUENCE, SEQUENCE), ("attention_axes=[2]", "rank 3")),
    (lambda: heads(sliding_window=0), ("`sliding_window`", "sliding_window=0")),
    (lambda: heads(flash_attention=True, dropout=0.1), ("flash_attention", "dropout=0.1")),
    (
        lambda: heads(flash_attention=True)(SEQUENCE, SEQUENCE, return_attention_scores=True),
        ("flash_attention", "return_attention_scores=True"),
    ),
    (lambda: heads()(SEQUENCE, SEQUENCE[:, 0]), ("(2, 3, 6)", "(2, 6)", "(batch, source, features)")),
    (lambda: heads()(SEQUENCE, SEQUENCE, SEQUENCE[:, :2]), ("(2, 2, 6)", "value and key alike")),
    (lambda: heads()(SEQUENCE, SEQUENCE, attention_mask=ones(6) > 0), ("a mask of shape (6,)",)),
    (lambda: heads()(SEQUENCE, SEQUENCE, value_mask=SEQUENCE > 0), ("a mask of shape (2, 3, 6)",)),
    (lambda: heads()(*[SEQUENCE[:, :, None]] * 2, use_causal_mask=True), ("a causal mask", "dims [1, 2]")),
    (lambda: layers.GroupQueryAttention(2, 4, 3), ("`num_key_value_heads`", "num_query_heads=4")),
    (lambda: layers.GroupQueryAttention(2, 4, 2)(SEQUENCE[:, 0], SEQUENCE[:, 0]), ("rank 3", "(2, 6)")),
    (lambda: layers.Attention(score_mode="sum"), ("`score_mode`", "'dot', 'concat'")),
    (lambda: layers.Attention(dropout=-1), ("`dropout`",)),
    (lambda: layers.Attention()(SEQUENCE), ("[query, value] or [query, value, key]", "attention([query, value])")),
    (lambda: layers.AdditiveAttention()([SEQUENCE]), ("[query, value] or [query, value, key]", "1 of them")),
    (lambda: layers.Attention()([SEQUENCE] * 2, mask=ones(2, 3) > 0), ("the mask", "[query, value] or [query")),
    # convolution
    (lambda: layers.Conv2D(0, 3), ("`filters` of layer 'conv2d'", "filters=0")),
    (lambda: layers.Conv2D(4, (3, 3, 3)), ("`kernel_size`", "or 2 of them", "(3, 3, 3)")),
    (lambda: layers.Conv1D(4, 0), ("`kernel_size`", "kernel_size=0", "at least 1")),
    (lambda: layers.Conv2D(4, 3, strides=(1, 0)), ("`strides`", "(1, 0)")),
    (lambda: layers.Conv2D(4, 3, dilation_rate=-1), ("`dilation_rate`", "-1")),
    (lambda: layers.Conv2D(4, 3, padding="causal"), ("`padding`", "'causal'", "'valid', 'same'")),
    (lambda: layers.Conv2D(4, 3, data_format="NCHW"), ("`data_format`", "NCHW", "channels_first")),
    (lambda: layers.Conv2D(4, 3, groups=3), ("`groups`", "groups=3, 4 filters", "[1, 2, 4]")),
    (lambda: layers.Conv2D(4, 3, groups=0), ("`groups`", "groups=0")),
    (lambda: layers.Conv2D(4, 3, strides=2, dilation_rate=2), ("strides=(2, 2), dilation_rate=(2, 2)",)),
    (lambda: layers.Conv1DTranspose(4, 3, 2, dilation_rate=2), ("dilation_rate=(2,)",)),
    (lambda: layers.Conv2D(4, 3, activation="rellu"), ("rellu", "relu")),
    (lambda: layers.Conv2D(4, 3, stride=2), ("'stride'", "strides")),
    (
        lambda: layers.Conv2DTranspose(4, 3, strides=2, output_padding=(1, 2)),
        ("`output_padding`", "(1, 2)", "strides=(2, 2)", "less than `strides`"),
    ),
    (lambda: layers.Conv1DTranspose(4, 3, output_padding=-1), ("`output_padding`", "at least 0")),
    (lambda: layers.DepthwiseConv2D(3, depth_multiplier=0), ("`depth_multiplier`",)),
    (lambda: layers.SeparableConv2D(0, 3), ("`filters`", "filters=0")),
    (lambda: layers.SeparableConv1D(1, 3, depth_multiplier=-1), ("`depth_multiplier`", "-1")),
    (lambda: layers.Conv2D(4, 3)(ones(2, 8, 4)), ("layer 'conv2d'", "(2, 8, 4)", "rank 4")),
    (lambda: layers.Conv2D(4, 3, groups=2)(ones(2, 8, 8, 3)), ("groups=2, 3 channels of the input",)),
    (lambda: layers.Conv2D(4, 3)(ones(2, 2, 8, 3)), ("nothing is left", "'conv2d'", "(2, 2, 8, 3)", 'padding="same"')),
    # dropout
    (lambda: layers.Dropout(1.1), ("`rate`", "1.1")),
    (lambda: layers.Dropout(0.5, noise_shape="ab"), ("`noise_shape`", "'ab'")),
    (lambda: layers.Dropout(0.5, noise_shape=(0, 1)), ("`noise_shape`", "(0, 1)")),
    (lambda: layers.Dropout(0.5, noise_shape=(2, 2))(ones(2, 3), training=True), ("`noise_shape`", "(2, 3)")),
    (lambda: layers.Dropout(0.5, seed=-1), ("`seed`",)),
    (lambda: layers.SpatialDropout1D(0.5)(ones(2, 3)), ("rank 3",)),
    (lambda: layers.SpatialDropout2D(0.5)(ones(2, 3)), ("rank 4",)),
    (lambda: layers.SpatialDropout3D(0.5, "last"), ("`data_format`",)),
    (lambda: layers.AlphaDropout(1), ("`rate`", "below 1")),
    (lambda: layers.GaussianDropout(1.0), ("`rate`", "below 1")),
    (lambda: layers.GaussianNoise(-0.1), ("`stddev`",)),
    (lambda: layers.ActivityRegularization(l1=-1), ("`l1`",)),
    # embedding
    (lambda: layers.Embedding(0, 3), ("`input_dim`", "'embedding'", "input_dim=0")),
    (lambda: layers.Embedding(5, "3"), ("`output_dim`",)),
    (lambda: layers.Embedding(5, 3, weights=np.ones((3, 5))), ("`weights`", "(3, 5)", "(5, 3)")),
    (lambda: layers.ReversibleEmbedding(5, 3, logit_soft_cap=0), ("`logit_soft_cap`", "above 0")),
    (lambda: layers.ReversibleEmbedding(5, 3, reverse_dtype="float31"), ("dtype", "float31")),
    (lambda: layers.EinsumDense("ab,bc", 3), ("`equation`", "'ab,bc'", "ab,bc->ac")),
    (lambda: layers.EinsumDense("...ab...,bc->...ac...", 3), ("`equation`", "one ellipsis")),
    (lambda: layers.EinsumDense("ab,bc->ad", 3), ("`equation`", "'d'")),
    (lambda: layers.EinsumDense("ab,bcx->ac", 3), ("`equation`", "'x'")),
    (lambda: layers.EinsumDense("ab,bc->ac", "3"), ("`output_shape`",)),
    (lambda: layers.EinsumDense("ab,bc->ac", 3, bias_axes="b"), ("`bias_axes`", "'ac'")),
    (lambda: layers.EinsumDense("ab,bc->ac", 3)(ones(2, 3, 4)), ("(2, 3, 4)", "rank 2")),
    (lambda: layers.EinsumDense("...b,bc->...c", 3)(ones()), ("rank 1 at least",)),
    (lambda: layers.EinsumDense("ab,bc->ac", (3, 4))(ones(2, 3)), ("output_shape with 1 sizes",)),
    (lambda: layers.EinsumDense("abc,cd->abd", (5, 4))(ones(2, 3, 4)), ("size 3 of 'b'",)),
    (lambda: layers.EinsumDense("ab,bc->ac", None)(ones(2, 3)), ("`output_shape`",)),
    (lambda: layers.EinsumDense("ab,bc->ac", (None,))(ones(2, 3)), ("a size of 'c'",)),
    # lambda
    (lambda: layers.Lambda("relu"), ("function='relu'", "a function")),
    (lambda: layers.Lambda(layers.Dense(3)), ("need no Lambda",)),
    (lambda: layers.Lambda(jnp.multiply, arguments=[3.0]), ("arguments=[3.0]", "a dict")),
    (lambda: layers.Masking("end"), ("`mask_value`", "'end'")),
    (lambda: layers.Wrapper(jnp.sum), ("`layer`", "layers.Lambda")),
    # merging
    (lambda: layers.Add()(ones(2, 3)), ("'add'", "a list of arrays", "layer([a, b])")),
    (lambda: layers.Add()([]), ("'add'",)),
    (lambda: layers.Subtract()(several((2, 3), (2, 3), (2, 3))), ("2 arrays", "a list of 3")),
    (lambda: layers.Multiply()(several((2, 3), (2, 4))), ("(2, 3), (2, 4)", "size 1")),
    (lambda: layers.Average()(several((2, 3), (1, 3))), ("(2, 3), (1, 3)", "batch")),
    (lambda: layers.Concatenate("last"), ("`axis`",)),
    (lambda: layers.Concatenate()(ones(2, 3)), ("'concatenate'", "a list of arrays")),
    (lambda: layers.Concatenate(2)(several((2, 3), (2, 3))), ("`axis`", "(2, 3)")),
    (lambda: layers.Concatenate(1)(several((2, 3, 4), (2, 3, 5))), ("(2, 3, 4), (2, 3, 5)", "dim 1")),
    (lambda: layers.Concatenate(-1)(several((2, 3, 4), (2, 3))), ("(2, 3, 4), (2, 3)", "dim 2")),
    (lambda: layers.Dot("last"), ("`axes`", "'last'")),
    (lambda: layers.Dot((1, 0)), ("`axes`", "batch")),
    (lambda: layers.Dot(-2)(several((2, 2), (2, 2))), ("not the batch",)),
    (lambda: layers.Dot(1)(several((2, 3), (2, 4))), ("(2, 3), (2, 4)", "dims 1 and 1")),
    (lambda: layers.Dot(2)(several((2, 3), (2, 3))), ("`axes`",)),
    (lambda: layers.Dot(1)(several((2, 3), (3, 3))), ("batch",)),
    (lambda: layers.Dot(1)(several((2, 3), (2, 3), (2, 3))), ("2 arrays",)),
    # normalization
    (lambda: layers.BatchNormalization(axis="last"), ("`axis`", "axis='last'", "an integer")),
    (lambda: layers.BatchNormalization(momentum=1.5), ("`momentum`", "momentum=1.5", "from 0 to 1")),
    (lambda: layers.BatchNormalization(epsilon=-1), ("`epsilon`", "epsilon=-1", "at least 0")),
    (lambda: layers.BatchNormalization(renorm_clipping={"max": 1}), ("renorm_clipping", "rmin <= rmax and dmax >= 0")),
    (lambda: layers.BatchNormalization(renorm_clipping={"rmin": 2, "rmax": 1}), ("rmin <= rmax",)),
    (lambda: layers.BatchNormalization(renorm_clipping={"dmax": -1}), ("dmax >= 0",)),
    (lambda: layers.LayerNormalization(axis=1.5), ("`axis`", "axis=1.5")),
    (lambda: layers.LayerNormalization(axis=[1, 1]), ("`axis`", "different")),
    (lambda: layers.RMSNormalization(axis=[]), ("`axis`", "axis=[]")),
    (lambda: layers.GroupNormalization(groups=0), ("`groups`", "groups=0", "at least 1")),
    (lambda: layers.GroupNormalization(groups=4)(ones(2, 4, 6)), ("groups=4", "6 channels", "must divide")),
    (lambda: layers.GroupNormalization(groups=2, axis=0)(ones(2, 4, 6)), ("`axis`", "axis=0", "the batch")),
    (lambda: layers.UnitNormalization(axis=None), ("`axis`", "axis=None")),
    (lambda: layers.UnitNormalization(axis=3)(ones(2, 4, 6)), ("`axis`", "(2, 4, 6)", "from -3 to 2")),
    (lambda: layers.LayerNormalization(axis=[2, -1])(ones(2, 4, 6)), ("[2, -1]", "different integers")),
    (
        lambda: layers.BatchNormalization()(ones(2, 4, 6), training=True, mask=jnp.ones((2,), bool)),
        ("mask", "(2,)", "rank 2"),
    ),
    # padding
    (lambda: layers.ZeroPadding2D((1, 2, 3)), ("`padding` of layer 'zero_padding2d'", "(1, 2, 3)", "2 pairs")),
    (lambda: layers.ZeroPadding1D(-1), ("`padding`", "padding=-1", "or a pair")),
    (lambda: layers.ZeroPadding1D(((1, 1),)), ("`padding`", "((1, 1),)")),
    (lambda: layers.Cropping2D((1, (2, -3))), ("`cropping` of layer 'cropping2d'", "(1, (2, -3))")),
    (lambda: layers.Cropping1D(3)(ones(2, 5, 4)), ("nothing is left", "(2, 5, 4)", "(2, 0, 4)")),
    (lambda: layers.UpSampling2D((2, 0)), ("`size` of layer 'up_sampling2d'", "(2, 0)")),
    (lambda: layers.UpSampling1D((2,)), ("`size`", "(2,)", "an integer")),
    (lambda: layers.UpSampling2D(interpolation="linear"), ("`interpolation`", "'linear'", "'bilinear'")),
    (lambda: layers.UpSampling3D(data_format="first"), ("`data_format`", "channels_first")),
    (lambda: layers.ZeroPadding3D()(ones(2, 8, 4)), ("(2, 8, 4)", "rank 5")),
    # pooling
    (lambda: layers.MaxPooling2D((2, 0)), ("`pool_size` of layer 'max_pooling2d'", "(2, 0)")),
    (lambda: layers.MaxPooling2D(2, strides=0), ("`strides`", "strides=0")),
    (lambda: layers.AveragePooling2D(2, padding="full"), ("`padding`", "'full'", "'valid', 'same'")),
    (lambda: layers.GlobalMaxPooling1D("last"), ("`data_format`", "'last'", "'channels_last'")),
    (lambda: layers.AdaptiveMaxPooling2D((3, 0)), ("`output_size`", "(3, 0)")),
    (lambda: layers.GlobalMaxPooling2D()(ones(2, 8, 4)), ("(2, 8, 4)", "rank 4")),
    (lambda: layers.AveragePooling1D(3)(ones(2, 2, 4)), ("nothing is left", "(2, 2, 4)", "(2, 0, 4)")),
    # recurrent
    (lambda: layers.LSTM(0), ("`units`", "units=0", "at least 1")),
    (lambda: layers.GRU(4, dropout=1.2), ("`dropout`", "dropout=1.2", "from 0 to 1")),
    (lambda: layers.GRU(4, recurrent_dropout=-1), ("`recurrent_dropout`",)),
    (lambda: layers.LSTM(4, use_cudnn=True), ("`use_cudnn`", "leave it out")),
    (lambda: layers.LSTM(4, implementation=3), ("`implementation`", "1, 2")),
    (lambda: layers.RNN(layers.Dense(3)), ("`cell`", "state_size", "RNN(LSTMCell(32))")),
    (lambda: layers.RNN(5), ("`cell`", "5 of type int")),
    (lambda: layers.RNN([]), ("`cells`", "cells=[]")),
    (lambda: layers.StackedRNNCells([layers.Dense(3)]), ("state_size",)),
    (lambda: layers.LSTM(4)(ones(2, 3)), ("rank 3", "(2, 3)")),
    (lambda: layers.LSTM(4)(ones(2, 3, 2), initial_state=[ones(2, 4)]), ("`initial_state`", "2 states of sizes")),
    (lambda: layers.Bidirectional(layers.Dense(3)), ("`layer`", "go_backwards")),
    (lambda: layers.Bidirectional(layers.LSTM(3), merge_mode="max"), ("`merge_mode`", "'max'", "'concat'")),
    (lambda: layers.Bidirectional(layers.LSTM(3), weights=[1]), ("`weights`", "set_weights")),
    (
        lambda: layers.Bidirectional(layers.LSTM(3), backward_layer=layers.LSTM(3)),
        ("go_backwards=False", "backward_layer"),
    ),
    (
        lambda: layers.Bidirectional(
            layers.LSTM(3), backward_layer=layers.LSTM(3, go_backwards=True, return_sequences=True)
        ),
        ("return_sequences=True",),
    ),
    (lambda: layers.TimeDistributed(jnp.tanh), ("'time_distributed' must be a layer", "an object of a class")),
    (lambda: layers.TimeDistributed(layers.Dense(3))(ones(2, 3)), ("rank 3 at least",)),
    (lambda: layers.TimeDistributed(layers.Dense(3))(ones(2, 3, 4), mask=jnp.ones((2, 4), bool)), ("(2, 4)", "(2, 3)")),
    # rescaling
    (lambda: layers.Rescaling("half"), ("`scale`", "'half'")),
    (lambda: layers.Rescaling(1.0, offset=[[1.0], [2.0, 3.0]]), ("`offset`",)),
    (lambda: layers.Normalization("last"), ("`axis`",)),
    (lambda: layers.Normalization(2)(ones(50, 3)), ("`axis`", "(50, 3)")),
    (lambda: layers.Normalization(mean=1.0), ("`mean` and `variance`", "neither", "adapt")),
    (lambda: layers.Normalization(mean=[1.0], variance=1.0), ("`mean` and `variance`", "one shape")),
    (lambda: layers.Normalization(mean=[[1.0]], variance=[[1.0]]), ("more dims than `axis`", "(1, 1)")),
    (lambda: layers.Normalization(mean=[1.0, 2], variance=[1.0, 2])(ones(50, 3)), ("`mean`", "(2,)", "(3,)")),
    (lambda: layers.Normalization(mean=1.0, variance=1.0).adapt(ones(50, 3)), ("cannot adapt", "leave them out")),
    (lambda: layers.Normalization().adapt([]), ("no data",)),
    (lambda: layers.Normalization().adapt(3), ("no batches", "int")),
    (lambda: layers.Normalization().adapt(iter(ones(50, 3)[:, 0])), ("no batches",)),
    (lambda: layers.Normalization().adapt([ones(50, 3), ones(50, 3)[:, :2]]), ("another shape", "(50, 2)", "(3,)")),
    (lambda: layers.CategoryEncoding(), ("`num_tokens`", "None")),
    (lambda: layers.CategoryEncoding(3, "int"), ("`output_mode`", "'multi_hot'")),
    (lambda: layers.CategoryEncoding(3, sparse=True), ("sparse=True",)),
    (
        lambda: layers.CategoryEncoding(3)(np.array([[1]]), count_weights=np.array([[1.0]])),
        ("count_weights", 'output_mode="count"'),
    ),
    # reshaping
    (lambda: layers.Flatten("channels"), ("`data_format`", "'channels_first'")),
    (lambda: layers.Flatten()(ones()), ("rank 1 at least",)),
    (lambda: layers.Reshape(12), ("`target_shape`", "target_shape=12")),
    (lambda: layers.Reshape((-1, -1)), ("`target_shape`", "one of them may be -1")),
    (lambda: layers.Reshape((5,))(ones(2, 3, 4)), ("(5,)", "(2, 3, 4)", "12")),
    (lambda: layers.Reshape((5, -1))(ones(2, 3, 4)), ("(5, -1)", "a divisor of 12")),
    (lambda: layers.Reshape((0, -1))(ones(2, 3, 4)), ("(0, -1)",)),
    (lambda: layers.Permute((0, 1)), ("`dims`", "(0, 1)")),
    (lambda: layers.Permute(2), ("`dims`",)),
    (lambda: layers.Permute((2, 1))(ones(2, 3)), ("rank 3",)),
    (lambda: layers.RepeatVector(0), ("`n`",)),
    (lambda: layers.RepeatVector(2)(ones(2, 3, 4)), ("rank 2",)),
    # spectral_normalization
    (lambda: layers.SpectralNormalization(5), ("layer=5", "must be a layer")),
    (lambda: layers.SpectralNormalization(layers.Dropout(0.1))(ones(4, 6)), ("no kernel", "Dropout")),
    (lambda: layers.SpectralNormalization(layers.Dense(5), 0), ("`power_iterations`",)),
]


@pytest.mark.parametrize(("make", "parts"), REFUSED)
def test_errors_name_what_is_wrong(make: Any, parts: tuple[str, ...]) -> None:
    with pytest.raises(KerasDistError) as error:
        make()
    assert all(part in str(error.value) for part in parts), str(error.value)
