"""Building a model takes work that grows linearly with its layers."""

import collections
import gc
import sys

import pytest

import keras_dist as kd
from keras_dist import layers
from tests.soak import few


def sequential(count):
    return kd.Sequential([kd.Input((4,)), *(layers.Dense(4) for _ in range(count))])


def functional(count):
    tensor = start = kd.Input((4,))
    for _ in range(count):
        tensor = layers.Dense(4)(tensor)
    return kd.Model(start, tensor)


def used(model):
    model.compile("sgd", "mse")
    model.summary(print_fn=lambda text: None)
    for layer in model.layers:
        _ = layer.weights
    _ = model.trainable_variables, model.get_config() if model._graph else None


def calls(action):
    """How often each function is called."""
    found = collections.Counter()

    def note(frame, event, argument):
        if event == "call":
            found[f"{frame.f_code.co_filename}:{frame.f_code.co_firstlineno}"] += 1
        elif event == "c_call":
            found[getattr(argument, "__qualname__", str(argument))] += 1

    before = sys.getprofile()
    gc.collect()
    gc.disable()  # finalizers of what earlier tests left are not counted
    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(before)
        gc.enable()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("make", few([sequential, functional], functional))
def test_no_function_is_called_more_than_linearly_often(make):
    used(make(3))  # what is done once in a process
    few, many = (calls(lambda count=count: used(make(count))) for count in (12, 24))
    more = {name: (few[name], count) for name, count in many.items() if count > 2.2 * few[name] + 100}
    assert not more
