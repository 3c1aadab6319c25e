"""What the schema accepts and refuses, by itself and in files."""

import json
from collections.abc import Callable
from typing import Any

import pydantic
import pytest

from keras_dist.config import DataParallelConfig, DistributionConfig, RunConfig
from keras_dist.errors import ConfigError

Load = Callable[..., RunConfig]
Refused = Callable[..., ConfigError]

MESH = {"shape": {"data": 2, "model": 4}}


def text_with(distribution: dict[str, Any], mesh: Any = MESH) -> str:
    return json.dumps({"mesh": mesh, "distribution": distribution})


def test_the_default_is_data_parallel_on_the_first_axis() -> None:
    config = RunConfig.model_validate({"mesh": MESH})
    assert config.mesh.shape == {"data": 2, "model": 4}
    assert config.distribution == DataParallelConfig()
    assert config.distribution.strategy == "data_parallel"
    assert config.distribution.batch_axis is None
    assert config.distribution.layout_axes() == {}


def test_a_layout_makes_it_model_parallel() -> None:
    assert DistributionConfig.model_validate({"layout": {"a": ["-"]}}).strategy == "model_parallel"
    assert DistributionConfig.model_validate({"layout": {}}).strategy == "model_parallel"
    assert DistributionConfig.model_validate({"layout": None, "strategy": None}).strategy == "data_parallel"
    given = {"layout": {"a": ["-"]}, "strategy": "fully_sharded"}
    assert DistributionConfig.model_validate(given).strategy == "fully_sharded"


def test_layout_axes_are_ready_for_a_layout_map(loaded: Load) -> None:
    layout = {"d1/kernel": ["-", "model"], "e/kernel": [["data", "model"], None], "b": [], ".*/bias": ["model"]}
    config = loaded(text_with({"layout": layout}), ".json")
    assert list(config.distribution.layout_axes().items()) == [
        ("d1/kernel", (None, "model")),
        ("e/kernel", (("data", "model"), None)),
        ("b", ()),
        (".*/bias", ("model",)),
    ]


def test_every_option_of_each_strategy(loaded: Load) -> None:
    full = {"strategy": "fully_sharded", "axis": "data", "min_size_bytes": 0, "strict": True, "layout": {}}
    config = loaded(text_with({**full, "batch_axis": ["data", "model"]}), ".json").distribution
    assert (config.axis, config.min_size_bytes, config.strict) == ("data", 0, True)
    assert config.batch_axis == ("data", "model")
    config = loaded(text_with({"shard_optimizer": True, "batch_axis": "model"}), ".json").distribution
    assert (config.strategy, config.shard_optimizer, config.batch_axis) == ("data_parallel", True, "model")
    assert loaded(text_with({"strategy": "model_parallel", "strict": True}), ".json").distribution.strict


def test_without_a_file_pydantic_raises_and_still_checks_across() -> None:
    with pytest.raises(pydantic.ValidationError, match="no axis 'dta'"):
        RunConfig.model_validate({"mesh": MESH, "distribution": {"batch_axis": "dta"}})
    wrong = {"mesh": MESH, "distribution": {"batch_axis": "dta"}, "training": {"epochs": "many"}}
    for validate in (lambda: RunConfig(**wrong), lambda: RunConfig.model_validate_json(json.dumps(wrong))):
        with pytest.raises(pydantic.ValidationError, match=r"no axis 'dta'(?s:.*)training.epochs") as caught:
            validate()
        assert caught.value.errors()[0]["loc"][:2] == ("distribution", "batch_axis")
    with pytest.raises(pydantic.ValidationError, match=r"axis\n +Extra inputs are not permitted"):
        DistributionConfig.model_validate({"axis": "data"})


@pytest.mark.parametrize("size", ["4", True, 4.0, None, 0, -2, [4]])
def test_sizes_are_strict(refused: Refused, size: object) -> None:
    error = refused(text_with({}, {"shape": {"data": size}}), ".json")
    assert error.summary.startswith("run.json: mesh.shape.data: an axis cannot have the size")
    assert json.dumps(size) in error.given
    assert error.expected.startswith("an integer >= 1, or -1 for one axis")
    assert error.fix


