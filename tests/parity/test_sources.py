"""Docstrings name what Keras calls the same."""

import importlib
import inspect
import operator
from typing import Any

import pytest

PACKAGES = [
    *("activations", "callbacks", "constraints", "distribution", "initializers", "layers", "losses", "metrics"),
    *("models", "optimizers", "optimizers.schedules", "random", "regularizers", "saving", "utils.bounding_boxes"),
]


@pytest.mark.parametrize("package", PACKAGES)
def test_docstrings_name_their_source_in_keras(package: str, keras: Any) -> None:
    ours, theirs = importlib.import_module(f"keras_dist.{package}"), operator.attrgetter(package)(keras)
    public = {name: value for name in ours.__all__ if getattr(value := getattr(ours, name), "__name__", "") == name}
    documented = {name: inspect.getdoc(value) or "" for name, value in public.items() if callable(value)}
    assert len(documented) > 6
    unnamed = [name for name, text in documented.items() if hasattr(theirs, name) and "\nSource: " not in text]
    wrong = [
        name
        for name, text in documented.items()
        if not hasattr(theirs, name) and f"Source: `keras.{package}.{name}`" in text
    ]
    assert (unnamed, wrong) == ([], [])
