"""Keras itself, on JAX, to compare with. Without it this folder is skipped, except in CI."""

import contextlib
import importlib
import os
import types
from collections.abc import Iterator

import hypothesis
import jax
import pytest

os.environ["KERAS_BACKEND"] = "jax"  # read when keras is imported


@pytest.fixture(scope="session")
def keras() -> types.ModuleType:
    """Keras on JAX."""
    return importlib.import_module("keras") if os.environ.get("CI") else pytest.importorskip("keras")


@pytest.fixture(autouse=True, scope="module")
def compile_quickly() -> Iterator[None]:
    """What is compared here is what is computed, not how fast: most of the time would go into optimizing code."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


FEWER = hypothesis.settings(max_examples=30 if os.environ.get("CI") else 10, deadline=None)
"""Comparing with Keras compiles for each new shape: fewer examples than the profile's."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Warnings of Keras about Keras are not ours; tests that do not say how many examples they draw draw fewer."""
    for item in items:
        if "parity" in item.path.parts:
            if hypothesis.is_hypothesis_test(item.obj):
                with contextlib.suppress(hypothesis.errors.InvalidArgument):  # it has settings of its own
                    FEWER(item.obj)
            item.add_marker(pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::UserWarning:keras"))
