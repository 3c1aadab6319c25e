import pytest

from keras_dist import dtensor


@pytest.fixture(scope="module")
def mesh() -> dtensor.Mesh:
    """2 x 4 devices."""
    return dtensor.create_mesh([("batch", 2), ("model", 4)])


@pytest.fixture(scope="module")
def line() -> dtensor.Mesh:
    """8 devices along one dim."""
    return dtensor.create_mesh([("batch", 8)], devices=[f"CPU:{index}" for index in range(8)])
