"""`backend`, `config`, `tree`, `dtype_policies` and what `keras` has at its top, beside Keras's."""

import collections
import itertools
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import keras_dist as kd
from keras_dist.errors import ModelError

DTYPES = ["bool", "uint8", "int16", "int32", "bfloat16", "float16", "float32", int, float, "int", None]
Pair = collections.namedtuple("Pair", "left right")
TREES = [
    collections.deque([1, (2, collections.deque())], maxlen=3),
    collections.defaultdict(list, {"b": 1, "a": collections.OrderedDict(z=2, y=3)}),
    1,
    None,
    [],
    (1, [2, {"b": None, "a": (3,)}]),
    Pair(1, [2, 3]),
    collections.OrderedDict(b=1, a=[2]),
    {"x": {"y": 1}, "a": (1, 2)},
    {2: 1, "a": 0, 1: [3]},
]


@pytest.fixture(autouse=True)
def _settings():
    before = kd.mixed_precision.dtype_policy()
    yield
    kd.mixed_precision.set_dtype_policy(before)
    kd.config.set_epsilon(1e-7)
    kd.config.set_image_data_format("channels_last")
    kd.config.enable_interactive_logging()
    kd.config.set_max_epochs(None)
    kd.config.set_max_steps_per_epoch(None)


@pytest.mark.parametrize("pair", [*itertools.combinations_with_replacement(DTYPES, 2)], ids=str)
def test_result_type(keras, pair):
    assert kd.backend.result_type(*pair) == keras.backend.result_type(*pair)


@pytest.mark.parametrize("dtype", [*DTYPES, jnp.bfloat16, np.dtype("int8"), np.float32, str, "string", complex])
def test_names_of_element_types(keras, dtype):
    assert kd.backend.standardize_dtype(dtype) == keras.backend.standardize_dtype(dtype)
    assert kd.utils.standardize_dtype is kd.backend.standardize_dtype
    assert kd.backend.is_float_dtype(dtype) == keras.backend.is_float_dtype(dtype)
    assert kd.backend.is_int_dtype(dtype) == keras.backend.is_int_dtype(dtype)


def test_what_is_no_element_type():
    with pytest.raises(ModelError, match="dtype"):
        kd.backend.standardize_dtype("float31")
    with pytest.raises(ModelError, match="dtype"):
        kd.backend.standardize_dtype(object)
    with pytest.raises(ModelError, match="must be cast"):
        kd.backend.result_type("float8_e4m3fn", "float32")
    assert kd.backend.result_type() == "float32"


def test_floatx_is_the_dtype_policy():
    assert kd.config.floatx() == kd.backend.floatx() == "float32"
    kd.config.set_floatx("bfloat16")
    assert kd.layers.Dense(2).dtype == kd.config.floatx() == kd.backend.standardize_dtype(None) == "bfloat16"
    assert kd.config.dtype_policy().name == "bfloat16"
    kd.config.set_dtype_policy("mixed_bfloat16")
    kd.config.set_floatx("float32")  # which mixed policies keep weights in
    assert kd.config.dtype_policy().name == "mixed_bfloat16"
    with pytest.raises(ModelError):
        kd.config.set_floatx("int32")


def test_the_data_format_is_that_of_layers_made_without_one():
    kd.backend.set_image_data_format("channels_first")
    first = [kd.layers.Conv2D(2, 1), kd.layers.Flatten(), kd.layers.MaxPooling2D(), kd.layers.UpSampling2D()]
    kd.config.set_image_data_format("channels_last")
    assert [layer.data_format for layer in first] == ["channels_first"] * 4
    for layer in first:  # configs say it for processes with another default
        assert type(layer).from_config(layer.get_config()).data_format == "channels_first"
    assert kd.layers.Conv2D(2, 1).data_format == kd.config.image_data_format() == "channels_last"
    with pytest.raises(ModelError, match="data_format"):
        kd.config.set_image_data_format("channels_middle")


def test_epsilon(keras):
    y_true, y_pred = np.array([[1.0, 0.0]], "float32"), np.array([[0.0, 1.0]], "float32")
    keras.config.set_epsilon(1e-3)
    try:
        kd.backend.set_epsilon(1e-3)
        assert kd.config.epsilon() == 1e-3
        for name in ("binary_crossentropy", "categorical_crossentropy", "kl_divergence", "poisson", "dice"):
            ours, theirs = getattr(kd.losses, name)(y_true, y_pred), getattr(keras.losses, name)(y_true, y_pred)
            np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    finally:
        keras.config.set_epsilon(1e-7)


def model():
    made = kd.Sequential([kd.Input((2,)), kd.layers.Dense(1)])
    made.compile("sgd", "mse")
    return made


