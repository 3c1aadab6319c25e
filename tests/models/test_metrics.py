"""`model.metrics`: the objects that compile was given tell what was measured last."""

from typing import Any

import jax.numpy as jnp
import pytest

import keras_dist as kd
from keras_dist import metrics
from keras_dist.errors import ModelError
from tests import layouts
from tests.networks import LOSS, Plain, blobs

X, Y = blobs(43)


@pytest.fixture(scope="module")
def accuracy() -> metrics.Metric:
    return metrics.SparseCategoricalAccuracy(name="hits")


@pytest.fixture(scope="module")
def model(accuracy: metrics.Metric) -> kd.Model:
    model = layouts.model_on("data=2,model=4", Plain)
    model.compile("sgd", LOSS, metrics=[accuracy], weighted_metrics=["accuracy"])
    return model


def test_before_any_run_they_are_listed_and_their_names_are_not_known(model):
    fresh = kd.Model.from_nnx(Plain, seed=0)
    assert (fresh.metrics, fresh.metrics_names, fresh.get_metrics_result()) == ([], [], {})
    fresh.compile("sgd", LOSS, metrics=["accuracy"])
    fresh.reset_metrics()
    assert fresh.metrics_names == ["loss", "compile_metrics"]
    assert type(fresh.metrics[0]) is metrics.Mean
    assert [metric.name for metric in fresh.metrics[1].metrics] == ["accuracy"]
    with pytest.raises(ModelError, match="have no result yet"):
        fresh.get_metrics_result()
    fresh.compile("sgd", LOSS)
    assert fresh.get_metrics_result() == {"loss": 0.0}


def test_after_fit_they_tell_of_the_last_epoch(model, accuracy):
    history = model.fit(X, Y, batch_size=8, epochs=2, verbose=0).history
    assert float(accuracy.result()) == pytest.approx(history["hits"][-1])
    assert float(model.metrics[0].result()) == pytest.approx(history["loss"][-1])
    assert model.get_metrics_result() == pytest.approx({name: values[-1] for name, values in history.items()})


def test_after_evaluate_they_tell_of_the_evaluation(model, accuracy):
    found = model.evaluate(X[:9], Y[:9], verbose=0, return_dict=True)
    assert model.get_metrics_result() == pytest.approx(found)
    assert float(accuracy.result()) == pytest.approx(found["hits"])
    history = model.fit(X, Y, batch_size=8, verbose=0, validation_data=(X[:9], Y[:9])).history
    assert float(accuracy.result()) == pytest.approx(history["val_hits"][-1])


@pytest.mark.parametrize("method", ["train_on_batch", "test_on_batch"])
def test_after_one_batch_they_tell_of_it(model, method):
    found = getattr(model, method)(X[:7], Y[:7], return_dict=True)
    assert model.get_metrics_result() == pytest.approx(found)


def test_they_can_be_reset_and_the_next_run_begins_anew(model, accuracy):
    before = model.evaluate(X, Y, batch_size=43, verbose=0)
    model.reset_metrics()
    assert set(map(float, model.get_metrics_result().values())) == {0.0}
    assert model.evaluate(X, Y, batch_size=43, verbose=0) == before
    accuracy.update_state(jnp.array([1]), jnp.array([[1.0, 0.0]]))
    assert float(accuracy.result()) < before[1], "goes on from where the evaluation ended"
    assert model.evaluate(X, Y, batch_size=43, verbose=0) == before


def test_a_step_of_ones_own_is_told_of_too():
    def one_step(state, batch, rngs):
        return state, {"d_loss": jnp.mean(batch[0])}

    model = layouts.plain_on("one device")
    model.compile("sgd", LOSS, metrics=["accuracy"], train_step=one_step)
    accuracy = model.metrics[1].metrics[0]
    assert model.evaluate(X, Y, verbose=0)[1] == pytest.approx(float(accuracy.result())) != 0
    history = model.fit(X, verbose=0).history
    assert model.get_metrics_result() == pytest.approx({"loss": 0.0, "d_loss": history["d_loss"][0]})
    assert float(accuracy.result()) == 0.0, "fit has not seen it"


def test_callbacks_read_them_between_batches():
    seen = []

    class Reader(kd.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            seen.append((dict(logs), self.model.get_metrics_result(), float(self.model.metrics[0].result())))

        on_test_batch_end = on_train_batch_end

    model = layouts.plain_on("one device")
    model.compile("sgd", LOSS, metrics=["accuracy"])
    model.fit(X[:40], Y[:40], batch_size=8, epochs=2, verbose=0, validation_data=(X[:16], Y[:16]), callbacks=[Reader()])
    assert len(seen) == 2 * (5 + 2)
    for logs, found, loss in seen:
        assert found == pytest.approx(logs) and loss == pytest.approx(logs["loss"])


def test_those_that_a_model_updates_itself_in_its_loss_are_measured_and_reset():
    class Tracks(kd.Model):
        def __init__(self):
            super().__init__()
            self.dense = kd.layers.Dense(1)
            self.seen = metrics.Mean("seen")

        def call(self, inputs):
            return self.dense(inputs)

        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            loss = ((y - y_pred) ** 2).mean()
            self.seen.update_state(loss)
            return loss

    model = Tracks()
    model.compile(kd.optimizers.SGD(0.0))
    history = model.fit(X, Y[:, None], batch_size=len(X), epochs=2, verbose=0).history
    assert [metric.name for metric in model.metrics] == ["loss", "seen"]
    # the loss is a mean weighted by rows, which may round the last bit otherwise
    assert history["seen"] == pytest.approx(history["loss"], rel=3e-7)
    assert history["seen"][0] == pytest.approx(history["seen"][1])
    assert model.evaluate(X, Y[:, None], len(X), verbose=0, return_dict=True)["seen"] == pytest.approx(
        history["seen"][0]
    )


class Counting(kd.layers.Layer):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.seen = metrics.Mean("seen")

    def call(self, inputs: Any) -> Any:
        self.seen.update_state(inputs)
        return inputs


@pytest.mark.parametrize("method", ["fit", "evaluate", "predict", "__call__"])
def test_an_update_inside_of_call_names_other_ways(method: str) -> None:
    model = kd.Sequential([Counting(name="counting"), kd.layers.Dense(3)])
    model.compile("sgd", "mse")
    x = jnp.ones((8, 3))
    with pytest.raises(ModelError, match="layer 'counting' updates a metric inside of `call`") as caught:
        getattr(model, method)(*((x, x) if method in ("fit", "evaluate") else (x,)))
    for way in ("add_loss", "compile(metrics=", "compute_metrics", "train_step"):
        assert way in caught.value.fix


@pytest.mark.parametrize("names", [["seen"], [], ["seen", "loss"]])
def test_a_model_that_overrides_metrics_logs_these_alone(names: list[str]) -> None:
    class Own(kd.Sequential):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.seen = metrics.Mean("seen")

        @property
        def metrics(self) -> list[Any]:
            known = {metric.name: metric for metric in super().metrics}
            return [known[name] for name in names if name in known]

    model = Own([kd.Input((3,)), kd.layers.Dense(3)])
    model.compile("sgd", "mse", metrics=["mae"])
    x = jnp.ones((8, 3))
    assert {*model.fit(x, x, 4, validation_data=(x, x), verbose=0).history} == {
        *names,
        *(f"val_{one}" for one in names),
    }
    assert {*model.evaluate(x, x, verbose=0, return_dict=True)} == {*names}
