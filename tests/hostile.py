"""Public constructors and functions with hostile values for each argument: what raises must be a `KerasDistError`."""

import contextlib
import inspect
import io
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

import keras_dist as kd
from keras_dist import pretrained
from keras_dist.errors import KerasDistError


class Evil:
    """Raises when it is compared, tested, counted, iterated or shown."""

    def _raise(self, *_: object) -> Any:
        raise RuntimeError("evil")

    __eq__ = __bool__ = __len__ = __iter__ = __repr__ = __str__ = __lt__ = __float__ = __int__ = __index__ = _raise
    __hash__ = None  # type: ignore[assignment]


def recursive() -> list:
    """Return a list that contains itself."""
    items: list = [1]
    items.append(items)
    return items


VALUES = {
    "ones": lambda: np.ones(3),
    "matrix": lambda: np.ones((2, 2), "float32"),
    "empty array": lambda: np.zeros(0),
    "jax array": lambda: jnp.ones(2),
    "array of texts": lambda: np.array(["a", "b"]),
    "array of objects": lambda: np.array([None, Evil()], dtype=object),
    "array of None": lambda: np.array(None),
    "list of arrays": lambda: [np.ones(2), np.ones(3)],
    "dict of arrays": lambda: {"a": np.ones(2), 3: np.ones(2)},
    "nan": lambda: float("nan"),
    "inf": lambda: float("inf"),
    "float32 nan": lambda: np.float32("nan"),
    "zero": lambda: 0,
    "minus one": lambda: -1,
    "minus half": lambda: -0.5,
    "half": lambda: 1.5,
    "2**31": lambda: 2**31,
    "2**63": lambda: 2**63,
    "10**400": lambda: 10**400,
    "1e300": lambda: 1e300,
    "complex": lambda: 1j,
    "bytes": lambda: b"relu",
    "surrogate": lambda: "\ud800",
    "empty text": lambda: "",
    "text with nul": lambda: "a\0b",
    "long text": lambda: "x" * 300,
    "text": lambda: "no such thing",
    "True": lambda: True,
    "dict": dict,
    "dict of texts": lambda: {"class_name": "Nothing", "config": {}},
    "dict of numbers": lambda: {1: 2, "a": 3},
    "recursive": recursive,
    "empty": lambda: (),
    "list of None": lambda: [None],
    "list of texts": lambda: ["a", 1],
    "nested": lambda: [[1, 2], [3]],
    "negatives": lambda: (-1, -2),
    "set": lambda: {1, 2},
    "generator": lambda: (each for each in (1, 2)),
    "function": lambda: lambda: 0,
    "class": lambda: int,
    "object": object,
    "evil": Evil,
    "list of evil": lambda: [Evil()],
    "date": lambda: np.datetime64("2020-01-01"),
    "layer class": lambda: kd.layers.Dense,
    "ellipsis": lambda: ...,
}


def mesh() -> Any:
    return kd.DeviceMesh("data=2,model=4")


def _layer() -> Any:
    return kd.layers.Dense(2)


ARGUMENTS: dict[str, Any] = {
    "units": lambda: 2,
    "filters": lambda: 2,
    "kernel_size": lambda: 3,
    "rate": lambda: 0.5,
    "stddev": lambda: 0.5,
    "input_dim": lambda: 4,
    "output_dim": lambda: 2,
    "num_heads": lambda: 2,
    "key_dim": lambda: 2,
    "head_dim": lambda: 2,
    "num_query_heads": lambda: 2,
    "num_key_value_heads": lambda: 2,
    "groups": lambda: 1,
    "axes": lambda: 1,
    "axis": lambda: 0,
    "axis_name": lambda: "data",
    "target_shape": lambda: (2,),
    "dims": lambda: (1,),
    "n": lambda: 2,
    "shape": lambda: (2,),
    "function": lambda: lambda x: x,
    "fn": lambda: lambda x, y: x,
    "layer": _layer,
    "cell": lambda: kd.layers.LSTMCell(2),
    "cells": lambda: [kd.layers.LSTMCell(2)],
    "forward_layer": lambda: kd.layers.LSTM(2),
    "equation": lambda: "ab,bc->ac",
    "output_shape": lambda: (2,),
    "height": lambda: 4,
    "width": lambda: 4,
    "factor": lambda: 0.1,
    "value_range": lambda: (0, 255),
    "num_bins": lambda: 4,
    "bin_boundaries": lambda: [0.0, 1.0],
    "num_tokens": lambda: 4,
    "scale": lambda: 1.0,
    "offset": lambda: 0.0,
    "depth": lambda: 2,
    "block": _layer,
    "num_experts": lambda: 2,
    "hidden_units": lambda: 4,
    "initial_learning_rate": lambda: 0.1,
    "decay_steps": lambda: 10,
    "decay_rate": lambda: 0.9,
    "first_decay_steps": lambda: 10,
    "boundaries": lambda: [1, 2],
    "values": lambda: [1.0, 0.5, 0.1],
    "filepath": lambda: "model.weights.h5",
    "backup_dir": lambda: "backup",
    "filename": lambda: "log.csv",
    "schedule": lambda: lambda epoch, lr: lr,
    "monitor": lambda: "loss",
    "root": lambda: "http://localhost",
    "num_classes": lambda: 3,
    "target_class_ids": lambda: [0],
    "specificity": lambda: 0.5,
    "sensitivity": lambda: 0.5,
    "precision": lambda: 0.5,
    "recall": lambda: 0.5,
    "k": lambda: 2,
    "thresholds": lambda: 0.5,
    "value": lambda: 0.5,
    "optimizer": lambda: kd.optimizers.SGD(),
    "inner_optimizer": lambda: kd.optimizers.SGD(),
    "device_mesh": mesh,
    "mesh": mesh,
    "layout_map": lambda: kd.LayoutMap(mesh()),
    "batch_dim_name": lambda: "data",
    "axis_names": lambda: None,
    "rules": lambda: None,
    "tokens": lambda: [[1, 2, 3]],
    "length": lambda: 8,
    "documents": lambda: [[1, 2, 3], [4, 5]],
    "x": lambda: np.ones((8, 2), "float32"),
    "y": lambda: np.ones((8, 1), "float32"),
    "y_true": lambda: np.ones((8, 2), "float32"),
    "y_pred": lambda: np.ones((8, 2), "float32"),
    "data": lambda: np.ones((8, 2), "float32"),
    "batch": lambda: np.ones((8, 2), "float32"),
    "batch_size": lambda: 4,
    "sources": lambda: [np.ones((8, 2)), np.ones((8, 2))],
    "datasets": lambda: [np.ones((8, 2)), np.ones((8, 2))],
    "dataset": lambda: np.ones((8, 2)),
    "model": lambda: kd.Sequential([kd.Input((2,)), kd.layers.Dense(2)]),
    "model_or_factory": lambda: lambda: kd.Sequential([kd.Input((2,)), kd.layers.Dense(2)]),
    "family": lambda: "llama",
    "hidden_size": lambda: 8,
    "num_layers": lambda: 1,
    "num_kv_heads": lambda: 2,
    "size": lambda: 8,
    "vocab_size": lambda: 16,
    "attention": lambda: pretrained.AttentionConfig(num_heads=2, num_kv_heads=2, head_dim=4),
    "feed_forward": lambda: pretrained.FeedForwardConfig(size=8),
    "name": lambda: "a_name",
    "inputs": lambda: np.ones((8, 2), "float32"),
    "weights": lambda: [0.5, 0.5],
    "tensor": lambda: np.ones((8, 2), "float32"),
    "position_embedding": lambda: True,
    "pad_to": lambda: 8,
    "sequences": lambda: [[1, 2], [3]],
    "l1": lambda: 0.01,
    "min_value": lambda: 0.0,
    "max_value": lambda: 1.0,
    "dtype": lambda: "float32",
    "path": lambda: "somewhere",
    "folder": lambda: "somewhere",
    "directory": lambda: "somewhere",
}
"""Legitimate values of required arguments, by name."""


