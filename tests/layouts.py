"""The distributions that tests compare: one device, a (data, model) mesh with rules, fully sharded."""

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

import keras_dist as kd
from tests.networks import Plain

RULES: dict[str, tuple[Any, ...]] = {"d1/kernel": (None, "model"), "d2/kernel": ("model", None)}
"""Column, then row parallel: for `networks.Plain`, `Noisy` and `ForeignNorm`."""

MESHES = ["data=8,model=1", "data=4,model=2", "data=2,model=4", "data=1,model=8"]
FULLY_SHARDED = ["fully data=8", "fully data=2,model=4"]
ALL = ["one device", *MESHES, *FULLY_SHARDED]


def one_device() -> kd.Distribution:
    return kd.DataParallel(devices=kd.list_devices()[:1])


def on(name: str, rules: Mapping[str, tuple[Any, ...]] = RULES) -> kd.Distribution:
    """The distribution called `name`, one of `ALL`."""
    if name == "one device":
        return one_device()
    if name == "fully data=8":
        return kd.FullySharded(kd.DeviceMesh("data=8"))
    mesh = kd.DeviceMesh(name.removeprefix("fully "))
    layout_map: Any = kd.LayoutMap(mesh)
    layout_map.update(rules)
    if name.startswith("fully"):
        return kd.FullySharded(mesh, axis="data", rules=layout_map, strict=True)
    return kd.ModelParallel(layout_map, batch_dim_name="data", strict=True)


def model_on(where: str | kd.Distribution, factory: Any, rules: Any = RULES, seed: int = 0, **options: Any) -> kd.Model:
    """A model of an NNX module that is born on a distribution, or on that called `where`."""
    with (on(where, rules) if isinstance(where, str) else where).scope():
        return kd.Model.from_nnx(factory, seed=seed, **options)


def plain_on(where: str, seed: int = 0) -> kd.Model:
    """`networks.Plain` with the values of its birth: one model for all tests, which compile it anew."""
    model, weights = _with_weights(where, seed)
    model.set_weights(weights)
    return model


@functools.cache
def _with_weights(where: str, seed: int) -> tuple[kd.Model, list[np.ndarray]]:
    model = model_on(where, Plain, seed=seed)
    return model, model.get_weights()
