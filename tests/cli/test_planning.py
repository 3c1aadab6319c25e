"""What `keras-dist` says of runs before anything is allocated, and how it trains them."""

import json
import os
import re
import subprocess
import sys
import tomllib
import types

import jax
import pytest
import yaml

import keras_dist as kd
from tests import commands, forks

CONFIG = """
data = "rows:rows"
model = "rows:model"

[mesh]
shape = {data = 2, model = 4}

[distribution.layout]
"d1/kernel" = ["-", "model"]
"d1/bias" = ["model"]
"d2/kernel" = ["model", "-"]

[training]
epochs = 2
batch_size = 16
loss = "mse"
verbose = 2
"""
ROWS = """
import keras_dist as kd
import numpy as np

def model(width=16):
    d1, d2 = kd.layers.Dense(width, "relu", name="d1"), kd.layers.Dense(1, name="d2")
    return kd.Sequential([kd.Input((8,)), d1, d2])

def rows():
    x = np.random.default_rng(0).normal(size=(40, 8)).astype("float32")
    return (x, x.sum(1, keepdims=True)), (x[:8], x[:8].sum(1, keepdims=True))
"""


@pytest.fixture
def config(tmp_path, monkeypatch):
    """A config in a folder with the module that it names."""
    (tmp_path / "rows.py").write_text(ROWS)
    (tmp_path / "run.toml").write_text(CONFIG)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "rows", raising=False)
    return tmp_path / "run.toml"


def losses(text):
    return [float(found) for found in re.findall(r" loss: ([\d.e-]+)", text)]


def test_train_gives_the_same_losses_on_each_mesh(config, capsys):
    found = []
    for mesh in ("data=8,model=1", "data=2,model=4"):
        assert commands.run("train", config, "--mesh", mesh) == 0
        found.append(losses(capsys.readouterr().out))
    assert len(found[0]) == 2
    assert found == [pytest.approx(found[0], rel=1e-3)] * 2  # as many digits are printed


def test_check_finds_nothing_in_rules_that_all_decide(config, capsys):
    assert commands.run("check", config) == 0
    assert capsys.readouterr().out == "no problems: 3 layout rules, 4 weights, mesh {data: 2, model: 4}\n"


def test_check_finds_what_is_wrong_with_rules(config, capsys):
    wrong = ["--set", 'distribution.layout."d2/bias"=["model"]', "--set", 'distribution.layout."d3/kernel"=["-", "-"]']
    assert commands.run("check", config, *wrong) == 1
    text = capsys.readouterr().out
    assert text.startswith("2 problems: 5 layout rules")
    assert "cannot shard dim 0 of 'd2/bias'" in text and "rule 'd3/kernel' matched nothing" in text
    assert commands.run("check", config, *wrong, "--json") == 1
    assert len(json.loads(capsys.readouterr().out)["problems"]) == 2
    assert commands.run("check", config, "--set", "distribution.layouts=1") == 2


def test_explain_says_which_rule_decides(config, capsys):
    assert commands.run("explain", "d1/kernel", config) == 0
    assert re.search("d1/kernel .*parameter.*\n.*rule 'd1/kernel'", capsys.readouterr().out)
    assert commands.run("explain", "d1/kernel", config, "--json") == 0
    assert json.loads(capsys.readouterr().out)["axes"] == [None, "model"]
    assert commands.run("explain", "d1/kernal", config) == 2


