"""`fit`, `evaluate` and `predict` on data sets: the numbers of arrays, and no batch too many."""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest
import scipy.sparse

import keras_dist as kd
from keras_dist.errors import DataError
from tests import layouts
from tests.networks import Plain, TwoInputs
from tests.soak import LARGE, repeated
from tests.sources import BATCHED, BY_NUMBER, ONCE, Batches, Endless, Examples, Refilled, TorchLoader, cut
from tests.training.trained import Trained, W, X, Y, assert_same

MESHES = ["data=4,model=2", *["one device", "data=8,model=1", "data=2,model=4"] * LARGE]


@pytest.fixture(scope="module", params=MESHES)
def noisy(request: pytest.FixtureRequest) -> Trained:
    """With Dropout and statistics of batches."""
    return Trained(request.param, steps_per_execution=1)


@repeated
class TestSameNumbers:
    """Bit for bit those of arrays."""

    def test_batches(self, noisy):
        options: dict[str, Any] = {"epochs": 2, "validation_data": (X[:11], Y[:11], W[:11]), "validation_batch_size": 8}
        expected = noisy.fit(X, Y, sample_weight=W, batch_size=8, **options)
        scores = noisy.model.evaluate(X, Y, sample_weight=W, batch_size=8, verbose=0)
        rows = noisy.model.predict(X, batch_size=8, verbose=0)
        for kind, make in BATCHED.items():
            steps = {"steps_per_epoch": 6} if kind in ONCE else {}
            arrays = jax.tree.map(lambda leaf: np.concatenate([leaf, leaf]), (X, Y, W)) if steps else (X, Y, W)
            data = iter(cut((X, Y, W), 8) * 2) if steps else make(arrays, 8)
            assert_same(noisy.fit(data, **steps, **options), expected)
            assert noisy.model.evaluate(make((X, Y, W), 8), verbose=0) == scores, kind
            np.testing.assert_array_equal(noisy.model.predict(make((X, Y, W), 8), verbose=0), rows, err_msg=kind)
            np.testing.assert_array_equal(noisy.model.predict(make(X, 8), verbose=0), rows, err_msg=kind)

    @pytest.mark.first_cases(1)
    @pytest.mark.parametrize("shuffle", [False, True])
    def test_examples_and_matrices(self, noisy, shuffle):
        def fit(x: Any, y: Any = None) -> Any:
            model = noisy.fresh()
            logs = model.fit(x, y, batch_size=8, epochs=2, verbose=0, shuffle=shuffle, seed=5).history
            return logs, model.get_weights()

        expected = fit(X, Y)
        scores = noisy.model.evaluate(X, Y, batch_size=8, verbose=0)
        rows = noisy.model.predict(X, batch_size=8, verbose=0)
        sources = [(make((X, Y)),) for make in BY_NUMBER.values()]
        for source in [*sources, (scipy.sparse.csr_array(X), Y)]:
            assert_same(fit(*source), expected)
            assert noisy.model.evaluate(*source, batch_size=8, verbose=0) == scores
            np.testing.assert_array_equal(noisy.model.predict(source[0], batch_size=8, verbose=0), rows)

    def test_dicts_in_and_out(self):
        def loss(y_true: Any, y_pred: Any) -> Any:
            return kd.losses.MeanSquaredError()(y_true, y_pred["sum"] + y_pred["parts"][0])

        model = layouts.model_on("one device", TwoInputs)
        model.compile("sgd", loss=loss, steps_per_execution=1)
        x, y = {"b": X[:, :2], "a": X}, X[:, :3]
        expected, rows = model.evaluate(x, y, batch_size=8, verbose=0), model.predict(x, batch_size=8, verbose=0)
        for data in (Refilled((x, y), 8), Batches((x, y), 8), BATCHED["torch"]((x, y), 8), Examples((x, y))):
            size: Any = {"batch_size": 8} if isinstance(data, Examples) else {}
            assert model.evaluate(data, verbose=0, **size) == expected
            found = model.predict(data, verbose=0, **size)
            jax.tree.map(np.testing.assert_array_equal, found, rows)


