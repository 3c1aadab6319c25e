"""From config to objects, and runs of them: the only room that knows both."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any

from keras_dist import config
from keras_dist.callbacks import History
from keras_dist.config import RunConfig
from keras_dist.distribution.mesh import DeviceMesh
from keras_dist.distribution.strategy import Distribution, strategy_named
from keras_dist.errors import ConfigError, MeshError
from keras_dist.models import Model


@dataclasses.dataclass(frozen=True)
class Run:
    """A model on its distribution with its data, compiled, nothing trained; `build` makes it.

    Attributes:
        config: what it was made from.
        distribution: where variables and data live.
        model: the compiled model.
        examples: `(x, y)` to train on.
        held_out: `(x, y)` to test on; None if the data have none.
    """

    config: RunConfig
    distribution: Distribution
    model: Model
    examples: tuple[Any, Any]
    held_out: tuple[Any, Any] | None

    def train(self) -> History:
        """Train as the config says; with `[checkpoint]` go on where an earlier run of the same config was ended."""
        raise NotImplementedError

    def evaluate(self) -> dict[str, float]:
        """Return loss and metrics by name over the examples that are held out."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class PlanInputs:
    """The arguments of `kd.plan` for a run: `kd.plan(**vars(plan_inputs(config)), target=...)`.

    Attributes:
        model_or_factory: the factory of the module, or the model, without weights.
        batch: `(x, y)` as `jax.ShapeDtypeStruct`s, a batch of the run.
        distribution: where variables and data live.
        optimizer: the optimizer.
        loss: the loss.
    """

    model_or_factory: Any
    batch: tuple[Any, Any]
    distribution: Distribution
    optimizer: Any
    loss: Any


def build(config: RunConfig) -> Run:
    """Return the run that a config describes, with nothing trained. Joins the job first where there is `[cluster]`.

    Raises:
        ConfigError: a component does not exist or does not take its arguments; names its key.
    """
    raise NotImplementedError


def train(config: RunConfig) -> History:
    """Train what a config describes: `build(config).train()`."""
    return build(config).train()


def plan_inputs(config: RunConfig, devices: Sequence[Any] | None = None) -> PlanInputs:
    """Return what `kd.plan` needs for a run; allocates nothing on devices.

    Args:
        config: of the run.
        devices: the devices of the mesh, which need not exist (`kd.planner.devices("v5p:8x8x8")`); by default those
            of this machine.
    """
    raise NotImplementedError


def distribution_of(config: RunConfig, devices: Sequence[Any] | None = None) -> Distribution:
    """Return the distribution that a config describes."""
    raise NotImplementedError
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