def test_limits_of_a_trial():
    x, y = np.ones((8, 2), "float32"), np.ones((8, 1), "float32")
    kd.config.set_max_epochs(2)
    kd.config.set_max_steps_per_epoch(1)
    trained = model()
    with pytest.warns(UserWarning, match="Limiting"):
        history = trained.fit(x, y, epochs=5, batch_size=4, verbose=0)
    assert history.epoch == [0, 1]
    assert int(trained.optimizer.iterations) == 2
    kd.config.set_max_steps_per_epoch(3)
    assert trained.fit(x, y, epochs=1, batch_size=4, verbose=0).epoch == [0]  # without a warning


def test_progress_goes_to_a_logger(capsys, caplog):
    kd.config.disable_interactive_logging()
    assert not kd.utils.is_interactive_logging_enabled()
    with caplog.at_level(logging.INFO, "keras_dist"):
        bar = kd.utils.Progbar(2)
        bar.update(2, [("loss", 0.5)], finalize=True)
    assert "loss: 0.5" in caplog.text
    assert capsys.readouterr().out == ""


def test_every_name_of_config(keras):
    for name in (name for name in dir(keras.config) if not name.startswith("_")):
        assert callable(getattr(kd.config, name)), name
    kd.config.set_backend("jax")
    for config in (kd.config, keras.config):
        assert config.is_traceback_filtering_enabled() is True
        config.disable_traceback_filtering()
        assert config.is_traceback_filtering_enabled() is False
        config.enable_traceback_filtering()
        assert config.is_traceback_filtering_enabled() is True
    assert kd.config.backend() == kd.backend.backend() == keras.config.backend()
    with pytest.raises(ModelError, match="torch"):
        kd.config.set_backend("torch")
    with pytest.raises(ModelError, match="code in files is never run"):
        kd.config.enable_unsafe_deserialization()
    kd.config.disable_flash_attention()
    assert kd.config.is_flash_attention_enabled() is False
    kd.config.enable_flash_attention()
    assert kd.config.is_flash_attention_enabled() is keras.config.is_flash_attention_enabled()


@pytest.mark.parametrize("structure", TREES, ids=str)
def test_tree(keras, structure):
    ours, theirs = kd.tree, keras.tree
    assert ours.flatten(structure) == theirs.flatten(structure)
    assert ours.flatten_with_path(structure) == theirs.flatten_with_path(structure)
    assert ours.is_nested(structure) == theirs.is_nested(structure)
    assert ours.map_structure(str, structure) == theirs.map_structure(str, structure)
    assert ours.map_structure(lambda a, b: (a, b), structure, structure) == theirs.map_structure(
        lambda a, b: (a, b), structure, structure
    )
    assert ours.map_structure(str, structure, none_is_leaf=False) == theirs.map_structure(
        str, structure, none_is_leaf=False
    )
    assert ours.lists_to_tuples(structure) == theirs.lists_to_tuples(structure)
    for top_down in (True, False):

        def cut(part):
            return keras.tree.MAP_TO_NONE if part == 2 else 7 if isinstance(part, tuple) and len(part) == 1 else None

        def our_cut(part, cut=cut):
            return ours.MAP_TO_NONE if cut(part) is keras.tree.MAP_TO_NONE else cut(part)

        assert ours.traverse(our_cut, structure, top_down) == theirs.traverse(cut, structure, top_down)
    count = len(theirs.flatten(structure))
    assert ours.pack_sequence_as(structure, range(count)) == theirs.pack_sequence_as(structure, range(count))
    with pytest.raises(ValueError, match="structure"):
        ours.pack_sequence_as(structure, range(count + 1))


def test_trees_that_differ(keras):
    shallow, deep = [1, 2], [(1, 3), {"a": 4}]
    assert kd.tree.map_structure_up_to(shallow, str, deep) == keras.tree.map_structure_up_to(shallow, str, deep)
    shapes = {"a": (None, 3), "b": [(2,), [4, 5]]}
    assert kd.tree.map_shape_structure(len, shapes) == keras.tree.map_shape_structure(len, shapes)
    kd.tree.assert_same_paths([1, (2,)], (3, [4]))
    for wrong in (
        lambda: kd.tree.map_structure(max, shallow, deep),
        lambda: kd.tree.map_structure_up_to(deep, str, shallow),
        lambda: kd.tree.assert_same_structure(shallow, deep),
        lambda: kd.tree.assert_same_paths(shallow, deep),
    ):
        with pytest.raises(ValueError, match="structure"):
            wrong()
    variable = kd.Variable(np.zeros(2))
    assert kd.tree.flatten([variable, None])[0] is variable


