"""A model that nobody holds is freed, with its arrays and programs, whatever its layers are."""

import gc
import tempfile
import weakref
from typing import Any

import jax
import numpy as np
import pytest
from flax import linen, nnx

import keras_dist as kd
from keras_dist import callbacks, layers
from tests.layers.test_every_layer import IMAGE, LAYERS, ROW, ROWS, VARIANTS, VOLUME, made
from tests.networks import blobs
from tests.soak import LARGE


class Own(layers.Layer):
    def __init__(self):
        super().__init__()
        self.seed_generator = kd.random.SeedGenerator(1)

    def build(self, shape):
        self.scale = self.add_weight((shape[-1],))

    def call(self, inputs):
        return inputs * self.scale + kd.random.normal((4,), seed=self.seed_generator)


def wrapped() -> layers.Layer:
    class Twice(layers.Wrapper):
        def call(self, inputs):
            return 2 * self.layer(inputs)

    return Twice(layers.Dense(3))


def function(params: Any, inputs: Any) -> Any:
    return params * inputs


OTHERS: dict[str, tuple[Any, Any]] = {
    "ConvLSTM1D": (lambda: layers.ConvLSTM1D(2, 2), IMAGE),
    "ConvLSTM2D": (lambda: layers.ConvLSTM2D(2, 2), VOLUME),
    "ConvLSTM3D": (lambda: layers.ConvLSTM3D(2, 2), (2, *VOLUME)),
    "Discretization": (lambda: layers.Discretization([0.0, 1.0]), ROW),
    "FlaxLayer": (lambda: layers.FlaxLayer(linen.Dense(3)), ROW),
    "GRUCell": (lambda: layers.RNN(layers.GRUCell(2, dropout=0.5)), ROWS),
    "Hashing": (lambda: layers.Hashing(5), ROW),
    "InputLayer": (lambda: kd.Sequential([layers.InputLayer(ROW), layers.Dense(2)]), ROW),
    "IntegerLookup": (lambda: layers.IntegerLookup(vocabulary=[1, 2]), ROW),
    "JaxLayer": (lambda: layers.JaxLayer(function, params=np.ones(4, np.float32)), ROW),
    "LSTMCell": (lambda: layers.RNN(layers.LSTMCell(2, recurrent_dropout=0.5)), ROWS),
    "Layer": (Own, ROW),
    "NNXLayer": (lambda: layers.NNXLayer(nnx.Linear(4, 2, rngs=nnx.Rngs(0))), ROW),
    "Pipeline": (lambda: layers.Pipeline([layers.Rescaling(2.0), layers.RandomFlip()]), IMAGE),
    "SimpleRNNCell": (lambda: layers.RNN(layers.SimpleRNNCell(2, dropout=0.5)), ROWS),
    "Stack": (lambda: layers.Stack(layers.Dense(4, "tanh"), 3), ROW),
    "StackedRNNCells": (lambda: layers.RNN(layers.StackedRNNCells([layers.GRUCell(2), layers.LSTMCell(2)])), ROWS),
    "StringLookup": (lambda: layers.StringLookup(vocabulary=["a", "b"]), ("string", ROW)),
    "TextVectorization": (lambda: layers.TextVectorization(vocabulary=["a", "b"]), ("string", (1,))),
    "Wrapper": (wrapped, ROW),
}
"""What makes a layer that `LAYERS` leaves out, or one around it, and the shapes of its inputs."""

CASES = {
    **{name: (lambda name=name: made(name, LAYERS), LAYERS[name][1]) for name in LAYERS},
    **{f"{name} again": (lambda name=name: made(name, VARIANTS), VARIANTS[name][1]) for name in VARIANTS if LARGE},
    **OTHERS,
}


def test_every_layer_is_among_them():
    kinds = {name for name in layers.__all__ if issubclass(type(getattr(layers, name)), type)}
    kinds = {name for name in kinds if issubclass(getattr(layers, name), layers.Layer)}
    known = {getattr(layers, name) for name in (*LAYERS, *OTHERS)}
    assert {name for name in kinds if getattr(layers, name) not in known} == set()


