"""What the tests of this room share."""

from typing import Any

import pytest

from tests.networks import Plain
from tests.training.trained import Trained


@pytest.fixture(scope="module")
def one_device() -> Trained:
    return Trained("one device", Plain, steps_per_execution=1)


@pytest.fixture
def model(one_device: Trained) -> Any:
    return one_device.fresh()
