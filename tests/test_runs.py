"""Whole runs from config files: built, trained, planned and repeated."""

import gc
import importlib
import inspect
import json
import pathlib
import sys
import types

import jax
import numpy as np
import pytest

import keras_dist as kd
from keras_dist import assembly, config
from keras_dist.assembly import runs
from keras_dist.errors import ConfigError, KerasDistError

MODULE = """
import numpy as np
import jax
import optax
from flax import nnx

import keras_dist as kd


class Net(nnx.Module):
    def __init__(self, width, rngs):
        self.up, self.dropout = nnx.Linear(8, width, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)
        self.down = nnx.Linear(width, 2, rngs=rngs)

    def __call__(self, x):
        return self.down(self.dropout(nnx.relu(self.up(x))))


class Subclass(kd.Model):
    def __init__(self, units=2, **kwargs):
        super().__init__(**kwargs)
        self.down = kd.layers.Dense(units)

    def call(self, x):
        return self.down(x)


def sequential(width):
    return kd.Sequential([kd.layers.Dense(width, "relu", name="up"), kd.layers.Dense(2, name="down")])


def module():
    return Net(16, rngs=nnx.Rngs(0))


def data(rows=50, test=True):
    x = np.random.default_rng(0).normal(size=(rows, 8)).astype("float32")
    y = np.stack([x.sum(1), x[:, 0]], axis=1)
    return (x, y), ((x[:12], y[:12]) if test else None)


class Batches:
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __iter__(self):
        return iter([(self.x[:8], self.y[:8]), (self.x[8:], self.y[8:])])


def batches():
    examples, held_out = data()
    return Batches(*examples), Batches(*held_out)


def single():
    return data()[0]


class Helpers:
    @staticmethod
    def adam(learning_rate=0.1):
        return optax.adam(learning_rate)


sgd = optax.sgd(0.01)


def absolute(y_true, y_pred):
    return abs(y_true - y_pred).mean(-1)


def scaled(by):
    return lambda y_true, y_pred: by * absolute(y_true, y_pred)


class Epochs(kd.callbacks.Callback):
    seen = []

    def __init__(self, offset=0):
        super().__init__()
        self.offset = offset

    def on_epoch_end(self, epoch, logs=None):
        self.seen.append(epoch + self.offset)
"""

TOML = """
data = "my_run:data"
[mesh]
shape = {data = 2, model = 4}
[distribution]
batch_axis = "data"
[distribution.layout]
"up/kernel" = ["-", "model"]
"down/kernel" = ["model", "-"]
[model]
name = "my_run:Net"
width = 16
[optimizer]
name = "adam"
learning_rate = 0.01
[training]
epochs = 2
batch_size = 16
seed = 7
loss = "mse"
verbose = 0
"""


