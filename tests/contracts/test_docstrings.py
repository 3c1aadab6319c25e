"""Someone who sees only the rendered text of a public class or function understands it."""

import importlib
import inspect
import re

import pytest

import keras_dist as kd
from keras_dist import layers

CLASSES = {name: value for name in layers.__all__ if isinstance(value := getattr(layers, name), type)}
HIDDEN = {base.__name__ for value in CLASSES.values() for base in value.__mro__} - {*CLASSES}
PACKAGES = [*kd._PACKAGES, "bounding_boxes", "dtensor", "ops.image", "optimizers.schedules"]


def described(package, text):
    """Arguments that a docstring describes, or the names of the package to which it refers: "x, y: as in `normal`"."""
    links = re.findall(r"(?:see|as in|arguments of|those of) `(\w+)`", text)
    texts = [text, *(inspect.getdoc(getattr(package, link, None)) or "" for link in links)]
    lines = re.findall(r"^    ((?:\*{0,2}\w+, )*\*{0,2}\w+): ", "\n".join(texts), re.MULTILINE)
    return {name.strip(" *") for line in lines for name in line.split(",")}


@pytest.mark.parametrize("name", CLASSES)
def test_a_layer_describes_its_arguments_and_names_no_class_that_is_not_public(name):
    text = inspect.getdoc(CLASSES[name])
    parameters = inspect.signature(CLASSES[name].__init__).parameters.values()
    needed = {p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD} - {"self", "input_tensor"}
    assert needed <= described(layers, text)
    assert not HIDDEN & {*re.findall(r"`(\w+)`", text)}


@pytest.mark.parametrize("package", PACKAGES)
def test_a_function_that_describes_arguments_describes_all(package):
    module = importlib.import_module(f"keras_dist.{package}")
    for name in getattr(module, "__all__", ()):
        function = getattr(module, name)
        text = inspect.getdoc(function) or ""
        if inspect.isfunction(function) and re.search(r"^Args:$", text, re.MULTILINE):
            assert {*inspect.signature(function).parameters} <= described(module, text), f"{package}.{name}"