@pytest.mark.parametrize("name", ["", " ", "-", "a,b", "a=b", " data"])
def test_axis_names_are_checked(refused: Refused, name: str) -> None:
    error = refused(text_with({}, {"shape": {name: 2}}), ".json")
    assert error.summary.startswith(f"run.json: mesh.shape.{json.dumps(name)}: ")
    assert error.given == json.dumps(name)
    assert "a name that is not '-'" in error.expected


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ({}, "it has no axes"),
        ("data=2,data=4", "axis 'data' appears twice"),
        (8, "has the wrong type"),
        ([["data", 8]], "has the wrong type"),
    ],
)
def test_shapes_are_checked(refused: Refused, shape: object, said: str) -> None:
    error = refused(text_with({}, {"shape": shape}), ".json")
    assert error.summary.startswith("run.json: mesh.shape: ")
    assert said in error.summary
    assert json.dumps(shape) in error.given
    assert "an integer >= 1, or -1 for one axis" in error.expected
    assert error.fix.startswith("for example")


@pytest.mark.parametrize(
    ("distribution", "place", "given", "allowed"),
    [
        ({"batch_axis": 3}, "batch_axis", "3", "an axis name, or a list of axis names"),
        ({"batch_axis": ["data", "data"]}, "batch_axis", '["data", "data"]', "each once"),
        ({"strict": "yes", "layout": {}}, "strict", '"yes" (a string)', "true or false"),
        ({"shard_optimizer": 1}, "shard_optimizer", "1 (an integer)", "true or false"),
        ({"strategy": "fully_sharded", "min_size_bytes": -1}, "min_size_bytes", "-1", "an integer >= 0"),
        ({"strategy": "fully_sharded", "min_size_bytes": True}, "min_size_bytes", "true (a boolean)", "an integer"),
        ({"strategy": "spatial", "axis": ["data"]}, "axis", '["data"] (a list)', "an axis name"),
        ({"strategy": "auto", "batch_axis": "data"}, "batch_axis", '"data"', "the strategy chooses the axes"),
        ({"strategy": "auto", "objective": "time"}, "objective", '"time"', "'step_time' or 'memory'"),
        ({"strategy": "hybrid", "fsdp": "dta"}, "fsdp", '"dta"', "an axis of the mesh"),
        ({"layout": ["data"]}, "layout", '["data"] (a list)', "a table"),
        ({"layout": {"d1/kernel": "model"}}, 'layout."d1/kernel"', '"model"', "an entry for each dim"),
        ({"layout": {"d1/kernel": ["-", 3]}}, 'layout."d1/kernel"[1]', "3", '"-" (in quotes) or null'),
        ({"layout": {"d1/kernel": [[]]}}, 'layout."d1/kernel"[0]', "[]", "a list of axis names"),
        ({"layout": {"k": [["data", "-"]]}}, "layout.k[0][1]", '"-"', "an axis of the mesh"),
        ({"layout": {"k": [["data", None]]}}, "layout.k[0][1]", "null", "a list of axis names"),
        ({"layout": {"k": ["data", ["model", "data"]]}}, "layout.k", '["model", "data"]', "on one dim at most"),
        ({"layout": {"d(1": ["-"]}}, 'layout."d(1"', '"d(1"', "a regular expression for whole paths"),
    ],
)
def test_refusal_gives_place_given_and_allowed(
    refused: Refused, distribution: dict[str, Any], place: str, given: str, allowed: str
) -> None:
    error = refused(text_with(distribution), ".json")
    assert error.summary.startswith(f"run.json: distribution.{place}: ")
    assert given in error.given
    assert allowed in error.expected
    assert error.fix


def test_an_option_for_the_default_strategy_says_so(refused: Refused) -> None:
    error = refused(text_with({"axis": "data"}), ".json")
    assert "is not an option of strategy 'data_parallel'" in error.summary
    assert error.given == '"data", strategy "data_parallel" (the default)'
    for taker in ("fully_sharded", "tensor_parallel", "sequence_parallel", "spatial"):
        assert repr(taker) in error.expected and repr(taker) in error.fix


