"""What a constructor takes can be read as an attribute, where Keras's object has it."""

import inspect
import operator

import pytest

import keras_dist as kd

NAMESPACES = [
    *("layers", "losses", "metrics", "optimizers", "optimizers.schedules"),
    *("initializers", "regularizers", "constraints", "callbacks"),
]
LEFT = {
    ("Normalization", "mean"): "there from `build` on",
    ("BatchNormalization", "renorm_clipping"): "its limits are `smallest_ratio`, `largest_ratio` and `largest_shift`",
}
"""Those that are not there, and why."""
VALUES = {
    "units": 3,
    "filters": 3,
    "kernel_size": 2,
    "rate": 0.5,
    "output_dim": 3,
    "input_dim": 4,
    "num_heads": 2,
    "key_dim": 4,
    "head_dim": 4,
    "num_query_heads": 2,
    "num_key_value_heads": 1,
    "target_shape": (2,),
    "dims": (1,),
    "n": 2,
    "equation": "ab,bc->ac",
    "output_shape": (3,),
    "axes": -1,
    "stddev": 0.1,
    "scale": 1.0,
    "num_bins": 4,
    "num_tokens": 4,
    "factor": 1,
    "height_factor": 0.3,
    "width_factor": 0.3,
    "height": 4,
    "width": 4,
    "output_size": 2,
    "pool_size": 2,
    "recall": 0.3,
    "precision": 0.3,
    "sensitivity": 0.3,
    "specificity": 0.3,
    "num_classes": 3,
    "target_class_ids": [0],
    "boundaries": [1, 2],
    "values": [1.0, 0.5, 0.2],
    "decay_steps": 10,
    "decay_rate": 0.5,
    "initial_learning_rate": 0.1,
    "first_decay_steps": 5,
    "value": 0.1,
    "filepath": "a.keras",
    "filename": "a.csv",
    "backup_dir": "b",
    "max_value": 2.0,
    "activation": "relu",
    "shape": (3,),
    "function": lambda x: x,
    "schedule": lambda epoch: 0.1,
}
OF_LAYERS = {
    "layer": lambda k, name: k.layers.LSTM(3) if name == "Bidirectional" else k.layers.Dense(2),
    "cell": lambda k, name: k.layers.LSTMCell(3),
    "cells": lambda k, name: [k.layers.LSTMCell(3)],
    "fn": lambda k, name: k.losses.mean_squared_error,
    "inner_optimizer": lambda k, name: k.optimizers.SGD(),
}


def parameters(cls):
    """The parameters of the constructor, and of those that it hands keywords on to."""
    found = {}
    for base in cls.__mro__:
        own = inspect.signature(base.__init__).parameters if "__init__" in vars(base) else {}
        found |= {name: p for name, p in own.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
        if own and not any(p.kind is p.VAR_KEYWORD for p in own.values()):
            break
    return {name: p for name, p in found.items() if name not in ("self", "args", "kwargs")}


def made(library, namespace, name):
    cls = getattr(operator.attrgetter(namespace)(library), name)
    own = list(inspect.signature(cls.__init__).parameters.values())[1:]
    needed = [p.name for p in own if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    needed += ["pool_size"] if "Pool" in name and not name.startswith(("Adaptive", "Global")) else []
    needed += {"InputLayer": ["shape"], "CategoryEncoding": ["num_tokens"], "Discretization": ["num_bins"]}.get(
        name, []
    )
    return cls(**{p: OF_LAYERS[p](library, name) if p in OF_LAYERS else VALUES[p] for p in dict.fromkeys(needed)})


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_arguments_are_attributes(keras, namespace):
    mine, theirs = (operator.attrgetter(namespace)(library) for library in (kd, keras))
    names = [name for name in dir(theirs) if isinstance(getattr(theirs, name), type) and name in mine.__all__]
    missing = set()
    for name in names:
        accepted = parameters(getattr(mine, name))
        try:
            ours, other = made(kd, namespace, name), made(keras, namespace, name)
        except (KeyError, ImportError):  # an argument that this test does not know, or Keras needs TensorFlow
            continue
        read = {argument for argument in parameters(type(other)) if argument in accepted and hasattr(other, argument)}
        missing |= {(name, argument) for argument in read if not hasattr(ours, argument)}
    assert len(names) > 5
    assert missing - LEFT.keys() == set()