def test_scopes(keras):
    def step(x):
        with kd.name_scope("block"):
            return jnp.sin(x)

    assert "block/sin" in jax.jit(step).lower(1.0).as_text(debug_info=True)
    with pytest.raises(ModelError, match="name"):
        kd.name_scope("a/b")
    with kd.device("cpu:1"):
        assert jnp.ones(2).devices() == {jax.devices("cpu")[1]}
    with kd.device("CPU"):
        assert jnp.ones(2).devices() == {jax.devices("cpu")[0]}
    assert kd.version() == keras.version()


def test_remat_of_a_layer_and_of_a_function():
    class Block(kd.Layer):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.inner = kd.layers.Dense(2, activation="tanh")
            self.norm = kd.layers.BatchNormalization()
            self.curve = kd.remat(lambda x: jnp.sin(x) * 2)

        def build(self, input_shape):
            self.inner.build(input_shape)
            self.norm.build(input_shape)

        def call(self, inputs, training=False):
            inner = kd.remat(self.inner) if self.name == "again" else self.inner
            norm = kd.remat(self.norm) if self.name == "again" else self.norm
            return self.curve(norm(inner(inputs), training=training))

    x, y = np.linspace(0, 1, 8, dtype="float32").reshape(4, 2), np.ones((4, 2), "float32")
    found = []
    for name in ("plain", "again"):
        kd.set_random_seed(0)
        made = kd.Sequential([kd.Input((2,)), Block(name=name)])
        made.compile("sgd", "mse")
        made.fit(x, y, epochs=2, verbose=0)
        found.append(made.get_weights())
    for plain, again in zip(*found, strict=True):
        np.testing.assert_allclose(plain, again, rtol=1e-6)


def test_files_that_are_there(tmp_path):
    origin = "https://example.org/a.csv"
    with pytest.raises(ValueError, match="downloads nothing"):
        kd.utils.get_file(origin=origin, cache_dir=tmp_path)
    (tmp_path / "datasets").mkdir()
    path = tmp_path / "datasets" / "a.csv"
    path.write_text("1,2")
    assert kd.utils.get_file("a.csv", origin, cache_dir=tmp_path) == str(path)
    assert kd.utils.get_file(str(path)) == str(path)
    with pytest.raises(ValueError, match="has another hash"):
        kd.utils.get_file("a.csv", origin, file_hash="0" * 64, cache_dir=tmp_path)
    with pytest.raises(ValueError, match="unpacked"):
        kd.utils.get_file("b.tar.gz", extract=True, cache_dir=tmp_path)
    (tmp_path / "datasets" / "b").mkdir()
    assert kd.utils.get_file("b.tar.gz", extract=True, cache_dir=tmp_path) == str(tmp_path / "datasets" / "b")


def test_progbar_takes_the_names_of_means(keras, capsys):
    bar, theirs = kd.utils.Progbar(3, stateless_metrics=["a"]), keras.utils.Progbar(3, stateless_metrics=["a"])
    assert (bar.target, bar.verbose, bar.unit_name) == (theirs.target, theirs.verbose, theirs.unit_name)
    for step, value in enumerate((1.0, 3.0)):
        bar.update(step + 1, [("a", value), ("b", value)], finalize=False)
    assert {name: float(mean) for name, mean in bar._means().items()} == {"a": 2.0, "b": 3.0}
    with pytest.raises(ModelError, match="stateless_metrics"):
        kd.utils.Progbar(3, stateful_metrics=["a"], stateless_metrics=["b"])
    capsys.readouterr()


def test_session():
    kd.utils.clear_session()
    assert [kd.backend.get_uid("a"), kd.backend.get_uid("a"), kd.backend.get_uid("b")] == [1, 2, 1]
    kd.backend.clear_session(free_memory=False)
    assert kd.backend.get_uid("a") == 1


def test_batches_as_tuples(keras):
    for data in (1, (1,), (1, 2), (1, 2, 3), [1, 2]):
        assert kd.utils.unpack_x_y_sample_weight(data) == keras.utils.unpack_x_y_sample_weight(data)
    for parts in ((1,), ([1],), (1, 2), (1, 2, 3)):
        assert kd.utils.pack_x_y_sample_weight(*parts) == keras.utils.pack_x_y_sample_weight(*parts)
    with pytest.raises(ValueError, match="a tuple of 4"):
        kd.utils.unpack_x_y_sample_weight((1, 2, 3, 4))


def test_a_pipeline_is_a_layer():
    layer, x = kd.layers.Pipeline([kd.layers.Dense(3), kd.layers.Dropout(0.5, seed=1)]), np.ones((2, 4), "float32")
    layer(x)
    again = kd.layers.Pipeline.from_config(layer.get_config())
    again(x)
    again.set_weights(layer.get_weights())
    expected = x @ layer.get_weights()[0]
    np.testing.assert_allclose(again(x, training=False), expected, rtol=1e-5)
    assert (np.asarray(again(x)) == 0).any() and again(kd.Input((4,))).shape == (None, 3)
