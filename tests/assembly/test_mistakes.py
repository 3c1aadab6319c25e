"""Mistakes in configs of runs: each error names its key."""

import json

import pytest

from keras_dist import assembly, config
from keras_dist.errors import ConfigError, KerasDistError
from tests.assembly.my_run import SEQUENTIAL, built, refused, settings


@pytest.mark.parametrize(
    ("overrides", "summary", "fix"),
    [
        (["model=my_rn:Net"], "model: module 'my_rn' does not exist", "correct it"),
        (["model=my_run:Nt"], "model: my_run has no 'Nt' (did you mean 'Net'?)", "correct the name"),
        (["model=:Net"], "model: module '' does not exist", "correct it"),
        (["model={name='my_run:Net', widht=3}"], "model: my_run:Net does not take these arguments", "correct"),
        (["model=my_run:sequential"], "model: my_run:sequential does not take these arguments", "correct"),
        (["model=my_run:sgd"], "model: my_run:sgd does not take these arguments", "correct"),
        (["model=Sequental"], "model: unknown name 'Sequental' (did you mean 'Sequential'?)", "correct the name"),
        (["training.loss={name='msee', reduction='sum'}"], "training.loss: unknown loss 'msee'", "correct the name"),
        (["training.metrics=[{name='accurcy', dtype='float32'}]"], "training.metrics[0]: unknown metric 'accurcy'", ""),
        (
            ["optimizer={name='sgd', learning_rate={class_name='CosineDecy', config={}}}"],
            "optimizer: the config mentions 'CosineDecy', which is not known (did you mean 'CosineDecay'?)",
            "correct the name",
        ),
        (["data=digit"], "data: unknown name 'digit' (did you mean 'digits'?)", "correct the name"),
        (["data=my_run:single"], "data: my_run:single must return", "return (x, y), None"),
        (["optimizer=adm"], "optimizer: unknown optimizer 'adm' (did you mean 'adam'?)", "correct the name"),
        (
            ["optimizer={name='Adm', learning_rate=1}"],
            "optimizer: unknown optimizer 'Adm' (did you mean 'Adam'?)",
            "correct the name",
        ),
        (["optimizer=my_run:data"], "optimizer: `optimizer` must be a name, a config", "for example"),
        (["training.loss=msee"], "training.loss: unknown loss 'msee'", "correct the name"),
        (["training.metrics=['mae', 'accurcy']"], "training.metrics[1]: unknown metric 'accurcy'", "correct the name"),
        (["training.dtype_policy=float7"], "training.dtype_policy: ", ""),
        (["callbacks=['EarlyStoping']"], "callbacks[0]: unknown name 'EarlyStoping' (did you mean", "correct the name"),
        (
            ["callbacks=['my_run:data']"],
            "callbacks[0]: my_run:data must be a callback",
            "name a keras_dist.callbacks.Callback",
        ),
        (["callbacks={EarlyStopping={patience=-1}}"], "callbacks[0]: `patience` must be an integer of at least 0", ""),
        (["callbacks={EarlyStopping={patienc=3}}"], "callbacks[0]: EarlyStopping does not take these", "correct"),
        (["model={name='pretrained', folder='no'}"], "model: 'no' does not exist", "give a folder"),
        (["model={name='pretrained', fodler='no'}"], "model: pretrained does not take these arguments", "correct"),
        (["data={name='text', files='*.no', length=8}"], "data: `files` matches no file", "correct it; it is relative"),
        (["lora={rank=2, layers='upp'}"], "lora: enable_lora: `layers` must match", "choose"),
        (["save.pretrained=out"], "save.pretrained: the model must be a network", "load it: model = "),
        (["distribution={strategy='zero1'}"], "distribution: zero1 takes a mesh of one axis", "DeviceMesh"),
        (["distribution={strategy='spatial'}", SEQUENTIAL], "distribution: ", ""),
        (
            ["mesh.shape=data=3", "distribution={}"],
            "mesh.shape: Shape does not match the number of devices",
            "--mesh data=8, or shape = ",
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
    assert "keras-dist train --fake" in fix and "kd.use_cpu_devices(" in fix


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
    with pytest.raises(ConfigError, match="data: the config has no test data"):
        built("data={name='my_run:data', test=false}").evaluate()


def test_a_module_that_cannot_be_imported_says_why(tmp_path):
    (tmp_path / "broken.py").write_text("import there_is_none_of_this")
    with pytest.raises(ModuleNotFoundError, match="there_is_none_of_this"):
        built("model=broken:Net")


@pytest.mark.parametrize("call", [assembly.build, assembly.train, assembly.plan_inputs, assembly.distribution_of])
@pytest.mark.parametrize("given", [None, "run.toml", {"mesh": {"shape": {"data": 1}}}, object])
def test_what_is_no_config_is_refused(call, given):
    with pytest.raises(ConfigError, match="`run` must be a RunConfig") as caught:
        call(given)
    assert "config.load" in caught.value.fix and "model_validate" in caught.value.fix


@pytest.mark.parametrize("given", [None, 1, 1.5, b"x", {}, {"a": [{}]}, [None], object(), {1}, ""])
def test_nonsense_for_other_arguments_is_an_error_of_ours(given):
    run = settings()
    calls = [lambda: assembly.distribution_from_config(given)]
    if given is not None:  # the default
        calls += [lambda: assembly.plan_inputs(run, given), lambda: assembly.distribution_of(run, given)]
    for call in calls:
        with pytest.raises(KerasDistError):
            call()
