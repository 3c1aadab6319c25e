"""One call of each name of Keras that computes, as a function of the package: ours is compared with what Keras gave.

`python -m tests.keras_values.cases` asks Keras, and writes the record beside this file. `make test-all` asks it anew.
"""

import importlib
import json
import operator
import os
import pathlib
import re
import sys
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from tests.layers.test_every_layer import LAYERS
from tests.ops import test_core, test_image, test_linalg, test_math, test_nn
from tests.ops.agreement import Draws
from tests.parity import test_losses, test_metrics
from tests.parity.numpy_calls import CALLS

RECORD = pathlib.Path(__file__).with_name("record.safetensors")
MOST = 32
"""So many numbers of each array are kept, evenly spread over it."""

Case = Callable[[types.ModuleType], tuple[Callable[..., Any], Any]]
"""What makes a function of arrays of a package, ours or Keras, and the arrays."""


class Chosen(Draws):
    """The first of all choices, or the last."""

    def __init__(self, place: int) -> None:
        self._place, self._random = place, np.random.default_rng(0)

    def one_of(self, *choices: Any) -> Any:
        return choices[self._place]


def operation(name: str, args: Any, kwargs: dict[str, Any]) -> Case:
    """An operation, of whose arguments the arrays of NumPy are traced."""
    kwargs = {key: value for key, value in kwargs.items() if key not in ("batch", "symbolic", "tolerance")}
    leaves, treedef = jax.tree.flatten((args, kwargs))
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, np.ndarray)]

    def made(package: types.ModuleType) -> Any:
        def called(arrays: Any) -> Any:
            given = dict(enumerate(leaves)) | dict(zip(places, arrays, strict=True))
            positional, named = treedef.unflatten([given[place] for place in range(len(leaves))])
            return operator.attrgetter(name)(package.ops)(*positional, **named)

        return called, [leaves[place] for place in places]

    return made


def operations() -> dict[str, Case]:
    found = {}
    for place in (0, -1):
        for module in (test_core, test_linalg, test_image):
            cases = {name: (name, *case(Chosen(place))) for name, case in module.CASES.items()}
            found |= {f"{name} {place}": operation(*case) for name, case in cases.items()}
        nn = {name: (name, *case(Chosen(place))) for name, case in (test_nn.ACTIVATIONS | test_nn.CASES).items()}
        math = {name: case(Chosen(place)) for name, case in test_math.CASES.items()}
        found |= {f"{name} {place}": operation(*case) for name, case in (nn | math).items()}
    for name, calls in CALLS.items():
        for number, call in enumerate(calls[:2]):
            dtypes = ["int32" if re.search("bit|gcd|lcm|_shift", name) else array.dtypes[0] for array in call.arrays]
            values = [
                array.value(dtype, seed) for seed, array, dtype in zip(range(9), call.arrays, dtypes, strict=False)
            ]
            found[f"numpy {name} {number}"] = operation(name, *call.filled(values))
    return found


def loss(name: str) -> Case:
    def made(package: types.ModuleType) -> Any:
        arrays = test_losses.CASES[name].arguments(np.random.default_rng(0), (4, 3))
        y_true, y_pred = (a.astype("int32" if a.dtype.kind == "i" else "float32") for a in arrays)
        function = getattr(package.losses, name)()
        return lambda given: jax.value_and_grad(lambda y_pred: function(y_true, y_pred))(given), y_pred

    return made


def metric(name: str, options: dict[str, Any]) -> Case:
    def made(package: types.ModuleType) -> Any:
        random, kind = np.random.default_rng(0), test_metrics.CASES[name][0]
        batches = [test_metrics.batch(kind, 5, random, "from_logits" in options) for _ in range(2)]
        measure = getattr(package.metrics, name)(**options)
        if hasattr(measure, "_build") and not getattr(
            measure, "_built", True
        ):  # Keras makes variables by what it first sees
            shapes = [array.shape for array in batches[0]]
            measure._build(*(shapes[1:] if name == "AUC" else shapes))
        state = measure.stateless_reset_state()

        def called(given: Any) -> Any:
            state, batches = given
            for batch in batches:
                state = measure.stateless_update_state(state, *batch)
            return measure.stateless_result(state)

        return called, (state, batches)

    return made


