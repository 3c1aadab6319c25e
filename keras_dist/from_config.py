"""From config to objects: the only module that knows both."""

from __future__ import annotations

import os

from keras_dist import config
from keras_dist.distribution.mesh import DeviceMesh
from keras_dist.distribution.strategy import Distribution, strategy_named
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
    mesh = _mesh(run.mesh, path)
    try:
        return strategy_named(run.distribution.strategy).from_config(mesh, run.distribution)
    except ConfigError as error:
        summary = f"{os.fspath(path)}: {error.summary}"
        raise ConfigError(summary, given=error.given, expected=error.expected, fix=error.fix) from error


def _mesh(mesh: config.MeshConfig, path: str | os.PathLike[str]) -> DeviceMesh:
    try:
        return DeviceMesh(mesh.shape, dcn_shape=mesh.dcn_shape)
    except MeshError as error:
        variable = os.environ.get("KERAS_DIST_MESH")
        source = f"environment variable KERAS_DIST_MESH={variable!r}" if variable else f"{os.fspath(path)}: mesh.shape"
        raise ConfigError(
            f"{source}: {error.summary}",
            given=error.given,
            expected=error.expected,
            fix="change a size, write -1 for one of them, or make more fake CPU devices with kd.use_cpu_devices(n)",
        ) from error
