"""The distribution of a model, and the initial state of its variables under it.

A model without a distribution follows the mesh in the layouts of its weights; else it uses the first device, in a job
of several processes the first of each process.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator

import jax
import numpy as np
from flax import nnx

from keras_dist._support.located_warnings import warn
from keras_dist._support.types import ArrayLike, PyTree
from keras_dist.distribution import devices
from keras_dist.distribution.consistency import Fingerprint, check_agreement, facts_of_plan
from keras_dist.distribution.data_parallel import DataParallel
from keras_dist.distribution.layout import TensorLayout
from keras_dist.distribution.layout_map import LayoutMap
from keras_dist.distribution.mesh import DeviceMesh, distinct_descriptions
from keras_dist.distribution.model_parallel import ModelParallel
from keras_dist.distribution.plan import LayoutPlan
from keras_dist.distribution.strategy import Distribution
from keras_dist.distribution.strategy import distribution as current_distribution
from keras_dist.errors import DistributionError, LayoutError, LayoutWarning
from keras_dist.layers.base.names import layers_below
from keras_dist.training.graph import ModuleGraph


def distribution_now(chosen: Distribution | None) -> Distribution:
    """Return a snapshot of a distribution; None stands for a distribution on the first device of this process."""
    if chosen is None:
        devices.list_devices()  # sizes the thread pool before the backend starts
        chosen = DataParallel(devices=jax.local_devices()[:1])
    return chosen.snapshot()


@functools.cache
def warn_of_one_device() -> None:
    """Warn, once per process, that no distribution is set and models use one of several devices."""
    names, processes = devices.list_devices(), jax.process_count()
    how = "To use all of them call keras_dist.set_distribution(keras_dist.DataParallel()) before the model is made"
    if processes > 1:
        alone = (
            f"in a job of {processes} processes: each trains a copy of the model alone, on one device of {len(names)}"
        )
        warn(f"no distribution is set {alone}. {how}", LayoutWarning)
    elif len(names) > 1:
        same = f'DataParallel(devices=["{names[0]}"]) is the same as now, without this warning'
        warn(f"no distribution is set: one device, {names[0]}, is used of {len(names)}. {how}; {same}", LayoutWarning)


@contextlib.contextmanager
def explaining_one_device(is_placed: bool) -> Iterator[None]:
    """Enter a context in which layout errors add that no distribution is set, so that the mesh has one device."""
    try:
        yield
    except LayoutError as error:
        if not is_placed:
            error.summary = f"{error.summary}; no distribution is set, so that the mesh has one device"
            error.fix = (
                'set one before the model is made: mesh = kd.DeviceMesh((2, 4), ("data", "model")); '
                "kd.set_distribution(kd.ModelParallel(kd.LayoutMap(mesh))); or leave the layout out"
            )
        raise


def distribution_of_graph(
    asked: Distribution | None, expected: Distribution | None, graph: ModuleGraph
) -> Distribution | None:
    """Return the chosen distribution, or the one that layers require; None for one device, with a warning."""
    own = ((spec.path, spec.own.layout) for spec in graph.specs if spec.own and spec.own.layout)
    found = asked or _distribution_of(own) or expected  # also of layouts that `build` gave to `add_weight`
    if found is None:
        warn_of_one_device()
    return found


def initial_state(
    plan: LayoutPlan, init: Callable[[ArrayLike], PyTree], seed: int, facts_of_model: Callable[[], Fingerprint] = dict
) -> PyTree:
    """Create the initial state, after all processes have agreed on the program."""
    check_agreement("create weights", plan.mesh, lambda: {**facts_of_plan(plan, seed), **facts_of_model()})
    return plan.init(init, np.uint32(seed))


def no_layout_yet(given: str) -> DistributionError:
    """Return the error for values of a model whose layout `AutoParallel` has not found yet."""
    summary = "AutoParallel has no layout yet: it finds one in `fit`, with the first batch"
    fix = "call fit first; or make the model under distribution.search(model, (x, y)).distribution"
    return DistributionError(summary, given=given, fix=fix)


def distribution_of_layers(model: nnx.Module) -> Distribution | None:
    """Return the distribution on the mesh of the `layout` arguments of layers; None without such layouts."""
    return _distribution_of(
        (f"{path}/{name}".lstrip("/"), value)
        for path, layer in layers_below(model)
        for name, value in vars(layer).items()
        if name.endswith("_layout") and isinstance(value, TensorLayout)
    )


@contextlib.contextmanager
def on_mesh_of(model: nnx.Module) -> Iterator[None]:
    """Context manager: create models on the mesh of `model`, unless there is a current distribution."""
    found = distribution_of_layers(model) if current_distribution() is None else None
    with contextlib.nullcontext() if found is None else found.scope():
        yield


def _distribution_of(layouts: Iterable[tuple[str, TensorLayout]]) -> Distribution | None:
    places: dict[DeviceMesh, str] = {}
    for name, layout in layouts:
        if layout.device_mesh is not None:
            places.setdefault(layout.device_mesh, name)
    if len(places) > 1:
        apart = zip(places.values(), distinct_descriptions(*places), strict=True)
        given = "; ".join(f"{name!r} on mesh {mesh}" for name, mesh in apart)
        fix = "make all layouts with the same mesh; axes alone, as kernel_layout=(None, None), fit any mesh"
        raise LayoutError("the layouts of a model's weights are on different meshes", given=given, fix=fix)
    for mesh in places:
        return ModelParallel(LayoutMap(mesh), "batch" if "batch" in mesh.axis_names else mesh.axis_names[0])
    return None
