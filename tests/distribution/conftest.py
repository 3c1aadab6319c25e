import pytest

import keras_dist as kd


@pytest.fixture
def mesh() -> kd.DeviceMesh:
    """2 x 4 devices."""
    return kd.DeviceMesh((2, 4), ("data", "model"))


@pytest.fixture
def rules(mesh: kd.DeviceMesh) -> kd.LayoutMap:
    """No rules yet."""
    return kd.LayoutMap(mesh)
