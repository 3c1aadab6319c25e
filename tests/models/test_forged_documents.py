"""Documents that were changed under a manifest that fits: each is refused by its name, or means something.

Nothing in them runs.
"""

import copy
import json
import random
import shutil
import warnings

import google_crc32c
import numpy as np
import pytest

import keras_dist as kd
from keras_dist.checkpoint import CheckpointManager, Stored
from keras_dist.checkpoint.manifest import write_manifest
from keras_dist.errors import CheckpointError, ConfigError, KerasDistError, ModelError
from keras_dist.models import weight_creation
from tests.soak import LARGE, often

X = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
Y = np.ones((8, 2), np.float32)

ODD = [None, True, -1, 2**80, 1.5, float("nan"), "", "odd", "\ud800", [], [None], [[3]], {}, {"odd": 1}]
CASES = 25 if LARGE else 3
"""Of each document, drawn by a fixed seed."""


def model_of(metrics=("mae",)):
    model = kd.Sequential(
        [kd.Input((3,)), kd.layers.Dense(2, kernel_initializer="zeros", name="d1"), kd.layers.Dropout(0.5, name="drop")]
    )
    model.compile(kd.optimizers.SGD(0.1, momentum=0.9), loss="mse", metrics=list(metrics))
    return model


def forged(source, target, document, value):
    """A copy of a checkpoint with another document, and a manifest that fits."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    (target / "manifest.json").unlink()
    (target / f"{document}.json").write_bytes(value if isinstance(value, bytes) else json.dumps(value).encode())
    write_manifest(target)
    return target


def places_in(value, place=()):
    """The ways to all values in nested dicts and lists, the outermost one first."""
    yield place
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, one in items:
        yield from places_in(one, (*place, name))


def changed(document, place, value):
    """A document with another value in one place; without one there if the value is `places_in`."""
    document = copy.deepcopy(document)
    if not place:
        return value
    inner = document
    for name in place[:-1]:
        inner = inner[name]
    if value is places_in:
        del inner[place[-1]]
    else:
        inner[place[-1]] = value
    return document


def variants(folder, document):
    """The document as a whole replaced by odd values; and many that have one in some place."""
    found = json.loads((folder / f"{document}.json").read_text())
    yield from ODD if LARGE else ODD[2::5]
    places = [*places_in(found)][1:]
    cases = [(place, value) for place in places for value in [places_in, *ODD]]
    for place, value in random.Random(0).sample(cases, min(CASES, len(cases))):
        yield changed(found, place, value)


def altered(folder, document, place, value):
    """What a document says, with another value in one place."""
    return changed(json.loads((folder / f"{document}.json").read_text()), place, value)


def problems_of(action, folder, document, tmp_path):
    """What went otherwise than it should, for all variants: what neither works nor is refused by name."""
    found = []
    for value in variants(folder, document):
        path = forged(folder, tmp_path / "step_00000002", document, value)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                action(path)
        except (CheckpointError, ConfigError) as error:
            said = "\n".join([str(error), *getattr(error, "__notes__", ())])
            if not any(one in said for one in (f"{document}.json", "format", "does not fit", "holds a", "holds the")):
                found.append((value, said))
        except ModelError as error:
            if "the interrupted training" not in str(error):
                found.append((value, repr(error)))
        except Exception as error:
            found.append((value, f"{type(error).__name__}: {error}"))
    return found


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A model in a folder."""
    path = tmp_path_factory.mktemp("saved") / "model"
    model = model_of()
    model.fit(X, Y, batch_size=4, verbose=0)
    model.save(path)
    return path


class Saving(kd.callbacks.Callback):
    """Keeps the state after the second batch."""

    def __init__(self, directory):
        super().__init__()
        self.directory = directory

    def on_train_batch_end(self, batch, logs=None):
        if batch == 1:
            with CheckpointManager(self.model, self.directory) as manager:
                self.path = manager.save()


class Resuming(kd.callbacks.Callback):
    """Goes on with a state."""

    def __init__(self, path):
        super().__init__()
        self.path = path

    def on_train_begin(self, logs=None):
        self.model.restore(Stored(self.path), continue_training=True)


