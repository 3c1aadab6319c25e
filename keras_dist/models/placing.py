"""Where a model is to live, and the initial state of its variables there."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator

import numpy as np

from keras_dist._support.types import ArrayLike, PyTree
from keras_dist.distribution import devices, lint
from keras_dist.distribution.data_parallel import DataParallel
from keras_dist.distribution.jobs.consistency import Fingerprint, check_agreement, facts_of_plan
from keras_dist.distribution.plan import LayoutPlan
from keras_dist.distribution.strategy import Distribution
from keras_dist.errors import LayoutError, LayoutWarning
from keras_dist.models.infer_mesh import distribution_of_weights
from keras_dist.training.graph import ModuleGraph


def distribution_now(chosen: Distribution | None) -> Distribution:
    """A snapshot of a distribution; without any, the first device."""
    return (chosen or DataParallel(devices=devices.list_devices()[:1])).snapshot()


@functools.cache
def tell_of_one_device() -> None:
    """Warn, once in a process, that nothing says where models live, and that they use one device of several."""
    names = devices.list_devices()
    if len(names) > 1:
        warnings.warn(
            f"no distribution is set: one device, {names[0]}, is used of {len(names)}. To use all of them call "
            "keras_dist.set_distribution(keras_dist.DataParallel()) before the model is made; "
            f'DataParallel(devices=["{names[0]}"]) is the same as now, without this warning',
            LayoutWarning,
            stacklevel=lint.frames_inside(),
        )


@contextlib.contextmanager
def told_of_one_device(is_placed: bool) -> Iterator[None]:
    """Inside, errors of layouts say so where no distribution was chosen, and the mesh is that of one device."""
    try:
        yield
    except LayoutError as error:
        if not is_placed:
            error.summary = f"{error.summary}; no distribution is set, so that the mesh is that of one device"
            error.fix = (
                'set one before the model is made: mesh = kd.DeviceMesh((2, 4), ("data", "model")); '
                "kd.set_distribution(kd.ModelParallel(kd.LayoutMap(mesh))); or leave the layout out"
            )
        raise


def place_of(asked: Distribution | None, expected: Distribution | None, graph: ModuleGraph) -> Distribution | None:
    """Return the distribution that was asked for, or that layers expect; None for one device, with a warning."""
    found = asked or distribution_of_weights(graph.specs) or expected
    if found is None:
        tell_of_one_device()
    return found


def initial_state(
    plan: LayoutPlan, init: Callable[[ArrayLike], PyTree], seed: int, facts_of_model: Callable[[], Fingerprint] = dict
) -> PyTree:
    """The initial state, after all processes have agreed on what it is."""
    check_agreement("create weights", plan.mesh, lambda: {**facts_of_plan(plan, seed), **facts_of_model()})
    return plan.init(init, np.uint32(seed))
