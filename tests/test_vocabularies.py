"""What `get` and `deserialize` take is the same for every kind: names, classes, configs and objects."""

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from keras_dist import activations, constraints, initializers, layers, losses, metrics, optimizers, regularizers, saving
from keras_dist.errors import ConfigError, KerasDistError, ModelError, UnknownNameError, nearest
from keras_dist.serialization.object_registry import snake_case

BASES = {
    constraints: constraints.Constraint,
    initializers: initializers.Initializer,
    losses: losses.Loss,
    metrics: metrics.Metric,
    optimizers: optimizers.Optimizer,
    regularizers: regularizers.Regularizer,
}
UNNAMED = {
    *BASES.values(),
    initializers.FromArray,
    initializers.FromFunction,
    initializers.RandomInitializer,
    losses.LossFunctionWrapper,
    optimizers.OptaxOptimizer,
}
CLASSES = [
    (package, cls)
    for package, base in BASES.items()
    for cls in dict.fromkeys(getattr(package, name) for name in package.__all__)
    if isinstance(cls, type) and issubclass(cls, base) and cls not in UNNAMED
]
FUNCTIONS = [
    (package, getattr(package, name))
    for package in (activations, losses)
    for name in package.__all__
    if name.islower() and name not in ("deserialize", "get", "serialize", "threshold")
]
X = jnp.array([[1.0, -2.0], [0.0, 3.0]])


class AtMostOne(constraints.Constraint):
    def __call__(self, w: Any) -> Any:
        return jnp.minimum(w, 1.0)


class Twos(initializers.Initializer):
    def __call__(self, shape: Any, dtype: Any = None) -> Any:  # type: ignore[override]  # as Keras's guide has it
        return jnp.full(shape, 2.0, dtype)


class Mean(regularizers.Regularizer):
    def __call__(self, x: Any) -> Any:
        return jnp.mean(x)


class Difference(losses.Loss):
    def call(self, y_true: Any, y_pred: Any) -> Any:
        return y_true - y_pred


class Calls(metrics.Sum):
    pass


class Small(optimizers.SGD):
    pass


class Mine(layers.Layer):
    pass


def triple(x: Any) -> Any:
    return 3 * x


def short_id(value: Any) -> str:
    """The name of a module, class or function; that of the class of any other object."""
    return getattr(value, "__name__", type(value).__name__).rpartition(".")[2]


def made(package: Any, identifier: Any) -> Any:
    """What `get` gives, or the class that it says needs arguments."""
    try:
        return type(package.get(identifier))
    except ConfigError as error:
        assert error.summary.endswith("is a class that needs arguments")
        return getattr(package, error.fix.removeprefix("pass an object: ").removesuffix("(...)"))


@pytest.mark.parametrize(("package", "cls"), CLASSES, ids=short_id)
def test_classes_are_known_by_their_names_in_snake_case_and_in_any_case(package: Any, cls: type) -> None:
    snake = cls.__name__.lower() if package is optimizers else snake_case(cls.__name__)
    for identifier in (cls, cls.__name__, *([] if package is losses else [snake, cls.__name__.upper()])):
        assert made(package, identifier) is cls
    if package in (constraints, initializers, regularizers):
        assert getattr(package, snake if snake != "l1l2" else "l1_l2") is cls


@pytest.mark.parametrize(("package", "function"), FUNCTIONS, ids=short_id)
def test_functions_are_known_by_their_names_and_written_down(package: Any, function: Any) -> None:
    assert package.get(function.__name__) is package.deserialize(function.__name__) is function
    config = json.loads(json.dumps(saving.serialize_keras_object(function)))
    for read in (package.get, package.deserialize, saving.deserialize_keras_object):
        assert read(config) is function
    assert package.deserialize(package.serialize(function)) is function
    assert package is losses or package.serialize(function) == function.__name__
    for module in ("builtins", f"keras.{package.__name__.partition('.')[2]}"):
        theirs = {"module": module, "class_name": "function", "registered_name": "function"}
        assert package.get(theirs | {"config": function.__name__}) is function


