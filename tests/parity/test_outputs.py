"""Models of several outputs against Keras: what belongs to which, and what is told under which name, in which order."""

from typing import Any

import numpy as np
import pytest

import keras_dist as kd

X, A, B = (np.random.default_rng(0).normal(size=(6, width)).astype(np.float32) for width in (4, 1, 2))
BY_KEY = {"z": ["mae"], "k": ["mse"]}
CASES: dict[str, tuple[str, Any, Any, Any]] = {
    "lists": ("list", ["mse", "mae"], [A, B], [["mae"], ["mse"]]),
    "dicts for a list": ("list", {"b": "mae", "a": "mse"}, {"a": A, "b": B}, {"a": "mae"}),
    "dicts": ("dict", {"z": "mse", "k": "mae"}, {"z": A, "k": B}, BY_KEY),
    "targets as a list": ("dict", {"z": "mse", "k": "mae"}, [B, A], BY_KEY),
    "losses as a list": ("dict", ["mse", "mae"], [B, A], None),
    "keys that are names of other layers": ("crossed", {"b": "mse", "a": "mae"}, {"b": A, "a": B}, {"b": ["mae"]}),
    "one loss, by key": ("dict", {"z": "mse"}, A, None),
    "one loss, in a list": ("list", ["mse", None], [A], None),
    "one loss, one metric": ("list", ["mse", None], [A, B], [["mae"], None]),
    "a dict of one": ("dict of one", {"z": "mse"}, A, {"z": ["mae"]}),
    "a list of one": ("list of one", "mse", [A], ["mae"]),
    "one": ("one", {"a": "mse"}, A, {"a": ["mae"]}),
}


def made(library: Any, form: str) -> Any:
    inputs = library.Input((4,))
    a, b = library.layers.Dense(1, name="a")(inputs), library.layers.Dense(2, name="b")(inputs)
    outputs = {
        "list": [a, b],
        "dict": {"z": a, "k": b},
        "crossed": {"b": a, "a": b},
        "dict of one": {"z": a},
        "list of one": [a],
        "one": a,
    }
    return library.Model(inputs, outputs[form])


@pytest.mark.parametrize(("form", "loss", "y", "metrics"), CASES.values(), ids=CASES)
def test_evaluate_tells_the_same_by_the_same_names(keras, form, loss, y, metrics):
    theirs, ours = made(keras, form), made(kd, form)
    ours.set_weights(theirs.get_weights())
    assert ours.output_names == theirs.output_names
    for model in (theirs, ours):
        model.compile("sgd", loss, metrics=metrics)
    known, found = (model.evaluate(X, y, verbose=0, return_dict=True) for model in (theirs, ours))
    assert found == pytest.approx(known, rel=1e-5)
    assert ours.evaluate(X, y, verbose=0) == pytest.approx(theirs.evaluate(X, y, verbose=0), rel=1e-5)
    assert ours.metrics_names == theirs.metrics_names
    values = {name: float(value) for name, value in theirs.get_metrics_result().items()}
    assert {name: float(value) for name, value in ours.get_metrics_result().items()} == pytest.approx(values, rel=1e-5)
