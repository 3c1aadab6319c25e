"""Files and objects of Keras, which Keras itself writes and reads."""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Warnings of Keras about Keras are not ours."""
    for item in items:
        if "formats" in item.path.parts:
            item.add_marker(pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::UserWarning:keras"))
            item.add_marker(pytest.mark.filterwarnings("ignore:jax.nn.one_hot input:DeprecationWarning"))