@pytest.mark.parametrize(
    ("package", "name", "meant"),
    [
        (activations, "swish", "silu"),
        (activations, "hard_swish", "hard_silu"),
        (initializers, "zero", "Zeros"),
        (initializers, "one", "Ones"),
        (initializers, "normal", "RandomNormal"),
        (initializers, "uniform", "RandomUniform"),
        (initializers, "OrthogonalInitializer", "Orthogonal"),
        (initializers, "IdentityInitializer", "Identity"),
        (regularizers, "l1l2", "L1L2"),
        (regularizers, "l1_l2", "L1L2"),
    ],
)
def test_other_names(package: Any, name: str, meant: str) -> None:
    found, cls = package.get(name), getattr(package, meant)
    assert (type(found) if isinstance(cls, type) else found) is cls
    assert not isinstance(cls, type) or type(package.get({"class_name": name, "config": {}})) is cls


@pytest.mark.parametrize(
    ("package", "given"),
    [
        (activations, jax.nn.relu),
        (constraints, AtMostOne()),
        (constraints, jnp.abs),
        (initializers, initializers.HeNormal(seed=1)),
        (losses, losses.Huber()),
        (losses, len),
        (metrics, metrics.Mean()),
        (metrics, metrics.binary_accuracy),
        (optimizers, optimizers.Adam()),
        (regularizers, Mean()),
        (regularizers, jnp.sum),
        *[(package, None) for package in (constraints, initializers, losses, metrics, optimizers, regularizers)],
    ],
    ids=short_id,
)
def test_objects_functions_and_none_come_back(package: Any, given: Any) -> None:
    assert package.get(given) is given
    assert package.deserialize(given) is given


@pytest.mark.parametrize(
    ("package", "obj"),
    [
        (constraints, constraints.MaxNorm(3.0, [0, 1])),
        (constraints, constraints.MinMaxNorm(0.5, 1.5, 0.5, 1)),
        (initializers, initializers.Constant(np.arange(3.0))),
        (initializers, initializers.Constant(np.float32(0.25))),
        (initializers, initializers.VarianceScaling(2.0, "fan_out", "uniform", 5, [0], (1,))),
        (initializers, initializers.FromArray(np.eye(3, dtype="float32"))),
        (layers, layers.Dense(3, activation="relu", name="head")),
        (losses, losses.SparseCategoricalCrossentropy(True, ignore_class=3, axis=1)),
        (metrics, metrics.Precision(thresholds=0.3, name="sure")),
        (optimizers, optimizers.Lion(0.5, beta_1=0.8)),
        (regularizers, regularizers.L1L2(0.1)),
        (regularizers, regularizers.OrthogonalRegularizer(0.2, "columns")),
    ],
    ids=short_id,
)
def test_configs_survive_json(package: Any, obj: Any) -> None:
    config = json.loads(json.dumps(package.serialize(obj)))
    assert config["module"] == package.__name__
    bare = config if type(obj) in UNNAMED else {"class_name": config["class_name"], "config": config["config"]}
    for again in (package.deserialize(config), package.deserialize(bare), saving.deserialize_keras_object(config)):
        assert type(again) is type(obj)
        assert json.dumps(again.get_config()) == json.dumps(obj.get_config())


@pytest.mark.parametrize(
    ("package", "mine"),
    [
        (activations, triple),
        (constraints, AtMostOne),
        (initializers, Twos),
        (layers, Mine),
        (losses, Difference),
        (metrics, Calls),
        (optimizers, Small),
        (regularizers, Mean),
    ],
    ids=short_id,
)
def test_those_of_users_are_known_where_they_are_registered(package: Any, mine: Any) -> None:
    made_here, name = mine() if isinstance(mine, type) else mine, mine.__name__

    def is_mine(found: Any) -> bool:
        return found is mine or type(found) is mine or getattr(found, "function", None).__class__ is mine

    config = package.serialize(made_here)
    with pytest.raises(ConfigError, match=f"'{name}', which is not known"):
        package.deserialize(config)
    assert is_mine(package.deserialize(config, {name: mine}))
    assert is_mine(package.deserialize(name, {name: mine}))
    saving.register_keras_serializable("of_users")(mine)
    try:
        assert is_mine(package.deserialize(package.serialize(made_here)))
        assert is_mine(package.deserialize(f"of_users>{name}"))
    finally:
        del saving.get_custom_objects()[f"of_users>{name}"]


