"""Distributions of Keras itself, handed to ours: errors say whose they are."""

import pytest

import keras_dist as kd
from keras_dist.errors import KerasDistError


def test_errors_say_whose_they_are(keras):
    theirs = keras.distribution
    mesh = theirs.DeviceMesh((2, 4), ["a", "b"], kd.list_devices())
    model = kd.Sequential([kd.Input((4,)), kd.layers.Dense(2)])
    uses = [
        lambda: kd.set_distribution(theirs.DataParallel(devices=kd.list_devices())),
        lambda: kd.set_distribution(theirs.ModelParallel(layout_map=theirs.LayoutMap(mesh), batch_dim_name="a")),
        lambda: model.redistribute(theirs.DataParallel(devices=kd.list_devices())),
    ]
    for number, use in enumerate(uses):
        with pytest.raises(KerasDistError, match="of keras; that of keras_dist is another class"):
            use()
            raise AssertionError(f"use {number} is accepted")
    assert kd.distribution.distribution() is None