def test_plan_says_what_a_step_needs(config, capsys):
    assert commands.run("plan", config) == 0
    assert re.search(r"d1/kernel .*\(-, model\)", capsys.readouterr().out)
    target = ["--target", "v5e:2x4", "--no-compile"]
    assert commands.run("plan", config, *target, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["exact"]["mesh"]["shape"] == [2, 4] and found["exact"]["nbytes_by_role"]["parameter"] > 0


def test_plan_searches_batches(config, capsys):
    search = ["--search", "batch", "--search", "remat", "--no-compile"]
    assert commands.run("plan", config, "--target", "v5e:2x4", *search) == 0
    assert "best that fits: " in capsys.readouterr().out
    assert commands.run("plan", config, *search) == 2
    assert "needs a target whose memory limits the batch" in capsys.readouterr().err


def test_a_plan_that_does_not_fit_ends_with_1(config, capsys):
    wide = ["--set", 'model={name = "rows:model", width = 2_000_000_000}', "--mesh", "data=4,model=2"]
    assert commands.run("plan", config, "--target", "v5e:2x4", "--no-compile", *wide) == 1
    assert "does not fit" in capsys.readouterr().out
    assert commands.run("plan", config, "--target", "v5e:2x3", "--no-compile") == 2


def test_plan_writes_a_page(config, capsys, tmp_path):
    assert commands.run("plan", config, "--html", tmp_path / "plan.html") == 0
    page = (tmp_path / "plan.html").read_text()
    assert page.lower().startswith("<!doctype html") and "d1/kernel" in page
    assert commands.run("plan", config, "--html", tmp_path) == 2


@pytest.mark.multiprocess
def test_modules_of_the_current_folder_are_found(config):
    script = config.parent / "bin" / "keras-dist"
    script.parent.mkdir()
    script.write_text("from keras_dist.cli.app import main; main()")
    command, env = [sys.executable, script, "check", "run.toml"], os.environ | {"PYTHONPATH": str(forks.ROOT)}
    run = subprocess.run(command, cwd=config.parent, env=env, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout[:11]) == (0, "no problems"), run.stderr


def test_auto_prints_the_tables_that_it_finds(config, capsys):
    assert commands.run("auto", config, "--target", "v5e:2x4", "--no-compile") == 0
    output, told = capsys.readouterr()
    found = tomllib.loads(output)
    assert found["mesh"]["shape"] == {"data": 2, "model": 4}
    assert "Candidates, the best first" in told
    kept = config.with_name("kept.toml")
    kept.write_text(f'include = ["run.toml"]\n{output}')
    assert commands.run("check", kept) == 0


def test_auto_tries_meshes_and_says_all_as_json(config, capsys):
    assert commands.run("auto", config, "--any-mesh", "--objective=memory", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert len({tuple(each["mesh"].values()) for each in found["candidates"]}) > 1
    assert tomllib.loads(found["toml"])["mesh"]["shape"] == found["mesh"]
    least = min(each["state_nbytes"] + each["activation_nbytes"] for each in found["candidates"])
    best = found["candidates"][0]
    assert best["state_nbytes"] + best["activation_nbytes"] == least
    assert commands.run("auto", config, "--objective=speed") == 2


def test_auto_heeds_what_the_config_says_and_the_memory_of_this_machine(config, capsys, monkeypatch):
    rules = re.search(r"(?s)\[distribution.layout\].*?\n\n", CONFIG)[0]
    limited = config.with_name("limited.toml")
    limited.write_text(CONFIG.replace(rules, '[distribution]\nstrategy = "auto"\nmemory_limit = 10\n\n'))
    assert commands.run("auto", limited) == 1
    assert "nothing fits" in capsys.readouterr().err
    assert commands.run("auto", limited, "--memory-limit", 10**9) == 0, "which the option replaces"
    device = types.SimpleNamespace(memory_stats=lambda: {"bytes_limit": 10})
    monkeypatch.setattr(jax, "local_devices", lambda: [device])
    assert commands.run("auto", config) == 1
    assert "which has 10 B\n" in capsys.readouterr().err
    assert commands.run("auto", config, "--target", "v5e:2x4", "--no-compile") == 0, "which has more"


@pytest.mark.parametrize(
    "setting", ['callbacks=["EarlyStoping"]', "checkpoint.directory=rows.py", "training.loss=msee"]
)
def test_check_finds_what_train_would_refuse(config, capsys, monkeypatch, setting):
    monkeypatch.chdir(config.parent)
    assert commands.run("check", config, "--set", setting) == 2
    assert f"Error: {setting.partition('=')[0]}" in capsys.readouterr().err
    assert commands.run("check", config, "--set", "checkpoint.directory=new/states") == 0
    assert not (config.parent / "new").exists()


def test_a_page_that_cannot_be_written_does_not_lose_the_report(config, capsys, tmp_path):
    assert commands.run("plan", config, "--html", tmp_path / "missing" / "plan.html") == 2
    output, told = capsys.readouterr()
    assert "d1/kernel" in output
    assert told.startswith("Write") and "plan.html' was not written: " in told


@pytest.mark.parametrize("code", ["'bye'", "0", ""])
def test_code_that_ends_the_program_is_a_failure(config, capsys, code):
    (config.parent / "rows.py").write_text(f"import sys\ndef rows():\n    sys.exit({code})")
    assert commands.run("check", config) == 3
    assert capsys.readouterr().err == f"the program called exit({code})\n"


def test_what_models_print_is_not_in_the_report(config, capsys):
    (config.parent / "rows.py").write_text(ROWS.replace("    d1, d2", "    print('a model')\n    d1, d2"))
    for command in (["check"], ["plan", "--no-compile"], ["explain", "d1/kernel"], ["auto"]):
        assert commands.run(*command, config, "--json") == 0
        output, told = capsys.readouterr()
        json.loads(output)
        assert "a model" in told


def test_check_lists_mistakes_of_all_kinds(config, capsys):
    wrong = ["training.epochs=0", "optimizer=adamm", 'callbacks=["EarlyStoping"]', 'training.metrics=["accuracyy"]']
    wrong += ["training.loss.name=msee", 'distribution.layout."d3/kernel"=["-", "-"]']
    assert commands.run("check", config, *(part for each in wrong for part in ("--set", each))) == 2
    out, err = capsys.readouterr()
    assert "d3/kernel" in out and out.startswith("1 problem: 4 layout rules")
    for name in ("training.epochs", "optimizer", "callbacks[0]", "training.metrics[0]", "training.loss"):
        assert re.search(rf"^  \(\d\) .*{re.escape(name)}: ", err, re.MULTILINE), (name, err)
    assert "5 mistakes" in err


def test_check_lists_mistakes_beside_a_wrong_name(config, capsys):
    wrong = ["data=rows:rws", 'distribution.layout."d3/kernel"=["-", "-"]', "training.loss={nam='mse'}"]
    wrong += ['callbacks=[{nam="History"}, "EarlyStoping"]', 'training.metrics=["mse", {dtype="float32"}, "accuracyy"]']
    sequential = "model={name='Sequential', layers=[{class_name='InputLayer', config={shape=[4]}}, %s]}"
    dense = "{class_name='Dense', config={units=8, name='d1'}}"
    assert (
        commands.run(
            "check", config, *(part for each in wrong for part in ("--set", each)), "--set", sequential % dense
        )
        == 2
    )
    out, err = capsys.readouterr()
    assert "d3/kernel" in out and "d2/kernel" in out and "d1/kernel' matched" not in out
    keys = ("data", "training.loss.name", "callbacks[0].name", "callbacks[1]", "training.metrics[1].name")
    for name in (*keys, "training.metrics[2]"):
        assert len(re.findall(rf"^ +(?:\(\d\) )?(?:--set .*: )?{re.escape(name)}: ", err, re.MULTILINE)) == 1, (
            name,
            err,
        )
    layers = "{class_name='Dnse', config={units=3}}, {class_name='Dense', config={unts=3}}"
    assert commands.run("check", config, "--set", "data=rows:rws", "--set", sequential % layers) == 2
    err = capsys.readouterr().err
    for name in ("data", "model.layers[1]", "model.layers[2]"):
        assert f") {name}: " in err
    assert "3 mistakes" in err


def test_train_prints_all_settings_with_verbose(config, capsys):
    assert commands.run("train", config, "--verbose", "--set", "training.epochs=1") == 0
    assert '"dtype_policy": null' in capsys.readouterr().out
    assert commands.run("train", config, "--set", "training.epochs=1") == 0
    before, _, _ = capsys.readouterr().out.partition("Epoch 1")
    assert "dtype_policy" not in before and len(before.splitlines()) < 20
    assert 'distribution.layout."d1/kernel" = ["-", "model"]' in before.splitlines()


def test_plan_says_what_it_wrote_and_what_its_bound_is_made_of(config, capsys):
    page = config.with_name("plan.html")
    assert commands.run("plan", config, "--target", "v5e:2x4", "--no-compile", "--html", page) == 0
    out, err = capsys.readouterr()
    text = " ".join(out.split())
    assert f"wrote {page} ({kd.distribution.render.render_bytes(page.stat().st_size)})" in err
    assert re.search(
        r"the 2\.3 GiB are 2\.0 GiB for a dataset that fit may keep .*, 256\.0 MiB that XLA reserves", text
    )
    assert re.search(r"at least [\d.]+ ns, limited", text)


@pytest.mark.parametrize("suffix", ["toml", "json", "yaml"])
def test_remedies_are_lines_of_the_config(config, capsys, suffix):
    table = tomllib.loads(config.read_text())
    file = config.with_name(f"other.{suffix}")
    file.write_text(config.read_text() if suffix == "toml" else json.dumps(table))
    parse = {"toml": tomllib.loads, "json": json.loads, "yaml": yaml.safe_load}[suffix]
    assert commands.run("auto", file, "--no-compile") == 0
    out, err = capsys.readouterr()
    assert parse(out)["mesh"]["shape"] == {"data": 2, "model": 4} and "strategy" in parse(out)["distribution"]
    assert "mlp: size 16, of d1/bias dim 0, d1/kernel dim 1, d2/kernel dim 0" in " ".join(err.split())
    rules = ["--set", "model.width=1024", "--set", 'distribution.layout."d2/kernel"=["-", "-"]']
    assert commands.run("plan", file, *rules) == 0
    found = capsys.readouterr().out
    assert "kd.LayoutMap" not in found
    lines = found.partition("same mesh:\n")[2].partition("\n# before")[0]
    assert parse(lines)["distribution"]["layout"]["d2/kernel"] == ["model", "-"], found


STACKED = """

class Block(kd.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense = kd.layers.Dense(8, "relu")

    def call(self, x):
        return self.dense(x)

def stacked():
    return kd.Sequential([kd.Input((8,)), kd.layers.Stack(Block(), 4, name="stack"), kd.layers.Dense(1, name="out")])
"""


def _toml(table, name=""):
    """TOML of nested tables; of other values JSON is TOML."""
    tables = {key: value for key, value in table.items() if isinstance(value, dict)}
    lines = [f"[{name}]"] if name else []
    lines += [f"{json.dumps(key)} = {json.dumps(value)}" for key, value in table.items() if key not in tables]
    return "\n".join([*lines, *(_toml(inner, f"{name}.{key}".lstrip(".")) for key, inner in tables.items())])


@pytest.mark.filterwarnings("ignore:.*no `micro_batches`")
@pytest.mark.parametrize("suffix", ["toml", "json", "yaml"])
def test_all_advice_is_lines_of_the_config(config, capsys, suffix):
    rows, file = config.with_name("rows.py"), config.with_name(f"stacked.{suffix}")
    rows.write_text(ROWS + STACKED)
    table = tomllib.loads(config.read_text()) | {"model": "rows:stacked"}
    table["distribution"] = {"layout": {"stack/.*kernel": ["model", "-", "-"], "stack/.*bias": ["model", "-"]}}
    parse = {"toml": tomllib.loads, "json": json.loads, "yaml": yaml.safe_load}[suffix]
    file.write_text(_toml(table) if suffix == "toml" else json.dumps(table))
    assert commands.run("plan", file, "--json") == 0
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert problem["kind"] == "pipeline"
    advised = parse(problem["fix"])
    assert advised == {"training": {"micro_batches": 8}}
    table["training"] |= advised["training"]
    file.write_text(_toml(table) if suffix == "toml" else json.dumps(table))
    assert commands.run("plan", file, "--json") == 0
    assert not json.loads(capsys.readouterr().out)["problems"]
