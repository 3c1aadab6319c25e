"""The mesh that layouts of weights bring along: there a model lives for which no distribution was chosen."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence

from flax import nnx

from keras_dist.distribution.layout import TensorLayout
from keras_dist.distribution.layout_map import LayoutMap
from keras_dist.distribution.mesh import DeviceMesh, distinct_descriptions
from keras_dist.distribution.model_parallel import ModelParallel
from keras_dist.distribution.strategy import Distribution
from keras_dist.distribution.strategy import distribution as current_distribution
from keras_dist.distribution.variables import VariableSpec
from keras_dist.errors import LayoutError
from keras_dist.training.naming import layers_below


def distribution_of_layers(model: nnx.Module) -> Distribution | None:
    """The distribution on the mesh of the layouts that the layers of a model were given as arguments; None without one.

    Raises:
        LayoutError: they are on different meshes.
    """
    return _distribution_of(
        (f"{path}/{name}".lstrip("/"), value)
        for path, layer in layers_below(model)
        for name, value in vars(layer).items()
        if name.endswith("_layout") and isinstance(value, TensorLayout)
    )


def distribution_of_weights(specs: Sequence[VariableSpec]) -> Distribution | None:
    """As `distribution_of_layers`, of all that `build` and `add_weight` were given, too."""
    return _distribution_of((spec.path, spec.own.layout) for spec in specs if spec.own and spec.own.layout)


@contextlib.contextmanager
def in_place_of(model: nnx.Module) -> Iterator[None]:
    """Inside, what is made from the config of a model, in which layouts are axes alone, lives on the mesh of these.

    A current distribution counts first.
    """
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
        fix = "make all layouts with the same mesh; axes alone, as kernel_layout=(None, None), go with any"
        raise LayoutError("the layouts of a model's weights are on different meshes", given=given, fix=fix)
    for mesh in places:
        return ModelParallel(LayoutMap(mesh), "batch" if "batch" in mesh.axis_names else mesh.axis_names[0])
    return None