@repeated
class TestUneven:
    """Batches of any lengths give the steps of one device."""

    LENGTHS = (8, 3, 3, 8)
    STARTS = np.cumsum((0, *LENGTHS))

    @classmethod
    def batches(cls) -> Iterator[Any]:
        for start, stop in zip(cls.STARTS, cls.STARTS[1:], strict=False):
            yield X[start:stop], Y[start:stop], W[start:stop]

    def test_steps(self, noisy):
        uneven = self.results(Trained("one device", steps_per_execution=1))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), self.results(noisy), uneven)
        rows = noisy.model.predict(X[:19], batch_size=8, verbose=0)
        np.testing.assert_allclose(rows, uneven[3][:19], atol=1e-6)

    @classmethod
    def results(cls, trained: Trained) -> Any:
        logs, weights = trained.fit(cls.batches())
        scores = trained.model.evaluate(cls.batches(), verbose=0)
        return logs["loss"], weights, scores, trained.model.predict((x for x, _, _ in cls.batches()), verbose=0)

    def test_the_loss_of_an_epoch_weighs_rows_and_not_batches(self, model):
        model.optimizer.learning_rate = 0.0
        try:
            (loss,) = model.fit(((x, y) for x, y, _ in self.batches()), verbose=0).history["loss"]
        finally:
            model.optimizer.learning_rate = 0.1
        assert loss == pytest.approx(model.evaluate(X[:22], Y[:22], batch_size=8, verbose=0)[0], abs=1e-6)


class Counted:
    """An endless iterator that counts."""

    def __init__(self) -> None:
        self.drawn = 0

    def __iter__(self) -> "Counted":
        return self

    def __next__(self) -> Any:
        self.drawn += 1
        return cut((X, Y), 8)[(self.drawn - 1) % 5]


