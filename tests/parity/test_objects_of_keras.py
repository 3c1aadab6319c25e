"""Distributions, meshes and layouts of Keras itself, handed to ours: errors say whose they are."""

import numpy as np
import pytest

import keras_dist as kd
from keras_dist.errors import KerasDistError


def test_errors_say_whose_they_are(keras):
    theirs = keras.distribution
    mesh = theirs.DeviceMesh((2, 4), ["a", "b"], kd.list_devices())
    layout = theirs.TensorLayout((None, "b"), mesh)
    our_mesh = kd.DeviceMesh((2, 4), ["a", "b"])
    ours = kd.LayoutMap(our_mesh)
    model = kd.Sequential([kd.Input((4,)), kd.layers.Dense(2)])
    uses = [
        lambda: kd.set_distribution(theirs.DataParallel(devices=kd.list_devices())),
        lambda: kd.set_distribution(theirs.ModelParallel(layout_map=theirs.LayoutMap(mesh), batch_dim_name="a")),
        lambda: model.redistribute(theirs.DataParallel(devices=kd.list_devices())),
        lambda: kd.ModelParallel(theirs.LayoutMap(mesh)),
        lambda: kd.FullySharded(our_mesh, layout_map=theirs.LayoutMap(mesh)),
        lambda: kd.DataParallel(mesh),
        lambda: kd.LayoutMap(mesh),
        lambda: kd.TensorLayout((None, "b"), mesh),
        lambda: ours.__setitem__("kernel", layout),
        lambda: kd.distribution.distribute_tensor(np.ones((4, 4)), layout),
        lambda: kd.Sequential([kd.Input((4,)), kd.layers.Dense(4, kernel_layout=layout)]),
    ]
    for number, use in enumerate(uses):
        with pytest.raises(KerasDistError, match="of keras; that of keras_dist is another class"):
            use()
            raise AssertionError(f"use {number} is accepted")
    assert kd.distribution.distribution() is None
