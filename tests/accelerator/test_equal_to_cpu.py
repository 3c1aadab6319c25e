"""What runs on the devices that are here equals what runs on one CPU device; `make accelerator` has GPUs and TPUs.

Matrices are multiplied in full precision, so that sums differ in their order alone. One test has the default precision,
which is bfloat16 on TPUs and TF32 on GPUs.
"""

import jax
import numpy as np
import pytest

import keras_dist as kd
from keras_dist import layers
from keras_dist.pretrained import AttentionConfig, Decoder, DecoderConfig, FeedForwardConfig, Rotary

pytestmark = pytest.mark.accelerator

TOLERANCE = 1e-4  # of the largest number, after some steps
AT_DEFAULT = 3e-2


def assert_equal_to_cpu(program, tolerance=TOLERANCE, precision="highest", **layout):
    """`program()` returns arrays under the distribution that it is called in."""
    here = [np.asarray(each, "float32") for each in on(jax.devices(), program, precision, layout)]
    cpu = [np.asarray(each, "float32") for each in on(jax.devices("cpu")[:1], program, precision, {})]
    assert len(here) == len(cpu) > 0
    for mine, theirs in zip(here, cpu, strict=True):
        assert np.isfinite(mine).all()
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=tolerance * np.abs(theirs).max())


def on(devices, program, precision, layout):
    kd.utils.set_random_seed(7)
    mesh = kd.DeviceMesh("data=-1", devices=devices)
    strategy = layout.get("strategy", kd.DataParallel)(mesh)
    with jax.default_matmul_precision(precision), jax.default_device(devices[0]), strategy.scope():
        return program()


def trained(network, x, y, loss="mse", optimizer="sgd", rows=16, epochs=2, **fit):
    model = kd.Sequential([kd.Input(x.shape[1:], dtype=x.dtype), *network])
    model.compile(optimizer, loss, steps_per_execution=1)
    losses = model.fit(x, y, batch_size=rows, epochs=epochs, verbose=0, shuffle=False, **fit).history["loss"]
    return [np.array(losses), *model.get_weights(), model.predict(x, verbose=0)]


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


@pytest.mark.parametrize("strategy", [kd.DataParallel, kd.FullySharded])
def test_dense_layers(strategy):
    x, y = numbers(64, 24), numbers(64, 8, seed=1)
    assert_equal_to_cpu(lambda: trained([layers.Dense(512, "gelu"), layers.Dense(8)], x, y), strategy=strategy)


def test_default_precision():
    x, y = numbers(64, 24), numbers(64, 8, seed=1)
    assert_equal_to_cpu(lambda: trained([layers.Dense(512, "gelu"), layers.Dense(8)], x, y)[:1], AT_DEFAULT, "default")


def test_partial_batches():
    x, y = numbers(51, 24), numbers(51, 8, seed=1)
    assert_equal_to_cpu(lambda: trained([layers.Dense(32, "relu"), layers.BatchNormalization(), layers.Dense(8)], x, y))


def test_dropout_drops_the_same():
    x, y = numbers(64, 24), numbers(64, 8, seed=1)
    assert_equal_to_cpu(lambda: trained([layers.Dense(64, "relu"), layers.Dropout(0.5), layers.Dense(8)], x, y))


def test_recurrent_layers():
    x, y = numbers(32, 12, 8), numbers(32, 4, seed=1)
    assert_equal_to_cpu(
        lambda: trained([layers.LSTM(16, return_sequences=True), layers.GRU(16), layers.Dense(4)], x, y)
    )


def test_convolutions():
    x, y = numbers(32, 16, 16, 3), numbers(32, 4, seed=1)

    def program():
        convolutions = layers.Conv2D(8, 3, activation="relu"), layers.DepthwiseConv2D(3), layers.MaxPooling2D()
        return trained([*convolutions, layers.GlobalAveragePooling2D(), layers.Dense(4)], x, y)

    assert_equal_to_cpu(program)


def test_a_checkpoint_goes_on(tmp_path):
    x, y = numbers(64, 24), numbers(64, 8, seed=1)

    def program():
        folder = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        network = lambda: [layers.Dense(32, "relu"), layers.Dense(8)]  # noqa: E731
        kd.utils.set_random_seed(7)
        expected = trained(network(), x, y, epochs=4)
        for seed, epochs in ((7, 2), (8, 4)):
            kd.utils.set_random_seed(seed)
            kept = kd.callbacks.BackupAndRestore(folder, delete_checkpoint=False)
            found = trained(network(), x, y, epochs=epochs, callbacks=[kept])
        for mine, whole in zip(found, expected, strict=True):
            np.testing.assert_array_equal(mine, whole)
        return found

    assert_equal_to_cpu(program)


def decoder(dtype="float32"):
    attention = AttentionConfig(num_heads=4, num_kv_heads=2, head_dim=16, rotary=Rotary(), window=8)
    sizes = {"vocab_size": 96, "hidden_size": 64, "num_layers": 2}
    config = DecoderConfig(family="llama", **sizes, attention=attention, feed_forward=FeedForwardConfig(128))
    model = Decoder(config, scan=True, initializer="glorot_uniform", dtype=dtype)
    model.build()
    return model


def tokens(rows=16, length=24):
    return np.random.default_rng(0).integers(0, 96, (rows, length)).astype("int32")


def test_adapters_are_trained_alone():
    def program():
        model = decoder()
        model.enable_lora(4, layers=".*(query|value)")
        model.compile("sgd", kd.losses.SparseCategoricalCrossentropy(from_logits=True))
        inputs = tokens(length=25)
        losses = model.fit(inputs[:, :-1], inputs[:, 1:], batch_size=16, epochs=3, verbose=0).history["loss"]
        return [np.array(losses), *(weight.numpy() for weight in model.trainable_variables)]

    assert_equal_to_cpu(program)


def test_generated_tokens():
    assert_equal_to_cpu(lambda: kd.generate(decoder(), list(tokens(length=9)), max_new_tokens=12), tolerance=0)


def test_bfloat16_by_kernels():
    """Attention by the kernel of the platform, where there is one."""

    def program():
        return [decoder("bfloat16").predict(tokens(), verbose=0)]

    assert_equal_to_cpu(program, AT_DEFAULT, "default")


@pytest.mark.parametrize("axes", [(None, "model"), ("model", None)])
def test_weights_over_an_axis(axes):
    """Megatron's layouts on the devices that are here, in two axes where these are even."""
    x, y = numbers(64, 24), numbers(64, 8, seed=1)

    def strategy(mesh):
        devices = mesh.backend_mesh.devices.ravel()
        shape = f"data=2,model={len(devices) // 2}" if len(devices) % 2 == 0 else f"data=1,model={len(devices)}"
        rules = kd.LayoutMap(kd.DeviceMesh(shape, devices=devices))
        rules["dense/kernel"] = axes
        return kd.ModelParallel(rules, "data")

    network = lambda: [layers.Dense(512, "gelu", name="dense"), layers.Dense(8)]  # noqa: E731
    assert_equal_to_cpu(lambda: trained(network(), x, y), strategy=strategy)
