"""Names and values of files in messages: none controls the terminal that shows them."""

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import save_file

import keras_dist as kd
from keras_dist.errors import KerasDistError
from tests import commands
from tests.pretrained.networks import FOLDER

CODE = "\x1b[31m\u202e\x9b\x7f"
SHOWN = "\\x1b[31m"


def text_of(act):
    try:
        return str(act())
    except KerasDistError as error:
        return str(error)


def model():
    return kd.Sequential([kd.Input((4,)), kd.layers.Dense(2)])


def weights(folder):
    save_file({CODE: np.ones(3)}, folder / "w.safetensors")
    return folder / "w.safetensors"


def config(folder, text, name="run.toml"):
    (folder / name).write_text(text)
    return kd.config.load(folder / name)


def network(folder, **changes):
    shutil.copytree(FOLDER / "llama", folder / "n")
    document = json.loads((folder / "n/config.json").read_text())
    (folder / "n/config.json").write_text(json.dumps(document | changes))
    return kd.pretrained.load(folder / "n")


def plan(folder):
    found = model()
    found.compile("sgd", "mse")
    report = found.plan(np.ones((4, 4)), np.ones((4, 2)))
    kd.planner.assert_plan(report, folder / "plan.json", update=True)
    document = json.loads((folder / "plan.json").read_text())
    document["arrays"][CODE] = next(iter(document["arrays"].values()))
    (folder / "plan.json").write_text(json.dumps(document))
    kd.planner.assert_plan(report, folder / "plan.json", update=False)


def doctor(folder):
    (folder / "step_1").mkdir()
    (folder / f".{CODE}.draft-1").mkdir()
    return kd.checkpoint.examine(folder)


MESSAGES = {
    "name of a config": lambda folder: config(folder, "x", f"{CODE}.toml"),
    "key of YAML": lambda folder: config(folder, '"\\e[31m": 1\n"\\e[31m": 2\n', "run.yaml"),
    "names of weights": lambda folder: model().load_weights(weights(folder)),
    "plan": plan,
    "model_type": lambda folder: network(folder, model_type=CODE),
    "doctor": doctor,
}


@pytest.mark.parametrize("name", MESSAGES)
def test_codes_of_terminals_are_escaped(name, tmp_path):
    text = text_of(lambda: MESSAGES[name](tmp_path))
    assert SHOWN in text and not {*CODE} - {*"[31m"} & {*text}, ascii(text)


def test_codes_of_terminals_are_escaped_in_warnings_and_reports(tmp_path):
    with pytest.warns(UserWarning, match=r"\\x1b\[31m") as caught:
        report = model().load_weights(weights(tmp_path), strict=False)
    assert "\x1b" not in f"{caught[0].message}{report}"
    with pytest.raises(kd.errors.ConfigError, match=r"\\x1b\[31m") as error:
        network(tmp_path, **{CODE: 1})
    assert "\x1b" not in str(error.value)


def test_codes_of_terminals_are_escaped_in_errors_of_others(capsys, monkeypatch):
    def fails(*arguments):
        raise RuntimeError(CODE)

    monkeypatch.setattr(kd.checkpoint, "examine", fails)
    assert commands.run("doctor", ".") == 3
    assert SHOWN in (found := capsys.readouterr().err) and "\x1b" not in found
