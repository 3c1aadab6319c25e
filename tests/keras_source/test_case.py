"""The base class of Keras's tests, and what they check of every layer, on keras_dist."""

import itertools
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.experimental.sparse
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

import keras_dist as kd
from tests.keras_source import stand_ins as shims

FLOATS = ("bfloat16", "float16", "float32", "float64")


def to_numpy(value: Any) -> np.ndarray:
    """Return an array, a variable or nested numbers as a NumPy array."""
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "numpy") and not isinstance(value, jax.Array):
        return np.asarray(value.numpy())
    return np.asarray(value)


def name_of(dtype: Any) -> str:
    """Return the name of a dtype."""
    if isinstance(dtype, type) and dtype in (float, int, bool):
        return {float: "float32", int: "int32", bool: "bool"}[dtype]
    return jnp.dtype(dtype).name


def as_json(config: Any) -> str:
    """Return a config as JSON that keeps tuples apart from lists."""

    def marked(value: Any) -> Any:
        if isinstance(value, tuple):
            return {"tuple": [marked(item) for item in value]}
        if isinstance(value, list):
            return [marked(item) for item in value]
        if isinstance(value, dict):
            return {key: marked(item) for key, item in value.items()}
        return value

    return json.dumps(marked(config), sort_keys=True, indent=1)


