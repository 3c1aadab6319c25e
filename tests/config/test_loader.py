"""`load`: everything that is wrong is listed at once, and the environment may name the mesh."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_dist.config import RunConfig, load
from keras_dist.errors import ConfigError

Load = Callable[..., RunConfig]
Refused = Callable[..., ConfigError]

MESH = "[mesh]\nshape = {data = 2, model = 4}\n"


def test_the_environment_replaces_the_shape(loaded: Load) -> None:
    config = loaded(MESH, environ={"KERAS_DIST_MESH": " data=4, model=2, expert=-1 "})
    assert list(config.mesh.shape.items()) == [("data", 4), ("model", 2), ("expert", -1)]


def test_the_environment_stands_in_for_a_mesh(loaded: Load) -> None:
    environ = {"KERAS_DIST_MESH": "data=8"}
    for text in ("", "[mesh]", "[mesh]\nshape = 3"):
        assert loaded(text, environ=environ).mesh.shape == {"data": 8}
    assert loaded("mesh:", ".yaml", environ).mesh.shape == {"data": 8}


@pytest.mark.parametrize("environ", [{}, {"KERAS_DIST_MESH": ""}, {"KERAS_DIST_MESH": " "}])
def test_an_empty_variable_replaces_nothing(loaded: Load, environ: dict[str, str]) -> None:
    assert loaded(MESH, environ=environ).mesh.shape == {"data": 2, "model": 4}


def test_the_environment_is_that_of_the_process_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "run.toml"
    file.write_text(MESH)
    monkeypatch.setenv("KERAS_DIST_MESH", "data=8,model=1")
    assert load(file).mesh.shape == {"data": 8, "model": 1}
    assert load(str(file), environ={}).mesh.shape == {"data": 2, "model": 4}
    monkeypatch.delenv("KERAS_DIST_MESH")
    assert load(file).mesh.shape == {"data": 2, "model": 4}


def test_axes_are_checked_against_the_shape_of_the_environment(refused: Refused) -> None:
    text = MESH + '[distribution]\nbatch_axis = ["data", "model"]'
    error = refused(text, environ={"KERAS_DIST_MESH": "data=4,models=2"})
    expected = "run.toml: distribution.batch_axis[1]: the mesh has no axis 'model' (did you mean 'models'?)"
    assert error.summary == expected
    assert error.expected == 'an axis of the mesh: "data", "models" (from KERAS_DIST_MESH)'


def test_a_wrong_variable_is_named_beside_the_rest(refused: Refused) -> None:
    error = refused(MESH, environ={"KERAS_DIST_MESH": "data=4,model"})
    assert error.summary == "KERAS_DIST_MESH: mesh.shape: mesh shape 'data=4,model': 'model' has no '='"
    assert error.given == '"data=4,model"'
    assert "name=size" in error.expected
    assert error.fix == 'for example "data=2,model=4"'
    error = refused(
        MESH + "[distribution]\nstrategy = 'model_parallel'\nstrict = 3\nbatch_axis = 'x'",
        environ={"KERAS_DIST_MESH": "data"},
    )
    assert "KERAS_DIST_MESH: mesh.shape: mesh shape 'data': 'data' has no '='" in error.summary
    assert "run.toml: distribution.strict: has the wrong type" in error.summary
    assert "no axis" not in error.summary  # which axes there are is not known


def test_other_keys_of_an_overridden_mesh_are_still_checked(refused: Refused) -> None:
    error = refused("[mesh]\nshpe = {data = 8}", environ={"KERAS_DIST_MESH": "data=8"})
    assert error.summary == "run.toml: mesh.shpe: unknown key (did you mean 'shape'?)"
    error = refused("mesh = 3", environ={"KERAS_DIST_MESH": "data=8"})
    assert error.summary == "run.toml: mesh: has the wrong type"


@pytest.mark.parametrize(("text", "place"), [("", "mesh"), ("[mesh]", "mesh.shape")])
def test_missing_mesh(refused: Refused, text: str, place: str) -> None:
    error = refused(text)
    assert error.summary == f"run.toml: {place}: is missing"
    assert error.given == "nothing in the file, and no KERAS_DIST_MESH in the environment"
    assert "shape" in error.expected or "a size for each axis" in error.expected
    assert '{"data": 2, "model": 4}' in error.fix
    assert error.fix.endswith('or set KERAS_DIST_MESH="data=2,model=4"')


@pytest.mark.parametrize(
    ("text", "summary", "expected", "fix"),
    [
        ("[msh]", "msh: unknown key (did you mean 'mesh'?)", "one of the keys mesh, distribution", "write mesh"),
        ("[output]", "output: unknown key", "one of the keys mesh, distribution", "remove it"),
        (
            "[distribution]\nstratgy = 'x'",
            "distribution.stratgy: unknown key (did you mean 'strategy'?)",
            "one of the keys strategy, batch_axis, shard_optimizer, layout, strict, sequence_axis, axis",
            "write strategy",
        ),
        (
            "[distribution]\nstrategy = 'model_paralel'",
            "distribution.strategy: unknown value (did you mean 'model_parallel'?)",
            '"data_parallel", "model_parallel", "fully_sharded", "auto", ',
            'write "model_parallel"',
        ),
        (
            "[distribution]\nstrategy = []",
            "distribution.strategy: unknown value",
            '"data_parallel", "model_parallel", "fully_sharded", "auto", ',
            'for example "data_parallel"',
        ),
        ("distribution = 3", "distribution: has the wrong type", "a table with the keys strategy, ", "for example {"),
    ],
)
def test_unknown_names(refused: Refused, text: str, summary: str, expected: str, fix: str) -> None:
    error = refused(f"{text}\n{MESH}")
    assert error.summary == f"run.toml: {summary}"
    assert error.given
    assert error.expected.startswith(expected)
    assert error.fix.startswith(fix)


def test_a_key_in_the_wrong_table_is_sent_to_the_right_one(refused: Refused) -> None:
    error = refused("strategy = 'data_parallel'\n" + MESH)
    assert error.summary == "run.toml: strategy: unknown key"
    assert error.fix == "move it into distribution"
    assert refused(MESH + "batch_axis = 'data'").fix == "move it into distribution"


def test_yaml_keys_that_are_no_text(refused: Refused) -> None:
    text = "mesh: {shape: {1: 2}}\n3: 4\ndistribution: {layout: {5: ['-']}, 6: 7}"
    error = refused(text, ".yaml")
    for key in ('mesh.shape."1"', '"3"', 'distribution.layout."5"', 'distribution."6"'):
        assert f"run.yaml: {key}: the key is not text" in error.summary
    assert "4 problems" in error.summary and "unknown key" not in error.summary
    error = refused("mesh: {shape: {data: 1}}\nyes: 1", ".yaml")
    assert (error.given, error.fix) == ("true", "write it in quotes")


@pytest.mark.parametrize(
    "text", [r'{"\ud800": 1, "mesh": {"shape": {"data": 1}}}', r'{"mesh": {"shape": {"data\udfff": 1}}}']
)
def test_half_of_a_surrogate_pair(refused: Refused, text: str) -> None:
    error = refused(text, ".json")
    assert "has half of a surrogate pair" in error.summary and error.fix == "write the whole character"


def test_everything_is_listed_at_once(refused: Refused) -> None:
    error = refused(
        """
        [mesh]
        shape = {data = "2", model = 4}
        [distribution]
        strategy = "data_parallel"
        batch_axis = "dta"
        layout = {"d1/kernel" = ["-", "modl"]}
        strct = true
        min_size_bytes = -1
        [output]
        """
    )
    assert error.summary.splitlines()[0] == "run.toml: 6 problems"
    headlines = [line for line in error.summary.splitlines() if line.startswith("  run.toml: ")]
    assert sorted(headlines) == [
        "  run.toml: distribution.batch_axis: the mesh has no axis 'dta' (did you mean 'data'?)",
        "  run.toml: distribution.layout: is not an option of strategy 'data_parallel'",
        "  run.toml: distribution.min_size_bytes: is not an option of strategy 'data_parallel'",
        "  run.toml: distribution.strct: unknown key (did you mean 'strict'?)",
        '  run.toml: mesh.shape.data: an axis cannot have the size "2" (a string)',
        "  run.toml: output: unknown key",
    ]
    for label in ("given:", "expected:", "fix:"):
        assert error.summary.count(f"    {label}") == 6
    assert str(error) == error.summary


SCALARS = (
    st.none() | st.booleans() | st.integers(-3, 9) | st.sampled_from(["data", "model", "-", "", "data=2", "[key]"])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["data", "[key]", "k("]), inner),
    max_leaves=6,
)
TABLES = st.fixed_dictionaries(
    {},
    optional={
        "mesh": st.fixed_dictionaries({}, optional={"shape": VALUES, "[key]": VALUES}) | VALUES,
        "distribution": st.dictionaries(
            st.sampled_from(
                ["strategy", "batch_axis", "layout", "strict", "axis", "min_size_bytes", "shard_optimizer"]
            ),
            VALUES | st.sampled_from(["data_parallel", "model_parallel", "fully_sharded"]),
        )
        | VALUES,
        "model": st.dictionaries(st.sampled_from(["name", "class_name", "config", "registered_name", "[key]"]), VALUES)
        | VALUES,
        "callbacks": VALUES,
        "training": st.dictionaries(st.sampled_from(["loss", "metrics", "epochs", "steps_per_execution"]), VALUES)
        | VALUES,
        "checkpoint": st.dictionaries(st.sampled_from(["directory", "save_freq"]), VALUES) | VALUES,
        "[key]": VALUES,
    },
)


@given(TABLES, st.sampled_from(["", "data=8", "data=8,model=0"]))
def test_any_table_is_a_config_or_a_list_of_problems(
    tmp_path_factory: pytest.TempPathFactory, table: dict[str, Any], mesh: str
) -> None:
    file = tmp_path_factory.mktemp("any") / "run.json"
    file.write_text(json.dumps(table))
    try:
        config = load(file, environ={"KERAS_DIST_MESH": mesh})
    except ConfigError as error:
        assert error.summary.startswith((f"{file}: ", "KERAS_DIST_MESH: "))
        assert error.given or " problems\n" in error.summary
    else:
        assert isinstance(config, RunConfig)


def test_settings_reach_into_what_is_written_in_short(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(
        'model = "a:B"\ndata = "digits"\noptimizer = "adam"\ntraining.loss = "mse"\n'
        'mesh = {shape = "data=2,model=4", dcn_shape = "data=2"}'
    )
    names = ("optimizer.learning_rate", "training.loss.reduction", "model.width", "data.rows")
    given = [*(f"{name}=1" for name in names), "mesh.shape.data=4", "mesh.dcn_shape.data=1"]
    config = load(file, given, environ={})
    assert (config.mesh.shape, config.mesh.dcn_shape) == ({"data": 4, "model": 4}, {"data": 1})
    assert (config.optimizer.name, config.optimizer.arguments) == ("adam", {"learning_rate": 1})
    assert config.training.loss is not None and config.training.loss.arguments == {"reduction": 1}
    assert config.model is not None and config.model.arguments == {"width": 1}
    assert config.data is not None and config.data.arguments == {"rows": 1}
    environ = {"KERAS_DIST_MESH": "data=8,model=2"}
    assert load(file, ["mesh.shape.data=1"], environ=environ).mesh.shape == {"data": 1, "model": 2}
    assert load(file, ["mesh.shape=data=8,model=2", "mesh.shape.model=1"], environ={}).mesh.shape["model"] == 1
    with pytest.raises(ConfigError, match=r"mesh\.shape is not a table"):
        load(file, ["mesh.shape=what", "mesh.shape.data=1"], environ={})
