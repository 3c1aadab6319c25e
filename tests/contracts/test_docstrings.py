"""Someone who sees only the rendered text of a public layer understands it."""

import inspect
import re

import pytest

from keras_dist import layers

CLASSES = {name: value for name in layers.__all__ if isinstance(value := getattr(layers, name), type)}
HIDDEN = {base.__name__ for value in CLASSES.values() for base in value.__mro__} - {*CLASSES}


@pytest.mark.parametrize("name", CLASSES)
def test_it_describes_its_arguments_and_names_no_class_that_is_not_public(name):
    text = inspect.getdoc(CLASSES[name])
    parameters = inspect.signature(CLASSES[name].__init__).parameters.values()
    elsewhere = [
        inspect.getdoc(getattr(layers, link))
        for link in re.findall(r"(?:see|as in|arguments of|those of) `(\w+)`", text)
    ]
    described = {*re.findall(r"^    (\w+): ", "\n".join([text, *elsewhere]), re.MULTILINE), "input_tensor"}
    assert {p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD} - {"self"} <= described
    assert not HIDDEN & {*re.findall(r"`(\w+)`", text)}
