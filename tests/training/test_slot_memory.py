"""`compile(slot_memory="pinned_host")`: the same numbers, with optimizer slots in the memory of the host."""

import copy

import jax
import numpy as np
import pytest

import keras_dist as kd
from keras_dist import layers, optimizers
from keras_dist.errors import DeviceError, ModelError

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(24, 8)).astype("float32")
Y = X.sum(1, keepdims=True)
STRATEGIES = {
    "data": kd.DataParallel,
    "zero1": lambda: kd.DataParallel(shard_optimizer=True),
    "fsdp": lambda: kd.FullySharded(kd.DeviceMesh("data=4,model=2")),
}


def made(strategy="fsdp", memory="pinned_host", optimizer=None, kind=kd.Sequential, **options):
    kd.set_random_seed(0)
    with STRATEGIES[strategy]().scope():
        model = kind([kd.Input((8,)), layers.Dense(16, "relu"), layers.Dropout(0.1), layers.Dense(1)])
    model.compile(optimizers.Adam(0.01) if optimizer is None else optimizer, "mse", slot_memory=memory, **options)
    return model


def fitted(model, **options):
    return model.fit(X, Y, batch_size=10, epochs=2, verbose=0, **options).history


def kinds(model):
    return [each.value.sharding.memory_kind for each in model.optimizer.variables if each.shape]


def are_equal(one, other):
    return all(np.array_equal(a, b) for a, b in zip(one.get_weights(), other.get_weights(), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_losses_and_weights_are_equal_bit_for_bit(strategy):
    plain, model = made(strategy, None), made(strategy)
    assert fitted(plain) == fitted(model) and are_equal(plain, model)
    assert {*kinds(model)} == {"pinned_host"} and {*kinds(plain)} == {"device"}
    for one, other in zip(plain.optimizer.variables, model.optimizer.variables, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())


def averaged():
    return optimizers.SGD(0.01, momentum=0.9, global_clipnorm=0.5, use_ema=True, gradient_accumulation_steps=2)


@pytest.mark.slow
def test_averages_and_accumulated_gradients_too():
    options = {"report": ["gradient_norm"], "steps_per_execution": 1}
    plain, model = (made("data", memory, averaged(), **options) for memory in (None, "pinned_host"))
    swap = [kd.callbacks.SwapEMAWeights(swap_on_epoch=True)]
    before, after = fitted(plain), fitted(model, callbacks=swap)
    assert {name: after[name] for name in ("loss", "gradient_norm")} == {
        name: before[name] for name in ("loss", "gradient_norm")
    }
    assert are_equal(plain, model) and {*kinds(model)} == {"pinned_host"}


class KerasStep(kd.Sequential):
    """Trains by Keras's protocol."""

    def train_step(self, state, data):
        trainable, rest, slots, metrics = state
        x, y = data

        def loss_of(trainable):
            outputs, after = self.stateless_call(trainable, rest, x, training=True)
            return ((outputs - y) ** 2).mean(), after

        (loss, after), grads = jax.value_and_grad(loss_of, has_aux=True)(trainable)
        trainable, slots = self.optimizer.stateless_apply(slots, grads, trainable)
        return {"loss": loss}, (trainable, after, slots, metrics)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"kind": KerasStep}, {"run_eagerly": True}], ids=["keras", "eager"])
def test_other_steps(options):
    plain, model = made(memory=None, **options), made(**options)
    assert fitted(plain) == fitted(model) and are_equal(plain, model)
    assert {*kinds(model)} == {"pinned_host"}


@pytest.mark.slow
def test_a_step_of_the_user_applies_gradients():
    model = made()

    def train_step(state, batch, rngs):
        del rngs
        x, y, _ = batch
        loss, grads = jax.value_and_grad(lambda each: ((model.merge(each, state.rest)(x) - y) ** 2).mean())(
            state.trainable
        )
        return model.apply_gradients(state, grads), {"loss": loss}

    model.compile(optimizers.Adam(0.01), "mse", train_step=train_step, slot_memory="pinned_host")
    losses = fitted(model)["loss"]
    assert losses[1] < losses[0] and {*kinds(model)} == {"pinned_host"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["model.keras", "folder"])
def test_saved_slots_return_to_the_host(name, tmp_path):
    model = made()
    fitted(model)
    model.save(tmp_path / name)
    with model.distribution.scope():
        loaded = kd.models.load_model(tmp_path / name)
    assert {*kinds(loaded)} == {"pinned_host"}
    for one, other in zip(model.optimizer.variables, loaded.optimizer.variables, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())
    assert model.train_on_batch(X, Y) == loaded.train_on_batch(X, Y) and are_equal(model, loaded)


@pytest.mark.slow
def test_a_resumed_training_has_them_on_the_host(tmp_path):
    whole = made()
    losses = fitted(whole)["loss"]

    def backup():
        return [kd.callbacks.BackupAndRestore(tmp_path, delete_checkpoint=False)]

    made().fit(X, Y, batch_size=10, epochs=1, verbose=0, callbacks=backup())
    resumed = made()
    assert resumed.fit(X, Y, batch_size=10, epochs=2, verbose=0, callbacks=backup()).history["loss"] == losses
    assert are_equal(whole, resumed) and {*kinds(resumed)} == {"pinned_host"}


def test_slots_move_with_the_model_and_with_compile():
    model = made()
    fitted(model)
    variables = [each.numpy() for each in model.optimizer.variables]
    model.redistribute(kd.DataParallel())
    assert {*kinds(model)} == {"pinned_host"} == {*kinds(copy.deepcopy(model))}
    model.compile(model.optimizer, "mse")
    assert {*kinds(model)} == {"device"}
    model.compile(model.optimizer, "mse", slot_memory="pinned_host")
    assert {*kinds(model)} == {"pinned_host"}
    for before, after in zip(variables, model.optimizer.variables, strict=True):
        np.testing.assert_array_equal(before, after.numpy())
    model.optimizer.variables[-1].assign(np.ones_like(variables[-1]))
    assert {*kinds(model)} == {"pinned_host"}


def test_the_summary_names_the_memory(capsys):
    made().summary()
    assert "Optimizer params in pinned_host" in capsys.readouterr().out


def test_mistakes(monkeypatch):
    with pytest.raises(ModelError, match="did you mean 'pinned_host'"):
        made(memory="host")
    model = made(memory=None)
    device = type(jax.devices()[0])
    monkeypatch.setattr(device, "addressable_memories", lambda self: [self.default_memory()])
    with pytest.raises(DeviceError, match="have no memory 'pinned_host'\n  given:    device cpu:0 with memory device"):
        model.compile("adam", "mse", slot_memory="pinned_host")