@pytest.mark.parametrize(
    ("distribution", "place"),
    [
        ({"batch_axis": "dta"}, "batch_axis"),
        ({"batch_axis": ["model", "dta"]}, "batch_axis[1]"),
        ({"strategy": "fully_sharded", "axis": "dta"}, "axis"),
        ({"layout": {"d1/kernel": ["-", "dta"]}}, 'layout."d1/kernel"[1]'),
        ({"layout": {"d1/kernel": [["model", "dta"], None]}}, 'layout."d1/kernel"[0][1]'),
    ],
)
def test_axis_names_must_be_in_the_mesh(refused: Refused, distribution: dict[str, Any], place: str) -> None:
    error = refused(text_with(distribution), ".json")
    assert error.summary == f"run.json: distribution.{place}: the mesh has no axis 'dta' (did you mean 'data'?)"
    assert error.given == '"dta"'
    assert error.expected == 'an axis of the mesh: "data", "model" (from mesh.shape)'
    assert error.fix == 'write "data"'


def test_an_axis_like_no_other(refused: Refused) -> None:
    error = refused(text_with({"batch_axis": "xyz"}), ".json")
    assert "did you mean" not in str(error)
    assert error.fix == 'write one of these, or add "xyz" to the mesh'
    assert refused(text_with({"batch_axis": "-"}), ".json").fix == "write one of these"


WHOLE: dict[str, Any] = {
    "mesh": {"shape": {"data": 8}},
    "cluster": {"num_processes": 2, "process_id": 0, "job_addresses": "10.0.0.1:1234", "communication": "gloo"},
    "model": {"name": "my_package.models:Classifier", "width": 256},
    "data": "digits",
    "optimizer": {"name": "adam", "learning_rate": 1e-3},
    "training": {
        "epochs": 3,
        "batch_size": 64,
        "seed": 1,
        "loss": {"name": "Huber", "delta": 2.0},
        "metrics": ["accuracy", {"name": "MeanMetricWrapper", "config": {"name": "error"}}],
        "dtype_policy": "mixed_bfloat16",
        "validation_split": 0.1,
        "steps_per_execution": 4,
    },
    "checkpoint": {"directory": "runs/1", "save_freq": 100, "keep": None},
    "callbacks": [{"name": "EarlyStopping", "patience": 2}],
}


def test_a_whole_run_reads_back_from_its_dump() -> None:
    config = RunConfig.model_validate(WHOLE)
    assert config.model is not None and config.data is not None
    assert (config.model.name, config.model.arguments) == ("my_package.models:Classifier", {"width": 256})
    assert (config.data.name, config.data.arguments) == ("digits", {})
    assert [metric.name for metric in config.training.metrics] == ["accuracy", "MeanMetricWrapper"]
    assert config.training.metrics[1].arguments == {"name": "error"}
    assert RunConfig.model_validate(json.loads(config.to_json())) == config
    assert RunConfig.model_validate(config.model_dump()) == config


def test_callbacks_may_be_a_table_by_name() -> None:
    by_name = {"callbacks": {"EarlyStopping": {"patience": 2}}}
    assert RunConfig.model_validate({**WHOLE, **by_name}) == RunConfig.model_validate(WHOLE)


def test_objects_as_keras_writes_them() -> None:
    written = {"module": "keras.optimizers", "class_name": "Adam", "config": {"name": "a"}, "registered_name": None}
    component = RunConfig.model_validate({**WHOLE, "optimizer": written}).optimizer
    assert (component.name, component.arguments) == ("Adam", {"name": "a"})
    written |= {"registered_name": "shop>Adam"}
    assert RunConfig.model_validate({**WHOLE, "optimizer": written}).optimizer.name == "shop>Adam"


