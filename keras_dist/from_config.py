"""From config to objects: the only room that knows both."""

from __future__ import annotations

import os
from collections.abc import Mapping

from keras_dist import config
from keras_dist.distribution import DataParallel, DeviceMesh, Distribution, FullySharded, LayoutMap, ModelParallel
from keras_dist.errors import ConfigError, MeshError


def distribution_from_config(path: str | os.PathLike[str]) -> Distribution:
    """The distribution that a config file describes.

    Args:
        path: a TOML, YAML or JSON file with a table `mesh` and, if wanted, a table `distribution`. The environment
            variable `KERAS_DIST_MESH="data=4,model=2"` overrides the mesh's shape.

    Raises:
        ConfigError: the file cannot be read, says something that is not allowed, or describes a mesh that the devices
            do not fill; names file and key, or the variable.

    Example: ``run.toml``::

        [mesh]
        shape = {data = 2, model = 4}

        [distribution]
        strategy = "model_parallel"
        batch_axis = "data"

        [distribution.layout]
        "d1/kernel" = ["-", "model"]
    """
    run = config.load(path)
    mesh = _mesh(run.mesh.shape, path)
    chosen = run.distribution
    rules = LayoutMap(mesh)
    for rule, axes in chosen.layout_axes().items():
        rules[rule] = axes
    if chosen.strategy == "data_parallel":
        _check_first_axis(chosen.batch_axis, mesh, path)
        return DataParallel(mesh, shard_optimizer=chosen.shard_optimizer)
    if chosen.strategy == "model_parallel":
        return ModelParallel(rules, chosen.batch_axis, strict=chosen.strict)
    return FullySharded(
        mesh, chosen.axis, rules, chosen.batch_axis, min_size_bytes=chosen.min_size_bytes or 0, strict=chosen.strict
    )


def _mesh(shape: Mapping[str, int], path: str | os.PathLike[str]) -> DeviceMesh:
    try:
        return DeviceMesh(shape)
    except MeshError as error:
        variable = os.environ.get("KERAS_DIST_MESH")
        source = f"environment variable KERAS_DIST_MESH={variable!r}" if variable else f"{os.fspath(path)}: mesh.shape"
        raise ConfigError(
            f"{source}: {error.summary}",
            given=error.given,
            expected=error.expected,
            fix="change a size, write -1 for one of them, or make more fake CPU devices with kd.use_cpu_devices(n)",
        ) from error


def _check_first_axis(batch_axis: str | tuple[str, ...] | None, mesh: DeviceMesh, path: str | os.PathLike[str]) -> None:
    first = mesh.axis_names[0]
    if batch_axis not in (None, first, (first,)):
        raise ConfigError(
            f"{os.fspath(path)}: distribution.batch_axis is not the first axis of the mesh",
            given=f"{batch_axis!r} with strategy 'data_parallel', mesh {mesh.describe()}",
            expected=f"{first!r}: data_parallel puts the batch on the first axis",
            fix=f"batch_axis = {first!r}, or strategy = 'model_parallel'",
        )
