"""Included files, variables of the environment, and overrides."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from keras_dist.config import RunConfig, load
from keras_dist.errors import ConfigError

Files = Callable[..., Path]

BASE = """
[mesh]
shape = {data = 2, model = 4}
[optimizer]
name = "adam"
learning_rate = 1e-3
[training]
epochs = 3
batch_size = 64
"""


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Files:
    """Writes texts as files by name, and returns the first."""
    monkeypatch.chdir(tmp_path)

    def write(**texts: str) -> Path:
        places = [Path(name.replace("_", ".").replace("..", "/")) for name in texts]
        for place, text in zip(places, texts.values(), strict=True):
            place.parent.mkdir(exist_ok=True)
            place.write_text(text)
        return places[0]

    return write


def error_of(path: Path, overrides: Sequence[str] = (), **environ: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(path, overrides, environ)
    return caught.value


def test_a_file_says_otherwise_than_what_it_includes(files: Files) -> None:
    run = files(run_toml='include = ["base.toml"]\n[training]\nepochs = 5\n[optimizer]\nname = "sgd"', base_toml=BASE)
    config = load(run, environ={})
    assert (config.training.epochs, config.training.batch_size) == (5, 64)
    assert (config.optimizer.name, config.optimizer.arguments) == ("sgd", {"learning_rate": 1e-3})
    assert config.mesh.shape == {"data": 2, "model": 4}


def test_includes_are_relative_and_the_last_one_counts(files: Files) -> None:
    run = files(
        run_yaml="include: [parts/one.toml, parts/two.json]",
        parts__one_toml='include = "base.toml"\ntraining.epochs = 7',
        parts__base_toml=BASE,
        parts__two_json='{"training": {"batch_size": 8}}',
    )
    assert load(run, environ={}).training.model_dump(include={"epochs", "batch_size"}) == {"epochs": 7, "batch_size": 8}


def test_an_error_names_the_file_that_it_is_in(files: Files) -> None:
    run = files(run_toml="include = 'base.toml'\ntraining.epoch = 3", base_toml=BASE.replace("64", '"64"'))
    error = error_of(run)
    assert "  run.toml: training.epoch: unknown key (did you mean 'epochs'?)\n" in error.summary
    assert "  base.toml: training.batch_size: has the wrong type\n" in error.summary


def test_includes_that_go_in_circles(files: Files) -> None:
    run = files(run_toml='include = ["a.toml"]', a_toml='include = ["b.toml"]', b_toml='include = ["./a.toml"]')
    error = error_of(run)
    assert error.summary == "a.toml: includes itself"
    assert error.given == "run.toml -> a.toml -> b.toml -> a.toml"
    assert error.fix == "remove a.toml from include in b.toml"
    assert error_of(files(run_toml='include = "run.toml"')).summary == "run.toml: includes itself"


def test_includes_do_not_multiply(files: Files) -> None:
    texts = {f"f{n}_toml": f'include = ["f{n + 1}.toml", "f{n + 1}.toml"]' for n in range(9)}
    assert "more than 16 files are included" in error_of(files(**texts, f9_toml=BASE)).summary


@pytest.mark.parametrize("include", ["3", "[1]", "{a = 1}"])
def test_what_is_no_list_of_files(files: Files, include: str) -> None:
    error = error_of(files(run_toml=f"include = {include}"))
    assert error.summary == "run.toml: include: must be a list of files"


def test_a_missing_include_says_who_includes_it(files: Files) -> None:
    error = error_of(files(run_toml='include = "bse.toml"', base_toml=BASE))
    assert error.summary == "bse.toml: the file does not exist (did you mean 'base.toml'?)"
    assert "run.toml -> bse.toml" in error.given


def test_variables_are_filled_in(files: Files) -> None:
    text = BASE + '[checkpoint]\ndirectory = "${ROOT}/runs/${NAME:-plain}"\nkeep = "${KEEP:-3}"\n'
    run = files(run_toml=text + '[model]\nname = "Sequential"\nprice = "$${ROOT} $5"\n"${NAME:-a}" = "${LIST}"')
    config = load(run, environ={"ROOT": "/data", "LIST": '[1, "b"]'})
    assert config.checkpoint is not None and config.model is not None
    assert (config.checkpoint.directory, config.checkpoint.keep) == ("/data/runs/plain", 3)
    assert config.model.arguments == {"price": "${ROOT} $5", "a": [1, "b"]}
    config = load(run, environ={"ROOT": "", "LIST": "x = 1\ny = 2", "NAME": "n", "KEEP": "1"})
    assert config.checkpoint is not None and config.model is not None
    assert (config.checkpoint.directory, config.checkpoint.keep) == ("/runs/n", 1)
    assert config.model.arguments["n"] == "x = 1\ny = 2"


def test_variables_that_are_not_there(files: Files) -> None:
    text = BASE.replace("64", '"${BATCH}"') + 'seeds = 3\ndtype_policy = "a ${b c}"'
    error = error_of(files(run_toml=text))
    assert "run.toml: training.batch_size: environment variable BATCH is not set\n" in error.summary
    assert "fix:      set BATCH, or write ${BATCH:-default}" in error.summary
    assert "run.toml: training.dtype_policy: `${` has no closing brace\n" in error.summary
    assert "run.toml: training.seeds: unknown key" in error.summary
    only = error_of(files(run_toml=BASE + 'dtype_policy = "${NO}"'))
    assert only.summary == "run.toml: training.dtype_policy: environment variable NO is not set"


def test_overrides_are_toml_values_or_text(files: Files) -> None:
    overrides = [
        "mesh.shape.data=1",
        "mesh.shape.model = -1",
        "optimizer=sgd",
        "training.loss={name = 'Huber', delta = 2.0}",
        'distribution.layout."d1/kernel=x"=["-", "model"]',
        "checkpoint.directory=a=b",
        "training.shuffle=false",
    ]
    config = load(files(run_toml=BASE), overrides, {"KERAS_DIST_MESH": ""})
    assert config.mesh.shape == {"data": 1, "model": -1}
    assert (config.optimizer.name, config.optimizer.arguments) == ("sgd", {})
    assert config.training.loss is not None and config.training.loss.arguments == {"delta": 2.0}
    assert config.distribution.layout_axes() == {"d1/kernel=x": (None, "model")}
    assert config.checkpoint is not None and config.checkpoint.directory == "a=b"
    assert config.training.shuffle is False


def test_overrides_have_the_last_word(files: Files) -> None:
    run = files(run_toml=BASE)
    mesh = {"KERAS_DIST_MESH": "data=8"}
    assert load(run, ["mesh.shape=data=4,model=2"], mesh).mesh.shape == {"data": 4, "model": 2}
    assert load(run, ["training.epochs=4", "training.epochs=5"], mesh).training.epochs == 5
    assert load(run, ["mesh.shape.data=4"], mesh).mesh.shape == {"data": 4}
    error = error_of(run, ["training.epochs.data=4"], **mesh)
    assert error.summary == "--set training.epochs.data=4: training.epochs is not a table"


def test_a_wrong_override_is_named(files: Files) -> None:
    run = files(run_toml=BASE)
    error = error_of(run, ["training.epochs=many"])
    assert error.summary == "--set training.epochs=many: training.epochs: has the wrong type"
    assert error.given == '"many" (a string)'
    error = error_of(run, ["distribution.batch_axis=dta"])
    assert error.summary.endswith("the mesh has no axis 'dta' (did you mean 'data'?)")
    error = error_of(run, ["mesh.shape=dta=8", "distribution.batch_axis=data"])
    assert error.expected == 'an axis of the mesh: "dta" (from --set mesh.shape=dta=8)'


@pytest.mark.parametrize(
    "text", ["", "training", "=3", "a", "a b=3", "a..b=3", "[a]=3", "a={b=1}\nc=2=", '"a=3', "a\nb=1"]
)
def test_what_is_no_override(files: Files, text: str) -> None:
    error = error_of(files(run_toml=BASE), [text])
    assert error.summary.startswith(f"--set {text}: ")
    assert error.fix


def test_the_resolved_config_reads_back(files: Files) -> None:
    text = 'include = "base.toml"\n[model]\nname = "m:f"\ntext = "$${X}"\nlimit = inf\n[callbacks.EarlyStopping]'
    config = load(files(run_toml=text, base_toml=BASE), ["training.loss=mse", "checkpoint.directory=c"], environ={})
    Path("resolved.json").write_text(config.to_json())
    again = load("resolved.json", environ={"X": "other"})
    assert again == config
    assert "include" not in json.loads(config.to_json())
    assert isinstance(again, RunConfig) and again.model is not None
    assert again.model.arguments == {"text": "${X}", "limit": float("inf")}
