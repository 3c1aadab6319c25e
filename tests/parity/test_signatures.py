"""Whatever keras_dist and Keras both have takes the same parameters, except for what is written down here."""

from fnmatch import fnmatchcase

import pytest

from tests.parity import keras_names
from tests.parity.signatures import BY_KEYWORD, DEFAULT, ELSEWHERE, EXTRA, MISSING, differences

EXCEPTIONS = [
    ("*", "*_layout", EXTRA, "where a weight lives"),
    ("*Optimizer", "mesh", EXTRA, "code that was written for DTensor passes it"),
    ("*Optimizer", "*", BY_KEYWORD, "what all optimizers share: nobody counts to the tenth argument"),
    ("callbacks.BackupAndRestore", "asynchronous", EXTRA, "whether steps go on meanwhile"),
    ("callbacks.BackupAndRestore", "fsync", EXTRA, "whether states outlive a failure of power"),
    ("callbacks.BackupAndRestore", "keep", EXTRA, "how many states"),
    ("callbacks.ProgbarLogger", "file", EXTRA, "where it writes"),
    ("datasets.mnist.load_data", "path", MISSING, "the name of a file in a folder that cannot be chosen"),
    ("datasets.mnist.load_data", "data_dir", EXTRA, "the folder"),
    ("distribution.DataParallel", "shard_optimizer", EXTRA, "ZeRO-1"),
    ("distribution.DeviceMesh", "axis_names", DEFAULT, "sizes by name bring their names"),
    ("distribution.DeviceMesh", "dcn_shape", EXTRA, "of slices or processes"),
    ("distribution.ModelParallel", "sequence_axis", EXTRA, "attention in a ring"),
    ("ops.*dot_product_attention", "implementation", EXTRA, "attention by kernels, or in a ring"),
    ("distribution.ModelParallel", "strict", EXTRA, "rules without effect are errors"),
    ("distribution.ModelParallel", "axis_names", EXTRA, "of what names in sharding metadata stand for"),
    ("distribution.initialize", "*_timeout_s", EXTRA, "how long processes wait for each other"),
    ("distribution.initialize", "check_data", EXTRA, "whether processes with other data are found"),
    ("distribution.initialize", "communication_options", EXTRA, "as of TensorFlow's strategies"),
    ("distribution.initialize", "required", EXTRA, "for scripts that also run alone"),
    *[("layers.*", f"*_{part}", BY_KEYWORD, "of a weight") for part in ("initializer", "regularizer", "constraint")],
    ("layers.*Attention", "*", BY_KEYWORD, "what stands behind `attention_axes`"),
    ("layers.*Embedding", "*", BY_KEYWORD, "what stands behind the arguments of weights"),
    ("layers.BatchNormalization", "*", BY_KEYWORD, "what stands behind the arguments of weights"),
    ("layers.ConvLSTM*", "*", BY_KEYWORD, "what stands behind the arguments of weights"),
    ("layers.GRU*", "*", BY_KEYWORD, "what stands behind the arguments of weights"),
    ("layers.LSTM*", "*", BY_KEYWORD, "what stands behind the arguments of weights"),
    ("layers.PReLU", "shared_axes", BY_KEYWORD, "what stands behind the arguments of weights"),
    ("layers.SimpleRNN*", "*", BY_KEYWORD, "what stands behind the arguments of weights"),
    ("layers.*", "lora_*", BY_KEYWORD, "what stands behind the arguments of weights"),
    ("layers.*", "quantization_config", MISSING, "no quantization in layers"),
    ("layers.EinsumDense", "gptq_unpacked_column_size", MISSING, "no quantization in layers"),
    ("layers.GRU*", "implementation", EXTRA, "in Keras one of `**kwargs`"),
    ("layers.LSTM*", "implementation", EXTRA, "in Keras one of `**kwargs`"),
    ("layers.LayerNormalization", "rms_scaling", EXTRA, "in Keras one of `**kwargs`"),
    ("*etric*", "mesh", EXTRA, "code that was written for DTensor passes it"),
    ("*.load_model", "distribution", EXTRA, "where it lives"),
    ("*.load_model", "factory", EXTRA, "what makes the module of a model of `from_nnx`"),
    ("*.load_model", "call", EXTRA, "how it is called"),
    ("*.load_model", "trainable", EXTRA, "what of it is trained"),
    ("*DTypePolicy", "keep", EXTRA, "parameters of `flax.nnx` modules that stay float32"),
    ("mixed_precision.Policy", "keep", EXTRA, "parameters of `flax.nnx` modules that stay float32"),
    ("optimizers.*", "*", BY_KEYWORD, "as of Optimizer"),
    ("optimizers.Muon", "*clude", EXTRA, "which weights are matrices"),
    ("optimizers.Muon", "coefficients", EXTRA, "Polar Express"),
    ("optimizers.Muon", "ns_dtype", EXTRA, "half of what is exchanged"),
    ("optimizers.Muon", "neuron_beta", EXTRA, "NorMuon"),
    ("optimizers.get", "learning_rate", EXTRA, "for optimizers by name"),
    ("utils.model_to_dot", "show_layouts", EXTRA, "where weights and activations lie"),
    ("utils.plot_model", "show_layouts", EXTRA, "where weights and activations lie"),
    ("utils.Progbar", "width", DEFAULT, "that of Keras 2, for whose DTensor programs it is here"),
    ("utils.Progbar", "stateless_metrics", BY_KEYWORD, "behind what Keras 2 has"),
    ("utils.Progbar", "unit_name", ELSEWHERE, "where Keras 2 has it"),
    ("*.deserialize_keras_object", "module_objects", EXTRA, "in Keras one of `**kwargs`"),
]
"""What differs: names, parameters, in what way, and why. The first two may be patterns."""


