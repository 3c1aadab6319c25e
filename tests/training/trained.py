"""A model that is trained on the same rows in many ways, from the same beginning."""

from typing import Any

import jax
import numpy as np

from tests import layouts
from tests.networks import LOSS, Noisy, blobs

X, Y = blobs(43)  # five batches of 8 and one of 3
W = np.random.default_rng(3).uniform(0, 2, 43).astype("f4")


class Trained:
    """A model that can begin anew, so that its programs are compiled once."""

    def __init__(self, name: str, factory: Any = Noisy, optimizer: Any = "sgd", **options: Any) -> None:
        self.model = layouts.model_on(name, factory)
        self.model.compile(optimizer, **{"loss": LOSS, "metrics": ["accuracy"]} | options)
        if optimizer == "sgd":
            self.model.optimizer.learning_rate = 0.1
        self._initial = self.model.state

    def fresh(self) -> Any:
        self.model._built.cell.state = jax.tree.map(jax.numpy.copy, self._initial)
        return self.model

    def fit(self, x: Any, y: Any = None, **options: Any) -> tuple[dict[str, Any], list[np.ndarray]]:
        model = self.fresh()
        logs = model.fit(x, y, **{"verbose": 0, "shuffle": False} | options).history
        return logs, model.get_weights()


def assert_same(found: Any, expected: Any) -> None:
    assert found[0] == expected[0]
    for one, other in zip(found[1], expected[1], strict=True):
        np.testing.assert_array_equal(one, other)
