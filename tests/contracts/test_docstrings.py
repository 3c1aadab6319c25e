"""Someone who sees only the rendered text of a public class or function understands it."""

import importlib
import inspect
import re

import keras_dist as kd
from keras_dist import layers

CLASSES = {name: value for name in layers.__all__ if isinstance(value := getattr(layers, name), type)}
HIDDEN = {base.__name__ for value in CLASSES.values() for base in value.__mro__} - {*CLASSES}
PACKAGES = [*kd._PACKAGES, "dtensor", "ops.image", "optimizers.schedules"]


def described(package, text):
    """Arguments that a docstring describes, or the names of the package to which it refers: "x, y: as in `normal`"."""
    links = re.findall(r"(?:see|as in|arguments of|those of) `(\w+)`", text)
    texts = [text, *(inspect.getdoc(getattr(package, link, None)) or "" for link in links)]
    lines = re.findall(r"^    ((?:\*{0,2}\w+, )*\*{0,2}\w+): ", "\n".join(texts), re.MULTILINE)
    return {name.strip(" *") for line in lines for name in line.split(",")}


def test_layers_describe_their_arguments_and_name_no_class_that_is_not_public():
    undescribed, hidden = {}, {}
    for name, layer in CLASSES.items():
        text = inspect.getdoc(layer)
        parameters = inspect.signature(layer.__init__).parameters.values()
        needed = {p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD} - {"self", "input_tensor"}
        undescribed[name] = needed - described(layers, text)
        hidden[name] = HIDDEN & {*re.findall(r"`(\w+)`", text)}
    assert not {name: arguments for name, arguments in undescribed.items() if arguments}
    assert not {name: classes for name, classes in hidden.items() if classes}


def test_functions_that_describe_arguments_describe_all():
    undescribed = {}
    for package in PACKAGES:
        module = kd.presets if package == "presets" else importlib.import_module(f"keras_dist.{package}")
        for name in getattr(module, "__all__", ()):
            function = getattr(module, name)
            text = inspect.getdoc(function) or ""
            if inspect.isfunction(function) and re.search(r"^Args:$", text, re.MULTILINE):
                needed = {*inspect.signature(function).parameters}
                undescribed[f"{package}.{name}"] = needed - described(module, text)
    assert len(undescribed) > 50 and not {name: arguments for name, arguments in undescribed.items() if arguments}
