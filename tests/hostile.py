"""Public constructors and functions with hostile values for each argument: what raises must be a `KerasDistError`."""

import contextlib
import inspect
import io
import random
import sys
import tempfile
import types
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pydantic

import keras_dist as kd
from keras_dist import pretrained
from keras_dist.errors import KerasDistError


def raising(names: str) -> dict[str, Any]:
    """Return methods of these names that raise."""

    def method(self: Any, *_: object, **__: object) -> Any:
        raise RuntimeError("evil")

    def named(name: str) -> Any:
        return types.FunctionType(method.__code__.replace(co_name=name), globals())

    return {f"__{name}__": named(f"__{name}__") for name in names.split()}


Evil: Any = type("Evil", (), raising("eq bool len iter repr str lt float int index") | {"__hash__": None})
"""Raises when it is compared, tested, counted, iterated or shown."""
Shadow: Any = type(
    "Shadow", (), raising("array len iter getitem repr") | {"shape": (2,), "dtype": np.dtype("float32"), "ndim": 1}
)
"""Raises when it is converted to an array."""


def recursive() -> list:
    """Return a list that contains itself."""
    items: list = [1]
    items.append(items)
    return items


def recursive_dict() -> dict:
    """Return a dict that contains itself."""
    items: dict = {"a": 1}
    items["b"] = items
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
    "10**4400": lambda: 10**4400,
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
    "recursive dict": recursive_dict,
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
    "shadow": Shadow,
    "date": lambda: np.datetime64("2020-01-01"),
    "layer class": lambda: kd.layers.Dense,
    "ellipsis": lambda: ...,
    "None": lambda: None,
    "scalar": lambda: np.float32(2),
    "array without dims": lambda: np.array(2),
    "bool array": lambda: np.ones((8, 2), bool),
    "cube of int": lambda: np.ones((8, 4, 2), "int32"),
    "images": lambda: np.ones((2, 4, 4, 3), "float32"),
    "volumes": lambda: np.ones((2, 4, 4, 4, 3), "float16"),
    "six dims": lambda: np.ones((1, 1, 2, 2, 2, 2), "float32"),
    "complex array": lambda: np.ones((8, 2), "complex64"),
    "no rows": lambda: np.ones((0, 2), "float32"),
    "uint8": lambda: np.full((8, 1), 255, "uint8"),
    "nan array": lambda: np.full((8, 2), np.nan, "float32"),
    "negative array": lambda: np.full((8, 2), -5),
    "pair": lambda: [np.ones((8, 2), "float32"), np.ones((7, 3), "float32")],
    "three": lambda: np.ones((8, 3), "float32"),
    "symbolic": lambda: kd.Input((2,)),
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
    "axis_sizes": lambda: (2,),
    "device_name": lambda: "cpu:0",
    "layout": lambda: kd.TensorLayout([None, None], mesh()),
    "prompts": lambda: [[1, 2]],
    "f": lambda: lambda x: x,
    "seed": lambda: 1,
    "q": lambda: 0.5,
    "identifier": lambda: None,
    "identifiers": list,
    "config": lambda: None,
    "loss": lambda: "mse",
    "metric": lambda: kd.metrics.Mean(),
    "initializer": lambda: "zeros",
    "regularizer": lambda: kd.regularizers.L2(0.1),
    "constraint": lambda: kd.constraints.NonNeg(),
    "activation": lambda: kd.activations.relu,
    "learning_rate": lambda: 0.1,
    "learning_rate_schedule": lambda: kd.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9),
    "optimizer_map": lambda: kd.optimizers.OptimizerMap(kd.optimizers.SGD()),
    "default_optimizer": lambda: kd.optimizers.SGD(),
    "transformation": lambda: optax.sgd(0.1),
    "project": lambda: "p",
    "img": lambda: np.ones((4, 4, 3), "uint8"),
    "source": lambda: [[1, 2, 3], [4, 5]],
    "targets": lambda: np.ones(8),
    "sequence_length": lambda: 2,
    "arrays": lambda: np.ones((8, 2), "float32"),
    "layouts": lambda: kd.TensorLayout(["data", None], mesh()),
    "global_rows": lambda: 8,
    "batches": lambda: [np.ones((8, 2), "float32")],
    "distribution": lambda: kd.DataParallel(mesh()),
    "group": lambda: kd.data.ReplicaGroup(1, 0, (0,), (0,), 1),
    "count": lambda: 1,
    "index": lambda: 0,
    "model_type": lambda: "a_type",
    "network": lambda: pretrained.DecoderConfig(**{n: ARGUMENTS[n]() for n in DECODER}),
    "strategy": lambda: "data_parallel",
    "rank": lambda: 2,
    "layers": lambda: ".*",
    "text": lambda: "data=8",
    "backend": lambda: "jax",
    "data_format": lambda: "channels_last",
    "max_epochs": lambda: None,
    "max_steps_per_epoch": lambda: None,
    "threshold": lambda: 0.5,
    "default_value": lambda: 0.5,
    "custom_objects": dict,
    "target": lambda: 3,
    "obj": lambda: kd.layers.Dense,
    "alpha": lambda: 0.5,
    "beta": lambda: 0.5,
    "counts": lambda: 3,
    "probabilities": lambda: 0.5,
    "logits": lambda: np.ones((2, 3), "float32"),
    "num_samples": lambda: 2,
    "minval": lambda: 0,
    "maxval": lambda: 2,
    "a": lambda: [1],
    "b": lambda: [1],
    "structure": lambda: [1, 2],
    "shallow_structure": lambda: [1, 2],
    "flat_sequence": lambda: [1, 2],
    "func": lambda: lambda *x: None,
    "step": lambda: 1,
    "w": lambda: np.ones((3, 2), "float32"),
    "current": lambda: 1,
    "variables": lambda: [kd.Variable(np.ones(2))],
    "grads": lambda: [np.ones(2)],
    "trainable_variables": lambda: [kd.Variable(np.ones(2))],
    "vocabulary": lambda: ["a", "b"],
    "key": lambda: ".*kernel",
    "layer_class": lambda: kd.layers.Dense,
    "x1": lambda: np.ones((8, 2), "float32"),
    "x2": lambda: np.ones((8, 2), "float32"),
    "xs": lambda: [np.ones((8, 2), "float32")] * 2,
    "indices": lambda: np.zeros((2, 1), "int32"),
    "images": lambda: np.ones((2, 4, 4, 3), "float32"),
    "kernel": lambda: np.ones((3, 2, 4), "float32"),
    "pattern": lambda: "a b -> b a",
    "fft_length": lambda: 4,
    "sequence_stride": lambda: 2,
    "start": lambda: 0,
    "stop": lambda: 4,
}
DECODER = ("vocab_size", "hidden_size", "num_layers", "attention", "feed_forward")
"""Legitimate values of required arguments, by name."""


