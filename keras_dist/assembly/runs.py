"""`Run`: what a config describes, built, and trained."""

from __future__ import annotations

import dataclasses
from typing import Any

from keras_dist import random
from keras_dist.assembly.components import Examples, callback_of, check_run, compiled_model, data_of
from keras_dist.assembly.placing import placed, resolved
from keras_dist.callbacks import BackupAndRestore, Callback, History
from keras_dist.config import ClusterConfig, RunConfig
from keras_dist.distribution import CommunicationOptions, initialize
from keras_dist.distribution.jobs import job
from keras_dist.distribution.jobs.joining import has_job_to_join
from keras_dist.distribution.strategy import Distribution
from keras_dist.errors import ConfigError
from keras_dist.models import Model
from keras_dist.saving.buckets import folder_path
from keras_dist.saving.drafts import writing_to

RESOLVED_CONFIG = "run.json"
"""The name of the resolved config beside checkpoints."""


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
    """A compiled model on its distribution, with its data; `build` makes it.

    Attributes:
        config: what it was made from, with what was inferred and found.
        distribution: where variables and data live.
        model: the compiled model.
        examples: what is trained on: the arguments `(x, y)` of `fit`, or `(x, y, sample_weight)`, or `(dataset,)`.
        held_out: what is tested on, in the same form; None if there is nothing.
    """

    config: RunConfig
    distribution: Distribution
    model: Model
    examples: Examples
    held_out: Examples | None

    def train(self) -> History:
        """Train as the config says; with `[checkpoint]`, go on where an earlier run in the same directory was ended.

        The resolved config is saved beside the states, as `run.json`: `config.load` reads it, and the same run can be
        repeated with another `checkpoint.directory`.
        """
        told, chosen = self.config.training, [callback_of(one, n) for n, one in enumerate(self.config.callbacks)]
        if self.config.checkpoint is not None:
            options = self.config.checkpoint.model_dump(exclude={"directory", "delete"})
            place, delete = self.config.checkpoint.directory, self.config.checkpoint.delete
            chosen += [BackupAndRestore(place, delete_checkpoint=delete, **options), _SavedConfig(self.config)]
        examples = dict(zip(("x", "y", "sample_weight"), self.examples, strict=False))
        validated: Any = self.held_out if told.validation and not told.validation_split else None
        with self.distribution.scope():
            return self.model.fit(
                **examples,
                batch_size=told.batch_size,
                epochs=told.epochs,
                verbose=told.verbose,
                callbacks=chosen,
                validation_split=told.validation_split,
                validation_data=validated if validated is None or len(validated) > 1 else validated[0],
                shuffle=told.shuffle,
                steps_per_epoch=told.steps_per_epoch,
                validation_freq=told.validation_freq,
            )

    def evaluate(self) -> dict[str, float]:
        """Return loss and metrics by name over the examples that are held out.

        Raises:
            ConfigError: the data hold none out.
        """
        if self.held_out is None:
            fix = "return (x, y), (x_test, y_test) from the function that [data] names"
            raise ConfigError("data: there are no examples to test on", given="data without a second part", fix=fix)
        examples = dict(zip(("x", "y", "sample_weight"), self.held_out, strict=False))
        with self.distribution.scope():
            batch_size = self.config.training.batch_size
            return self.model.evaluate(**examples, batch_size=batch_size, verbose=0, return_dict=True)


class _SavedConfig(Callback):
    """Saves the resolved config beside the states, once `BackupAndRestore` has the directory for itself."""

    def __init__(self, run: RunConfig) -> None:
        super().__init__()
        self._run: RunConfig | None = run

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Write the file, before the first epoch."""
        if self._run is not None and self._run.checkpoint is not None and job.process_index() == 0:
            place = folder_path(self._run.checkpoint.directory) / RESOLVED_CONFIG
            with writing_to(place):
                place.write_text(self._run.to_json(), "utf-8")
        self._run = None


def build(run: RunConfig) -> Run:
    """Return the run that a config describes: a compiled model with its data, nothing trained.

    A process of `keras-dist launch`, or one of several workers in `TF_CONFIG`, joins its job first; with `[cluster]`
    also one of a job that it describes, or that JAX detects.

    Raises:
        ConfigError: something that the run needs is missing, a component does not exist or does not take its
            arguments, or the mesh does not fit the devices; names the key.

    Example:
        >>> import keras_dist as kd
        >>> settings = {
        ...     "mesh": {"shape": {"data": -1}},
        ...     "model": {"name": "Sequential", "layers": [{"class_name": "Dense", "config": {"units": 10}}]},
        ...     "data": "digits",
        ...     "training": {"loss": "mse"},
        ... }
        >>> run = kd.assembly.build(kd.config.RunConfig.model_validate(settings))
        >>> [layer.name for layer in run.model.layers], [len(part) for part in run.examples]
        (['dense'], [1437, 1437])
    """
    check_run(run)
    _join(run.cluster)
    random.set_random_seed(run.training.seed)
    examples, held_out = data_of(run)
    distribution, remat = placed(run, examples)
    with distribution.scope():
        return Run(resolved(run, distribution, remat), distribution, compiled_model(run, remat), examples, held_out)


def _join(cluster: ClusterConfig | None) -> None:
    """Join the job of this process, if it is one of a job."""
    told = cluster or ClusterConfig()
    is_described = any(value is not None for value in (told.job_addresses, told.num_processes, told.process_id))
    if is_described or has_job_to_join(detect=cluster is not None):
        options = CommunicationOptions(told.communication)
        initialize(**told.model_dump(exclude={"communication"}), communication_options=options)


def train(run: RunConfig) -> History:
    """Train what a config describes, and return the `History`; see `build` and `Run.train`.

    Unless `training.verbose` is 0, the resolved config is printed first.
    """
    built = build(run)
    if run.training.verbose != 0:
        job.print_message(built.config.to_json())
    return built.train()
