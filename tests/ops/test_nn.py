"""`ops.nn` gives what Keras gives."""

import operator

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import keras_dist as kd
from keras_dist import ops
from keras_dist.errors import ModelError
from tests.ops.agreement import Draws, agree, properties

PLAIN = (
    *("hard_sigmoid", "hard_silu", "hard_swish", "hard_tanh", "log_sigmoid", "relu", "relu6", "selu", "sigmoid"),
    *("silu", "softplus", "softsign", "sparse_plus", "sparse_sigmoid", "swish", "tanh_shrink"),
)
"""Activations without options."""


def images(d, rank=2, channels=4):
    """Inputs, their data format, and the sizes of their spatial dims."""
    form = d.one_of("channels_last", "channels_first", None)
    spatial = (7, 6, 5)[:rank]
    shape = (2, channels, *spatial) if form == "channels_first" else (2, *spatial, channels)
    return d.array(shape), form


def windows(d):
    rank = d.one_of(1, 2)
    inputs, form = images(d, rank)
    strides = d.one_of((1,) * rank, (2, 1)[:rank])
    options = {"strides": strides, "padding": d.one_of("valid", "SAME"), "data_format": form}
    return (inputs, d.one_of((2,) * rank, (3, 2)[:rank])), options


def adaptive(d):
    inputs, form = images(d)
    return (inputs, d.one_of((3, 3), (2, 4))), {"data_format": form, "symbolic": False}


