"""`RunConfig`: the schema of config files of whole runs."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    ModelWrapValidatorHandler,
    SerializeAsAny,
    model_validator,
)

from keras_dist.config import mesh_shape
from keras_dist.config.layouts import DataParallelConfig, DistributionConfig, MeshConfig, mesh_axes
from keras_dist.config.problems import Table, as_table, as_tuple
from keras_dist.errors import MeshError


class Component(Table):
    """An object that a config names: `"adam"`, or with arguments `{name = "adam", learning_rate = 1e-3}`.

    The name is one of Keras, one that `saving.register_keras_serializable` has registered, or the import path
    `"my_package.module:Thing"`: **its module is imported, and so run, when the run is built**. Read the file before you
    run one of somebody else.

    Args:
        name: the name or import path. The rest of the table are the arguments of the class or function.
        config: further arguments, for those that are themselves called `name`. With `class_name` for `name`, this is
            the form in which Keras writes objects, and that of objects within arguments.

    Example:
        >>> component = Component.model_validate({"name": "adam", "learning_rate": 1e-3})
        >>> component.name, component.arguments
        ('adam', {'learning_rate': 0.001})
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, JsonValue] = Field(init=False)  # pyright: ignore[reportIncompatibleVariableOverride]

    name: str = Field(min_length=1, description='a registered name, or an import path "module:Thing"')
    config: dict[str, JsonValue] = Field(default_factory=dict)

    @property
    def arguments(self) -> dict[str, Any]:
        """What the class or function is called with."""
        return {**(self.model_extra or {}), **self.config}

    @classmethod
    def form(cls) -> str:
        """Return what may be given in its place."""
        return 'a registered name or an import path "module:Thing", or a table with one as name, and arguments'

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: object) -> object:
        table = as_table(value)
        if table is None or "name" in table or "class_name" not in table:
            return {"name": value} if isinstance(value, str) else value
        return {"name": table.get("registered_name") or table["class_name"], "config": table.get("config") or {}}


def _named(value: object) -> object:
    """Return callbacks by name, `{EarlyStopping: {patience: 3}}`, as a list of them; lists as tuples."""
    table = as_table(value) or {}
    named = [{**options, "name": name} for name, options in table.items() if as_table(options) is not None]
    return as_tuple(named if named and len(named) == len(table) else [] if value == {} else value)


_Components = Annotated[
    tuple[Component, ...],
    BeforeValidator(_named),
    Field(description='a list of names, or of tables {name = "...", ...}; or a table of tables by name'),
]


_Positive = Annotated[int, Field(ge=1)]


class TrainingConfig(Table):
    """`[training]`: what `Model.compile` and `Model.fit` are told; see there.

    Args:
        epochs: the epoch to stop at.
        batch_size: rows of one step on all devices together; None for 32, or what the data give.
        seed: fixes initial values, Dropout and the order of rows.
        loss: a loss of `keras_dist.losses`, or a function by its import path; None where the model adds its own.
        metrics: metrics of `keras_dist.metrics`, or functions by import path.
        dtype_policy: `"mixed_bfloat16"` and the like; None for the current policy.
        validation: whether the test examples of the data are evaluated after epochs.
        validation_split: the part of the examples that is evaluated instead of them.
        validation_freq: epochs from one evaluation to the next.
        shuffle: whether rows come in another order each epoch.
        steps_per_epoch: how many batches make an epoch; None for all.
        steps_per_execution: how many steps are one program.
        remat: what the backward pass computes again.
        verbose: 0 for silence, 1 or "auto" for a progress bar, 2 for a line for each epoch.
    """

    epochs: int = Field(default=1, ge=1)
    batch_size: int | None = Field(default=None, ge=1)
    seed: int = Field(default=0, ge=0, lt=2**32)
    loss: Component | None = None
    metrics: _Components = ()
    dtype_policy: str | None = None
    validation: bool = True
    validation_split: float = Field(default=0.0, ge=0, lt=1)
    validation_freq: int = Field(default=1, ge=1)
    shuffle: bool = True
    steps_per_epoch: int | None = Field(default=None, ge=1)
    steps_per_execution: _Positive | Literal["auto"] = Field(default="auto", description='an integer >= 1, or "auto"')
    remat: str | None = None
    verbose: Literal["auto", 0, 1, 2] = "auto"