@pytest.fixture(autouse=True)
def my_run(tmp_path, monkeypatch):
    """A module of a user, and a config of a run of it."""
    (tmp_path / "my_run.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    pathlib.Path("run.toml").write_text(TOML)
    yield
    sys.modules.pop("my_run", None)


def settings(*overrides):
    return config.load("run.toml", overrides, environ={})


def built(*overrides):
    return assembly.build(settings(*overrides))


def refused(*overrides):
    with pytest.raises(KerasDistError) as caught:
        built(*overrides).train()
    return caught.value


def test_the_mesh_changes_nothing():
    """The line of the mesh alone is edited, and the losses are the same up to rounding."""
    histories = []
    for data, parts in ((8, 1), (4, 2), (2, 4), (1, 8)):
        line = f"shape = {{data = {data}, model = {parts}}}"
        pathlib.Path("run.toml").write_text(TOML.replace("shape = {data = 2, model = 4}", line))
        run = built()
        assert run.distribution.device_mesh.shape == (data, parts)
        histories.append(run.train().history)
        assert run.model.distribution == run.distribution
    assert set(histories[0]) == {"loss", "val_loss"}
    for history in histories[1:]:
        for name, values in histories[0].items():
            np.testing.assert_allclose(history[name], values, rtol=1e-5, err_msg=name)
    assert histories[0]["loss"][0] != histories[0]["loss"][1]


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


@pytest.mark.parametrize(
    ("override", "made"),
    [
        ("optimizer=sgd", lambda run: type(run.model.optimizer).__name__ == "SGD"),
        ("optimizer=my_run:sgd", lambda run: True),
        (
            "optimizer={name='my_run:Helpers.adam', learning_rate=0.5}",
            lambda run: run.train().epoch == [0, 1],
        ),
        (
            "optimizer={name='Adam', learning_rate={class_name='ExponentialDecay', config={initial_learning_rate=0.2, "
            "decay_steps=10, decay_rate=0.5}}}",
            lambda run: abs(float(run.model.optimizer.learning_rate) - 0.2) < 1e-6,
        ),
        (
            "training.loss={name='Huber', delta=2.0}",
            lambda run: run.model.get_compile_config()["loss"]["config"]["delta"] == 2.0,
        ),
        (
            "training.loss={name='MeanSquaredError', reduction='sum'}",
            lambda run: run.model.get_compile_config()["loss"]["module"] == "keras_dist.losses",
        ),
        ("training.loss=my_run:absolute", lambda run: True),
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


def test_the_distribution_is_not_left_behind():
    assembly.train(settings("training.epochs=1"))
    assert kd.distribution.distribution() is None


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


def test_what_a_plan_needs_is_that_of_the_run():
    run = built()
    gc.collect()
    before = {id(array) for array in jax.live_arrays()}
    inputs = assembly.plan_inputs(settings())
    report = kd.plan(**vars(inputs))
    assert {id(array) for array in jax.live_arrays()} <= before
    assert [(one.shape, one.dtype.name) for one in inputs.batch[:2]] == [((16, 8), "float32"), ((16, 2), "float32")]
    assert inputs.distribution == run.distribution
    x, y = (array[:16] for array in run.examples)
    assert report.nbytes_by_role == run.model.plan(x, y).nbytes_by_role
    assert report.to_dict() == run.model.plan(x, y).to_dict()


def test_a_plan_knows_what_is_computed_again():
    again = kd.plan(**vars(assembly.plan_inputs(settings("training.remat=full"))))
    assert again.step.flops > kd.plan(**vars(assembly.plan_inputs(settings()))).step.flops


def test_a_plan_computes_again_what_the_search_has_chosen(monkeypatch):
    def search(auto, *_, **__):
        found = kd.DataParallel(kd.DeviceMesh("data=8"))
        return types.SimpleNamespace(distribution=found, best=types.SimpleNamespace(remat="full"))

    monkeypatch.setattr(kd.AutoParallel, "search", search)
    plain = kd.plan(**vars(assembly.plan_inputs(settings("distribution={}", "mesh.shape=data=8"))))
    again = kd.plan(**vars(assembly.plan_inputs(settings("distribution={strategy='auto'}", "mesh.shape=data=8"))))
    assert again.step.flops > plain.step.flops


@pytest.mark.parametrize(
    ("target", "mesh", "platform"),
    [
        (None, "mesh.shape=data=16,model=4", "cpu"),
        (None, "mesh={shape='data=4,model=4', dcn_shape='data=4'}", "cpu"),
        ("v5e:8x8", "mesh.shape=data=16,model=4", "tpu"),
        ("v5e:8x8", "mesh.shape=data=-1,model=4", "tpu"),
        ("v5e:4x4*4", "mesh={shape='data=4,model=4', dcn_shape='data=4'}", "tpu"),
    ],
)
def test_a_plan_for_devices_that_are_not_here(target, mesh, platform):
    inputs = assembly.plan_inputs(settings(mesh, "model={name='my_run:sequential', width=64}"), target)
    found = inputs.distribution.device_mesh
    assert (found.shape, found.platform) == ((16, 4), platform)
    if target is not None:
        assert list(found.devices.flat) == kd.planner.devices(target, (16, 4))
    assert kd.plan(**vars(inputs)).nbytes_by_role["parameter"] > 0


def test_a_mesh_of_another_size_than_the_target():
    with pytest.raises(ConfigError, match=r"mesh\.shape"):
        assembly.plan_inputs(settings("mesh.shape=data=16,model=4"), "v5e:2x4")


SEQUENTIAL = "model={name='my_run:sequential', width=16}"


@pytest.mark.parametrize(
    ("distribution", "model", "axes"),
    [
        ("{strategy='auto'}", SEQUENTIAL, None),
        ("{strategy='tensor_parallel', axis='data'}", "model={name='my_run:Net', width=16}", (None, "data")),
        ("{strategy='hybrid', fsdp='data', tensor='model'}", SEQUENTIAL, ("data", "model")),
    ],
)
def test_layouts_that_are_found_in_the_step(distribution, model, axes):
    overrides = [model, f"distribution={distribution}", "mesh.shape={data=2, model=4}"]
    expected = assembly.train(settings(model, "distribution={layout={}}", "mesh.shape={data=8}"))
    run = built(*overrides)
    np.testing.assert_allclose(run.train().history["loss"], expected.history["loss"], rtol=1e-5)
    assert run.distribution == assembly.distribution_of(settings(*overrides))
    if axes is not None:
        assert run.model.layout_plan.row("up/kernel").axes == axes


def test_an_automatic_layout_is_kept_beside_the_checkpoints():
    overrides = ["distribution={strategy='auto', objective='memory'}", "checkpoint.directory=states", SEQUENTIAL]
    assembly.distribution_of(settings(*overrides))
    assert [path.suffix for path in pathlib.Path("states").glob("auto-*")] == [".json"]


@pytest.mark.parametrize(
    ("distribution", "kind"),
    [
        ("{strategy='auto', objective='memory'}", None),
        ("{strategy='tensor_parallel', axis='model'}", "model_parallel"),
        ("{strategy='zero1'}", "data_parallel"),
        ("{strategy='data_parallel'}", "data_parallel"),
    ],
)
def test_what_was_inferred_and_found_is_saved(distribution, kind):
    mesh = "data=-1" if "zero1" in distribution or "data_par" in distribution else "data=-1,model=4"
    run = assembly.build(
        settings(f"mesh.shape={mesh}", f"distribution={distribution}", "model={name='my_run:Net', width=16}")
    )
    pathlib.Path("resolved.json").write_text(run.config.to_json())
    again = config.load("resolved.json", environ={})
    assert -1 not in again.mesh.shape.values() and again.distribution.strategy != "auto"
    assert kind is None or again.distribution.strategy == kind
    repeated = assembly.build(again)
    assert repeated.distribution == run.distribution
    assert [row.axes for row in repeated.model.layout_plan.rows] == [row.axes for row in run.model.layout_plan.rows]
    assert again.training.remat == repeated.config.training.remat == run.config.training.remat


def test_an_automatic_layout_without_a_model_is_found_by_fit(tmp_path):
    (tmp_path / "auto.toml").write_text(
        'mesh.shape = "data=8"\n[distribution]\nstrategy = "auto"\nobjective = "memory"\ntarget = "cpu:8"\n'
        "memory_limit = 1_000_000"
    )
    found = kd.distribution_from_config("auto.toml")
    assert type(found) is kd.AutoParallel
    assert (found.objective, found.target.name, found.memory_limit) == ("memory", "cpu:8", 1_000_000)


def test_zero1_needs_no_model(tmp_path):
    (tmp_path / "zero1.toml").write_text('mesh.shape = "data=8"\ndistribution.strategy = "zero1"')
    assert kd.distribution_from_config("zero1.toml") == kd.presets.zero1(kd.DeviceMesh("data=8"))
    (tmp_path / "found.toml").write_text('mesh.shape = "data=2,model=4"\ndistribution.strategy = "tensor_parallel"')
    with pytest.raises(ConfigError, match="data: is missing"):
        kd.distribution_from_config("found.toml")


@pytest.mark.parametrize(
    ("overrides", "summary", "fix"),
    [
        (["model=my_rn:Net"], "model: there is no module 'my_rn'", "correct it"),
        (["model=my_run:Nt"], "model: my_run has no 'Nt' (did you mean 'Net'?)", "correct the name"),
        (["model=:Net"], "model: there is no module ''", "correct it"),
        (["model=.:Net"], "model: there is no module '.'", "correct it"),
        (["model={name='my_run:Net', widht=3}"], "model: my_run:Net does not take these arguments", "correct"),
        (["model=my_run:sequential"], "model: my_run:sequential does not take these arguments", "correct"),
        (["model=my_run:sgd"], "model: my_run:sgd does not take these arguments", "correct"),
        (["model=Sequental"], "model: ", ""),
        (["data=digit"], "data: unknown name 'digit' (did you mean 'digits'?)", "correct the name"),
        (["data=my_run:single"], "data: my_run:single does not return two parts", "return (x, y), None"),
        (["data={name='my_run:data', row=3}"], "data: my_run:data does not take these arguments", "correct"),
        (["optimizer=adm"], "optimizer: unknown optimizer 'adm' (did you mean 'adam'?)", "correct the name"),
        (["optimizer={name='adam', rate=1}"], "optimizer: Adam has no argument 'rate'", ""),
        (["optimizer=my_run:data"], "optimizer: `optimizer` is neither a name nor", "for example"),
        (["training.loss=msee"], "training.loss: unknown loss 'msee'", "correct the name"),
        (["training.metrics=['mae', 'accurcy']"], "training.metrics[1]: unknown metric 'accurcy'", "correct the name"),
        (["training.dtype_policy=float7"], "training.dtype_policy: ", ""),
        (["callbacks=['EarlyStoping']"], "callbacks[0]: unknown name 'EarlyStoping' (did you mean", "correct the name"),
        (["callbacks=['my_run:data']"], "callbacks[0]: my_run:data is no callback", "for example EarlyStopping"),
        (["callbacks={EarlyStopping={mode='q'}}"], "callbacks[0]: `mode` is none of its options", ""),
        (["callbacks={EarlyStopping={patienc=3}}"], "callbacks[0]: EarlyStopping does not take these", "correct"),
        (["distribution={strategy='zero1'}"], "distribution: zero1 takes a mesh of one axis", "DeviceMesh"),
        (["distribution={strategy='spatial'}", SEQUENTIAL], "distribution: ", ""),
        (
            ["mesh.shape=data=3", "distribution={}"],
            "mesh.shape: Shape does not match the number of devices",
            "change a size",
        ),
    ],
)
def test_a_mistake_names_its_key(overrides, summary, fix):
    error = refused(*overrides)
    assert error.summary.startswith(summary)
    assert error.fix.startswith(fix)
    assert error.given


def test_a_mesh_that_does_not_fit_says_how_to_make_devices():
    fix = refused("mesh.shape=data=3", "distribution={}").fix
    assert "JAX_NUM_CPU_DEVICES=" in fix and "kd.use_cpu_devices(" in fix


def test_a_variable_that_was_overridden_is_not_to_blame(monkeypatch):
    monkeypatch.setenv("KERAS_DIST_MESH", "data=8,what")
    with pytest.raises(ConfigError, match=r"^mesh\.shape: Shape does not match"):
        assembly.distribution_of(config.load("run.toml", ["mesh.shape={data=3, model=1}"]))


@pytest.mark.parametrize("key", ["model", "data"])
def test_what_a_run_needs(key):
    table = json.loads(settings().to_json())
    del table[key]
    run = config.RunConfig.model_validate(table)
    for use in (assembly.build, assembly.train, assembly.plan_inputs):
        with pytest.raises(ConfigError, match=f"{key}: is missing"):
            use(run)


def test_nothing_to_test_on():
    with pytest.raises(ConfigError, match="data: there are no examples to test on"):
        built("data={name='my_run:data', test=false}").evaluate()


def test_a_module_that_cannot_be_imported_says_why(tmp_path):
    (tmp_path / "broken.py").write_text("import there_is_none_of_this")
    with pytest.raises(ModuleNotFoundError, match="there_is_none_of_this"):
        built("model=broken:Net")


def test_a_cluster_is_joined_first(monkeypatch):
    joined = []
    monkeypatch.setattr(runs, "initialize", lambda **told: joined.append(told))
    assembly.build(settings())
    assert joined == []
    assembly.build(
        settings('cluster={job_addresses="10.0.0.1:1", num_processes=2, process_id=1, communication="gloo"}')
    )
    told = set(inspect.signature(kd.initialize).parameters)
    assert set(joined[0]) == told
    assert (joined[0]["job_addresses"], joined[0]["num_processes"], joined[0]["process_id"]) == ("10.0.0.1:1", 2, 1)
    assert joined[0]["communication_options"] == kd.distribution.CommunicationOptions("gloo")
    defaults = {name: p.default for name, p in inspect.signature(kd.initialize).parameters.items()}
    assert all(joined[0][name] == defaults[name] for name in told if name.endswith("_s"))


WORKERS = '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}'


@pytest.mark.parametrize(
    ("variables", "is_joined"),
    [
        ({}, False),
        ({"KERAS_DISTRIBUTION_JOB_ADDRESSES": "10.0.0.1:1", "KERAS_DISTRIBUTION_NUM_PROCESSES": "1"}, True),
        ({"TF_CONFIG": WORKERS}, True),
        ({"TF_CONFIG": WORKERS.replace(', "b:1"', "")}, False),
    ],
)
@pytest.mark.parametrize("cluster", [(), ("cluster={}",)])
def test_the_job_of_the_environment_is_joined(monkeypatch, cluster, variables, is_joined):
    joined = []
    monkeypatch.setattr(runs, "initialize", lambda **told: joined.append(told))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assembly.build(settings(*cluster))
    assert len(joined) == is_joined
    assert all(told["job_addresses"] is None for told in joined)


def test_the_job_that_jax_detects_is_joined_where_there_is_a_cluster(monkeypatch):
    joined = []
    monkeypatch.setattr(runs, "initialize", lambda **told: joined.append(told))
    slurm = {"SLURM_JOB_ID": "1", "SLURM_STEP_NODELIST": "a,b", "SLURM_NTASKS": "2", "SLURM_PROCID": "0"}
    for name, value in (slurm | {"SLURM_LOCALID": "0", "SLURM_STEP_NUM_NODES": "2"}).items():
        monkeypatch.setenv(name, value)
    assembly.build(settings())
    assert joined == []
    assembly.build(settings("cluster={}"))
    assert len(joined) == 1
