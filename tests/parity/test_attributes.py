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
    **dict.fromkeys(["units", "filters", "output_dim", "num_classes"], 3),
    **dict.fromkeys(["input_dim", "key_dim", "head_dim", "num_bins", "num_tokens", "height", "width"], 4),
    **dict.fromkeys(["kernel_size", "num_heads", "num_query_heads", "n", "output_size", "pool_size", "max_value"], 2),
    **dict.fromkeys(["factor", "num_key_value_heads", "scale"], 1),
    **dict.fromkeys(
        ["rate", "height_factor", "width_factor", "recall", "precision", "sensitivity", "specificity"], 0.3
    ),
    **dict.fromkeys(["stddev", "decay_rate", "initial_learning_rate", "value"], 0.1),
    **dict.fromkeys(["decay_steps", "first_decay_steps"], 5),
    **dict.fromkeys(["filepath", "filename", "backup_dir"], "a.keras"),
    **dict.fromkeys(["output_shape", "shape"], (3,)),
    "target_shape": (2,),
    "dims": (1,),
    "axes": -1,
    "equation": "ab,bc->ac",
    "activation": "relu",
    "target_class_ids": [0],
    "boundaries": [1, 2],
    "values": [1.0, 0.5, 0.2],
    **dict.fromkeys(["function", "schedule"], lambda value: value),
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
