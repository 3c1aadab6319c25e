"""The rewriter and the classifier do what they say, on made-up sources."""

import pathlib
import sys
import textwrap
import types

import pytest

import keras_dist as kd
from tests.keras_source import distributions
from tests.keras_source.modules import PACKAGE, Absent, Finder, InternalsError, MissingError
from tests.keras_source.names import Names
from tests.keras_source.rewriting import Module, classify, rewrite
from tests.keras_source.unit_tests import all_tests, chosen, last_line, main, table

TESTS = """
from keras.src import layers

def make():
    return layers.Dense(1)._private

class Own:
    def __init__(self):
        self._kept = 1

class DenseTest:
    def helper(self):
        return make()

    def test_public(self):
        assert Own()._kept and layers.Dense(1).units

    def test_private(self):
        self.helper()

    def test_replaced(self):
        with mock.patch.object(layers.Dense(1), "_value", 1):
            pass

    def test_asked(self):
        assert hasattr(layers.Dense(1), "_value")

    def test_as_int8(self):
        layers.Dense(1).quantize("int8")

    def test_cast_int8(self):
        layers.Dense(1, dtype="int8")

    def test_mocked(self):
        with mock.patch("keras.src.backend.common.remat.remat"):
            layers.Dense(1)

    def test_mocked_elsewhere(self):
        with mock.patch("requests.post"):
            layers.Dense(1)
"""


@pytest.fixture
def checkout(tmp_path: pathlib.Path) -> pathlib.Path:
    """A tree that is built like Keras's, with two layers and one function."""
    files = {
        "__init__.py": "from keras.src import layers",
        "layers/__init__.py": "from keras.src.layers.dense import Dense\nfrom keras.src.layers.dense import hidden",
        "layers/dense.py": """
            from keras.src.api_export import keras_export
            from keras.src.backend import *

            @keras_export(["keras.layers.Dense", "keras.Dense"])
            class Dense: ...

            @keras_export("keras.layers.NotThere")
            class NotThere: ...

            def helper(): ...

            def hidden(): ...
        """,
        "backend/__init__.py": """
            from keras.src.backend.jax import *
            if backend() == "torch":
                from keras.src.backend.torch import floatx
        """,
        "backend/jax.py": """
            @keras_export("keras.utils.set_random_seed")
            def seed(): ...
        """,
        "ops.py": "@keras_export('keras.ops.add')\ndef add(): ...",
    }
    for name, text in files.items():
        file = tmp_path / "keras" / "src" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text))
    return tmp_path


def test_imports_and_names_in_strings_are_rewritten() -> None:
    source = (
        'import keras\nfrom keras.src import layers\n    from keras import ops\nimport keras_hub\npatch("keras.src.x")'
    )
    assert rewrite(source) == (
        f"import {PACKAGE} as keras\nfrom {PACKAGE}.src import layers\n    from {PACKAGE} import ops\n"
        f'import keras_hub\npatch("{PACKAGE}.src.x")'
    )


def test_public_names_are_found_through_imports(checkout: pathlib.Path) -> None:
    names = Names(checkout)
    assert names.resolve("keras.src.layers", "Dense") == ("keras.layers.Dense", "keras.Dense")
    assert names.resolve("keras.src", "layers") == ("keras.src.layers",)
    assert names.resolve("keras.src.layers.dense", "seed") == ("keras.utils.set_random_seed",)
    assert names.resolve("keras.src.layers", "hidden") == ()
    assert names.resolve("keras.src.backend", "floatx") == ()
    assert names.resolve("keras.src.backend.jax", "add") == ("keras.ops.add",)