NOT_KNOWN = {"class_name": "Nothing", "config": {}}


@pytest.mark.parametrize(
    ("package", "identifier", "error", "words"),
    [
        (activations, "rellu", UnknownNameError, r"unknown activation 'rellu' \(did you mean 'relu'\?\)"),
        (activations, 3, ModelError, "`activation` must be .* a function of one array"),
        (activations, lambda x, y: 0.0, ModelError, "`activation` must be .* a function of one array"),
        (activations, "threshold", ModelError, "`activation` must be .* a function of one array"),
        (activations, {"class_name": "function", "config": "rellu"}, ConfigError, "'rellu', which is not known"),
        (activations, {"class_name": "relu", "config": {}}, ConfigError, "'relu', which is not known"),
        (constraints, "max-norm", UnknownNameError, r"unknown constraint 'max-norm' \(did you mean 'max_norm'\?\)"),
        (constraints, NOT_KNOWN, UnknownNameError, "unknown constraint 'Nothing'"),
        (constraints, NOT_KNOWN | {"module": "x"}, ConfigError, "'Nothing', which is not known"),
        (initializers, "he_norml", UnknownNameError, "did you mean 'he_normal'"),
        (initializers, 0.5, ModelError, "`initializer` must be a name"),
        (initializers, lambda: 1, ModelError, r"parameters \(\)"),
        (initializers, lambda key, shape: 1, ModelError, r"parameters \(key, shape\)"),
        (initializers, lambda shape, dtype, scale: 1, ModelError, r"parameters \(shape, dtype, scale\)"),
        (initializers, {"class_name": "Zeros"}, ModelError, "`initializer` must be a name"),
        (initializers, {"class_name": "HeNormal", "config": {"sede": 1}}, ConfigError, "config with sede"),
        (losses, "mes", UnknownNameError, r"unknown loss 'mes' \(did you mean 'mse'\?\)"),
        (losses, ["mse"], ModelError, "must be a name, a config"),
        (losses, losses.LossFunctionWrapper, ConfigError, "needs arguments"),
        (metrics, "mes", UnknownNameError, r"unknown metric 'mes' \(did you mean 'mse'\?\)"),
        (metrics, 3, ModelError, "must be a name, a config"),
        (metrics, "io_u", ConfigError, "needs arguments"),
        (optimizers, "rmspop", UnknownNameError, r"unknown optimizer 'rmspop' \(did you mean 'rmsprop'"),
        (optimizers, optax.adam, ModelError, "must be a name, a config, an Optimizer, or an optax"),
        (regularizers, "l3", UnknownNameError, r"unknown regularizer 'l3' \(did you mean 'l"),
        (regularizers, 0.01, ModelError, "`regularizer` must be .* a function of one array"),
    ],
)
def test_what_is_of_no_kind_is_named(package: Any, identifier: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words) as caught:
        package.get(identifier)
    assert caught.value.given and caught.value.fix


def test_activations_by_default_are_linear() -> None:
    assert activations.get(None) is activations.deserialize(None) is activations.linear


def test_layers_are_read_from_their_configs_alone() -> None:
    with pytest.raises(ConfigError, match=r"(?s)`layer` must be .*MeanSquaredError"):
        layers.deserialize(losses.serialize(losses.MeanSquaredError()))


def test_functions_with_arguments_are_objects_and_hints_never_the_given_name():
    config = {"class_name": "sparse_categorical_crossentropy", "config": {"from_logits": True}}
    assert losses.get(config).get_config()["from_logits"] is True
    for name in ("sparse_crossentropy", "sparse_categorical_cross_entropi", "SparseeCategoricalCrossentropy"):
        for wrong in (name, {"class_name": name, "config": {}}):
            with pytest.raises(KerasDistError, match=r"did you mean '(S|s)parse_?(C|c)ategorical_?(C|c)rossentropy'"):
                losses.get(wrong)
    for get in (losses.get, metrics.get, optimizers.get):
        with pytest.raises(KerasDistError) as caught:
            get("keras_crossentropy_by_shapess")
        assert "by_shapes'?" not in str(caught.value), "names that no user knows"
    assert nearest("mse", ["mse"]) is None
