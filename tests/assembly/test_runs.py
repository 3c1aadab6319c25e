"""Whole runs from config files: built, trained and repeated."""

import importlib
import json
import pathlib
import sys

import pytest

import keras_dist as kd
from keras_dist import assembly, config
from tests.assembly.my_run import built, settings


def test_a_config_alone_imports_nothing():
    assert settings().model.name == "my_run:Net"
    assert assembly.distribution_of(settings()).device_mesh.shape == (2, 4)
    assert "my_run" not in sys.modules


def test_a_run_is_that_of_the_objects_by_hand():
    found = assembly.train(settings())
    mesh = kd.DeviceMesh("data=2,model=4")
    rules = kd.LayoutMap(mesh)
    rules["up/kernel"], rules["down/kernel"] = (None, "model"), ("model", None)
    my_run = importlib.import_module("my_run")
    kd.set_random_seed(7)
    with kd.ModelParallel(rules, "data").scope():
        model = kd.Model.from_nnx(lambda rngs: my_run.Net(16, rngs))
        model.compile(kd.optimizers.Adam(0.01), loss="mse")
        (x, y), held_out = my_run.data()
        expected = model.fit(x, y, batch_size=16, epochs=2, verbose=0, validation_data=held_out)
    assert found.history == expected.history


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    ("model", "names"),
    [
        ("'my_run:module'", ["down/bias", "down/kernel", "up/bias", "up/kernel"]),
        ("{name='my_run:Subclass', units=2}", ["down/kernel", "down/bias"]),
        (
            "{name='Sequential', layers=[{class_name='Dense', config={units=2, name='down'}}]}",
            ["down/kernel", "down/bias"],
        ),
    ],
)
def test_forms_of_models(model, names):
    run = built(f"model={model}", "mesh.shape=data=8", "distribution={}", "training.epochs=1")
    run.train()
    assert sorted(v.path.split("/", 1)[-1] if "sub" in v.path else v.path for v in run.model.trainable_variables) == (
        sorted(names)
    )


@pytest.mark.first_cases(10)
@pytest.mark.parametrize(
    ("override", "made"),
    [
        ("optimizer=my_run:sgd", lambda run: True),
        ("optimizer={name='my_run:Helpers.adam', learning_rate=0.5}", lambda run: run.train().epoch == [0, 1]),
        (
            "optimizer={name='Adam', learning_rate={class_name='ExponentialDecay', config={initial_learning_rate=0.2, "
            "decay_steps=10, decay_rate=0.5}}}",
            lambda run: abs(float(run.model.optimizer.learning_rate) - 0.2) < 1e-6,
        ),
        (
            "training.loss={name='Huber', delta=2.0}",
            lambda run: run.model.get_compile_config()["loss"]["config"]["delta"] == 2.0,
        ),
        ("training.loss={name='my_run:scaled', by=2}", lambda run: True),
        ("training.metrics=['mae', 'my_run:absolute']", lambda run: set(run.evaluate()) >= {"mae", "absolute"}),
        ("training.metrics=[{name='MeanSquaredError', config={name='mine'}}]", lambda run: "mine" in run.evaluate()),
        ("training.validation=false", lambda run: "val_loss" not in run.train().history),
        ("training.validation_split=0.5", lambda run: len(run.train().history["val_loss"]) == 2),
        ("data={name='my_run:data', rows=20, test=false}", lambda run: "val_loss" not in run.train().history),
    ],
)
def test_components_and_settings(override, made):
    assert made(built(override))


def test_how_long_it_is_trained():
    told = ["validation_freq=2", "steps_per_epoch=1", "steps_per_execution=2", "remat=full", "shuffle=false"]
    history = built(*(f"training.{one}" for one in told)).train()
    assert history.epoch == [0, 1]
    assert len(history.history["val_loss"]) == 1
    assert history.timing.steps == 2


def test_data_sets_that_give_batches():
    overrides = ["data=my_run:batches", "training={loss='mse', verbose=0, epochs=2}"]
    run = built(*overrides)
    assert len(run.train().history["val_loss"]) == 2
    assert run.evaluate()["loss"] > 0
    assert assembly.plan_inputs(settings(*overrides)).batch[0].shape == (8, 8)


def test_registered_names():
    @kd.saving.register_keras_serializable("shop")
    def rows():
        return importlib.import_module("my_run").data()

    @kd.saving.register_keras_serializable("shop")
    def tripled(y_true, y_pred):
        return 3 * abs(y_true - y_pred).mean(-1)

    run = built("data=shop>rows", "training.loss=shop>tripled", "training.metrics=['mae']", "training.epochs=1")
    run.train()
    found = run.evaluate()
    assert found["loss"] == pytest.approx(3 * found["mae"], rel=1e-5)


def test_callbacks():
    run = built("callbacks={CSVLogger={filename='log.csv'}, 'my_run:Epochs'={offset=5}}")
    run.train()
    assert len(pathlib.Path("log.csv").read_text().splitlines()) == 3
    assert sys.modules["my_run"].Epochs.seen == [5, 6]


def test_the_dtype_policy_holds_for_the_model_alone():
    run = built("model={name='my_run:sequential', width=8}", "training.dtype_policy=mixed_bfloat16")
    assert run.model.layers[0].compute_dtype == "bfloat16"
    assert kd.mixed_precision.dtype_policy().name == "float32"


def test_a_run_is_repeated_from_the_config_beside_its_checkpoints():
    first = assembly.train(settings("checkpoint.directory=first"))
    resolved = config.load("first/run.json", environ={})
    assert resolved == settings("checkpoint.directory=first")
    again = assembly.train(config.load("first/run.json", ["checkpoint.directory=second"], environ={}))
    assert again.history == first.history
    assert config.load("second/run.json", environ={}).checkpoint.directory == "second"


def test_the_resolved_config_is_printed_unless_the_run_is_silent(capsys):
    assembly.train(settings("training.epochs=1"))
    assert capsys.readouterr().out == ""
    run = settings("training.epochs=1", "training.verbose=2")
    assembly.train(run)
    lines = capsys.readouterr().out.partition("Epoch")[0].splitlines()
    changed = {line.partition(" = ")[0]: json.loads(line.partition(" = ")[2]) for line in lines[1:] if " = " in line}
    given = {"training.verbose": 2, "distribution.strategy": run.distribution.strategy, "model.name": run.model.name}
    assert given.items() <= changed.items() and "training.epochs" not in changed and len(lines) < 25
    assembly.train(run, show_defaults=True)
    printed, _ = json.JSONDecoder().raw_decode(capsys.readouterr().out)
    assert config.RunConfig.model_validate(printed) == run


def test_a_run_goes_on_where_it_was_ended():
    whole = assembly.train(settings("training.epochs=4"))
    assembly.train(settings("checkpoint.directory=states"))
    rest = assembly.train(config.load("states/run.json", ["training.epochs=4"], environ={}))
    assert rest.history == whole.history
    assert config.load("states/run.json", environ={}).training.epochs == 4
    assert kd.checkpoint.examine("states").is_good


def test_states_are_deleted_where_that_is_asked_for():
    assembly.train(settings("checkpoint.directory=states", "checkpoint.delete=true"))
    assert [path.name for path in pathlib.Path("states").iterdir()] == ["run.json"]
