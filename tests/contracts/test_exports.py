"""The names of the front doors."""

import importlib
import importlib.resources

import pytest

import keras_dist as kd
from keras_dist import distribution

NOT_AT_THE_TOP = {
    "distribution", "Cluster", "CommunicationOptions", "cluster", "is_chief", "process_count", "process_index",
    "register_strategy",
}  # fmt: skip
AT_THE_TOP = sorted({*distribution.__all__} - NOT_AT_THE_TOP)
"""What `keras.distribution` has is also at the top, except that `kd.distribution` is the package."""


@pytest.mark.parametrize("package", ["keras_dist", "keras_dist.distribution"])
def test_every_name_resolves(package):
    module = importlib.import_module(package)
    assert len(set(module.__all__)) == len(module.__all__)
    for name in module.__all__:
        assert getattr(module, name) is not None, name
    assert set(module.__all__) <= set(dir(module))


def test_distribution_names_are_at_the_top():
    for name in AT_THE_TOP:
        assert getattr(kd, name) is getattr(distribution, name) and name in kd.__all__, name


def test_distribution_is_the_package_and_in_it_the_current_one():
    assert kd.distribution is distribution
    assert kd.distribution.distribution() is None


def test_a_name_that_is_not_there():
    with pytest.raises(AttributeError, match="has no attribute 'DeviceMsh'"):
        _ = kd.DeviceMsh  # type: ignore[attr-defined]
