"""Modules that factories make inside of a trace."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from keras_dist.training.graph import trace_factory


class Dropping(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.dense, self.drop = nnx.Linear(4, 4, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.drop(self.dense(x))


def test_counts_are_replaced_without_asking_for_shardings(monkeypatch: pytest.MonkeyPatch) -> None:
    # `count[...] = value` asks; the answer for a traced value is an error as long as the trace
    options: list[dict[str, Any]] = []
    set_value = nnx.Variable.set_value
    monkeypatch.setattr(
        nnx.RngCount, "set_value", lambda *args, **given: (options.append(given), set_value(*args, **given))
    )
    graph, init = trace_factory(Dropping, None)
    jax.eval_shape(lambda state: nnx.merge(graph.graphdef, state)(jnp.ones((2, 4))), jax.eval_shape(init, np.uint32(7)))
    assert options and not any(options)
