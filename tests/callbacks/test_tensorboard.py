"""`TensorBoard`: what is in its files, and what it needs."""

import pathlib
import struct
import sys

import jax
import numpy as np
import optax
import pytest

import keras_dist as kd
from keras_dist.callbacks import LambdaCallback, TensorBoard
from keras_dist.errors import MissingExtraError, ModelError
from tests.networks import Plain, blobs

event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")

LOSS = kd.losses.SparseCategoricalCrossentropy(from_logits=True)
X, Y = blobs(24)


@pytest.fixture(scope="module")
def model():
    model = kd.Model.from_nnx(Plain, seed=0)
    model.compile(kd.optimizers.SGD(0.5), loss=LOSS, metrics=["accuracy"])
    return model


def values(folder):
    """All summaries in the event files of a folder: `(tag, step)` to a value."""
    found = {}
    for file in sorted(pathlib.Path(folder).glob("events.*")):
        data = file.read_bytes()
        while data:
            (length,) = struct.unpack("<Q", data[:8])
            event = event_pb2.Event.FromString(data[12 : 12 + length])
            data = data[16 + length :]
            for value in event.summary.value:
                found[value.tag, event.step] = value
    return found


def scalars(folder):
    return {key: value.simple_value for key, value in values(folder).items() if value.HasField("simple_value")}


def fit(model, callback, **kwargs):
    callbacks = [callback] if isinstance(callback, TensorBoard) else callback
    return model.fit(X, Y, batch_size=8, epochs=2, verbose=0, callbacks=callbacks, **kwargs).history


def test_the_logs_of_epochs(model, tmp_path):
    history = fit(model, TensorBoard(tmp_path), validation_data=(X, Y))
    train = {
        (f"epoch_{name}", epoch): value for name in ("loss", "accuracy") for epoch, value in enumerate(history[name])
    }
    train |= {("epoch_learning_rate", epoch): 0.5 for epoch in range(2)}
    assert scalars(tmp_path / "train") == pytest.approx(train)
    validation = {}
    for name in ("loss", "accuracy"):
        for epoch, value in enumerate(history[f"val_{name}"]):
            validation[f"epoch_{name}", epoch] = validation[f"evaluation_{name}_vs_iterations", 3 * (epoch + 1)] = value
    assert scalars(tmp_path / "validation") == pytest.approx(validation)


@pytest.mark.parametrize(("update_freq", "steps"), [("epoch", []), ("batch", [1, 2, 3, 4, 5, 6]), (2, [2, 4, 6])])
def test_the_logs_of_batches(model, tmp_path, update_freq, steps):
    seen = []
    look = LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(logs))
    fit(model, [look, TensorBoard(tmp_path, update_freq=update_freq)])
    found = {step: value for (tag, step), value in scalars(tmp_path / "train").items() if tag == "batch_loss"}
    assert found == pytest.approx({step: seen[step - 1]["loss"] for step in steps})


def test_logs_of_batches_are_not_read_when_they_are_not_written(model, tmp_path):
    with jax.transfer_guard_device_to_host("disallow"):
        callback = TensorBoard(tmp_path, write_graph=False)
        callback.set_model(model)
        callback.on_train_begin()
        callback.on_train_batch_begin(0)
        callback.on_train_batch_end(0, {"loss": jax.numpy.ones(())})  # pyright: ignore
        callback.on_train_end()


def test_histograms_of_weights_the_speed_and_values_of_several_elements(model, tmp_path):
    add = LambdaCallback(on_epoch_end=lambda epoch, logs: logs.update(f1=np.array([0.25, 0.5])))
    fit(model, [add, TensorBoard(tmp_path, histogram_freq=2, write_steps_per_second=True)])
    found = {key: value.histo for key, value in values(tmp_path / "train").items() if value.HasField("histo")}
    assert found.keys() == {(f"{weight.path}/histogram", 0) for weight in model.weights}
    assert found["d1/kernel/histogram", 0].num == 8 * 16
    written = scalars(tmp_path / "train")
    assert written["epoch_steps_per_second", 1] > 0
    assert (written["epoch_f1_0", 0], written["epoch_f1_1", 0]) == (0.25, 0.5)


@pytest.mark.filterwarnings("ignore:the loss is nan")
def test_weights_that_are_not_finite_do_not_end_training(tmp_path):
    model = kd.Model.from_nnx(Plain, seed=0)
    model.compile("sgd", loss=LOSS)
    fit(model, TensorBoard(tmp_path, histogram_freq=1), sample_weight=np.full(24, 3e38))
    assert not all(np.isfinite(weight).all() for weight in model.get_weights())
    assert ("epoch_loss", 1) in scalars(tmp_path / "train")


