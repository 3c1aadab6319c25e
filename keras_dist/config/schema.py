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
    ValidationInfo,
    field_validator,
    model_validator,
)

from keras_dist.config import mesh_shape
from keras_dist.config.layouts import MESH_AXES, DataParallelConfig, DistributionConfig, MeshConfig
from keras_dist.config.problems import ConfigTable, as_table, as_tuple, refuse
from keras_dist.errors import MeshError


class Component(ConfigTable):
    """An object by name, `"adam"`, or with arguments, `{name = "adam", learning_rate = 1e-3}`.

    The name is a name in Keras, a name that `saving.register_keras_serializable` has registered, or an import path
    `"my_package.module:Thing"`. **Building the run imports, and so runs, the module.** Read config files of others
    before you run them.

    Args:
        name: the name or import path. All other keys are arguments of the class or function.
        config: further arguments, needed for an argument called `name`. `class_name` and `config` is Keras's form of
            objects, also within arguments.

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
        """Arguments of the class or function."""
        return {**(self.model_extra or {}), **self.config}

    @classmethod
    def form(cls) -> str:
        """Return the allowed values of a component, for errors."""
        return 'a registered name or an import path "module:Thing", or a table with one as name, and arguments'

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: object) -> object:
        table = as_table(value)
        if table is None or "name" in table or "class_name" not in table:
            return {"name": value} if isinstance(value, str) else value
        return {"name": table.get("registered_name") or table["class_name"], "config": table.get("config") or {}}


def _named(value: object) -> object:
    """Return a table of callbacks by name, `{EarlyStopping: {patience: 3}}`, as a list; lists as tuples."""
    table = as_table(value) or {}
    named = [{**options, "name": name} for name, options in table.items() if as_table(options) is not None]
    return as_tuple(named if named and len(named) == len(table) else [] if value == {} else value)


_Components = Annotated[
    tuple[Component, ...],
    BeforeValidator(_named),
    Field(description='a list of names, or of tables {name = "...", ...}; or a table of tables by name'),
]


_Positive = Annotated[int, Field(ge=1)]


class TrainingConfig(ConfigTable):
    """`[training]`: arguments of `Model.compile` and `Model.fit`; see there.

    Args:
        epochs: the epoch to stop at.
        batch_size: rows of one step over all devices; None for 32, or the batches of the data.
        seed: seed of initial values, Dropout and the order of rows.
        loss: a loss of `keras_dist.losses`, or a function by import path; None if the model adds losses itself.
        metrics: metrics of `keras_dist.metrics`, or functions by import path.
        dtype_policy: a dtype policy such as `"mixed_bfloat16"`; None for the current policy.
        validation: whether the test examples of the data are evaluated after epochs.
        validation_split: fraction of the examples to evaluate instead of the test examples.
        validation_freq: epochs between evaluations.
        shuffle: whether rows are shuffled each epoch.
        steps_per_epoch: batches per epoch; None for all.
        steps_per_execution: steps per execution of a compiled program.
        remat: layers to recompute in the backward pass.
        slot_memory: "pinned_host" for optimizer slots in the memory of the hosts.
        micro_batches: parts into which a batch is split for the pipelines of the model.
        verbose: 0 for silent, 1 or "auto" for a progress bar, 2 for one line per epoch.
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
    slot_memory: Literal["pinned_host"] | None = None
    micro_batches: int | None = Field(default=None, ge=1)
    verbose: Literal["auto", 0, 1, 2] = "auto"


