"""Configs in the form of Keras."""

import sys

import keras_dist as kd
from keras_dist.formats import keras_configs


def calls_at_depth(depth: int) -> int:
    """How often `to_keras` is called for a model with so many models inside of each other."""
    inputs = kd.Input((4,))
    model = kd.Model(inputs, kd.layers.Dense(4)(inputs))
    for _ in range(depth):
        inputs = kd.Input((4,))
        model = kd.Model(inputs, model(inputs))
    written, count = kd.saving.serialize_keras_object(model), 0

    def look(frame, event, argument):
        nonlocal count
        count += event == "call" and frame.f_code is keras_configs.to_keras.__code__

    sys.setprofile(look)
    try:
        keras_configs.to_keras(written)
    finally:
        sys.setprofile(None)
    return count


def test_nested_models_are_converted_once():
    few, more, most = map(calls_at_depth, (2, 4, 8))
    assert most - more == 2 * (more - few)