@pytest.mark.parametrize("write_graph", [True, False])
def test_the_layout_table(model, tmp_path, write_graph):
    fit(model, TensorBoard(tmp_path, write_graph=write_graph))
    found = [value for (tag, _), value in values(tmp_path / "train").items() if tag.startswith("layout")]
    assert len(found) == write_graph
    if write_graph:
        assert b"d1/kernel" in found[0].tensor.string_val[0]


def test_an_optimizer_that_does_not_tell_its_rate(tmp_path):
    model = kd.Model.from_nnx(Plain, seed=0)
    model.compile(optax.sgd(0.1), loss=LOSS)
    fit(model, TensorBoard(tmp_path))
    assert {tag for tag, _ in scalars(tmp_path / "train")} == {"epoch_loss"}


def test_evaluate_alone(model, tmp_path):
    found = model.evaluate(X, Y, verbose=0, callbacks=[TensorBoard(tmp_path)], return_dict=True)
    assert scalars(tmp_path / "validation")["evaluation_loss_vs_iterations", 0] == pytest.approx(found["loss"])


@pytest.mark.parametrize("window", [(2, 4), "2,4", 6, (5, 100)])
def test_a_profile(model, tmp_path, monkeypatch, window):
    """Started before the first step of the window, ended after its last one, or with the training."""
    events = []
    monkeypatch.setattr(jax.profiler, "start_trace", lambda folder: events.append(folder))
    monkeypatch.setattr(jax.profiler, "stop_trace", lambda: events.append("stop"))
    step = LambdaCallback(on_train_batch_begin=lambda batch, logs: events.append("step"))
    fit(model, [TensorBoard(tmp_path, profile_batch=window), step])
    first = 6 if window == 6 else 5 if window == (5, 100) else 2
    last = 4 if first == 2 else 6
    expected = ["step"] * 6
    expected.insert(last, "stop")
    expected.insert(first - 1, str(tmp_path / "train"))
    assert events == expected


def drive_executions(callback, model, *executions):
    """Drive the batch hooks of two epochs by hand, with the first and the last batch of each execution."""
    callback.set_model(model)
    callback.on_train_begin()
    for epoch in range(2):
        callback.on_epoch_begin(epoch)
        for first, last in executions:
            callback.on_train_batch_begin(first)
            callback.on_train_batch_end(last, {"loss": 1.0})
        callback.on_epoch_end(epoch, {})
    callback.on_train_end()


def test_batches_are_counted_by_their_numbers_not_by_calls(model, tmp_path):
    drive_executions(TensorBoard(tmp_path, update_freq=4), model, (0, 2), (3, 5), (6, 6))
    found = sorted(step for tag, step in scalars(tmp_path / "train") if tag == "batch_loss")
    assert found == [6, 10, 13]


@pytest.mark.parametrize(("window", "expected"), [((2, 3), [4, 6]), ((4, 5), [4, 6]), ((5, 8), [7, 10])])
def test_a_profile_is_of_whole_executions(model, tmp_path, monkeypatch, window, expected):
    steps = []
    callback = TensorBoard(tmp_path, profile_batch=window)
    monkeypatch.setattr(jax.profiler, "start_trace", lambda folder: steps.append(callback._steps + 1))
    monkeypatch.setattr(jax.profiler, "stop_trace", lambda: steps.append(callback._steps))
    drive_executions(callback, model, (0, 2), (3, 5), (6, 6))
    assert steps == expected


@pytest.mark.slow
def test_a_profile_is_written(model, tmp_path):
    fit(model, TensorBoard(tmp_path, profile_batch=(2, 3)))
    assert list((tmp_path / "train" / "plugins" / "profile").rglob("*.xplane.pb"))


def test_only_the_first_process_writes(model, tmp_path, monkeypatch):
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    callback = TensorBoard(tmp_path, update_freq=1, histogram_freq=1, profile_batch=1)
    callback.set_model(model)
    callback.on_train_begin()
    callback.on_train_batch_begin(0)
    callback.on_train_batch_end(0, {"loss": 1.0})
    callback.on_test_end({"loss": 1.0})
    callback.on_epoch_end(0, {"loss": 1.0})
    callback.on_train_end()
    assert not list(tmp_path.iterdir())


def test_without_tensorboardx(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(MissingExtraError, match="needs the package tensorboardX") as error:
        TensorBoard()
    assert error.value.fix == "pip install tensorboardX"


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("write_images", True),
        ("embeddings_freq", 1),
        ("embeddings_metadata", "words.tsv"),
        ("histogram_freq", -1),
        ("update_freq", "step"),
        ("profile_batch", (20, 10)),
        ("profile_batch", "ten"),
        ("profile_batch", True),
    ],
)
def test_arguments_that_cannot_be_used(argument, value):
    with pytest.raises(ModelError, match=argument) as error:
        TensorBoard(**{argument: value})
    assert repr(value) in error.value.given