def fit(model, *callbacks):
    return model.fit(X, Y, batch_size=2, epochs=2, verbose=0, callbacks=list(callbacks))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A state in the middle of a training."""
    directory = tmp_path_factory.mktemp("trained")
    saving = Saving(directory)
    fit(model_of(), saving)
    return directory / "step_00000002"


@pytest.mark.first_cases(2)
@often
@pytest.mark.parametrize("document", ["record", "model", "config", "compile", "policy"])
def test_models(saved, tmp_path, document):
    assert problems_of(kd.models.load_model, saved, document, tmp_path) == []


@pytest.mark.parametrize("nested", [False, True])
def test_no_weight_is_made_that_was_not_saved(tmp_path, monkeypatch, nested):
    inner = kd.Sequential([kd.Input((3,)), kd.layers.Dense(2, name="d1")], name="inner")
    (kd.Sequential([kd.Input((3,)), inner]) if nested else inner).save(tmp_path / "model")
    config = (tmp_path / "model" / "config.json").read_text()
    path = forged(tmp_path / "model", tmp_path / "forged", "config", json.loads(config.replace(": 2,", ": 30000000,")))
    monkeypatch.setattr(weight_creation, "create_arrays", lambda *args: pytest.fail("weights were born"))
    with pytest.raises(CheckpointError, match=rf"for {'inner/' * nested}d1/kernel an array of shape \(3, 30000000\)"):
        kd.models.load_model(path)


@pytest.mark.first_cases(1)
@often
@pytest.mark.parametrize("document", ["record", "model", "training"])
def test_states_of_trainings(trained, tmp_path, document):
    model = model_of()
    fit(model, Resuming(trained))
    assert problems_of(lambda path: fit(model, Resuming(path)), trained, document, tmp_path) == []


LAYER = ("config", "layers", 1)
BIAS = ("arrays", "variables/d1/bias")
MALICE = [
    *((name, (), value) for name in ("record", "config", "compile", "model") for value in ([1], 5, "x", b"{", b"\xff")),
    *((name, (), b"[" * 100_000) for name in ("record", "config")),
    *(("record", ("arrays",), value) for value in ([], 5, None, {"variables/d1/bias": 5})),
    *(("record", (*BIAS, "shape"), value) for value in (5, None, ["4"], [-1])),
    *(("record", (*BIAS, "dtype"), value) for value in (5, None, "nothing", "object", "key<x>")),
    *(("record", ("step",), value) for value in (None, "1", -1, True)),
    *(("model", (name,), value) for name, values in (("seed", (None, -1)), ("fits", ("1", []))) for value in values),
    *(("config", ("config",), value) for value in ([], 5, None, {}, {"layers": 5}, {"layers": None})),
    *(("config", ("config", "layers"), value) for value in (5, [5], [[]], [{}], {"a": 1}, None)),
    *(("config", (*LAYER, "config"), value) for value in (5, {}, {"units": {}}, {"units": 4, "name": ["d"]})),
    *(("config", (*LAYER, "class_name"), value) for value in (5, None, [], "Adam", "Conv2D", "Nothing", "NNXLayer")),
    *(("config", (*LAYER, "name"), value) for value in (5, None, [], {})),
    *(("config", (*LAYER, "module"), value) for value in (5, None, "os", "keras_dist.cli", "keras_dist.layers.._x")),
    *(("compile", (name,), value) for name in ("optimizer", "loss", "remat") for value in (5, {"class_name": 3})),
    *(("compile", ("metrics",), value) for value in (5, [{"class_name": "x", "config": 3}])),
    ("compile", ("unheard",), 5),
    ("compile", ("optimizer", "config", "learning_rate"), []),
    ("compile", ("steps_per_execution",), "many"),
    ("policy", (), 5),
    ("policy", (), "float1"),
]


@pytest.mark.first_cases(3)
@pytest.mark.parametrize("name", ["record", "config", "compile", "model", "policy"])
def test_documents_that_were_changed_on_purpose(name, saved, tmp_path):
    for document, path, value in MALICE:
        if document == name:
            folder = forged(saved, tmp_path / "forged", name, altered(saved, name, path, value))
            with pytest.raises(KerasDistError):
                print(path, value, kd.models.load_model(folder))


@pytest.mark.parametrize(
    "named",
    [
        {"class_name": "function", "module": "os", "config": "system", "registered_name": None},
        {"class_name": "function", "module": "builtins", "config": "eval", "registered_name": "os>system"},
        {"class_name": "system", "module": "os", "config": {"command": "touch x"}, "registered_name": "system"},
        {"class_name": "load_model", "module": "keras_dist.models", "config": {}, "registered_name": None},
        {"class_name": "function", "module": "keras_dist.layers.base.layer", "config": "jax", "registered_name": None},
    ],
)
def test_a_config_cannot_mention_what_is_no_layer(named, saved, tmp_path):
    for document, path in (("config", (*LAYER, "config", "activation")), ("config", ()), ("compile", ("loss",))):
        folder = forged(saved, tmp_path / "forged", document, altered(saved, document, path, named))
        with pytest.raises(ConfigError, match="is not known"):
            kd.models.load_model(folder, safe_mode=False)


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
        kd.models.load_model(folder)