class TestCase(parameterized.TestCase):
    """Assertions on arrays, and `run_layer_test`."""

    __test__ = False  # as a base
    maxDiff = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.__test__ = True

    def get_temp_dir(self) -> str:
        """Return a folder that is deleted after the test."""
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        return folder

    def assertRaisesRegex(self, expected_exception: Any, expected_regex: Any, *args: Any, **kwargs: Any) -> Any:
        """Check the class of an error. Its words are ours."""
        return self.assertRaises(expected_exception, *args, **kwargs)

    def convert_to_numpy(self, x: Any) -> np.ndarray:
        """Return a NumPy array."""
        return to_numpy(x)

    def assertAllClose(
        self, actual: Any, desired: Any, atol: float = 1e-6, rtol: float = 1e-6, msg: str | None = None, **tpu: Any
    ) -> None:
        """Check that arrays are nearly equal."""
        np.testing.assert_allclose(to_numpy(actual), to_numpy(desired), rtol, atol, err_msg=msg or "")

    def assertNotAllClose(self, x1: Any, x2: Any, atol: float = 1e-6, rtol: float = 1e-6, msg: str | None = None):
        """Check that arrays are not nearly equal."""
        try:
            self.assertAllClose(x1, x2, atol, rtol)
        except AssertionError:
            return
        self.fail(msg or "the arrays are close")

    def assertAlmostEqual(self, actual: Any, desired: Any, decimal: int = 3, msg: str | None = None, **tpu: Any):
        """Check that arrays are equal in some decimal places."""
        np.testing.assert_almost_equal(to_numpy(actual), to_numpy(desired), decimal, msg or "")

    def assertAllEqual(self, actual: Any, desired: Any, msg: str | None = None) -> None:
        """Check that arrays are equal."""
        np.testing.assert_array_equal(to_numpy(actual), to_numpy(desired), err_msg=msg or "")

    def assertLen(self, iterable: Any, expected_len: int, msg: str | None = None) -> None:
        """Check a length."""
        self.assertEqual(len(iterable), expected_len, msg=msg)

    def assertSparse(self, x: Any, sparse: bool = True) -> None:
        """Check whether an array is sparse."""
        is_sparse = x.sparse if isinstance(x, kd.KerasTensor) else isinstance(x, jax.experimental.sparse.JAXSparse)
        self.assertEqual(is_sparse, sparse)

    def assertRagged(self, x: Any, ragged: bool = True) -> None:
        """Check that an array is not ragged."""
        self.assertFalse(ragged)

    def assertDType(self, x: Any, dtype: Any, msg: str | None = None) -> None:
        """Check a dtype."""
        self.assertEqual(name_of(getattr(x, "dtype", type(x))), name_of(dtype), msg=msg)

    def assertFileExists(self, path: Any) -> None:
        """Check that there is a file."""
        self.assertTrue(Path(path).is_file(), f"{path} is no file")

    def run_class_serialization_test(self, instance: Any, custom_objects: Any = None) -> Any:
        """Check that an object made of another one's config has the same config, twice."""
        config = instance.get_config()
        wanted = as_json(config)
        # classes of a test are handed over: modules that a config names are not imported
        own = vars(sys.modules[type(self).__module__]).items()
        known = {name: value for name, value in own if getattr(value, "__module__", "") == type(self).__module__}
        known |= {type(instance).__name__: type(instance), **(custom_objects or {})}
        with kd.saving.custom_object_scope(known):
            self.assertEqual(as_json(type(instance).from_config(config).get_config()), wanted)
            saved = json.loads(json.dumps(kd.saving.serialize_keras_object(instance)))
            revived = kd.saving.deserialize_keras_object(saved)
        self.assertEqual(as_json(revived.get_config()), wanted)
        return revived

    def run_layer_test(
        self,
        layer_cls: Any,
        init_kwargs: Any,
        input_shape: Any = None,
        input_dtype: Any = None,
        input_sparse: bool = False,
        input_ragged: bool = False,
        input_data: Any = None,
        call_kwargs: Any = None,
        expected_output_shape: Any = None,
        expected_output_dtype: Any = None,
        expected_output_sparse: bool = False,
        expected_output_ragged: bool = False,
        expected_output: Any = None,
        expected_num_trainable_weights: int | None = None,
        expected_num_non_trainable_weights: int | None = None,
        expected_num_non_trainable_variables: int | None = None,
        expected_num_seed_generators: int | None = None,
        expected_num_losses: int | None = None,
        supports_masking: bool | None = None,
        expected_mask_shape: Any = None,
        custom_objects: Any = None,
        run_training_check: bool = True,
        run_mixed_precision_check: bool = True,
        assert_built_after_instantiation: bool = False,
        **tpu: Any,
    ) -> None:
        """Check the config of a layer, its weights, outputs, mask, a training step, and mixed precision."""
        init_kwargs, call_kwargs = init_kwargs or {}, call_kwargs or {}
        layer = layer_cls(**init_kwargs)
        self.run_class_serialization_test(layer, custom_objects)
        if supports_masking is not None:
            self.assertEqual(layer.supports_masking, supports_masking, "supports_masking")
        if input_shape is None and input_data is None:
            return
        if input_data is None:
            input_data = arrays_of(input_shape, input_dtype, input_sparse)
            shapes = input_shape
        else:
            shapes = shims.map_structure(lambda x: tuple(x.shape), input_data)
        symbolic = shims.map_structure(lambda x: kd.KerasTensor(x.shape, name_of(x.dtype)), input_data)
        if input_shape is not None:
            symbolic = symbols_of(input_shape, input_dtype, input_sparse)

        def call(layer: Any, inputs: Any) -> Any:
            return layer(**inputs, **call_kwargs) if isinstance(inputs, dict) else layer(inputs, **call_kwargs)

        def check_weights(layer: Any, when: str) -> None:
            self.assertTrue(layer.built, f"{when}: built")
            for kind, count in (
                ("trainable_weights", expected_num_trainable_weights),
                ("non_trainable_weights", expected_num_non_trainable_weights),
                ("non_trainable_variables", expected_num_non_trainable_variables),
            ):
                if count is not None:
                    self.assertLen(getattr(layer, kind), count, f"{when}: number of {kind}")

        def check_outputs(outputs: Any) -> None:
            if expected_output_shape is not None:

                def fits(x: Any, shape: Any) -> bool:
                    return len(x.shape) == len(shape) and all(
                        b is None or a == b for a, b in zip(x.shape, shape, strict=True)
                    )

                fitting = shims.map_structure_up_to(outputs, fits, outputs, expected_output_shape)
                shapes = shims.map_structure(lambda x: x.shape, outputs)
                self.assertTrue(all(shims.flatten(fitting)), f"output shapes {shapes}, not {expected_output_shape}")
            if expected_output_dtype is not None:
                found = shims.map_structure(lambda x: name_of(x.dtype), outputs)
                self.assertEqual(found, expected_output_dtype, "output dtypes")
            if expected_output_sparse:
                for x in shims.flatten(outputs):
                    self.assertSparse(x)

        layer = layer_cls(**init_kwargs)
        layer.build(**shapes) if isinstance(shapes, dict) else layer.build(shapes)
        check_weights(layer, "after build")

        layer = layer_cls(**init_kwargs)
        outputs = call(layer, symbolic)
        check_weights(layer, "after a symbolic call")
        check_outputs(outputs)
        if expected_mask_shape is not None:
            self.assertEqual(layer.compute_mask(symbolic).shape, expected_mask_shape, "mask")
        if assert_built_after_instantiation:
            self.assertTrue(layer_cls(**init_kwargs).built, "built after instantiation")
            built_later = type("BuiltLater", (layer_cls,), {"build": lambda self, *args, **kwargs: None})
            self.assertFalse(built_later(**init_kwargs).built, "not built after instantiation")

        layer = layer_cls(**init_kwargs)
        outputs = call(layer, input_data)
        check_weights(layer, "after a call")
        check_outputs(outputs)
        if expected_output is not None:
            self.assertEqual(type(outputs), type(expected_output))
            for found, wanted in zip(shims.flatten(outputs), shims.flatten(expected_output), strict=True):
                self.assertAllClose(wanted, found, msg="output")
        if expected_num_losses is not None:
            self.assertLen(layer.losses, expected_num_losses, "number of losses")
        if run_training_check:
            train(layer, input_data, outputs)
        if run_mixed_precision_check:
            layer = layer_cls(**{**init_kwargs, "dtype": "mixed_float16"})
            cast = shims.map_structure(
                lambda x: kd.KerasTensor(
                    x.shape, layer.compute_dtype if layer.autocast and x.dtype in FLOATS else x.dtype
                ),
                symbolic,
            )
            outputs = call(layer, input_data)
            spec = layer.compute_output_spec(**cast) if isinstance(cast, dict) else layer.compute_output_spec(cast)
            for found, wanted in zip(shims.flatten(outputs), shims.flatten(spec), strict=False):
                self.assertEqual(name_of(found.dtype), name_of(wanted.dtype), "dtype in mixed precision")
            for weight in layer.weights:
                if name_of(weight.dtype) in FLOATS:
                    self.assertEqual(name_of(weight.dtype), "float32", "dtype of weights in mixed precision")


