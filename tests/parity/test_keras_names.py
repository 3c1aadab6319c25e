"""keras_dist/KERAS.md is true."""

import functools
import operator
import re
import types

import pytest

import keras_dist as kd
from keras_dist._support.missing_names import note_on
from tests.parity import keras_names

HERE = re.compile(r"^\| `[\w.]+` \| `kd\.([\w.]+)` \|", re.MULTILINE)


def test_the_file_is_what_the_script_writes(keras):
    written, expected = keras_names.FILE.read_text().splitlines(), keras_names.render(keras).splitlines()
    differing = sorted({*written} ^ {*expected})
    assert written == expected, f"run `python -m tests.parity.keras_names`; it changes {differing}"


def test_every_name_that_is_here_can_be_had():
    names = HERE.findall(keras_names.FILE.read_text())
    assert len(names) > 300
    for name in names:
        assert functools.reduce(getattr, name.split("."), kd) is not None, name


def test_what_we_export_is_not_missing(keras):
    """A name that Keras has as well, in whatever package, is here where Keras has it, in one place at least."""
    places = {}
    for name in keras_names.public_names(keras):
        places.setdefault(name.rpartition(".")[2], []).append(name)
    packages = [value for value in map(kd.__getattr__, kd.__all__) if isinstance(value, types.ModuleType)]
    exported = {name for package in packages for name in getattr(package, "__all__", ())}
    assert {"Dense", "Adam", "fit"} & exported == {"Dense", "Adam"}
    for name in exported & places.keys():
        assert any(keras_names.ours(place) is not None for place in places[name]), (name, places[name])


def _owner_and_method(name):
    owner, _, method = name.rpartition(".")
    return operator.attrgetter(owner)(kd), method


def test_every_note_is_about_something(keras):
    names = keras_names.entries(keras)
    methods = {f"{name}.{method}" for name in keras_names.METHODS for method in dir(operator.attrgetter(name)(keras))}
    here = {name for name in names if keras_names.ours(name) is not None}
    here |= {name for name in methods if hasattr(*_owner_and_method(name))}
    namespaces = {f"keras.{name}" for name in kd.__all__}
    missing = (names.keys() | methods) - here
    for notes, subjects in ((keras_names.NOTES, here | namespaces), (keras_names.INSTEAD, missing)):
        used = {note for name in subjects for note in notes if note_on(name, {note: "x"})}
        assert used == notes.keys(), f"to be removed from the notes: {sorted(notes.keys() - used)}"


@pytest.mark.parametrize(("name", "note"), [("Exact", "exact"), ("ExactNot", "pattern"), ("Another", "")])
def test_a_note_under_the_name_itself_comes_first(name, note):
    assert note_on(name, {"Exact*": "pattern", "Exact": "exact"}) == note