class CheckpointConfig(Table):
    """`[checkpoint]`: what `callbacks.BackupAndRestore` is told; see there. `ModelCheckpoint` is one of `[callbacks]`.

    Args:
        directory: where states and the resolved config, `run.json`, are kept. A run that was ended goes on from there.
        save_freq: `"epoch"`, or the number of batches between saves.
        keep: number of states to keep; None for all.
        delete: whether the states are deleted when training ends normally.
        asynchronous: whether training continues while a state is being written.
        fsync: whether states are forced to the disk.
    """

    directory: str = Field(min_length=1, description="a directory for this run only", examples=["checkpoints"])
    save_freq: _Positive | Literal["epoch"] = Field(default="epoch", description='a number of batches, or "epoch"')
    keep: int | None = Field(default=2, ge=1)
    delete: bool = False
    asynchronous: bool = True
    fsync: bool = False


class ClusterConfig(Table):
    """`[cluster]`: what `kd.initialize` is told, with which the process joins its job; see there.

    Processes of `keras-dist launch` need none, and a process that is in no job joins none.

    Args:
        job_addresses: addresses of the processes, or of the first.
        num_processes: processes in the job.
        process_id: which of them this is.
        initialization_timeout_s: seconds within which all must come.
        heartbeat_timeout_s: seconds without a sign of life after which a process counts as dead.
        shutdown_timeout_s: seconds that the first process waits for the others at its end.
        hang_timeout_s: seconds without a step after which the job ends.
        check_data: how rows are compared that several processes are meant to have alike.
        communication: how devices of several processes exchange data.
    """

    job_addresses: str | None = None
    num_processes: int | None = Field(default=None, ge=1)
    process_id: int | None = Field(default=None, ge=0)
    initialization_timeout_s: float | None = Field(default=None, ge=1)
    heartbeat_timeout_s: float = Field(default=7, ge=1)
    shutdown_timeout_s: float = Field(default=300, ge=1)
    hang_timeout_s: float | None = Field(default=None, ge=1)
    check_data: Literal["sample", "full", False] = "sample"
    communication: Literal["auto", "gloo", "mpi", "nccl"] = "auto"


class RunConfig(Table):
    """The settings of a run: immutable, and checked as a whole.

    Args:
        mesh: the axes of the device mesh.
        distribution: the layout on it.
        cluster: the processes of the job; None for this one, for those of `keras-dist launch` or of `TF_CONFIG`, and
            where the program joins the job itself.
        model: a Keras model by its registered name, or the import path of a class of `flax.nnx` or `keras_dist`, or of
            a function that makes a model.
        data: `"digits"`, `"mnist"`, or the import path of a function that returns `(x, y), (x_test, y_test)`.
        optimizer: an optimizer of `keras_dist.optimizers`, or the import path of a function that makes one.
        training: what is minimised, and for how long.
        checkpoint: where the run is saved; None for nowhere.
        callbacks: callbacks of `keras_dist.callbacks`, or by import path.

    Raises:
        pydantic.ValidationError: something is missing, unknown or not allowed (`load` makes a `ConfigError` of it).

    Example:
        >>> config = RunConfig.model_validate({"mesh": {"shape": {"data": 8}}, "optimizer": "adam"})
        >>> config.distribution.strategy, config.optimizer.name, config.training.epochs
        ('data_parallel', 'adam', 1)
    """

    mesh: MeshConfig = Field(examples=[{"shape": {"data": 2, "model": 4}}])
    distribution: SerializeAsAny[DistributionConfig] = Field(
        default_factory=DataParallelConfig, examples=[{"strategy": "data_parallel"}]
    )
    cluster: ClusterConfig | None = None
    model: Component | None = None
    data: Component | None = None
    optimizer: Component = Component(name="rmsprop")
    training: TrainingConfig = TrainingConfig()
    checkpoint: CheckpointConfig | None = None
    callbacks: _Components = ()

    def to_json(self) -> str:
        """Return the settings, defaults included, as the text of a file that `load` reads: the run can be repeated.

        Example:
            >>> config = RunConfig.model_validate({"mesh": {"shape": "data=8"}})
            >>> print(config.to_json()[:49])
            {
              "mesh": {
                "shape": {
                  "data": 8
        """
        return self.model_dump_json(indent=2).replace("${", "$${") + "\n"

    @model_validator(mode="wrap")
    @classmethod
    def _knowing_the_axes(cls, value: Any, handler: ModelWrapValidatorHandler[RunConfig]) -> RunConfig:
        token = mesh_axes.set(_axes((as_table(value) or {}).get("mesh")))
        try:
            return handler(value)
        finally:
            mesh_axes.reset(token)


def _axes(mesh: object) -> tuple[str, ...]:
    """Return the axis names in `[mesh]`, as far as they can be read."""
    shape: object = mesh.shape if isinstance(mesh, MeshConfig) else (as_table(mesh) or {}).get("shape")
    if isinstance(shape, str):
        try:
            shape = mesh_shape.parse_mesh_shape(shape)
        except MeshError:
            return ()
    return tuple(name for name in as_table(shape) or () if isinstance(name, str))