OPTIMIZERS: dict[str, dict[str, Any]] = {
    **{name: {} for name in ("Adam", "Adamax", "Nadam", "Lamb", "Adagrad", "Adadelta", "Adafactor", "Ftrl", "Lion")},
    **{name: {"weight_decay": 0.1} for name in ("AdamW", "ScheduleFreeAdamW", "Muon")},
    "SGD": {"momentum": 0.9, "nesterov": True, "clipnorm": 0.7},
    "RMSprop": {"momentum": 0.5, "centered": True, "global_clipnorm": 0.7, "use_ema": True},
}


def optimizer(name: str) -> Case:
    def made(package: types.ModuleType) -> Any:
        random = np.random.default_rng(0)
        start, *gradients = ([random.normal(size=shape).astype("float32") for shape in ((4, 3), (3,))] for _ in "0123")
        variables = [package.Variable(value, name=name) for value, name in zip(start, ("kernel", "bias"), strict=True)]
        optimizer = getattr(package.optimizers, name)(learning_rate=0.05, **OPTIMIZERS[name])
        optimizer.build(variables)

        def called(given: Any) -> Any:
            weights, gradients = given
            slots = [variable.value for variable in optimizer.variables]
            for each in gradients:
                weights, slots = optimizer.stateless_apply(slots, each, weights)
            return weights

        return called, (start, gradients)

    return made


SCHEDULES = {
    "ExponentialDecay": (0.5, 7, 0.9),
    "InverseTimeDecay": (0.5, 7, 0.9, True),
    "PolynomialDecay": (0.5, 7, 0.1, 2.0, True),
    "CosineDecay": (0.5, 20, 0.1, "cosine", 0.9, 5),
    "CosineDecayRestarts": (0.5, 6, 1.5, 0.9),
    "PiecewiseConstantDecay": ([3, 8], [0.5, 0.2, 0.1]),
}


def schedule(name: str) -> Case:
    def made(package: types.ModuleType) -> Any:
        rate = getattr(package.optimizers.schedules, name)(*SCHEDULES[name])
        return lambda steps: [rate(step) for step in steps], np.arange(0, 12, 2)

    return made


WRAPPERS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "Bidirectional": (lambda layers: layers.Bidirectional(layers.LSTM(3, return_sequences=True)), (6, 4)),
    "RNN": (lambda layers: layers.RNN([layers.GRUCell(3), layers.LSTMCell(2)]), (6, 4)),
    "TimeDistributed": (lambda layers: layers.TimeDistributed(layers.Dense(3)), (6, 4)),
}
SEEDED = {
    *("Dropout", "AlphaDropout", "GaussianDropout", "GaussianNoise", "RandomBrightness", "RandomContrast"),
    *("RandomFlip", "RandomRotation", "RandomTranslation", "RandomZoom"),
    *("SpatialDropout1D", "SpatialDropout2D", "SpatialDropout3D"),
}
LEFT_OUT = {
    *("GroupedQueryAttention", "Normalization", "SpectralNormalization"),
    *("Lambda", "CategoryEncoding", "RandomCrop", "MixtureOfExperts"),
}
"""Layers that live Keras alone is compared with, in tests/parity, and one that is not in Keras."""


