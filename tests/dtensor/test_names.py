"""The names of the package, those of DTensor that are not here, and who may import it."""

import inspect
import operator
import pathlib
import re

import pytest

import keras_dist
from keras_dist import dtensor
from tests.contracts.processes import run_python

PACKAGE = pathlib.Path(keras_dist.__file__).parent
IMPORTS = re.compile(
    r"^\s*(?:from keras_dist\.dtensor|import keras_dist\.dtensor|from keras_dist import .*\bdtensor\b)", re.M
)

OURS = {"to_layout_map"}
"""What DTensor does not have."""


@pytest.mark.multiprocess
def test_nothing_imports_it():
    others = [path for path in PACKAGE.rglob("*.py") if PACKAGE / "dtensor" not in path.parents]
    assert [path.name for path in others if IMPORTS.search(path.read_text())] == []
    assert run_python("import sys, keras_dist; print('keras_dist.dtensor' in sys.modules)") == "False"


def test_the_docstring_of_the_package_names_its_source():
    assert "Source: names, arguments and defaults as in `tf.experimental.dtensor`." in inspect.getdoc(dtensor)


@pytest.mark.parametrize("name", OURS)
def test_what_is_ours_names_no_source(name):
    assert "Source: `tf." not in inspect.getdoc(getattr(dtensor, name))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("LayoutMap", "`dtensor.keras.LayoutMap`"),
        ("keras.experimental", "`dtensor.keras`"),
        ("keras.layers", "`kd.layers`"),
        ("keras.optimizers.Nadam", "`kd.optimizers.Nadam`"),
        ("GradientTape", "value_and_grad"),
        ("MATCH", "sharding_specs"),
        ("create_tpu_mesh", "create_distributed_mesh"),
        ("device_name", "default_mesh"),
        ("enable_save_as_bf16", "bfloat16"),
        ("heartbeat_enabled", "heartbeat_timeout_s"),
        ("initialize_multi_client", "initialize_accelerator_system"),
        ("initialize_tpu_system", "initialize_accelerator_system"),
        ("sharded_save", "name_based_save"),
        ("shutdown_tpu_system", "shutdown_accelerator_system"),
    ],
)
def test_a_name_that_is_not_here_says_what_takes_its_place(name, words):
    package, _, missing = name.rpartition(".")
    module = operator.attrgetter(package)(dtensor) if package else dtensor
    with pytest.raises(AttributeError, match=f"has no attribute '{missing}'.*{words}"):
        getattr(module, missing)


def test_a_name_that_dtensor_does_not_have():
    with pytest.raises(AttributeError, match=r"^module 'keras_dist\.dtensor' has no attribute 'Foo'$"):
        dtensor.Foo  # noqa: B018
