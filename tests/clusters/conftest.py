"""The losses with which every trial ends."""

import pytest

import keras_dist as kd
from tests.clusters.train import trained


@pytest.fixture(scope="session")
def losses():
    """The losses of a run on two devices that nobody interrupts."""
    with kd.DataParallel(devices=kd.list_devices()[:2]).scope():
        return pytest.approx(trained(), rel=1e-5)
