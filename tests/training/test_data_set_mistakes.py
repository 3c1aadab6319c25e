"""Data sets that raise, change, run out or are given in the wrong place: the errors say where, and harm nothing."""

import gc
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import keras_dist as kd
from keras_dist.errors import DataError
from tests.networks import Plain
from tests.soak import few
from tests.sources import Batches, Examples, cut
from tests.training.trained import Trained, W, X, Y, assert_same


class TestMistakes:
    """They say where, and the model goes on."""

    @pytest.mark.first_cases(1)
    @pytest.mark.parametrize("place", ["fit", "evaluate", "predict", "validation"])
    def test_a_source_that_raises_leaves_the_model_usable(self, one_device, place):
        def broken() -> Iterator[Any]:
            yield from cut((X[:16], Y[:16]), 8)
            raise OSError("no disk")

        model = one_device.fresh()
        with pytest.raises(OSError, match="no disk") as caught:
            if place == "validation":
                model.fit(X, Y, validation_data=broken(), verbose=0)
            else:
                getattr(model, place)(broken(), verbose=0)
        name = "validation " if place == "validation" else ""
        assert any(f"in batch 2 of {name}<generator object" in note for note in caught.value.__notes__)
        model.optimizer.learning_rate = 0.1
        expected = Trained("one device", Plain, steps_per_execution=1)
        if place == "fit":  # the steps before were taken
            _, weights = expected.fit(X[:16], Y[:16], batch_size=8)
            for one, other in zip(model.get_weights(), weights, strict=True):
                np.testing.assert_array_equal(one, other)
        assert_same(one_device.fit(X, Y, batch_size=8), expected.fit(X, Y, batch_size=8))

    @pytest.mark.slow
    @pytest.mark.parametrize("workers", few([1, 2], 2))
    def test_threads_end_with_the_run(self, model, workers):
        class Broken(Batches):
            def __getitem__(self, index: int) -> Any:
                if index == 2:
                    raise OSError("no disk")
                return super().__getitem__(index)

        class Stop(kd.callbacks.Callback):
            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                self.model.stop_training = True

        before = threading.active_count()
        for _ in range(3):
            with pytest.raises(OSError, match="no disk"):
                model.fit(Broken((X, Y), 8, workers=workers), shuffle=False, verbose=0)
            model.fit(Batches((X, Y), 8, workers=workers), verbose=0, callbacks=[Stop()])
            model.fit(Examples((X, Y)), batch_size=8, verbose=0, callbacks=[Stop()])
        gc.collect()
        for _ in range(100):
            if threading.active_count() <= before:
                break
            time.sleep(0.05)
        assert threading.active_count() <= before

    def test_targets_are_missing(self, model):
        for data in (iter([X]), Batches(X, 8), Examples(X)):
            with pytest.raises(DataError, match="y is missing"):
                model.fit(data, verbose=0)
            with pytest.raises(DataError, match="y is missing"):
                model.evaluate(Batches(X, 8), verbose=0)
        with pytest.raises(DataError, match="validation y is missing"):
            model.fit(X, Y, validation_data=Batches(X, 8), verbose=0)

    def test_a_used_iterator(self, model):
        data = iter(cut((X, Y), 8))
        model.fit(data, verbose=0)
        for method in (model.fit, model.evaluate, model.predict):
            with pytest.raises(DataError, match="the data have no batch"):
                method(data, verbose=0)

    def test_an_epoch_without_a_batch(self, model):
        class Same:
            """`__iter__` gives what was gone through."""

            def __init__(self) -> None:
                self._iterator = iter(cut((X, Y), 8))

            def __iter__(self) -> Any:
                return self._iterator

        with pytest.raises(DataError, match="the data have no batch left") as caught:
            model.fit(Same(), epochs=2, verbose=0)
        assert "Same" in caught.value.given

    def test_an_iterator_that_is_to_serve_twice_is_refused_before_it_is_asked(self, model):
        batches = iter(cut((X, Y), 8))
        with pytest.raises(DataError, match="`validation_steps` is missing") as caught:
            model.fit(X, Y, epochs=2, validation_data=batches, verbose=0)
        assert "validation <list_iterator" in caught.value.given
        assert "a PyDataset, or an object whose __iter__ begins anew" in caught.value.fix
        assert len(list(batches)) == len(cut((X, Y), 8))
        validation = iter(cut((X, Y), 8))
        model.fit(X, Y, epochs=2, validation_data=validation, validation_freq=2, verbose=0)
        with pytest.raises(DataError, match="the data have no batch"):
            model.fit(X, Y, validation_data=validation, validation_steps=1, verbose=0)

    def test_training_ends_with_a_generator_as_in_keras(self, model):
        with pytest.warns(UserWarning, match="ran out of data: training ends after 1 of 3 epochs"):
            history = model.fit(iter(cut((X, Y), 8)), epochs=3, verbose=0)
        assert history.epoch == [0] and int(model.optimizer.iterations) == len(cut((X, Y), 8))

    @pytest.mark.filterwarnings("ignore:the loss is nan")
    @pytest.mark.first_cases(1)
    @pytest.mark.parametrize(("kind", "count"), [(list, 1), (tuple, 2), (list, 3)])
    def test_a_list_of_batches_is_told_from_x_and_y(self, kind, count):
        model = kd.Sequential([kd.Input(X.shape[1:]), kd.layers.Dense(Y.shape[-1] if Y.ndim > 1 else 3)])
        model.compile("sgd", "mse" if Y.ndim > 1 else "sparse_categorical_crossentropy")
        batches = kind([(X[:8], Y[:8])] * count)
        with pytest.raises(DataError, match="`validation_data` must be") as caught:
            model.fit(X, Y, validation_data=batches, verbose=0)
        assert f"of length {count}, whose items are tuples" in caught.value.given
        assert "join their arrays to (x, y), or pass a dataset" in caught.value.fix
        for method in (model.fit, model.evaluate):
            with pytest.raises(DataError, match="y is missing") as caught:
                method(batches, verbose=0)
            assert "if these are batches, join their arrays" in caught.value.fix
        model.fit(X, Y, validation_data=iter(batches), verbose=0)

    def test_pairs_of_inputs_and_of_targets_are_no_batches(self):
        a, b = kd.Input((3,)), kd.Input((3,))
        model = kd.Model([a, b], [kd.layers.Dense(1)(a), kd.layers.Dense(1)(b)])
        model.compile("sgd", ["mse", "mse"])
        x, y = (np.ones((4, 3)),) * 2, (np.ones((4, 1)),) * 2
        for pair in ((x, y), [x, y]):
            model.fit(x, y, validation_data=pair, verbose=0)

    def test_what_no_data_set_takes(self, model):
        for options in ({"y": Y}, {"sample_weight": W}, {"validation_split": 0.5}):
            with pytest.raises(DataError, match=f"`{next(iter(options))}`"):
                model.fit(Batches((X, Y), 8), verbose=0, **options)
        for options in ({"validation_split": 0.5}, {"class_weight": {0: 2.0}}):
            with pytest.raises(DataError, match=f"`{next(iter(options))}` is for arrays"):
                model.fit(Examples((X, Y)), verbose=0, **options)
        for x, options in ((Batches((X, Y), 8), {"batch_size": 8}), (X, {"y": Y, "validation_batch_size": 4})):
            with pytest.warns(UserWarning, match="batch_size` cannot be given beside batches") as caught:
                model.fit(x, validation_data=Batches((X, Y), 8), verbose=0, **options)
            assert caught[0].filename == __file__
