"""Errors and warnings of `keras_dist.distribution`, word for word: they are its interface."""

import warnings
from collections.abc import Callable
from typing import Any

import jax
import pytest

import keras_dist as kd
from keras_dist.errors import KerasDistError

KERNEL = jax.ShapeDtypeStruct((16, 30), "float32")


def planned(rules: dict[str, Any], tree: Any, **options: Any) -> Any:
    layout_map = kd.LayoutMap(kd.DeviceMesh("data=2,model=4"))
    layout_map.update(rules)
    return kd.ModelParallel(layout_map, **options).plan(tree)


GOLDEN: dict[str, tuple[Callable[[], Any], str]] = {
    "mesh of six on eight": (
        lambda: kd.DeviceMesh((2, 3), ("data", "model")),
        """\
Shape does not match the number of devices
  given:    shape=(2, 3) (data=2 x model=3 = 6) on 8 device(s)
  fix:      change a size, write -1 for one of them, or use some devices only: devices=list_devices()[:6]""",
    ),
    "a device that does not exist": (
        lambda: kd.DeviceMesh((2,), ("data",), ["cpu:0", "cpu:77"]).backend_mesh,
        """\
Device not found: 'cpu:77'
  given:    devices cpu:0 ... cpu:7
  fix:      name an existing device; for more fake CPU devices call `kd.use_cpu_devices(n)` before any other JAX call\
""",
    ),
    "an axis with a typo": (
        lambda: planned({"d1/kernel": (None, "modle")}, {}),
        """\
Invalid axis names for Layout: 'modle' (did you mean 'model'?)
  given:    axes=(None, 'modle'), mesh {data: 2, model: 4}
  fix:      the value should be a TensorLayout, tuple or list of ['data', 'model']; None leaves a dim unsharded""",
    ),
    "indivisible": (
        lambda: planned({"decoder/.*kernel": (None, "model")}, {"decoder": {"dense": {"kernel": KERNEL}}}),
        """\
cannot shard dim 1 of 'decoder/dense/kernel'
  given:    shape (16, 30), layout (None, 'model'), rule 'decoder/.*kernel', mesh {data: 2, model: 4}
  expected: dim 1 = 30 divisible by axis 'model' = 4
  fix:      make the dim 32, or map this path to (None, None)""",
    ),
    "several at once": (
        lambda: planned({"a": ("data", "model"), "b": ("model",), "c/kernal": (None,)}, {"a": KERNEL, "b": KERNEL}),
        """\
2 layout rules cannot be applied on mesh {data: 2, model: 4}

(1) cannot shard dim 1 of 'a'
  given:    shape (16, 30), layout ('data', 'model'), rule 'a', mesh {data: 2, model: 4}
  expected: dim 1 = 30 divisible by axis 'model' = 4
  fix:      make the dim 32, or map this path to ('data', None)

(2) the layout of 'b' has the wrong rank
  given:    shape (16, 30), layout ('model',), rule 'b', mesh {data: 2, model: 4}
  expected: 2 entries, one for each dim
  fix:      write a rule with 2 entries for this path, or make the rule more specific""",
    ),
    "dead, strict": (
        lambda: planned({"d1/kernal": (None, "model")}, {"d1": {"kernel": KERNEL}}, strict=True),
        """\
rule 'd1/kernal' matched nothing
  given:    rule 'd1/kernal' -> (None, 'model')
  expected: a rule that matches a path
  fix:      the nearest path is 'd1/kernel'; correct the rule, or remove it""",
    ),
    "JAX has started": (
        lambda: kd.use_cpu_devices(4),
        """\
use_cpu_devices(4): JAX has already started, and its devices can no longer be changed
  given:    8 running device(s), cpu:0 ... cpu:7
  fix:      restart the process (notebook: the kernel) and put `kd.use_cpu_devices(4)` first""",
    ),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_error(name):
    provoke, text = GOLDEN[name]
    with pytest.raises(KerasDistError) as caught:
        provoke()
    assert str(caught.value) == text
    assert isinstance(caught.value, ValueError)


def test_warning_lists_the_dead_rules():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        planned({"d1/kernal": (None, "model"), "bias": (None,)}, {"d1": {"kernel": KERNEL, "bias": KERNEL}})
    assert [str(warning.message) for warning in caught] == [
        """\
2 layout rule(s) had no effect on mesh {data: 2, model: 4}
rule 'd1/kernal' matched nothing: the nearest path is 'd1/kernel'; correct the rule, or remove it
rule 'bias' matched nothing: it is only a part of 'd1/bias': write 'd1/bias', or '.*bias'"""
    ]