def test_auto_and_presets_have_options_of_their_own(loaded: Load) -> None:
    auto = {"strategy": "auto", "objective": "memory", "target": "v5e:2x4", "memory_limit": 2**30}
    assert loaded(text_with(auto), ".json").distribution.model_dump(exclude={"batch_axis"}) == auto
    assert loaded(text_with({"strategy": "zero1"}), ".json").distribution.strategy == "zero1"
    for name in ("tensor_parallel", "sequence_parallel", "spatial"):
        found = loaded(text_with({"strategy": name, "axis": "model"}), ".json").distribution
        assert (found.strategy, found.axis) == (name, "model")
    found = loaded(text_with({"strategy": "hybrid", "fsdp": "data", "tensor": "model"}), ".json").distribution
    assert (found.fsdp, found.tensor) == ("data", "model")


@pytest.mark.parametrize(
    ("given", "said", "allowed"),
    [
        ({"training": {"epochs": 0}}, "training.epochs: has a value that is not allowed", "a number >= 1"),
        ({"training": {"epochs": "3"}}, "training.epochs: has the wrong type", "an integer"),
        ({"training": {"batch": 3}}, "training.batch: unknown key (did you mean 'batch_size'?)", "one of the keys"),
        ({"training": {"validation_split": 1}}, "training.validation_split: has a value", "a number < 1"),
        ({"training": {"steps_per_execution": "some"}}, "training.steps_per_execution: has", "an integer"),
        ({"training": {"verbose": 3}}, "training.verbose: has a value that is not allowed", "'auto', 0, 1 or 2"),
        ({"training": {"loss": 3}}, "training.loss: has the wrong type", 'import path "module:Thing"'),
        ({"training": {"metrics": "mse"}}, "training.metrics: has the wrong type", "a list of names"),
        ({"training": {"metrics": ["mse", {"k": 3}]}}, "training.metrics[1].name: is missing", "a list of names"),
        ({"callbacks": {"EarlyStopping": 3}}, "callbacks: has the wrong type", "a table of tables by name"),
        ({"optimizer": {"learning_rate": 1}}, "optimizer.name: is missing", "a registered name"),
        ({"model": ""}, "model: has a value that is not allowed", "a registered name"),
        ({"checkpoint": {}}, "checkpoint.directory: is missing", "a directory"),
        ({"checkpoint": {"directory": "c", "save_freq": "day"}}, "checkpoint.save_freq: has", '"epoch"'),
        ({"cluster": {"num_processes": 0}}, "cluster.num_processes: has a value", "a number >= 1"),
        (
            {"cluster": {"communication": "tcp"}},
            "cluster.communication: has a value",
            "'auto', 'gloo', 'mpi' or 'nccl'",
        ),
        ({"seed": 3}, "seed: unknown key", "one of the keys mesh, distribution, cluster, model, data"),
    ],
)
def test_refusals_of_runs(refused: Refused, given: dict[str, Any], said: str, allowed: str) -> None:
    error = refused(json.dumps({**WHOLE, **given}), ".json")
    assert error.summary.startswith(f"run.json: {said}")
    assert allowed in error.expected
    assert error.given
    assert error.fix


def test_arguments_are_plain_values(refused: Refused) -> None:
    error = refused(
        "mesh: {shape: {data: 8}}\nmodel: {name: a, when: {day: 2020-01-01, tags: !!set {x: null}}}", ".yaml"
    )
    assert "run.yaml: model.when.day: " in error.summary
    assert "run.yaml: model.when.tags: " in error.summary


def test_adapters_are_saved_if_there_are_some(loaded: Load, refused: Refused) -> None:
    lora = {"rank": 2, "layers": "up"}
    config = loaded(json.dumps({"mesh": MESH, "save": {"adapter": "out"}, "lora": lora}), ".json")
    assert config.lora and config.lora.layers == ("up",) and config.save.adapter == "out"
    assert loaded(json.dumps({"mesh": MESH, "lora": {**lora, "layers": ["up", "down"]}}), ".json").lora != config.lora
    error = refused(json.dumps({"mesh": MESH, "save": {"adapter": "out"}}), ".json")
    assert "save: save.adapter needs adapters" in error.summary and error.fix == "add [lora], or remove it"
    for wrong in ({"layers": []}, {"layers": 3}, {"alpha": 0}, {"dropout": 1}, {"rank": 0}):
        assert f"lora.{next(iter(wrong))}" in refused(json.dumps({"mesh": MESH, "lora": lora | wrong}), ".json").summary