SKIPPED = {
    "TorchModuleWrapper",
    "ShardPolicy",
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
NOT_ARGUMENTS = {"args", "kwargs", "self"}
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
    "ops",
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


METHODS = """
__call__ adapt add add_loss add_weight apply assign assign_add axis_size batch build cache compile compute_loss
compute_output_shape enable_lora evaluate export fit from_config gather get_config get_initial_state get_layer
get_vocabulary load_weights map next prefetch predict predict_on_batch quantize repeat reset_state restore result save
save_weights set_vocabulary set_weights shuffle skip stateless_call summary take test_on_batch train_on_batch update
update_state
"""
"""Public methods that are called with hostile values, too."""


def uses(rooms: Sequence[str] = ("", *ROOMS)) -> Iterator[tuple[str, Any]]:
    """Yield methods of public classes, as functions that create the object first."""
    seen: set[int] = set()
    for called, cls in public(rooms):
        if not inspect.isclass(cls) or not has_base(cls):
            continue
        for method in METHODS.split():
            function = inspect.unwrap(getattr(cls, method, None) or len)
            is_new = method in ("__call__", "update_state") or id(function) not in seen
            if is_new and str(getattr(function, "__module__", "")).startswith("keras_dist"):
                seen.add(id(function))
                yield f"{called}.{method}", Use(cls, method)


class Use:
    """A method of an object that is created from legitimate arguments."""

    def __init__(self, cls: type, method: str) -> None:
        self.cls, self.method = cls, method
        known = {each.name: each for each in parameters(getattr(cls, method))}
        if method == "__call__" and issubclass(cls, kd.Layer):
            known = {"inputs": inspect.Parameter("inputs", inspect.Parameter.KEYWORD_ONLY)}
        if method == "update_state" and not known:
            known = {n: inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY) for n in ("values", "sample_weight")}
        self.__signature__ = inspect.Signature([each.replace(kind=each.KEYWORD_ONLY) for each in known.values()])

    def __call__(self, **given: Any) -> Any:
        base = {each.name: ARGUMENTS[each.name]() for each in parameters(self.cls) if each.default is each.empty}
        made = self.cls(**base) if self.cls is not kd.Variable else kd.Variable(np.ones(2))
        if self.method in ("fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "compute_loss"):
            known = inspect.signature(getattr(self.cls, self.method)).parameters
            given = {name: ARGUMENTS[name]() for name in ("x", "y") if name in known} | given
        if isinstance(made, kd.Model) and self.method != "compile":
            made = ARGUMENTS["model"]()
            made.compile("sgd", "mse", metrics=["mae"])
        if self.method == "__call__" and isinstance(made, kd.Layer):
            return made(given["inputs"])
        return getattr(made, self.method)(**given)


def parameters(target: Any) -> list[inspect.Parameter]:
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError):
        return []
    if inspect.isclass(target) and issubclass(target, kd.Layer):  # flax's metaclass hides them
        signature = inspect.signature(target.__init__)
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [each for each in signature.parameters.values() if each.kind in named and each.name not in NOT_ARGUMENTS]


