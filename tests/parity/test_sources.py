"""Docstrings of packages name the package of Keras whose names they have."""

import importlib
import inspect
import operator
from typing import Any

import pytest

PACKAGES = [
    *("activations", "callbacks", "constraints", "distribution", "initializers", "layers", "losses", "metrics"),
    *("models", "optimizers", "optimizers.schedules", "random", "regularizers", "saving"),
]


@pytest.mark.parametrize("package", PACKAGES)
def test_the_docstring_of_the_package_names_its_source(package: str, keras: Any) -> None:
    ours, theirs = importlib.import_module(f"keras_dist.{package}"), operator.attrgetter(package)(keras)
    source = f"Source: names, arguments and defaults as in `keras.{package}`."
    assert source in (inspect.getdoc(ours) or "").splitlines()
    documented = {name: inspect.getdoc(getattr(ours, name)) or "" for name in ours.__all__}
    missing = {name: text for name, text in documented.items() if not hasattr(theirs, name)}
    assert len(missing) < len(documented)
    assert [name for name, text in missing.items() if f"Source: `keras.{package}.{name}`" in text] == []