def test_modules_have_what_keras_dist_exports(checkout: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finder = Finder(Names(checkout), checkout, {"keras.src.layers.dense.helper": "a stand-in"})
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    namespace: dict[str, object] = {}
    try:
        exec(
            rewrite("from keras.src.layers import Dense\nfrom keras.src.layers.dense import helper, NotThere"),
            namespace,
        )
        exec(rewrite("from tensorflow import data\nimport tensorflow.summary as summary\nimport torch"), namespace)
        exec(rewrite("from keras.src.layers import hidden as internal\nimport keras\nlayers = keras.layers"), namespace)
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == PACKAGE]:
            del sys.modules[name]
    assert namespace["Dense"] is kd.layers.Dense
    assert namespace["layers"] is kd.layers
    assert namespace["helper"] == "a stand-in"
    with pytest.raises(ModuleNotFoundError, match="No module named 'tensorflow'"):
        namespace["data"].Dataset  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(ModuleNotFoundError, match="No module named 'torch'"):
        namespace["torch"].ones(1)  # type: ignore[attr-defined]
    with pytest.raises(MissingError, match=r"keras\.layers\.NotThere"):
        namespace["NotThere"](1)  # type: ignore[operator]
    with pytest.raises(InternalsError, match="hidden is not exported"):
        isinstance(1, namespace["internal"])  # type: ignore[arg-type]


def test_what_is_absent_may_be_imported_and_looked_at() -> None:
    absent = Absent(MissingError, "keras.x")
    assert getattr(absent, "__test__", None) is None
    with pytest.raises(MissingError):
        absent.attribute  # noqa: B018


@pytest.mark.parametrize(
    ("name", "error", "cause"),
    [
        ("test_public", "E  AssertionError: 1 != 2", "failed"),
        ("test_public", "E  ModuleNotFoundError: No module named 'tensorflow'", "tensorflow"),
        ("test_public", "E    given:    format='tf_saved_model'", "tensorflow"),
        ("test_public", "E  tests.keras_source.modules.InternalsError: keras.src.x", "internals"),
        ("test_private", "E  AssertionError", "internals"),
        ("test_public", "E  AttributeError: <Adam> does not have the attribute 'assign'", "internals"),
        ("test_public", "E  AttributeError: 'Adam' object has no attribute 'assign'", "failed"),
        ("test_mocked", "E  AssertionError", "internals"),
        ("test_mocked_elsewhere", "E  AssertionError", "failed"),
        ("test_replaced", "E  AssertionError", "internals"),
        ("test_asked", "E  AssertionError", "internals"),
        ("test_as_int8", "E  AssertionError", "quantization"),
        ("test_cast_int8", "E  AssertionError", "failed"),
    ],
)
def test_failures_have_a_cause(name: str, error: str, cause: str) -> None:
    tests = Module(TESTS)
    assert classify("layers/dense_test.py", f"DenseTest::{name}", error, tests) == cause
    assert classify("quantizers/a_test.py", f"DenseTest::{name}", "E  AssertionError", tests) == "quantization"
    assert tests.count() == 8


def test_the_last_error_is_told() -> None:
    assert last_line("a.py:1: in f\nE   ValueError: first\nE     given: 1\nE   x.KeyError: 'second'\nE     more") == (
        "x.KeyError: 'second'"
    )


def test_only_what_failed_counts() -> None:
    outcomes = {"passed": 8, "failed": 2, "internals": 5, "quantization": 1, "skipped": 1}
    records = [{"package": "layers", "outcome": name, "count": count} for name, count in outcomes.items()]
    assert table(records).splitlines()[-1].split() == ["all", "8", "1", "0", "1", "5", "2", "80.0%"]


def test_names_of_one_package_are_all_run(checkout: pathlib.Path) -> None:
    for name in ("layers/core/dense", "layers/core/input", "layers/merging/add"):
        file = checkout / "keras" / "src" / f"{name}_test.py"
        file.parent.mkdir(exist_ok=True)
        file.touch()
    names = all_tests(checkout)
    assert [chosen(names, name) for name in ("layers/core", "layers/merging/", "layers/core/dense_test.py")] == [
        ["layers/core/dense_test.py", "layers/core/input_test.py"],
        ["layers/merging/add_test.py"],
        ["layers/core/dense_test.py"],
    ]


def test_names_that_stand_for_nothing_are_refused(
    checkout: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["", "--source", str(checkout), "--only", "core", "merging"])
    with pytest.raises(SystemExit):
        main()
    assert "no tests of Keras: core, merging" in capsys.readouterr().err


def test_what_a_test_replaces_is_asked() -> None:
    module = types.ModuleType("as_keras")
    ask = distributions.asking(module, "num_processes", lambda: 1)
    assert ask() == 1
    vars(module)["num_processes"] = lambda: 4
    assert ask() == 4