def model_of(names: list[str]) -> kd.Model:
    """A model of these layers side by side, with weights."""
    inputs, outputs = [], []
    for name in names:
        make, shapes = CASES[name]
        kind, shapes = shapes if isinstance(shapes, tuple) and shapes[:1] == ("string",) else ("float32", shapes)
        own = [kd.Input(shape, dtype=kind) for shape in (shapes if isinstance(shapes, list) else [shapes])]
        layer = make()
        apart = isinstance(layer, layers.MultiHeadAttention | layers.GroupedQueryAttention)
        outputs.append(layer(*own) if apart else layer(own if isinstance(shapes, list) else own[0]))
        inputs += own
    model = kd.Model(inputs, outputs)
    model.build()
    return model


def referred(model: kd.Model) -> dict[str, Any]:
    """References to a model, its layers, and what belongs to it."""
    built: Any = model._built
    found: dict[str, Any] = {"model": model, "built": built, "cell": built.cell}
    found |= {"step_runner": built.step_runner, "programs": built.step_runner._compiled}
    parts = [part for _, part in nnx.iter_graph(model) if isinstance(part, layers.Layer | kd.random.SeedGenerator)]
    found |= {f"{type(part).__name__} {part.name}": part for part in parts}
    found |= {f"array {index}": array for index, array in enumerate(built.cell.arrays)}
    return {name: weakref.ref(one) for name, one in found.items()}


@pytest.mark.slow
def test_a_model_of_each_layer():
    names, size = list(CASES), 1 if LARGE else 8  # several share a model: most of the time goes to their programs
    groups = [names[start : start + size] for start in range(0, len(names), size)]
    references = {", ".join(group): referred(model_of(group)) for group in groups}
    gc.collect()
    alive = {
        name: kept
        for name, found in references.items()
        if (kept := [key for key, one in found.items() if one() is not None])
    }
    assert alive == {}


class Subclassed(kd.Model):
    def __init__(self):
        super().__init__()
        self.inner, self.drop, self.head = layers.Dense(4), layers.Dropout(0.5), layers.Dense(4)

    def call(self, inputs):
        return self.head(self.drop(self.inner(inputs)))


def functional() -> kd.Model:
    inputs = kd.Input((8,))
    hidden = layers.Dropout(0.5)(layers.Dense(4)(inputs))
    return kd.Model(inputs, layers.Dense(4)(layers.BatchNormalization()(hidden)))


class Foreign(nnx.Module):
    def __init__(self, rngs):
        self.linear, self.drop = nnx.Linear(8, 4, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        return self.drop(self.linear(x))


def used(model: kd.Model, **options: Any) -> dict[str, Any]:
    """What refers to a model after all that makes programs."""
    x, y = blobs(16)
    model.compile("adam", loss=kd.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    stop = callbacks.EarlyStopping("loss", restore_best_weights=True)
    with tempfile.TemporaryDirectory() as folder:
        backup = callbacks.BackupAndRestore(folder)
        model.fit(x, y, batch_size=8, epochs=2, verbose=0, validation_data=(x, y), callbacks=[stop, backup])
    model.evaluate(x, y, verbose=0)
    model.predict(x, verbose=0)
    model.predict(x, verbose=0, call=lambda module, x, training, rngs: module(x))
    model(x)
    model.train_on_batch(x, y)
    others = {"optimizer": model.optimizer, "history": model.history, "stop": stop, "backup": backup}
    return referred(model) | {name: weakref.ref(one) for name, one in others.items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "devices"), [(Subclassed, 1), (functional, 8), (lambda: kd.Model.from_nnx(Foreign), 8)]
)
def test_a_model_after_training_with_its_programs(make, devices):
    counts = []
    with kd.DataParallel(devices=kd.list_devices()[:devices]).scope():
        for _ in range(2):
            references = used(make())
            gc.collect()
            assert [name for name, one in references.items() if one() is not None] == []
            counts.append((len(jax.devices()[0].client.live_executables()), len(jax.live_arrays())))
    (programs, arrays), (programs_after, arrays_after) = counts
    assert arrays_after == arrays
    assert programs_after <= programs  # the cache of 64 programs may have dropped one of an earlier test
