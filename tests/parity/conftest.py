"""Keras itself, on JAX, to compare with. Without it this folder is skipped, except in CI."""

import importlib
import os
import types

import pytest

os.environ["KERAS_BACKEND"] = "jax"  # read when keras is imported


@pytest.fixture(scope="session")
def keras() -> types.ModuleType:
    """Keras on JAX."""
    return importlib.import_module("keras") if os.environ.get("CI") else pytest.importorskip("keras")