class TestSteps:
    def test_exactly_what_is_needed_is_drawn(self, model):
        generator = Counted()
        model.fit(generator, steps_per_epoch=3, epochs=2, verbose=0)
        assert generator.drawn == 6
        model.evaluate(generator, steps=2, verbose=0)
        assert generator.drawn == 8
        assert model.predict(generator, steps=4, verbose=0).shape == (32, 4)
        assert generator.drawn == 12
        model.fit(X, Y, validation_data=generator, validation_steps=2, epochs=3, verbose=0)
        assert generator.drawn == 14, "two batches, which are kept"

    def test_no_batch_is_drawn_before_its_step(self, model):
        generator, ahead = Counted(), []

        class Look(kd.callbacks.Callback):
            def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
                ahead.append(generator.drawn - 3 * epoch)

            def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
                ahead.append(generator.drawn - 3 * (len(ahead) // 4) - batch)

        model.fit(generator, steps_per_epoch=3, epochs=2, verbose=0, callbacks=[Look()])
        assert ahead == [1] * 8  # of the first batch of an epoch it is known before whether there is one

    def test_stopping_draws_no_more(self, model):
        class Stop(kd.callbacks.Callback):
            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                self.model.stop_training = batch == 1

        generator = Counted()
        model.fit(generator, steps_per_epoch=5, verbose=0, callbacks=[Stop()])
        assert generator.drawn == 2

    def test_prefetching_draws_so_many_more_and_never_beyond_the_last_step(self):
        ahead: list[int] = []
        generator = Counted()

        class Look(kd.callbacks.Callback):
            def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
                ahead.append(generator.drawn - batch)

        model = Trained("one device", Plain, steps_per_execution=1, prefetch=4).model
        model.fit(generator, steps_per_epoch=6, verbose=0, callbacks=[Look()])
        assert ahead == [3, 3, 3, 3, 2, 1]
        assert generator.drawn == 6

    def test_an_endless_source(self, one_device):
        expected = one_device.fit(iter(cut((X[:40], Y[:40]), 8) * 2), steps_per_epoch=5, epochs=2)
        for source in (Endless((X[:40], Y[:40]), 8), BATCHED["tf.data"]((X[:40], Y[:40]), 8)):
            assert_same(one_device.fit(source, steps_per_epoch=5, epochs=2), expected)
        _, weights = one_device.fit(Endless((X[:40], Y[:40]), 8), steps_per_epoch=10, epochs=1)
        assert_same((expected[0], weights), expected)
        with pytest.raises(DataError, match="`steps_per_epoch` is missing"):
            one_device.model.fit(Endless((X, Y), 8), verbose=0)
        with pytest.raises(DataError, match="`validation_steps` is missing"):
            one_device.model.fit(X, Y, validation_data=Endless((X, Y), 8), verbose=0)
        for method in (one_device.model.evaluate, one_device.model.predict):
            with pytest.raises(DataError, match="`steps` is missing"):
                method(Endless((X, Y), 8), verbose=0)

    @pytest.mark.parametrize(("batches", "epochs", "after"), [(7, 2, [3, 0]), (8, 2, [0]), (3, 1, [3, 0])])
    def test_an_iterator_that_ends_early_ends_the_epoch_with_a_warning(self, model, batches, epochs, after):
        data = iter((cut((X, Y), 8)[:5] * 2)[:batches])
        with pytest.warns(UserWarning, match="Your input ran out of data") as caught:
            history = model.fit(data, steps_per_epoch=4, epochs=4, verbose=0)
        assert len(history.history["loss"]) == epochs
        told = [str(warning.message).split("ends after ")[1].split()[0] for warning in caught]
        assert told == [str(count) for count in after]

    @pytest.mark.parametrize("method", ["evaluate", "predict"])
    def test_so_do_those_that_do_not_train(self, model, method):
        for data in (iter(cut((X, Y), 8)), TorchLoader((X, Y), 8), Batches((X, Y), 8)):
            with pytest.warns(UserWarning, match="an epoch of 9 steps ends after 6"):
                found = getattr(model, method)(data, steps=9, verbose=0)
            np.testing.assert_array_equal(found, getattr(model, method)(Batches((X, Y), 8), verbose=0))

    def test_the_first_steps_are_evaluated(self, model):
        expected = model.evaluate(X[:16], Y[:16], batch_size=8, verbose=0)
        for _ in range(2):
            loader = TorchLoader((X, Y), 8)
            assert model.evaluate(loader, steps=2, verbose=0) == expected
            assert loader.drawn == 2
        assert model.evaluate(Examples((X, Y)), batch_size=8, steps=2, verbose=0) == expected


class TestEpochsOfPyDatasets:
    """As Keras: the callbacks hear of an epoch before the data set, and of its end after it."""

    def log_of(self, model: Any, stop: bool = False, **options: Any) -> list[Any]:
        data = Batches((X[:24], Y[:24]), 8)

        class Look(kd.callbacks.Callback):
            def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
                data.log.append(f"callback begin {epoch}")

            def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
                data.log.append(f"callback end {epoch}")
                self.model.stop_training = stop

        model.fit(data, shuffle=False, verbose=0, callbacks=[Look()], **options)
        assert data.log.pop(0) == 0  # the first batch tells the structure of all
        return data.log

    def test_epochs(self, model):
        expected: list[Any] = []
        for epoch in range(2):
            expected += [f"callback begin {epoch}", "begin", 0, 1, 2, "end", f"callback end {epoch}"]
        assert self.log_of(model, epochs=2) == expected
        assert self.log_of(model, stop=True, epochs=2) == expected[:7]

    @pytest.mark.filterwarnings("ignore:Your input ran out of data")
    def test_of_so_many_steps(self, model):
        assert [entry for entry in self.log_of(model, epochs=3, steps_per_epoch=2) if "callback" not in str(entry)] == [
            *("begin", 0, 1, "end"),
            *("begin", 2, "end"),
            *("begin", 0, 1, "end"),
        ]

    def test_of_evaluation_and_prediction(self, model):
        for method in (model.evaluate, model.predict):
            data = Batches((X[:24], Y[:24]), 8)
            method(data, verbose=0)
            assert data.log == [0, "begin", 0, 1, 2, "end"]

    def test_batches_are_shuffled_and_rows_are_not(self, model):
        def order(**options: Any) -> list[int]:
            data = Batches((X, Y), 1)
            model.fit(data, epochs=2, verbose=0, **options)
            return [number for number in data.log[1:] if isinstance(number, int)]

        found = order(seed=1)
        assert sorted(found[:43]) == sorted(found[43:]) == list(range(43)) != found[:43] != found[43:]
        assert found[:43] != found[43:]
        assert order(seed=1) == found != order(seed=2)
        assert order(shuffle=False) == [*range(43), *range(43)]

    def test_keras_has_the_same(self, model, keras):
        class Theirs(keras.utils.PyDataset):
            def __len__(self) -> int:
                return 6

            def __getitem__(self, index: int) -> Any:
                return cut((X, Y), 8)[index]

        assert model.evaluate(Theirs(), verbose=0) == model.evaluate(Batches((X, Y), 8), verbose=0)
        assert model.evaluate(Theirs(workers=2), verbose=0) == model.evaluate(Batches((X, Y), 8), verbose=0)


class TestWeights:
    def test_of_classes(self, one_device):
        weights = {0: 2.0, 2: 0.5}
        expected = one_device.fit(X, Y, batch_size=8, class_weight=weights)
        assert expected[0] != one_device.fit(X, Y, batch_size=8)[0]
        for kind in ("torch", "PyDataset", "generator"):
            assert_same(one_device.fit(BATCHED[kind]((X, Y), 8), class_weight=weights), expected)

    def test_they_do_not_count_in_validation(self, one_device):
        logs = one_device.fit(Batches((X, Y), 8), class_weight={0: 9.0}, validation_data=Batches((X, Y), 8))[0]
        assert logs["val_loss"] == [one_device.model.evaluate(X, Y, batch_size=8, verbose=0)[0]]

    def test_of_examples_are_the_third_element(self, one_device):
        plain = one_device.fit(Batches((X, Y), 8))
        weighted = one_device.fit(Batches((X, Y, W), 8))
        assert weighted[0] != plain[0]
        assert_same(one_device.fit(Batches((X, Y, np.ones_like(W)), 8)), plain)
        with pytest.raises(DataError, match="`class_weight` and `sample_weight`"):
            one_device.fit(Batches((X, Y, W), 8), class_weight={0: 2.0})


class TestValidation:
    def test_data_sets(self, one_device):
        arrays = X[:21], Y[:21]
        expected = one_device.fit(X, Y, batch_size=8, validation_data=arrays)
        for data in (Refilled(arrays, 8), Batches(arrays, 8), iter(cut(arrays, 8)), Examples(arrays)):
            assert_same(one_device.fit(X, Y, batch_size=8, validation_data=data), expected)

    def still(self, one_device, **options):
        """The losses of evaluations of a model that does not learn."""
        model = one_device.fresh()
        model.optimizer.learning_rate = 0.0
        try:
            return model.fit(X, Y, **{"verbose": 0} | options).history["val_loss"]
        finally:
            model.optimizer.learning_rate = 0.1

    @pytest.mark.parametrize(
        ("kind", "options"),
        [("generator", {}), ("refilled", {"validation_freq": [1, 4]}), ("PyDataset", {"validation_freq": 2})],
    )
    def test_every_evaluation_sees_the_same_batches(self, one_device, kind, options):
        data = BATCHED[kind]((X, Y), 8)
        if kind == "refilled":
            data = iter(data)  # which gives each batch in the same memory, once
        values = self.still(one_device, validation_data=data, validation_steps=2, epochs=4, **options)
        first = one_device.model.evaluate(X[:16], Y[:16], batch_size=8, verbose=0)[0]
        assert values == [first] * (2 if options else 4)

    def test_a_generator_that_ends_before(self, one_device):
        data = iter(cut((X[:24], Y[:24]), 8))
        with pytest.warns(UserWarning, match="an epoch of 4 steps ends after 3"):
            values = self.still(one_device, validation_data=data, validation_steps=4, epochs=3)
        assert values == [one_device.model.evaluate(X[:24], Y[:24], batch_size=8, verbose=0)[0]] * 3

    def test_a_generator_of_one_evaluation_needs_no_steps(self, one_device):
        options: dict[str, Any] = {"validation_freq": 2, "epochs": 3}
        values = self.still(one_device, validation_data=iter(cut((X, Y), 8)), **options)
        assert values == [one_device.model.evaluate(X, Y, batch_size=8, verbose=0)[0]]
        with pytest.raises(DataError, match="`validation_steps` is missing"):
            self.still(one_device, validation_data=iter(cut((X, Y), 8)), epochs=2)
