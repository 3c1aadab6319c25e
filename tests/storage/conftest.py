"""Keras itself, on JAX, writes and reads the files. Without it this folder is skipped, except in CI."""

import importlib
import os
import types

import pytest

os.environ["KERAS_BACKEND"] = "jax"  # read when keras is imported


@pytest.fixture(scope="session")
def keras() -> types.ModuleType:
    """Keras on JAX."""
    pytest.importorskip("h5py")
    return importlib.import_module("keras") if os.environ.get("CI") else pytest.importorskip("keras")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Warnings of Keras about Keras are not ours."""
    for item in items:
        if "storage" in item.path.parts:
            item.add_marker(pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::UserWarning:keras"))
            item.add_marker(pytest.mark.filterwarnings("ignore:jax.nn.one_hot input:DeprecationWarning"))