def convolution(d, groups=1, multiplier=5):
    rank = d.one_of(1, 2)
    inputs, form = images(d, rank)
    strides, rates = d.one_of((1, 1), (2, 1), (1, 2))
    kernel = d.array((*(3, 2)[:rank], 4 // groups, multiplier))
    options = {"strides": strides, "dilation_rate": rates, "padding": d.one_of("valid", "same")}
    return inputs, kernel, {**options, "data_format": form, "batch": False, "symbolic": groups == 1}


def separable(d):
    inputs, kernel, options = convolution(d, multiplier=2)
    return (inputs, kernel, d.array((1,) * (kernel.ndim - 2) + (8, 3))), {**options, "dilation_rate": 1}


def transposed(d):
    inputs, form = images(d, d.one_of(1, 2))
    kernel = d.array((*(3, 2)[: inputs.ndim - 2], 5, 4))
    options = {"strides": d.one_of(1, 2), "padding": d.one_of("valid", "same"), "data_format": form, "batch": False}
    return (inputs, kernel), {**options, "output_padding": d.one_of(None, 0), "dilation_rate": 1}


def probabilities(d, shape=(2, 3, 4)):
    given = d.array(shape, low=0.1, high=1)
    return given / given.sum(-1, keepdims=True)


def attention(d):
    heads = d.one_of(2, 4)
    query, key, value = d.array((2, 3, 4, 8)), d.array((2, 5, heads, 8)), d.array((2, 5, heads, 8))
    masks = {
        "mask": d.one_of(None, np.tri(3, 5, dtype=bool)[None, None]),
        "bias": d.one_of(None, d.array((2, 4, 3, 5))),
    }
    return (query, key, value), {**masks, "scale": d.one_of(None, 0.5), "is_causal": d.one_of(False, True)}


ACTIVATIONS = {
    **{name: lambda d: ((d.floats(),), {}) for name in PLAIN},
    "celu": lambda d: ((d.floats(),), {"alpha": d.one_of(0.5, 2.0)}),
    "elu": lambda d: ((d.floats(),), {"alpha": d.one_of(0.5, 2.0)}),
    "gelu": lambda d: ((d.floats(),), {"approximate": d.one_of(False, True)}),
    "glu": lambda d: ((d.array((3, 4)),), {"axis": d.one_of(-1, 1)}),
    "hard_shrink": lambda d: ((d.floats(),), {"threshold": 0.7}),
    "leaky_relu": lambda d: ((d.floats(),), {"negative_slope": 0.3}),
    "soft_shrink": lambda d: ((d.floats(),), {"threshold": 0.7}),
    "softmax": lambda d: ((d.floats(2, 3),), {"axis": d.one_of(-1, 1, (0, 1))}),
    "log_softmax": lambda d: ((d.floats(2, 3),), {"axis": d.one_of(-1, 1, (0, 1))}),
    "squareplus": lambda d: ((d.floats(),), {"b": d.one_of(1, 4)}),
    "threshold": lambda d: ((d.floats(), 0.5, -1.0), {}),
}
CASES = {
    "adaptive_average_pool": adaptive,
    "adaptive_max_pool": adaptive,
    "average_pool": windows,
    "max_pool": windows,
    "conv": lambda d: (lambda inputs, kernel, options: ((inputs, kernel), options))(*convolution(d, d.one_of(1, 2), 6)),
    "depthwise_conv": lambda d: (lambda inputs, kernel, options: ((inputs, kernel), options))(
        *convolution(d, multiplier=2)
    ),
    "separable_conv": separable,
    "conv_transpose": transposed,
    "one_hot": lambda d: (
        (d.array((2, 3), "int32", -1, 4), 4),
        {"axis": d.one_of(-1, 0, 1), "dtype": d.one_of(None, "int32"), "batch": False},
    ),
    "multi_hot": lambda d: (
        (d.array(d.one_of((3,), (2, 3)), "int32", 0, 3), 4),
        {"dtype": d.one_of(None, "int32"), "symbolic": False},
    ),
    "binary_crossentropy": lambda d: (
        (d.array((2, 3), d.one_of("float32", "int32"), 0, 1), d.array((2, 3), low=0.1, high=0.9)),
        {"from_logits": d.one_of(False, True)},
    ),
    "categorical_crossentropy": lambda d: (
        (probabilities(d), probabilities(d)),
        {"from_logits": d.one_of(False, True)},
    ),
    "sparse_categorical_crossentropy": lambda d: (
        (d.array((2, 3), "int32", 0, 3), probabilities(d)),
        {"from_logits": d.one_of(False, True)},
    ),
    "moments": lambda d: (
        (d.floats(2, 3),),
        {"axes": d.one_of([0], (0, 1), 1), "keepdims": d.one_of(False, True), "batch": False},
    ),
    "batch_normalization": lambda d: (
        (d.array((2, 3, 4)), d.array((4,)), d.array((4,), low=0.5), -1),
        # of one without the other Keras finds no symbolic result
        {**d.one_of({}, {"offset": d.array((4,)), "scale": d.array((4,))}), "batch": False},
    ),
    "layer_normalization": lambda d: (
        (d.array((2, 3, 4), d.one_of("float32", "bfloat16")),),
        {"gamma": d.one_of(None, d.array((4,))), "beta": d.one_of(None, d.array((4,))), "batch": False},
    ),
    "rms_normalization": lambda d: (
        (d.array((2, 3, 4), d.one_of("float32", "bfloat16")),),
        {"scale": d.one_of(None, d.array((4,))), "axis": d.one_of(-1, (1, 2)), "batch": False},
    ),
    "normalize": lambda d: (
        (d.floats(2, 3),),
        {"axis": d.one_of(-1, 0), "order": d.one_of(1, 2, 3), "symbolic": False},
    ),
    "psnr": lambda d: ((d.array((2, 4)), d.array((2, 4))), {"max_val": 255}),
    "polar": lambda d: ((d.array((2, 4), low=0), d.array((2, 4))), {"symbolic": False}),
    "dot_product_attention": attention,
    "unfold": lambda d: (
        (d.array((2, 3, 6, 7)),),
        {"kernel_size": (2, 3), "dilation": d.one_of(1, 2), "padding": d.one_of(0, 1), "stride": d.one_of(1, 2)},
    ),
    "fold": lambda d: (
        lambda padding, windows: (
            (d.array((2, 12, windows)),),
            {"output_size": 4, "kernel_size": 2, "padding": padding},
        )
    )(*d.one_of((0, 9), (1, 25))),
    "depth_to_space": lambda d: (
        (d.array((2, 8, 4, 8)), 2),
        {"data_format": d.one_of("channels_last", "channels_first")},
    ),
    "space_to_depth": lambda d: (
        (d.array((2, 8, 4, 8)), 2),
        {"data_format": d.one_of("channels_last", "channels_first")},
    ),
}


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")  # of limits and powers in Keras
# not `symbolic`: where the shapes or element types that Keras tells are not those of its results
@pytest.mark.parametrize("cases", [ACTIVATIONS, CASES], ids=["activations", "others"])
@properties
@hypothesis.given(data=st.data())
def test_gives_what_keras_gives(keras, cases, data):
    for name, case in cases.items():
        args, kwargs = case(Draws(data))
        agree(keras, name, *args, **kwargs)


def test_a_batch_of_unknown_size(keras):
    kernel = np.zeros((3, 2, 4, 4), "float32")
    for name, kernels in (("conv", [kernel]), ("conv_transpose", [kernel]), ("depthwise_conv", [kernel])):
        found, expected = (
            operator.attrgetter(name)(package)(symbol, *kernels)
            for package, symbol in ((ops, kd.Input((7, 6, 4))), (keras.ops, keras.Input((7, 6, 4))))
        )
        assert found.shape == expected.shape


def test_gradients(keras):
    random = np.random.default_rng(0)
    inputs, kernel = (random.normal(size=shape).astype("float32") for shape in ((2, 7, 6, 4), (3, 2, 4, 5)))
    for name in ("softmax", "gelu", "silu", "normalize", "layer_normalization", "rms_normalization"):
        agree(keras, name, inputs, gradients=True, symbolic=False)
    for name in ("max_pool", "average_pool"):
        agree(keras, name, inputs, 2, 2, gradients=True, symbolic=False)
    agree(keras, "conv", inputs, kernel, strides=2, padding="same", gradients=True, symbolic=False)
    agree(keras, "conv_transpose", inputs, kernel.swapaxes(2, 3), strides=2, gradients=True, symbolic=False)


def sequences(steps=6, classes=4):
    random = np.random.default_rng(1)
    return random.normal(size=(3, steps, classes)).astype("float32"), np.array([6, 4, 5], "int32")


def test_loss_of_sequences(keras):
    logits, lengths = sequences()
    targets, sizes = np.array([[1, 1, 2], [3, 1, 1], [2, 3, 1]], "int32"), np.array([3, 2, 3], "int32")
    agree(keras, "ctc_loss", targets, logits, sizes, lengths, gradients=True)
    agree(keras, "ctc_loss", targets - 1, logits, sizes, lengths, mask_index=3, symbolic=False)


@pytest.mark.parametrize("options", [{}, {"merge_repeated": False}, {"mask_index": 3}], ids=str)
def test_likeliest_classes_of_sequences(keras, options):
    agree(keras, "ctc_decode", *sequences(), **options)


@pytest.mark.parametrize(("beam_width", "top_paths"), [(2, 1), (4, 3), (20, 5)])
def test_likeliest_labels_of_sequences(keras, beam_width, top_paths):
    options = {"strategy": "beam_search", "beam_width": beam_width, "top_paths": top_paths}
    agree(keras, "ctc_decode", *sequences(), **options, mask_index=1)


def test_windows_lie_side_by_side_by_default():
    """Keras on JAX fails without strides."""
    image = np.arange(16.0, dtype="float32").reshape(1, 4, 4, 1)
    assert ops.max_pool(image, 2).ravel().tolist() == [5, 7, 13, 15]
    assert ops.average_pool(image, (2, 4)).ravel().tolist() == [3.5, 11.5]


def test_softmax_over_one_class_warns():
    with pytest.warns(UserWarning, match="did you mean sigmoid") as caught:
        assert ops.softmax([[3.0]], axis=1).tolist() == [[1]]
    assert caught[0].filename == __file__


def test_windows_put_together_count_as_often_as_they_overlap():
    image = np.ones((1, 2, 4, 4), "float32")
    assert ops.fold(ops.unfold(image, 2), 4, 2)[0, 0].tolist()[1] == [2, 4, 4, 2]


HALVES = np.array([[0.5, 0.5], [0.25, 0.75]], "float32")


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("binary_crossentropy", (HALVES, HALVES.astype("bfloat16"))),
        ("binary_crossentropy", (HALVES.astype("float16"), HALVES.astype("bfloat16"))),
        ("categorical_crossentropy", (HALVES, HALVES.astype("bfloat16"), True)),
        ("sparse_categorical_crossentropy", (np.array([1, 0]), HALVES.astype("float16"))),
        ("hard_shrink", (np.array([-2, 0, 1]),)),
        ("fold", (np.arange(32).reshape(1, 8, 4), 4, 2, 1, 0, 2)),
        ("fold", (np.ones((1, 8, 4), bool), 4, 2, 1, 0, 2)),
        ("unfold", (np.ones((0, 2, 4, 4), "float32"), 2)),
        ("depth_to_space", (np.ones((0, 2, 2, 8), "float32"), 2)),
        ("depth_to_space", (np.ones((0, 8, 2, 2), "float32"), 2, "channels_first")),
        ("space_to_depth", (np.ones((0, 4, 4, 2), "float32"), 2)),
        ("image.extract_patches", (np.ones((0, 4, 4, 3), "float32"), 2)),
    ],
)
def test_several_element_types_integers_and_empty_batches(keras, name, args):
    agree(keras, name, *args, symbolic=False)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ops.one_hot([1], 3, sparse=True), "dense"),
        (lambda: ops.multi_hot([1]), "number of classes"),
        (lambda: ops.moments([1.0], 0, synchronized=True), "synchronize"),
        (lambda: ops.moments(np.ones((2, 3)), [0, 2]), "must be different integers from -"),
        (lambda: ops.layer_normalization(np.ones((2, 3)), axis=2), "must be different integers from -"),
        (lambda: ops.batch_normalization(np.ones((2, 3)), [1.0], [1.0], 2), "must be different integers from -"),
        (
            lambda: ops.batch_normalization(np.ones((2, 3)), *[np.ones(3)] * 2, -1, np.ones(2)),
            "`offset` must have shape",
        ),
        (lambda: ops.conv(np.ones((1, 4, 3)), np.ones((2, 2, 5))), "kernel does not fit"),
        (lambda: ops.conv(np.ones((1, 4, 3)), np.ones((5, 3, 5))), "padding"),
        (lambda: ops.conv(np.ones((4, 3)), np.ones((2, 3, 5))), "spatial dims"),
        (lambda: ops.depthwise_conv(np.ones((1, 4, 3)), np.ones((2, 2, 5))), "kernel does not fit"),
        (lambda: ops.max_pool(np.ones((1, 4, 3)), 2, padding="full"), "padding"),
        (lambda: ops.fold(np.ones((1, 8, 8)), 4, 2), "not the windows"),
        (lambda: ops.depth_to_space(np.ones((1, 2, 2, 4)), 1), "at least 2"),
        (lambda: ops.unfold(np.ones((2, 2, 4)), 1), "shape"),
        (lambda: ops.psnr(np.ones(2), np.ones(3), 1), "one shape"),
        (lambda: ops.dot_product_attention(*[np.ones((2, 3, 4))] * 3), "heads"),
        (lambda: ops.ctc_decode(*sequences(), strategy="best"), "strategy"),
    ],
)
def test_what_does_not_fit_is_an_error(call, message):
    with pytest.raises(ModelError, match=message):
        call()