def train(layer: Any, inputs: Any, targets: Any) -> None:
    """Train a layer for one step."""

    class Trained(kd.Model):
        def __init__(self, layer: Any) -> None:
            super().__init__()
            self.layer = layer

        def call(self, x: Any, training: bool = False) -> Any:
            return self.layer(x, training=training)

    class Total(kd.Loss):
        def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
            return jnp.sum(y_pred)

    def batches() -> Any:
        while True:
            yield inputs, targets

    model = Trained(layer)
    model.compile(optimizer="sgd", loss=Total(), jit_compile="auto")
    model.fit(batches(), steps_per_epoch=1, verbose=0)


def over_shapes(function: Any, shapes: Any, dtypes: Any) -> Any:
    """A tree of what a function gives for shapes and their dtypes; names of arguments for a dict of `x_shape`."""
    if shims.is_shape(shapes):
        return function(tuple(shapes), "float32" if dtypes is None else dtypes)
    if isinstance(shapes, dict):
        return {
            name.removesuffix("_shape"): over_shapes(function, shape, None if dtypes is None else dtypes[name])
            for name, shape in shapes.items()
        }
    dtypes = itertools.repeat(None) if dtypes is None else dtypes
    return type(shapes)([over_shapes(function, *pair) for pair in zip(shapes, dtypes, strict=False)])


def arrays_of(shapes: Any, dtypes: Any, sparse: bool) -> Any:
    """Arrays of some shapes and dtypes."""
    draw = np.random.default_rng(0)

    def array(shape: Any, dtype: str) -> Any:
        values = draw.uniform(0, 3, shape)
        if sparse:
            values = values * (draw.uniform(size=shape) < 0.7)
            return jax.experimental.sparse.BCOO.fromdense(jnp.asarray(values, dtype), n_batch=1)
        return jnp.asarray(values.astype(dtype))

    return over_shapes(array, shapes, dtypes)


def symbols_of(shapes: Any, dtypes: Any, sparse: bool) -> Any:
    """Symbolic tensors of some shapes and dtypes."""
    return over_shapes(lambda shape, dtype: kd.KerasTensor(shape, dtype=dtype, sparse=sparse), shapes, dtypes)


def named_product(*args: Any, **kwargs: Any) -> list[dict[str, Any]]:
    """All combinations of parameters, each with a name made of its values."""

    def label(value: Any) -> str:
        return getattr(value, "__name__", str(value)).lower()

    named = [*args] + [[{"testcase_name": label(value), name: value} for value in kwargs[name]] for name in kwargs]
    combinations = []
    for parts in itertools.product(*named):
        merged = {name: value for part in parts for name, value in part.items()}
        merged["testcase_name"] = "_" + "_".join(part["testcase_name"].strip("_") for part in parts)
        combinations.append(merged)
    return combinations


def get_test_data(train_samples: int, test_samples: int, input_shape: Any, num_classes: int, random_seed: Any = None):
    """Examples of classes that lie around points of their own, for training and testing."""
    draw = np.random.default_rng(random_seed)
    centres = 2 * num_classes * draw.random((num_classes, *input_shape))

    def examples(count: int) -> Any:
        labels = draw.permutation(np.arange(count) % num_classes)
        return (centres[labels] + draw.normal(size=(count, *input_shape))).astype("float32"), labels

    return examples(train_samples), examples(test_samples)