@pytest.fixture(scope="module")
def found(keras):
    """`(name, parameter, in what way)` for all that differs."""
    return {
        (name, parameter, word)
        for name, theirs in keras_names.entries(keras).items()
        if callable(theirs) and (mine := keras_names.ours(name)) is not None
        for parameter, word in differences(mine, theirs).items()
    }


def is_covered(difference, exception):
    return exception[2] == difference[2] and all(map(fnmatchcase, difference[:2], exception[:2]))


def test_parameters_are_those_of_keras(found):
    unexpected = [one for one in found if not any(is_covered(one, exception) for exception in EXCEPTIONS)]
    assert not unexpected, f"name, parameter and in what way it differs from Keras: {sorted(unexpected)}"


def test_every_exception_is_one(found):
    unused = [exception for exception in EXCEPTIONS if not any(is_covered(one, exception) for one in found)]
    assert not unused, f"nothing differs like this any longer: {unused}"


CALLS = ("*Attention", "*Normalization", "*RNN*", "GRU*", "LSTM*", "Bidirectional", "TimeDistributed")
"""Layers whose `call` has arguments beside the inputs."""


def test_layers_are_called_and_named_as_those_of_keras(keras):
    for name in keras_names.public_names(keras.layers):
        ours, theirs = keras_names.ours(f"layers.{name}"), getattr(keras.layers, name)
        if isinstance(ours, type):
            assert ours.__name__ == theirs.__name__
            if any(fnmatchcase(name, pattern) for pattern in CALLS):
                assert set(differences(ours.call, theirs.call).values()) <= {EXTRA}, name


class Base:
    def __init__(self, *, trainable=True): ...


class Closed(Base):
    def __init__(self, a): ...


class Open(Base):
    def __init__(self, a, **kwargs): ...


class Keras:
    def __init__(self, a, trainable=True): ...


class Gathering:
    def __init__(self, *args, **kwargs): ...


@pytest.mark.parametrize(
    ("ours", "expected"), [(Open, {"trainable": BY_KEYWORD}), (Closed, {"trainable": MISSING}), (Keras, {})]
)
def test_what_is_handed_on_to_base_classes_is_taken(ours, expected):
    assert differences(ours, Keras) == expected


def test_nothing_is_extra_beside_args():
    assert differences(Keras, Gathering) == {}
