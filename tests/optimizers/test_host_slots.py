"""Slots in host memory are transferred one parameter after another; `tests/training` compares what is trained."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from keras_dist.optimizers.host_slots import is_on_host, on_device, update_in_turn

DEVICE = jax.devices()[0]
HOST = jax.sharding.SingleDeviceSharding(DEVICE, memory_kind="pinned_host")
RANDOM = np.random.default_rng(0)
PARAMS = {name: RANDOM.normal(size=(3, 2)).astype("float32") for name in "abc"}
GRADS = {name: RANDOM.normal(size=(3, 2)).astype("float32") for name in "abc"}


def on_host(state):
    return jax.tree.map(lambda leaf: jax.device_put(leaf, HOST) if jnp.ndim(leaf) else leaf, state)


def updating(optimizer):
    def update(grads, state, params):
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    return update


def events(update, state):
    """Return transfers to the device, to the host, and barriers, in the order of the program."""
    traced = jax.make_jaxpr(lambda *given: update_in_turn(update, *given))(GRADS, state, PARAMS)
    names = {"Device": "in", "Host": "out"}
    found = []
    for equation in traced.jaxpr.eqns:
        if equation.primitive.name == "device_put":
            found += [names[str(each).rpartition(".")[2]] for each in equation.params["devices"]]
        elif equation.primitive.name == "optimization_barrier":
            found.append("wait")
    return found


def test_each_transfer_waits_for_the_update_before_it():
    optimizer = optax.adam(0.1)
    found = events(updating(optimizer), on_host(optimizer.init(PARAMS)))
    one = ["in", "in", "out", "out"]
    later = ["wait", "in", "wait", "in", "out", "out"]
    assert found == [*one, *later, *later]


def test_slots_on_the_device_are_updated_as_they_were():
    optimizer = optax.adam(0.1)
    assert events(updating(optimizer), optimizer.init(PARAMS)) == []


def test_calls_of_the_host_run_once():
    seen = []

    def update(grads, state, params):
        jax.debug.callback(lambda value: seen.append(float(value)), state["a"].sum())
        return jax.tree.map(lambda p, s: p + s, params, state), state

    state = {name: jnp.ones((3, 2)) for name in PARAMS}
    params, _ = jax.jit(lambda *given: update_in_turn(update, *given))(GRADS, on_host(state), PARAMS)
    jax.effects_barrier()
    assert seen == [6.0] and float(params["a"][0, 0]) == pytest.approx(PARAMS["a"][0, 0] + 1)


def test_slots_are_read_on_the_device():
    moved = on_device({"a": jax.device_put(PARAMS["a"], HOST), "b": 1.0})
    assert not is_on_host(moved["a"]) and moved["b"] == 1.0
    np.testing.assert_array_equal(moved["a"], PARAMS["a"])
