"""`Model` is one class: a table of methods, each a documented function of a module."""

import ast
import inspect
import pathlib
import sys

import numpy as np
import pytest

import keras_dist
import keras_dist as kd
from keras_dist import models

METHODS = sorted(name for name in vars(kd.Model) if not name.startswith("_"))


def function_of(name):
    """The function behind a method or property of `Model`."""
    found = inspect.getattr_static(kd.Model, name)
    return inspect.unwrap(getattr(found, "fget", None) or getattr(found, "__func__", None) or found)


def test_two_classes_of_the_package_make_a_model():
    ours = [cls.__name__ for cls in kd.Model.__mro__ if cls.__module__.startswith("keras_dist.models.")]
    assert ours == ["Model", "ModelBase"]


@pytest.mark.parametrize("name", METHODS)
def test_each_method_is_a_documented_function_of_a_module(name):
    function = function_of(name)
    assert function.__module__.startswith(("keras_dist.models.", "keras_dist.adapters."))
    assert function.__module__ != models.Model.__module__
    assert inspect.getdoc(inspect.getattr_static(kd.Model, name))


def test_modules_of_methods_know_neither_the_class_nor_the_root_package():
    modules = {function_of(name).__module__ for name in METHODS}
    assert {f"keras_dist.{name}" for name in ("models.fitting", "models.contents", "adapters.enabling")} <= modules
    for module in modules:
        imported = set()
        for node in ast.walk(ast.parse(pathlib.Path(sys.modules[module].__file__).read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
                assert "keras_dist" not in imported, module
            elif isinstance(node, ast.ImportFrom):
                imported |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        assert "keras_dist.models.model" not in imported, module
        assert not {f"keras_dist.{name}" for name in keras_dist._PACKAGE_OF} & imported, module


def test_methods_have_the_name_of_the_class():
    assert kd.Model.fit.__qualname__ == "Model.fit" and kd.Model.from_nnx.__qualname__ == "Model.from_nnx"
    model = kd.Sequential([kd.Input((3,)), kd.layers.Dense(2)])
    with pytest.raises(kd.errors.ArgumentTypeError, match="`get_layer` has no argument 'title'"):
        model.get_layer(title="dense")
    with pytest.raises(kd.errors.ArgumentTypeError, match="`fit` has no argument 'model'"):
        model.fit(model=model)


class Base(kd.layers.Layer):
    """A base between a model and `Layer`, as of users' own layers."""

    def get_config(self):
        return {**super().get_config(), "note": "from a base beside Model"}


class Mixed(kd.Model, Base):
    def __init__(self, note="", **kwargs):
        super().__init__(**kwargs)
        self.dense = kd.layers.Dense(2)
        self.calls = []

    def call(self, inputs):
        return self.dense(inputs)

    def compile(self, *args, **kwargs):
        self.calls.append("compile")
        super().compile(*args, **kwargs)

    def fit(self, *args, **kwargs):
        self.calls.append("fit")
        return super().fit(*args, **kwargs)

    @property
    def metrics(self):
        return super().metrics

    def compute_loss(self, *args, **kwargs):
        return 2 * super().compute_loss(*args, **kwargs)


def test_subclasses_call_super_and_reach_bases_beside_the_model():
    assert Mixed().get_config()["note"] == "from a base beside Model"
    x, y = np.ones((8, 3), "float32"), np.ones((8, 2), "float32")
    model, plain = Mixed(), kd.Sequential([kd.layers.Dense(2)])
    for one in (model, plain):
        one.build((None, 3))
        one.set_weights([np.full((3, 2), 0.5, "float32"), np.zeros(2, "float32")])
        one.compile("sgd", "mse")
    losses = [one.fit(x, y, verbose=0).history["loss"][0] for one in (model, plain)]
    assert list(model.calls) == ["compile", "fit"]
    assert losses[0] == pytest.approx(2 * losses[1]) == pytest.approx(0.5)


def test_constructors_of_subclasses_are_what_users_wrote():
    assert inspect.unwrap(Mixed.__init__) is Mixed.__init__
    with kd.DataParallel().scope():
        model = Mixed()
    model.build((None, 3))
    assert model.distribution == kd.DataParallel(), "noted when the model was begun"
