"""The names of the package, those of DTensor that are not here, and who may import it."""

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


@pytest.mark.multiprocess
def test_nothing_imports_it():
    others = [path for path in PACKAGE.rglob("*.py") if PACKAGE / "dtensor" not in path.parents]
    assert [path.name for path in others if IMPORTS.search(path.read_text())] == []
    assert run_python("import sys, keras_dist; print('keras_dist.dtensor' in sys.modules)") == "False"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("LayoutMap", "`dtensor.keras.LayoutMap`"),
        ("keras.experimental", "`dtensor.keras`"),
        ("keras.optimizers.Nadam", "`kd.optimizers.Nadam`"),
        ("GradientTape", "value_and_grad"),
        ("MATCH", "sharding_specs"),
        ("create_tpu_mesh", "create_distributed_mesh"),
        ("initialize_multi_client", "initialize_accelerator_system"),
        ("sharded_save", "name_based_save"),
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
