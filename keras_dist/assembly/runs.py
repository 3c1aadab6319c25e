"""`Run`: the objects of a config, ready to train."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

from keras_dist import pretrained, random
from keras_dist.assembly.components import Examples, callback_of, check_run, compiled_model, data_of
from keras_dist.assembly.distributions import placed, resolved
from keras_dist.callbacks import BackupAndRestore, Callback, History
from keras_dist.config import ClusterConfig, RunConfig
from keras_dist.config.problems import key_path
from keras_dist.distribution import CommunicationOptions, initialize
from keras_dist.distribution.strategy import Distribution
from keras_dist.errors import ConfigError
from keras_dist.files.buckets import folder_path
from keras_dist.files.drafts import write_file
from keras_dist.jobs import job
from keras_dist.jobs.joining import has_job_to_join
from keras_dist.models import Model

RESOLVED_CONFIG = "run.json"
"""The name of the resolved config beside checkpoints."""


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
    """A compiled model with its distribution and data, as `build` returns it.

    Attributes:
        config: the config, with inferred sizes and layouts.
        distribution: the distribution.
        model: the compiled model.
        examples: training data as arguments of `fit`: `(x, y)`, `(x, y, sample_weight)` or `(dataset,)`.
        held_out: test data in the same form, or None.
    """

    config: RunConfig
    distribution: Distribution
    model: Model
    examples: Examples
    held_out: Examples | None

    def train(self) -> History:
        """Train the model, and save it as `[save]` says; with `[checkpoint]`, resume an interrupted run.

        The resolved config is saved as `run.json` in the directory. `config.load` reads it, to repeat the run with
        another `checkpoint.directory`.
        """
        options, chosen = self.config.training, [callback_of(one, n) for n, one in enumerate(self.config.callbacks)]
        if self.config.checkpoint is not None:
            saving = self.config.checkpoint.model_dump(exclude={"directory", "delete"})
            folder, delete = self.config.checkpoint.directory, self.config.checkpoint.delete
            chosen += [BackupAndRestore(folder, delete_checkpoint=delete, **saving), _SavedConfig(self.config)]
        examples = dict(zip(("x", "y", "sample_weight"), self.examples, strict=False))
        validated: Any = self.held_out if options.validation and not options.validation_split else None
        validated = validated if validated is None or len(validated) > 1 else validated[0]
        names = ("batch_size", "epochs", "verbose", "validation_split", "shuffle", "steps_per_epoch", "validation_freq")
        of_fit = {name: getattr(options, name) for name in names}
        with self.distribution.scope():
            history = self.model.fit(**examples, **of_fit, callbacks=chosen, validation_data=validated)
            self._save()
        return history

    def _save(self) -> None:
        """Save the trained model for other programs, as `[save]` says."""
        model: Any = self.model
        if self.config.save.adapter is not None:
            model.save_adapter(self.config.save.adapter)
        if self.config.save.pretrained is not None:
            if self.config.lora is not None:
                model.merge_lora()
            pretrained.save(model, self.config.save.pretrained)

    def evaluate(self) -> dict[str, float]:
        """Return loss and metrics by name, over the test data.

        Raises:
            ConfigError: the config has no test data.
        """
        if self.held_out is None:
            fix = "return (x, y), (x_test, y_test) from the function that [data] names"
            raise ConfigError("data: the config has no test data", given="data without a second part", fix=fix)
        examples = dict(zip(("x", "y", "sample_weight"), self.held_out, strict=False))
        with self.distribution.scope():
            batch_size = self.config.training.batch_size
            return self.model.evaluate(**examples, batch_size=batch_size, verbose=0, return_dict=True)


class _SavedConfig(Callback):
    """Saves the resolved config beside the states, after `BackupAndRestore` has locked the directory."""

    def __init__(self, run: RunConfig) -> None:
        super().__init__()
        self._run: RunConfig | None = run

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Write the file, before the first epoch."""
        if self._run is not None and self._run.checkpoint is not None and job.process_index() == 0:
            place = folder_path(self._run.checkpoint.directory) / RESOLVED_CONFIG
            write_file(place, self._run.to_json())
        self._run = None


def build(run: RunConfig) -> Run:
    """Create the objects of a config: the compiled model, and its data.

    A process of `keras-dist launch`, or one of several workers in `TF_CONFIG`, joins its job first. With `[cluster]` a
    process also joins a job that the table describes, or that JAX detects.

    Args:
        run: the config.

    Raises:
        ConfigError: a setting is missing, a component does not exist or does not take its arguments, or the mesh does
            not fit the devices. The error names the key.

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
    job_config = cluster or ClusterConfig()
    described = (job_config.job_addresses, job_config.num_processes, job_config.process_id)
    if any(value is not None for value in described) or has_job_to_join(detect=cluster is not None):
        options = CommunicationOptions(job_config.communication)
        initialize(**job_config.model_dump(exclude={"communication"}), communication_options=options)


def train(run: RunConfig, show_defaults: bool = False) -> History:
    """Build and train the run of a config, and return the `History`; see `build` and `Run.train`.

    Unless `training.verbose` is 0, the settings of the resolved config that differ from the defaults are printed first.

    Args:
        run: the config.
        show_defaults: whether to print the whole resolved config, as JSON.
    """
    built = build(run)
    if run.training.verbose != 0:
        lines = [built.config.to_json()] if show_defaults else _changed(built.config)
        job.print_message("\n".join(lines))
    return built.train()


def _changed(run: RunConfig) -> Iterator[str]:
    """Yield the settings that differ from the defaults, and the strategy, as lines of key paths and values."""
    table = run.model_dump(mode="json", exclude_defaults=True)
    table["distribution"] = {"strategy": run.distribution.strategy, **table.get("distribution", {})}
    yield "# settings that differ from the defaults; keras-dist train --verbose prints all"
    yield from _lines(table, ())


def _lines(value: Any, loc: tuple[str | int, ...]) -> Iterator[str]:
    items = [*(value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ())]
    if isinstance(value, dict) or any(isinstance(item, dict) for _, item in items):
        for key, item in items:
            yield from _lines(item, (*loc, key))
    else:
        axes = ["-" if entry is None else entry for entry in value] if isinstance(value, list) else value
        yield f"{key_path(loc)} = {json.dumps(axes, ensure_ascii=False)}"
