"""Several steps in one execution: the same numbers, fewer dispatches, hooks between them."""

import dataclasses
import gc
import io
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import keras_dist as kd
from keras_dist._unstable import jaxprs
from keras_dist.data import ArraySource
from keras_dist.training import executions
from keras_dist.training.executions import fits_on_devices
from tests import layouts
from tests.networks import Plain, blobs
from tests.soak import LARGE, crossed
from tests.sources import cut
from tests.training.trained import Trained, assert_same

X, Y = blobs(107)  # 13 batches of 8 and one of 3
OPTIONS: dict[str, Any] = {"batch_size": 8, "epochs": 2, "shuffle": True, "seed": 0}
MESHES = ["data=4,model=2", *["one device"] * LARGE]


class Looks(kd.callbacks.Callback):
    """Sees the batches, and how many programs there are."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[int] = []
        self.ended: list[int] = []
        self.programs: set[int] = set()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.begun.append(batch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.ended.append(batch)
        self.programs.add(self.model._built.step_runner._compiled.count)


@dataclasses.dataclass
class First:
    """A model on one device, and what its first training was like."""

    trained: Trained
    timing: Any
    looks: Looks

    @classmethod
    def of(cls, steps_per_execution: Any, watched: bool) -> "First":
        trained, looks = Trained("one device", Plain, steps_per_execution=steps_per_execution), Looks()
        options = {"batch_size": 8, "epochs": 1 if watched else 4, "callbacks": [looks] * watched}
        return cls(trained, trained.model.fit(X, Y, verbose=0, **options).timing, looks)

    def programs(self) -> dict[Any, Any]:
        return dict(self.trained.model._built.step_runner._compiled._programs)


@pytest.fixture(scope="module")
def auto() -> First:
    return First.of("auto", watched=False)


@pytest.fixture(scope="module")
def five() -> First:
    return First.of(5, watched=True)


def run_of(trained: Trained, **options: Any) -> tuple[dict[str, Any], list[np.ndarray]]:
    """Losses and metrics; weights, statistics, random streams, slots."""
    logs, _ = trained.fit(X, Y, validation_data=(X[:16], Y[:16]), **OPTIONS | options)
    return logs, [
        np.asarray(jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf)
        for leaf in jax.tree.leaves(trained.model.state)
    ]


@pytest.fixture(scope="module")
def single(request: pytest.FixtureRequest) -> tuple[str, Any]:
    """A mesh, and what single steps give on it."""
    return request.param, run_of(Trained(request.param, optimizer="adam", steps_per_execution=1))


@pytest.mark.soak
class TestSameNumbers:
    """Bit for bit, with Dropout, BatchNorm, shuffling and a shorter last batch."""

    @pytest.mark.parametrize(("single", "steps"), crossed(MESHES, [4, *[50, 2, 13] * LARGE]), indirect=["single"])
    def test_a_fixed_number_of_steps(self, single, steps, monkeypatch):
        name, expected = single
        trained = Trained(name, optimizer="adam", steps_per_execution=steps)
        assert_same(run_of(trained), expected)
        monkeypatch.setattr(executions, "RESIDENT_BYTES", 0)
        assert_same(run_of(trained), expected)

    @pytest.mark.slow
    @pytest.mark.parametrize("single", MESHES if LARGE else MESHES[-1:], indirect=True)
    def test_as_many_as_fit_finds_fast_and_single_ones_that_somebody_watches(self, single, monkeypatch):
        name, expected = single
        trained, watch = Trained(name, optimizer="adam", steps_per_execution="auto"), Looks()
        assert_same(run_of(trained), expected)
        before = trained.model._built.step_runner._compiled.count
        assert_same(run_of(trained, callbacks=[watch]), expected)
        assert watch.begun == watch.ended == [*range(14), *range(14)]
        assert watch.programs == {before + 2}
        monkeypatch.setattr(executions, "RESIDENT_BYTES", 0)
        monkeypatch.setattr(executions, "MANY_BATCHES", 1)
        monkeypatch.setattr(executions, "MAX_STACK", 4)
        assert_same(run_of(trained), expected)


class TestHooks:
    def test_they_are_called_between_so_many_steps_however_the_data_ends(self, five):
        """With the numbers that Keras gives: the last group is as long as the others."""
        assert five.looks.begun == [0, 5, 10]
        assert five.looks.ended == [4, 9, 14]

    @pytest.mark.first_cases(1)
    @pytest.mark.parametrize("eagerly", [False, True])
    def test_they_are_called_between_so_many_steps_of_streams_and_predictions(self, five, eagerly):
        seen: dict[str, list[int]] = {}
        names = [f"{mode}_batch_{when}" for mode in ("train", "test", "predict") for when in ("begin", "end")]
        hooks = {
            f"on_{name}": lambda self, batch, logs, name=name: seen.setdefault(name, []).append(batch) for name in names
        }
        model, watch = five.trained.model, type("Watch", (kd.callbacks.Callback,), hooks)()
        if eagerly:
            model = kd.Sequential([kd.layers.Dense(1)])
            model.compile("sgd", "mse", steps_per_execution=2, run_eagerly=True)
            x, y, options = X[:3], X[:3, :1], {"batch_size": 1}
        else:
            x, y, options = X, Y, {"batch_size": 8}
        model.fit(iter(cut((x, y), options["batch_size"])), callbacks=[watch], verbose=0)
        model.evaluate(x, y, callbacks=[watch], verbose=0, **options)
        model.predict(x, callbacks=[watch], verbose=0, **options)
        begun, ended = ([0, 2], [1, 3]) if eagerly else ([0, 5, 10], [4, 9, 14])
        assert seen == {name: begun if name.endswith("begin") else ended for name in names}

    def test_predictions_show_the_outputs_of_all_batches_of_a_group(self, five):
        seen: list[np.ndarray] = []
        watch = kd.callbacks.LambdaCallback(on_predict_batch_end=lambda batch, logs: seen.append(logs["outputs"]))
        outputs = five.trained.model.predict(X, batch_size=8, callbacks=[watch], verbose=0)
        assert [len(one) for one in seen] == [40, 40, 27]
        np.testing.assert_array_equal(np.concatenate(seen), outputs)

    @pytest.mark.parametrize("is_known", [True, False])
    def test_callbacks_that_count_batches_count_those_that_there_are(self, five, is_known, tmp_path):
        """Also where nobody knew how many there would be: steps of logs, saves, the bar."""
        text, board = io.StringIO(), kd.callbacks.TensorBoard(tmp_path / "logs", update_freq=3)
        path = tmp_path / "{batch}.weights.safetensors"
        save = kd.callbacks.ModelCheckpoint(path, save_weights_only=True, save_freq=12)
        data = {"x": X, "y": Y, "batch_size": 8} if is_known else {"x": iter(cut((X, Y), 8))}
        callbacks = [board, save, kd.callbacks.ProgbarLogger(text)]
        five.trained.fresh().fit(**data, callbacks=callbacks, verbose=2)
        assert board._steps == 14
        assert [path.name for path in tmp_path.glob("*.safetensors")] == ["14.weights.safetensors"]
        assert text.getvalue().startswith("14/14")

    def test_a_callback_assigns_between_executions(self, five):
        class Seven(kd.callbacks.Callback):
            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                bias = self.model.variables[0]
                seen.append(float(np.asarray(bias).min()))
                bias.assign(np.full(bias.shape, 7.0))
                assert np.asarray(self.model.variables[0]).min() == 7.0

        seen: list[float] = []
        five.trained.fit(X, Y, batch_size=8, callbacks=[Seven()])
        assert len(seen) == 3 and max(seen[:1]) < 1 < 6 < min(seen[1:])  # sgd moves a little each step

    def test_training_stops_between_executions(self, five):
        class Stop(kd.callbacks.Callback):
            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                self.model.stop_training = True

        model = five.trained.fresh()
        model.fit(X, Y, batch_size=8, epochs=2, verbose=0, callbacks=[Stop()])
        assert int(model.state.step) == 5


class TestPrograms:
    def test_one_for_each_length_however_many_steps(self, auto):
        assert auto.timing.compilations == 2  # batches of 8, and the last one
        assert auto.trained.model.fit(X, Y, batch_size=8, verbose=0).timing.compilations == 0

    def test_all_of_an_epoch_are_compiled_before_its_first_step(self, five):
        assert five.looks.programs == {3}  # five steps, one of the 3 that are left over, one on the shorter batch
        assert five.timing.compilations == 3
        assert First.of(1, watched=True).looks.programs == {2}

    def test_what_is_wrong_with_the_last_batch_is_told_when_it_comes(self):
        class Picky(nnx.Module):
            def __init__(self, rngs: nnx.Rngs) -> None:
                self.inner = nnx.Linear(X.shape[1], 3, rngs=rngs)

            def __call__(self, x: Any) -> Any:
                assert len(x) == 8, "eight rows"
                return self.inner(x)

        watch = Looks()
        with pytest.raises(AssertionError, match="eight rows"):
            Trained("one device", Picky, steps_per_execution=1).fit(X, Y, batch_size=8, callbacks=[watch])
        assert watch.ended == [*range(13)]

    def test_many_shapes_are_warned_of(self):
        model = Trained("one device", Plain).model
        for rows in (8, 3, 8, 3):
            model.train_on_batch(X[:rows], Y[:rows])
        with pytest.warns(kd.errors.RecompileWarning) as warned:
            model.train_on_batch(X[:5], Y[:5])
        for part in (
            "3 shapes of batch so far, the last one: x float32(5, 8), y int32(5,)",
            "drop_remainder=True",
            "kd.data.pad_batch(",
        ):
            assert part in str(warned[0].message)
        model.train_on_batch(X[:5], Y[:5])

    @pytest.mark.slow
    def test_the_lengths_of_one_data_set_are_expected(self):
        model = Trained("one device", Plain, steps_per_execution=1).model
        for batch_size in (8, 9):
            model.fit(X[:17], Y[:17], batch_size=batch_size, verbose=0)
            model.evaluate(X[:17], Y[:17], batch_size=batch_size, verbose=0)
        model.train_on_batch(X[:6], Y[:6])
        model.test_on_batch(X[:6], Y[:6])

    def test_setting_the_rate_does_not_compile_again(self, five):
        before = five.programs()
        for rate in (0.2, np.float64(0.3), 1, 0.1):
            five.trained.model.optimizer.learning_rate = rate
            five.trained.model.fit(X, Y, batch_size=8, verbose=0)
        assert five.programs() == before

    def test_they_do_not_keep_the_data(self, auto):
        before = {id(array) for array in jax.live_arrays()}
        auto.trained.model.fit(X, Y, batch_size=8, verbose=0)
        gc.collect()
        left = [array for array in jax.live_arrays() if id(array) not in before and array.size >= X.size]
        assert left == []


class TestResident:
    def test_only_what_fits_is_kept_on_the_devices(self):
        source = ArraySource(np.zeros((64, 2**18), np.float32))  # 64 MiB
        larger = ArraySource(np.zeros((65, 2**18), np.float32))
        doubles = ArraySource(np.zeros((64, 2**18), np.float64))  # 128 MiB become 64
        for distribution in (layouts.on("data=8,model=1"), layouts.one_device()):
            assert fits_on_devices(source, distribution)
            assert not fits_on_devices(larger, distribution)
            assert fits_on_devices(doubles, distribution)


def compiled_together(monkeypatch: Any) -> list[int]:
    """How many programs are compiled at the same time, each time that some are."""
    counts: list[int] = []

    def count(programs: Any, together: Any = jaxprs.compile_together) -> Any:
        programs = list(programs)
        counts.append(len(programs))
        return together(programs)

    monkeypatch.setattr(jaxprs, "compile_together", count)
    return counts


def test_the_shorter_last_batch_of_predict_is_compiled_with_the_others(monkeypatch):
    with layouts.one_device().scope():
        model = kd.Model.from_nnx(Plain, seed=0)
    together = compiled_together(monkeypatch)
    assert model.predict(X[:19], batch_size=8, verbose=0).shape[0] == 19
    assert together == [2]


def test_equal_models_made_one_after_another_are_compiled_once(monkeypatch: Any) -> None:
    compiled: list[str] = []

    def compile_program(self: Any, compiler_options: Any = None, original: Any = jax.stages.Lowered.compile) -> Any:
        compiled.append(self.as_text())
        return original(self, compiler_options)

    monkeypatch.setattr(jax.stages.Lowered, "compile", compile_program)
    weights = []
    for rows, units in ((X[:40], 21), (X[40:80], 21), (X[:40], 22)):
        with layouts.one_device().scope():
            model = kd.Sequential([kd.Input(X.shape[1:]), kd.layers.Dense(units), kd.layers.Dense(3)])
        model.compile("adam", "mse")
        model.fit(rows, np.zeros((40, 3)), batch_size=16, epochs=2, verbose=0)
        weights.append(model.get_weights())
        compiled.append("")
    first, second, other = np.diff([-1, *(n for n, text in enumerate(compiled) if not text)]) - 1
    assert first == other > 0
    assert second == 0
    assert not np.array_equal(weights[0][0], weights[1][0])


def test_a_step_calls_few_functions_besides_its_program() -> None:
    with layouts.one_device().scope():
        model = kd.Sequential([kd.Input(X.shape[1:]), kd.layers.Dense(3)])
    model.compile("sgd", "mse", steps_per_execution=1)
    rows = np.zeros((160, *X.shape[1:]), "float32"), np.zeros((160, 3), "float32")
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    def calls_of_fit(epochs: int) -> int:
        nonlocal calls
        model.fit(*rows, batch_size=2, epochs=epochs, verbose=0)  # compiled
        calls = 0
        sys.setprofile(count)
        try:
            model.fit(*rows, batch_size=2, epochs=epochs, verbose=0)
        finally:
            sys.setprofile(None)
        return calls

    assert calls_of_fit(3) - calls_of_fit(1) < 2 * 80 * 60  # 54, and 74 with copies of dataclasses and context managers


class TestTiming:
    def test_what_it_tells(self, auto):
        timing = auto.timing
        assert timing.steps == 4 * 14
        assert timing.compile_seconds > 0
        assert 0 < timing.median_step_seconds <= timing.p95_step_seconds
        assert timing.samples_per_second == pytest.approx(4 * 107 / timing.wall_seconds)
        assert 0 <= timing.overhead <= 1
        assert timing.peak_bytes == {}


def _lowered(function: Any, *arguments: Any, **options: Any) -> Any:
    return jax.jit(function, **options).lower(*arguments)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(lambda: _lowered(lambda x, unused: x + 1, *np.ones((2, 2), "f4")), id="another unused argument"),
        pytest.param(lambda: _lowered(lambda x, unused: x + 2, np.ones(2, "f4"), 1.0), id="another constant"),
        pytest.param(
            lambda: _lowered(lambda x, unused: x + 1, np.ones(2, "f4"), 1.0, donate_argnums=0), id="another donation"
        ),
        pytest.param(
            lambda: _lowered(lambda x, unused: [x + 1], np.ones(2, "f4"), 1.0), id="another structure of results"
        ),
    ],
)
def test_only_equal_programs_are_shared(other: Any) -> None:
    def one() -> Any:
        return _lowered(lambda x, unused: x + 1, np.ones(2, "f4"), 1.0)

    first, second, third = (jaxprs.compile_together([make()])[0] for make in (one, one, other))
    assert first is second is not third
    assert jaxprs.compile_together([one()], [{"xla_backend_optimization_level": 0}])[0] is not first


def test_programs_that_call_python_are_not_shared() -> None:
    def calling(factor: float) -> Any:
        shape = jax.ShapeDtypeStruct((2,), "float32")
        return _lowered(lambda x: jax.pure_callback(lambda x: factor * x, shape, x), np.ones(2, "f4"))

    for factor in (1, 2):
        (program,) = jaxprs.compile_together([calling(np.float32(factor))])
        np.testing.assert_array_equal(program(np.ones(2, "f4")), [factor, factor])