def layer(name: str) -> Case:
    def made(package: types.ModuleType) -> Any:
        if name in WRAPPERS:
            make, shapes = WRAPPERS[name]
            built = make(package.layers)
        else:
            arguments, shapes = LAYERS[name]
            built = getattr(package.layers, name)(*arguments, **({"seed": 1} if name in SEEDED else {}))
        random = np.random.default_rng(0)
        several = shapes if isinstance(shapes, list) else [shapes]
        dtype = "int32" if "Embedding" in name else "float32"
        x = [random.uniform(0, 4, (2, *shape)).astype(dtype) for shape in several]
        inputs = [x] if isinstance(shapes, list) and name != "MultiHeadAttention" else x
        built.build(*jax.tree.map(np.shape, inputs))
        weights, others = (
            [random.uniform(0.1, 0.9, variable.shape).astype(variable.dtype) for variable in of]
            for of in (built.trainable_variables, built.non_trainable_variables)
        )
        seeds = [np.asarray(variable.value) for variable in built.non_trainable_variables]
        others = [seed if seed.dtype.kind == "u" else other for seed, other in zip(seeds, others, strict=True)]

        def called(given: Any) -> Any:
            outputs, after = built.stateless_call(given[0], given[1], *given[2], **options)
            return outputs, [value for value in after if value.dtype == jnp.float32]

        has_training = "training" in built.call.__code__.co_varnames
        options = {"training": True} if has_training else {}
        return called, (weights, others, inputs)

    return made


def cases() -> dict[str, dict[str, Case]]:
    """All cases by kind; those of a kind are compiled together."""
    metrics = {
        f"{name} {place}": metric(name, options[place])
        for name, (_, options) in test_metrics.CASES.items()
        for place in (0, -1)
        if name != "R2Score" and not {"multi_label", "thresholds"} <= options[place].keys()
    }
    return {
        "ops": operations(),
        "losses": {name: loss(name) for name in test_losses.CASES},
        "metrics": metrics,
        "optimizers": {name: optimizer(name) for name in OPTIMIZERS},
        "schedules": {name: schedule(name) for name in SCHEDULES},
        "layers": {name: layer(name) for name in {**LAYERS, **WRAPPERS} if name not in LEFT_OUT},
    }


def results(package: types.ModuleType, of: dict[str, Case]) -> dict[str, list[np.ndarray]]:
    """Return what a package gives for cases: the leaves of each."""
    functions, arrays = zip(*(case(package) for case in of.values()), strict=True)
    found = jax.jit(lambda several: [f(given) for f, given in zip(functions, several, strict=True)])(arrays)
    return dict(zip(of, ([np.asarray(leaf) for leaf in jax.tree.leaves(one)] for one in found), strict=True))


def summary(leaves: list[np.ndarray]) -> tuple[list[list[Any]], np.ndarray]:
    """Return shapes and element types, and some of the numbers."""
    parts = [np.stack([leaf.real, leaf.imag]) if leaf.dtype.kind == "c" else leaf for leaf in leaves]
    kept = [part.ravel()[:: max(1, -(-part.size // MOST))].astype("float32") for part in parts]
    return [[list(leaf.shape), str(leaf.dtype)] for leaf in leaves], np.concatenate([np.empty(0, "float32"), *kept])


def write(package: types.ModuleType) -> None:
    """Write what Keras gives."""
    about, values = {}, []
    for kind, of in cases().items():
        for name, leaves in results(package, of).items():
            specs, kept = summary(leaves)
            about[f"{kind}: {name}"] = [specs, len(kept)]
            values.append(kept)
    metadata = {"cases": json.dumps(about, separators=(",", ":")), "keras": package.__version__}
    save_file({"values": np.concatenate(values)}, RECORD, metadata)


def read() -> dict[str, tuple[list[list[Any]], np.ndarray]]:
    """Return what Keras gave, by kind and name."""
    with safe_open(RECORD, "numpy") as file:
        about, values = json.loads(file.metadata()["cases"]), file.get_tensor("values")
    parts = np.split(values, np.cumsum([count for _, count in about.values()])[:-1])
    return {name: (specs, part) for (name, (specs, _)), part in zip(about.items(), parts, strict=True)}


if __name__ == "__main__":
    os.environ["KERAS_BACKEND"] = "jax"
    write(importlib.import_module("keras"))
    print(f"{RECORD}: {RECORD.stat().st_size} bytes", file=sys.stderr)