SKIPPED = {
    "TorchModuleWrapper",
    "launch",
    "initialize",
    "Model",
    "search",
    "calibrate",
    "run",
    "use_cpu_devices",
    "set_distribution",
    "load_data",
    "main",
    "set_dtype_policy",
    "enable_interactive_logging",
    "train",
    "autotune",
}
LARGE = {"num_thresholds", "num_classes"}
"""Numbers of items that are allocated at once."""
NOT_ARGUMENTS = {"args", "kwargs", "self"}
PYTREES = {
    "batch",
    "x",
    "y",
    "tree",
    "structure",
    "structures",
    "inputs",
    "data",
    "params",
    "variables",
    "sample_weight",
}
"""Arguments that JAX flattens: a list that contains itself breaks its count of recursions on Python 3.11."""
ROOMS = (
    "optimizers",
    "optimizers.schedules",
    "callbacks",
    "losses",
    "metrics",
    "layers",
    "initializers",
    "regularizers",
    "constraints",
    "data",
    "pretrained",
    "presets",
    "config",
    "activations",
    "utils",
    "random",
    "tree",
)


def public(rooms: Sequence[str] = ("", *ROOMS)) -> Iterator[tuple[str, Any]]:
    """Yield public classes and functions of these packages, with names."""
    seen: set[int] = set()
    for room in rooms:
        module: Any = kd
        for part in filter(None, room.split(".")):
            module = getattr(module, part, None)
        if module is None:
            continue
        for name in sorted(getattr(module, "__all__", None) or [n for n in dir(module) if not n.startswith("_")]):
            try:
                found = getattr(module, name)
            except Exception:  # optional packages
                continue
            is_code = inspect.isclass(found) or inspect.isfunction(found)
            if not is_code or id(found) in seen or name in SKIPPED or not found.__module__.startswith("keras_dist"):
                continue
            if inspect.isclass(found) and issubclass(found, BaseException):
                continue
            seen.add(id(found))
            yield f"{room}.{name}".lstrip("."), found


def parameters(target: Any) -> list[inspect.Parameter]:
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError):
        return []
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [each for each in signature.parameters.values() if each.kind in named and each.name not in NOT_ARGUMENTS]


def has_base(target: Any) -> bool:
    """Return whether all required arguments have a legitimate value here."""
    return all(each.default is not each.empty or each.name in ARGUMENTS for each in parameters(target))


def cases(called: str, target: Any) -> Iterator[tuple[str, str, str]]:
    """Yield the name of `target`, an argument, and the name of a value."""
    for parameter in parameters(target):
        for value in VALUES:
            if value.startswith("2**") and parameter.name in LARGE:
                continue
            if value != "recursive" or (inspect.isclass(target) and parameter.name not in PYTREES):
                yield called, parameter.name, value


def call(target: Any, name: str, value: Any) -> Any:
    """Call with `value` for one argument, and legitimate values for other required ones."""
    given = {}
    for each in parameters(target):
        if each.name != name and each.default is each.empty:
            given[each.name] = ARGUMENTS[each.name]()
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return target(**given, **{name: value})


def leak(target: Any, name: str, value: str) -> BaseException | None:
    """Return what a call raises, if it is not an error of keras_dist."""
    try:
        call(target, name, VALUES[value]())
    except KerasDistError as error:
        str(error)
    except Exception as error:
        return error
    return None