def has_base(target: Any) -> bool:
    """Return whether all required arguments have a legitimate value here."""
    return all(each.default is not each.empty or each.name in ARGUMENTS for each in parameters(target))


def cases(called: str, target: Any) -> Iterator[tuple[str, str, str]]:
    """Yield the name of `target`, an argument, and the name of a value."""
    for parameter in parameters(target):
        for value in VALUES:
            if called.startswith("ops.") and value == "2**31":  # an array of 8 GiB
                continue
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
    except (KerasDistError, NotImplementedError, pydantic.ValidationError) as error:
        str(error)
    except (TypeError, ValueError) as error:  # operations raise what jax.numpy raises
        return None if any("keras_dist.ops." in note for note in getattr(error, "__notes__", ())) else error
    except Exception as error:
        return error
    return None


def room_of(called: str) -> str:
    """Return the package of a public name or of one of its methods."""
    room = called.partition(".")[0]
    return room if room in ROOMS else ""


def targets(rooms: Sequence[str] = ("", *ROOMS), left_out: Sequence[str] = ()) -> dict[str, Any]:
    """Return public names and methods, for all of whose arguments this module has a legitimate value."""
    found = dict(public(rooms)) | dict(uses(rooms))
    return {name: target for name, target in found.items() if has_base(target) and name not in left_out}


def sweep(seed: str, fraction: str = "0.01", *rooms: str) -> None:
    """Print the leaks of a part of all calls, and their number by package."""
    found, draw = targets(rooms or ("", *ROOMS)), random.Random(seed)
    places = [place for name, target in found.items() for place in cases(name, target)]
    calls: dict[str, int] = {}
    leaked: dict[str, int] = {}
    for place in (place for place in places if draw.random() < float(fraction)):
        room = room_of(place[0])
        calls[room] = calls.get(room, 0) + 1
        error = leak(found[place[0]], *place[1:])
        if error is not None:
            leaked[room] = leaked.get(room, 0) + 1
            print(*place, type(error).__name__, ascii(str(error)[:99]), flush=True)
        kd.set_distribution(None)
        kd.mixed_precision.set_dtype_policy("float32")
    print({room or "keras_dist": f"{leaked.get(room, 0)} of {count}" for room, count in calls.items()})


if __name__ == "__main__":
    kd.use_cpu_devices(8)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        sweep(*sys.argv[1:])
