"""Folders of models that were changed on purpose: an error that says so, and nothing in them runs."""

import copy
import json
import shutil

import google_crc32c
import pytest

import keras_dist as kd
from keras_dist import layers
from keras_dist.checkpoint.manifest import write_manifest
from keras_dist.errors import CheckpointError, ConfigError, KerasDistError
from keras_dist.models import load_model


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The folder of a model."""
    path = tmp_path_factory.mktemp("saved") / "model"
    model = kd.Sequential([kd.Input((3,)), layers.Dense(4, name="d1"), layers.Dense(2, name="d2")])
    model.compile(kd.optimizers.Adam(0.01), loss="mse", metrics=["mae"])
    model.save(path)
    return path


def altered(folder, place, name, *changes):
    """A copy of a model's folder, with other values in a document, and a manifest that says that this is well."""
    shutil.copytree(folder, place)
    document = json.loads((place / f"{name}.json").read_text())
    for path, value in changes:
        if not path:
            document = value
            continue
        inner = document
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = copy.deepcopy(value)
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    (place / f"{name}.json").write_bytes(text)
    (place / "manifest.json").unlink()
    write_manifest(place)
    return place


LAYER = ("config", "layers", 1)
BIAS = ("arrays", "variables/d2/bias")
MALICE = [
    *((name, (), value) for name in ("record", "config", "compile", "model") for value in ([1], 5, "x", b"{", b"\xff")),
    *((name, (), b"[" * 100_000) for name in ("record", "config")),
    *(("record", ("arrays",), value) for value in ([], 5, None, {"variables/d2/bias": 5})),
    *(("record", (*BIAS, "shape"), value) for value in (5, None, ["4"], [-1])),
    *(("record", (*BIAS, "dtype"), value) for value in (5, None, "nothing", "object", "key<x>")),
    *(("record", ("step",), value) for value in (None, "1", -1, True)),
    *(("model", (name,), value) for name in ("seed", "fits") for value in (None, "1", [], -1)),
    *(("config", ("config",), value) for value in ([], 5, None, {}, {"layers": 5}, {"layers": None})),
    *(("config", ("config", "layers"), value) for value in (5, [5], [[]], [{}], {"a": 1}, None)),
    *(("config", (*LAYER, "config"), value) for value in (5, {}, {"units": {}}, {"units": 4, "name": ["d"]})),
    *(("config", (*LAYER, "class_name"), value) for value in (5, None, [], "Adam", "Conv2D", "Nothing", "NNXLayer")),
    *(("config", (*LAYER, "name"), value) for value in (5, None, [], {})),
    *(("config", (*LAYER, "module"), value) for value in (5, None, "os", "keras_dist.cli", "keras_dist.layers.._x")),
    *(("compile", (name,), value) for name in ("optimizer", "loss", "remat") for value in (5, [[]], {"class_name": 3})),
    *(("compile", ("metrics",), value) for value in (5, {"a": 5}, [{"class_name": "x", "config": 3}])),
    ("compile", ("unheard",), 5),
    ("compile", ("optimizer", "config", "learning_rate"), []),
    ("compile", ("steps_per_execution",), "many"),
    ("policy", (), 5),
    ("policy", (), "float1"),
]


@pytest.mark.parametrize("name", ["record", "config", "compile", "model", "policy"])
def test_documents_that_were_changed_on_purpose(name, saved, tmp_path):
    for index, (document, path, value) in enumerate(MALICE):
        if document == name:
            folder = altered(saved, tmp_path / str(index), name, (path, value))
            with pytest.raises(KerasDistError):
                print(path, value, load_model(folder))


@pytest.mark.parametrize(
    "named",
    [
        {"class_name": "function", "module": "os", "config": "system", "registered_name": None},
        {"class_name": "function", "module": "builtins", "config": "eval", "registered_name": "os>system"},
        {"class_name": "system", "module": "os", "config": {"command": "touch x"}, "registered_name": "system"},
        {"class_name": "load_model", "module": "keras_dist.models", "config": {}, "registered_name": None},
        {"class_name": "function", "module": "keras_dist.layers.layer", "config": "jax", "registered_name": None},
    ],
)
def test_a_config_cannot_mention_what_is_no_layer(named, saved, tmp_path):
    inside = altered(saved, tmp_path / "inside", "config", ((*LAYER, "config", "activation"), named))
    instead = altered(saved, tmp_path / "instead", "config", ((), named))
    trained = altered(saved, tmp_path / "trained", "compile", (("loss",), named))
    for folder in (inside, instead, trained):
        with pytest.raises(ConfigError, match="is not known"):
            load_model(folder, safe_mode=False)


@pytest.mark.parametrize("name", ["../secret", "/etc/hostname", "arrays/../../secret"])
def test_a_manifest_reaches_nothing_outside(name, saved, tmp_path):
    folder = shutil.copytree(saved, tmp_path / "model")
    (tmp_path / "secret").write_text("secret")
    noted = json.loads((folder / "manifest.json").read_text())
    noted["files"] |= {name: {"bytes": 6, "crc32c": "0" * 8}}
    listed = json.dumps(noted["files"]).encode()
    noted["crc32c_of_files"] = f"{google_crc32c.value(listed):08x}"
    (folder / "manifest.json").write_text(json.dumps(noted, indent=1) + "\n")
    with pytest.raises(CheckpointError, match="is not inside of the checkpoint"):
        load_model(folder)


def test_pickles_stay_unread(saved, tmp_path, monkeypatch):
    """A file of numpy or pickle among the others, in the manifest, too, is not opened."""
    folder = shutil.copytree(saved, tmp_path / "model")
    (folder / "config.pkl").write_bytes(b"cos\nsystem\n(S'touch x'\ntR.")
    (folder / "manifest.json").unlink()
    write_manifest(folder)
    monkeypatch.chdir(tmp_path)
    load_model(folder, compile=False)
    assert not (tmp_path / "x").exists()


def test_a_document_that_the_manifest_does_not_list_is_not_read(saved, tmp_path):
    model = load_model(saved)
    with kd.checkpoint.CheckpointManager(model, tmp_path) as manager:
        state = manager.save()
    for name in ("config.json", "compile.json"):
        shutil.copy(saved / name, state)
    with pytest.raises(CheckpointError, match="state of a training"):
        load_model(state)
