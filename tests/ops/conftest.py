"""Keras itself, on JAX, to compare with, as in tests/parity."""

import pytest

from tests.parity.conftest import pytest_pyfunc_call as pytest_pyfunc_call


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Warnings of Keras about Keras are not ours."""
    for item in items:
        if "ops" in item.path.parts:
            item.add_marker(pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::UserWarning:keras"))