class LoraConfig(ConfigTable):
    """`[lora]`: arguments of `Model.enable_lora`; see there.

    Args:
        rank: the rank of the updates.
        layers: regular expression, or several, for whole paths of layers or weights.
        alpha: scaling factor; None for `rank`.
        dropout: fraction of the inputs of the factors to drop in training.
        rank_pattern: other ranks, by regular expressions for paths.
        alpha_pattern: other scaling factors.
        modules_to_save: regular expressions for paths of layers or weights that are trained whole.
        dora: whether outputs have trained magnitudes.
        lora_bias: whether the second factors have a bias.
    """

    rank: int = Field(ge=1)
    layers: Annotated[
        tuple[str, ...],
        Field(min_length=1, description="a regular expression for paths, or a list", examples=[".*/(query|value)"]),
        BeforeValidator(lambda given: (given,) if isinstance(given, str) else as_tuple(given)),
    ]
    alpha: float | None = Field(default=None, gt=0)
    dropout: float = Field(default=0.0, ge=0, lt=1)
    rank_pattern: dict[str, Annotated[int, Field(ge=1)]] = Field(default_factory=dict)
    alpha_pattern: dict[str, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    modules_to_save: tuple[str, ...] | None = None
    dora: bool = False
    lora_bias: bool = False


class SaveConfig(ConfigTable):
    """`[save]`: folders in which the trained model is saved for other programs.

    Args:
        adapter: folder for the factors of `[lora]`, in the format of peft; see `Model.save_adapter`.
        pretrained: folder for a network of `kd.pretrained`, in the format of transformers; factors are merged.
    """

    adapter: str | None = None
    pretrained: str | None = None


class CheckpointConfig(ConfigTable):
    """`[checkpoint]`: arguments of `callbacks.BackupAndRestore`; see there. `ModelCheckpoint` belongs to `[callbacks]`.

    Args:
        directory: directory of states and the resolved config, `run.json`, from which an interrupted run resumes.
        save_freq: `"epoch"`, or the number of batches between saves.
        keep: number of states to keep; None for all.
        delete: whether states are deleted after the training.
        asynchronous: whether training continues while a state is written.
        fsync: whether states are flushed to the disk.
    """

    directory: str = Field(min_length=1, description="a directory for this run only", examples=["checkpoints"])
    save_freq: _Positive | Literal["epoch"] = Field(default="epoch", description='a number of batches, or "epoch"')
    keep: int | None = Field(default=2, ge=1)
    delete: bool = False
    asynchronous: bool = True
    fsync: bool = False


class ClusterConfig(ConfigTable):
    """`[cluster]`: arguments of `kd.initialize`, by which the process joins its job; see there.

    Processes of `keras-dist launch` need no such table. A process without a job joins none.

    Args:
        job_addresses: addresses of the processes, or of the first.
        num_processes: number of processes in the job.
        process_id: index of this process.
        initialization_timeout_s: time in which all processes must join [s].
        heartbeat_timeout_s: time without a heartbeat after which a process is considered failed [s].
        shutdown_timeout_s: time that the first process waits for the others at exit [s].
        hang_timeout_s: time without a step after which the job ends [s].
        check_data: comparison of rows that several processes should have in common.
        communication: library for communication between processes.
    """

    job_addresses: str | None = None
    num_processes: int | None = Field(default=None, ge=1)
    process_id: int | None = Field(default=None, ge=0)
    initialization_timeout_s: float | None = Field(default=None, ge=1)
    heartbeat_timeout_s: float = Field(default=60, ge=1)
    shutdown_timeout_s: float = Field(default=300, ge=1)
    hang_timeout_s: float | None = Field(default=None, ge=1)
    check_data: Literal["sample", "full", False] = "sample"
    communication: Literal["auto", "gloo", "mpi", "nccl"] = "auto"


class RunConfig(ConfigTable):
    """The settings of a run: immutable, and validated as a whole.

    Args:
        mesh: the axes of the device mesh.
        distribution: the layout on the mesh.
        cluster: the processes of the job; None for a single process, for `keras-dist launch` and `TF_CONFIG`, and if
            the program joins the job itself.
        model: a Keras model by its registered name, or the import path of a class of `flax.nnx` or `keras_dist`, or of
            a function that returns a model; or `"pretrained"` with the arguments of `kd.pretrained.load`.
        data: `"digits"`, `"mnist"`, `"text"` with the arguments of `kd.datasets.text.load_data`, or the import path of
            a function that returns `(x, y), (x_test, y_test)`.
        lora: adapters of the model; None to train all weights.
        optimizer: an optimizer of `keras_dist.optimizers`, or the import path of a function that returns one.
        training: arguments of `compile` and `fit`.
        checkpoint: settings for saving the run; None for no checkpoints.
        save: where the trained model is saved for other programs.
        callbacks: callbacks of `keras_dist.callbacks`, or by import path.

    Raises:
        pydantic.ValidationError: a setting is missing, unknown or not allowed (`load` raises a `ConfigError` instead).

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
    lora: LoraConfig | None = None
    optimizer: Component = Component(name="rmsprop")
    training: TrainingConfig = TrainingConfig()
    checkpoint: CheckpointConfig | None = None
    save: SaveConfig = SaveConfig()
    callbacks: _Components = ()

    def to_json(self) -> str:
        """Return all settings, with defaults, as JSON that `load` reads.

        Example:
            >>> config = RunConfig.model_validate({"mesh": {"shape": "data=8"}})
            >>> print(config.to_json()[:49])
            {
              "mesh": {
                "shape": {
                  "data": 8
        """
        return self.model_dump_json(indent=2).replace("${", "$${") + "\n"

    @field_validator("save")
    @classmethod
    def _with_adapters(cls, save: SaveConfig, info: ValidationInfo) -> SaveConfig:
        if save.adapter is not None and info.data.get("lora", save) is None:
            raise refuse(
                "save.adapter needs adapters", allowed="save.adapter with [lora]", fix="add [lora], or remove it"
            )
        return save

    @model_validator(mode="wrap")
    @classmethod
    def _knowing_the_axes(
        cls, value: Any, handler: ModelWrapValidatorHandler[RunConfig], info: ValidationInfo
    ) -> RunConfig:
        context: dict[str, Any] = info.context or {}
        if MESH_AXES not in context:  # validated once more below, since `RunConfig(...)` passes no context
            cls.model_validate(value, context={**context, MESH_AXES: _axes((as_table(value) or {}).get("mesh"))})
        return handler(value)


def _axes(mesh: object) -> tuple[str, ...]:
    """Return the axis names in `[mesh]`, if they are valid."""
    shape: object = mesh.shape if isinstance(mesh, MeshConfig) else (as_table(mesh) or {}).get("shape")
    if isinstance(shape, str):
        try:
            shape = mesh_shape.parse_mesh_shape(shape)
        except MeshError:
            return ()
    return tuple(name for name in as_table(shape) or () if isinstance(name, str))
