"""Several steps in one execution: the same numbers, fewer dispatches, hooks between them."""

import gc
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.core import Tracer

import keras_dist as kd
from keras_dist.data import ArraySource
from keras_dist.data.batching import Batching
from keras_dist.training import executions, placement
from keras_dist.training.executions import ResidentFeed, earns_residence, fits_on_devices, stack_of
from keras_dist.training.throughput import StepsTuner
from tests import layouts
from tests.networks import Noisy, Plain, blobs

LOSS = kd.losses.SparseCategoricalCrossentropy(from_logits=True)
X, Y = blobs(107)  # 13 batches of 8 and one of 3


class Looks(kd.callbacks.Callback):
    """Sees the batches."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[int] = []
        self.ended: list[int] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.begun.append(batch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.ended.append(batch)


def trained(
    name: str, steps_per_execution: Any, callbacks: Any = (), epochs: int = 2, factory: Any = Noisy, **options: Any
) -> Any:
    with layouts.on(name).scope():
        model = kd.Model.from_nnx(factory, seed=0)
    model.compile("adam", loss=LOSS, metrics=["accuracy"], steps_per_execution=steps_per_execution, **options)
    history = model.fit(
        X, Y, batch_size=8, epochs=epochs, verbose=0, callbacks=list(callbacks), validation_data=(X[:20], Y[:20])
    )
    return model, history


@pytest.fixture(scope="module", params=["one device", "data=4,model=2"])
def single(request: pytest.FixtureRequest) -> tuple[str, list[np.ndarray], dict[str, Any]]:
    """A mesh, and what single steps give on it: weights, statistics, random streams, slots; losses and metrics."""
    model, history = trained(request.param, 1)
    return request.param, arrays_of(model), history.history


def arrays_of(model: Any) -> list[np.ndarray]:
    leaves = jax.tree.leaves(model.state)
    return [np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf) for leaf in leaves]


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


@pytest.mark.soak
class TestSameNumbers:
    """Bit for bit, with Dropout, BatchNorm, shuffling and a shorter last batch."""

    @pytest.mark.parametrize(("steps", "resident"), [(2, True), (4, True), (4, False), (13, False), (50, True)])
    def test_a_fixed_number_of_steps(self, single, steps, resident, monkeypatch):
        name, arrays, logs = single
        if not resident:
            monkeypatch.setattr(executions, "RESIDENT_BYTES", 0)
        model, history = trained(name, steps)
        assert history.history == logs
        for a, b in zip(arrays_of(model), arrays, strict=True):
            np.testing.assert_array_equal(a, b)

    @pytest.mark.parametrize("resident", [True, False])
    def test_as_many_as_fit_finds_fast(self, single, resident, monkeypatch):
        name, arrays, logs = single
        if not resident:
            monkeypatch.setattr(executions, "RESIDENT_BYTES", 0)
            monkeypatch.setattr(executions, "MANY_BATCHES", 1)
            monkeypatch.setattr(executions, "MAX_STACK", 4)
        model, history = trained(name, "auto")
        assert history.history == logs
        for a, b in zip(arrays_of(model), arrays, strict=True):
            np.testing.assert_array_equal(a, b)

    def test_and_single_steps_that_somebody_watches(self, single):
        name, arrays, logs = single
        watch = Looks()
        model, history = trained(name, "auto", [watch])
        assert watch.begun == watch.ended == [*range(14), *range(14)]
        assert history.history == logs
        for a, b in zip(arrays_of(model), arrays, strict=True):
            np.testing.assert_array_equal(a, b)


class TestHooks:
    def test_they_are_called_between_executions(self):
        watch = Looks()
        trained("one device", 5, [watch], epochs=1, factory=Plain)
        assert watch.begun == [0, 5, 10, 11, 12, 13]
        assert watch.ended == [4, 9, 10, 11, 12, 13]

    def test_a_callback_assigns_between_executions(self):
        class Zero(kd.callbacks.Callback):
            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                bias = self.model.variables[0]
                seen.append(float(np.asarray(bias).min()))
                bias.assign(np.full(bias.shape, 7.0))
                assert np.asarray(self.model.variables[0]).min() == 7.0

        seen: list[float] = []
        trained("one device", 5, [Zero()], epochs=1, factory=Plain)
        assert len(seen) == 6 and max(seen[:1]) < 1 < 6 < min(seen[1:])  # adam moves a little each step

    def test_training_stops_between_executions(self):
        class Stop(kd.callbacks.Callback):
            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                self.model.stop_training = True

        model, _ = trained("one device", 5, [Stop()], factory=Plain)
        assert int(model.state.step) == 5


class TestPrograms:
    def test_one_for_each_length_however_many_steps(self):
        model, history = trained("one device", "auto", epochs=4, factory=Plain)
        assert history.timing.compilations == 2  # batches of 8, and the last one
        assert model.fit(X, Y, batch_size=8, verbose=0).timing.compilations == 0

    def test_of_a_fixed_number_of_steps_and_of_one(self):
        _, history = trained("one device", 5, epochs=4, factory=Plain)
        assert history.timing.compilations == 3  # stacks of 5, the 3 that are left over, the last one

    def test_many_shapes_are_warned_of(self):
        with layouts.one_device().scope():
            model = kd.Model.from_nnx(Plain, seed=0)
        model.compile("sgd", loss=LOSS)
        for rows in (8, 3, 8, 3):
            model.train_on_batch(X[:rows], Y[:rows])
        with pytest.warns(kd.errors.RecompileWarning) as warned:
            model.train_on_batch(X[:5], Y[:5])
        for part in ("3. shape of batch: x float32(5, 8), y int32(5,)", "drop_remainder=True", "kd.data.pad_batch("):
            assert part in str(warned[0].message)
        model.train_on_batch(X[:5], Y[:5])

    def test_the_lengths_of_one_data_set_are_expected(self):
        with layouts.one_device().scope():
            model = kd.Model.from_nnx(Plain, seed=0)
        model.compile("sgd", loss=LOSS, steps_per_execution=1)
        for batch_size in (8, 9, 10):
            model.fit(X[:21], Y[:21], batch_size=batch_size, verbose=0)
            model.predict(X[:21], batch_size=batch_size, verbose=0)
            model.evaluate(X[:21], Y[:21], batch_size=batch_size, verbose=0)
        model.train_on_batch(X[:6], Y[:6])
        model.test_on_batch(X[:6], Y[:6])

    def test_many_shapes_of_many_data_sets_are_warned_of_once(self):
        with layouts.one_device().scope():
            model = kd.Model.from_nnx(Plain, seed=0)
        for rows in range(1, 16):
            model.predict(X[:rows], verbose=0)
        with pytest.warns(kd.errors.RecompileWarning, match=r"compiled for 16 shapes .*: x float32\(16, 8\)"):
            model.predict(X[:16], verbose=0)
        model.predict(X[:17], verbose=0)

    def test_setting_the_rate_does_not_compile_again(self):
        model, _ = trained("one device", "auto", factory=Plain)
        programs = list(model._session.trainer._compiled._programs.values())
        for rate in (0.1, np.float64(0.2), 1):
            model.optimizer.learning_rate = rate
            model.fit(X, Y, batch_size=8, verbose=0)
        assert list(model._session.trainer._compiled._programs.values()) == programs

    def test_they_do_not_keep_the_data(self):
        x = np.repeat(X, 50, axis=0)
        model, _ = trained("one device", "auto", epochs=1, factory=Plain)
        before = {id(array) for array in jax.live_arrays()}
        model.fit(x, np.repeat(Y, 50), batch_size=64, verbose=0)
        gc.collect()
        left = [array for array in jax.live_arrays() if id(array) not in before and array.size >= x.size]
        assert left == []


class TestResident:
    def test_only_what_fits_is_kept_on_the_devices(self):
        source = ArraySource(np.zeros((4, 2**18), np.float32))  # 4 MiB, on 8 devices 32
        assert fits_on_devices(source, layouts.on("data=8,model=1"))
        larger = ArraySource(np.zeros((12, 2**18), np.float32))
        assert not fits_on_devices(larger, layouts.on("data=8,model=1"))
        assert fits_on_devices(larger, layouts.one_device())

    def test_devices_that_tell_their_memory_are_asked(self, monkeypatch):
        class Device:
            process_index = 0

            def memory_stats(self) -> dict[str, int]:
                return {"bytes_limit": 1000, "bytes_in_use": 200}

        distribution = layouts.one_device()
        monkeypatch.setattr(executions, "local_devices", lambda distribution: [Device()])
        assert fits_on_devices(ArraySource(np.zeros(25, np.float32)), distribution)
        assert not fits_on_devices(ArraySource(np.zeros(26, np.float32)), distribution)

    def test_a_process_without_devices_keeps_nothing(self, monkeypatch):
        monkeypatch.setattr(executions, "local_devices", lambda distribution: [])
        assert not fits_on_devices(ArraySource(X), layouts.one_device())

    def test_it_is_brought_there_where_the_steps_earn_it(self):
        source = ArraySource(np.zeros((1024, 2**10), np.float32))
        assert earns_residence(source, steps=16)
        assert not earns_residence(source, steps=15)

    def test_large_batches_of_one_epoch_are_streamed(self, monkeypatch):
        monkeypatch.setattr(executions, "EARNED_BYTES", 1)
        model, _ = trained("one device", "auto", epochs=1, factory=Plain)
        assert {key[2] for key in model._session.trainer._compiled._programs} == {"single"}

    def test_rows_of_any_shape_and_dtype_come_as_they_are(self):
        rng = np.random.default_rng(0)
        x = {
            "image": rng.normal(size=(21, 4, 3, 1)),
            "tokens": np.arange(42).reshape(21, 2),
            "one": np.ones(21, np.uint8),
        }
        y = np.zeros((21, 0, 2), np.float32)
        feed = ResidentFeed(Batching(ArraySource(x, y), 8), 1, layouts.one_device(), StepsTuner())
        ((_, found),) = feed.epochs(range(1))
        for first, execution in zip((0, 8, 16), found, strict=True):
            zeros = jax.tree.map(lambda leaf, n=execution.rows: jnp.asarray(leaf[:n] * 0), (x, y, None))
            batch = execution.run(lambda _, arrays: arrays, zeros, execution.operands, layouts.one_device())
            jax.tree.map(
                lambda rows, whole, first=first: np.testing.assert_array_equal(
                    rows, whole[first : first + 8].astype(rows.dtype)
                ),
                batch,
                (x, y, None),
            )

    def test_a_copy_of_the_rows_is_all_the_memory_they_take(self):
        feed = ResidentFeed(
            Batching(ArraySource(np.zeros((64, 8, 8), np.float32)), 8), 1, layouts.one_device(), StepsTuner()
        )
        ((_, found),) = feed.epochs(range(1))
        data, _, _ = next(iter(found)).operands
        assert data[0].shape == (64, 64) and data[0].unsafe_buffer_pointer() % 64 == 0

    def test_64_bit_numbers_count_as_the_32_bits_they_become(self):
        source = ArraySource(np.zeros((12, 2**18), np.float64))  # 24 MiB become 12, on 4 devices 48
        assert fits_on_devices(source, kd.DataParallel(devices=kd.list_devices()[:4]))

    def test_data_sets_of_another_length_are_streamed(self):
        """Their length is a part of the program: each would be compiled anew."""
        model, _ = trained("one device", "auto", factory=Plain)
        compiled = model._session.trainer._compiled
        programs = compiled.count
        assert model.fit(X[:80], Y[:80], batch_size=8, verbose=0).timing.compilations == 1
        for rows in (72, 64, 56):
            assert model.fit(X[:rows], Y[:rows], batch_size=8, verbose=0).timing.compilations == 0
            model.evaluate(X[:rows], Y[:rows], batch_size=8, verbose=0)
        assert compiled.count == programs + 2  # one to train, one to test

    @pytest.mark.parametrize("resident", [True, False])
    def test_a_fixed_number_of_steps_is_one_scan(self, resident, monkeypatch):
        if not resident:
            monkeypatch.setattr(executions, "RESIDENT_BYTES", 0)
        seen = []
        monkeypatch.setattr(jax.lax, "scan", lambda *args, scan=jax.lax.scan: [seen.append(args), scan(*args)][1])
        trained("one device", 5, epochs=1, factory=Plain)
        lengths = [len(jax.tree.leaves(xs)[0]) for _, _, xs in seen]
        assert 5 in lengths and set(lengths) <= {1, 5}

    def test_so_are_they_unless_there_is_much_to_train_on(self, monkeypatch):
        monkeypatch.setattr(placement, "WORTH_COMPILING", 10)
        model, _ = trained("one device", "auto", factory=Plain)
        programs = model._session.trainer._compiled._programs
        model.fit(X[:80], Y[:80], batch_size=8, verbose=0)
        model.fit(X[:72], Y[:72], batch_size=8, verbose=0)  # nine batches
        kinds = [key[2] for key in programs if key[0] == "train"]
        assert sorted(kinds) == ["resident", "resident", "resident", "single"]

    @pytest.mark.parametrize("offset", range(4))
    def test_what_is_written_to_an_array_afterwards_does_not_count(self, offset):
        buffer = np.zeros(X.size + 16, np.float32)
        x = buffer[offset : offset + X.size].reshape(X.shape)  # XLA can use some of these as they are
        x[:] = X

        class Overwrite(kd.callbacks.Callback):
            def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
                x[:] = X * (epoch + 1)

        with layouts.one_device().scope():
            models = [kd.Model.from_nnx(Plain, seed=0) for _ in range(2)]
        for model in models:
            model.compile("sgd", LOSS)
        histories = [
            model.fit(data, Y, batch_size=8, epochs=3, verbose=0, seed=0, callbacks=callbacks).history
            for model, data, callbacks in zip(models, (x, X), ([Overwrite()], []), strict=True)
        ]
        assert histories[0] == histories[1]

    def test_executions_follow_the_tuner(self):
        tuner = StepsTuner()
        feed = ResidentFeed(Batching(ArraySource(X, Y), 8), 1, layouts.one_device(), tuner)
        ((_, executions),) = feed.epochs(range(1))
        steps = []
        for execution in executions:
            steps.append((execution.steps, execution.rows))
            tuner.measured(seconds=0.02 * execution.steps, steps=execution.steps)
        assert steps == [(1, 8), (5, 8), (5, 8), (2, 8), (1, 3)]


class TestProgramsOfAnEpoch:
    """They are compiled at the same time."""

    @pytest.mark.parametrize("steps", ["auto", 1, 5])
    def test_before_its_first_step(self, steps):
        class Count(kd.callbacks.Callback):
            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                counts.append(self.model._session.trainer._compiled.count)

        counts: list[int] = []
        _, history = trained("one device", steps, [Count()], epochs=1, factory=Plain)
        assert set(counts) == {3 if steps == 5 else 2}  # five steps, one, and one on the shorter batch
        assert history.timing.compilations == counts[0]

    def test_what_is_wrong_with_the_last_batch_is_told_when_it_comes(self):
        class Picky(nnx.Module):
            def __init__(self, rngs: nnx.Rngs) -> None:
                self.inner = nnx.Linear(X.shape[1], 3, rngs=rngs)

            def __call__(self, x: Any) -> Any:
                assert len(x) == 8, "eight rows"
                return self.inner(x)

        watch = Looks()
        with pytest.raises(AssertionError, match="eight rows"):
            trained("one device", 1, [watch], epochs=1, factory=Picky)
        assert watch.ended == [*range(13)]


def test_only_many_small_batches_are_stacked():
    small = ArraySource(np.zeros((executions.MANY_BATCHES, 4), np.float32))
    assert stack_of(small, 1, epochs=1) == executions.MAX_STACK
    assert stack_of(small, 2, epochs=1) == 1
    assert stack_of(small, 2, epochs=2) == executions.MAX_STACK
    large = ArraySource(np.zeros((100, 2**18), np.float32))
    assert stack_of(large, 2, epochs=executions.MANY_BATCHES) == 2
    assert stack_of(large, 32, epochs=executions.MANY_BATCHES) == 1


class TestOptions:
    @pytest.mark.parametrize("option", [{"run_eagerly": True}, {"jit_compile": False}], ids=str)
    @pytest.mark.parametrize("name", ["one device", "data=4,model=2"])
    def test_operation_by_operation_gives_the_same(self, option, name):
        values = []

        def loss(y_true: Any, y_pred: Any) -> Any:
            result = LOSS(y_true, y_pred)
            values.append(result if isinstance(result, Tracer) else float(result))
            return result

        histories = []
        for options in ({}, option):
            values.clear()
            with layouts.on(name).scope():
                model = kd.Model.from_nnx(Plain, seed=0)
            model.compile("sgd", loss=loss, **options)
            histories.append(model.fit(X[:21], Y[:21], batch_size=8, verbose=0).history["loss"])
            model.predict(X[:3], verbose=0)
        np.testing.assert_allclose(*histories, rtol=1e-5)

    def test_values_can_be_seen_operation_by_operation(self):
        seen = []

        class Seen(kd.layers.Layer):
            def call(self, x: Any) -> Any:
                seen.append(isinstance(x, Tracer))
                return x

        model = kd.Sequential([kd.Input((8,)), Seen(), kd.layers.Dense(4)])
        model.compile("sgd", loss=LOSS, run_eagerly=True)
        seen.clear()
        model.evaluate(X[:8], Y[:8], verbose=0)
        assert seen[-1] is False

    @pytest.mark.parametrize("donate", [True, False])
    def test_donation(self, donate):
        with layouts.one_device().scope():
            model = kd.Model.from_nnx(Plain, seed=0)
        model.compile("sgd", loss=LOSS, donate=donate)
        held = model._session.cell.arrays
        model.fit(X, Y, verbose=0)
        assert held[0].is_deleted() is donate

    @pytest.mark.parametrize(("prefetch", "drawn"), [(1, 1), (2, 1), (3, 2), (5, 4)])
    @pytest.mark.parametrize("mesh", ["one device", "data=4,model=2"])
    def test_prefetch(self, mesh, prefetch, drawn, monkeypatch):
        drawn_now, batches = [0], ArraySource.batches
        ahead, are_ready = [], []

        def counted(*args: Any, **kwargs: Any) -> Any:
            is_compiled_for = len(kwargs.get("span") or ()) == 1  # one batch alone: its shapes are looked at
            for batch in batches(*args, **kwargs):
                drawn_now[0] += not is_compiled_for
                yield batch

        class Look(kd.callbacks.Callback):
            def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
                drawn_now[0] = 0

            def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
                ahead.append(drawn_now[0] - batch)
                are_ready.append(self.model._session.cell.arrays[0].is_ready())

        expected, _ = trained(mesh, 1, factory=Plain)
        monkeypatch.setattr(ArraySource, "batches", counted)
        model, _ = trained(mesh, 1, [Look()], factory=Plain, prefetch=prefetch)
        assert ahead[:10] == [drawn] * 10
        assert prefetch > 1 or all(are_ready)
        for weight, other in zip(model.get_weights(), expected.get_weights(), strict=True):
            assert np.array_equal(weight, other)

    @pytest.mark.parametrize(
        "options",
        [
            {"steps_per_execution": 0},
            {"steps_per_execution": True},
            {"steps_per_execution": 2.5},
            {"steps_per_execution": "fast"},
            {"run_eagerly": "yes"},
            {"jit_compile": "no"},
            {"donate": None},
            {"prefetch": 0},
        ],
        ids=str,
    )
    def test_others_are_refused(self, options):
        model = kd.Model.from_nnx(Plain, seed=0)
        (name,) = options
        with pytest.raises(kd.errors.ModelError, match=f"`{name}`") as caught:
            model.compile("sgd", loss=LOSS, **options)
        assert f"{name}={options[name]!r}" in caught.value.given


class TestTiming:
    def test_what_it_tells(self):
        _, history = trained("one device", "auto", epochs=3, factory=Plain)
        timing = history.timing
        assert timing.steps == 3 * 14
        assert timing.compile_seconds > 0
        assert 0 < timing.median_step_seconds <= timing.p95_step_seconds
        assert timing.samples_per_second == pytest.approx(3 * 107 / timing.wall_seconds)
        assert 0 <= timing.overhead <= 1
        assert timing.peak_bytes == {}

    def test_a_history_of_its_own_has_none(self):
        assert kd.callbacks.History().timing is None
