"""Runs of Weights & Biases, https://docs.wandb.ai."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keras_dist.callbacks.trackers.tracker import Experiment, TrackerRun, register_tracker


@register_tracker("wandb")
class WandbRun(TrackerRun):
    """A run of wandb; the layouts are in its config."""

    package = "wandb"

    def __init__(self, experiment: Experiment, **options: Any) -> None:
        config = {**experiment.config, "layout": dict(experiment.layout)}
        if experiment.run_id is not None:
            options = {"id": experiment.run_id, "resume": "allow", **options}
        self._run = self.library().init(project=experiment.project, name=experiment.name, config=config, **options)
        self.id = self._run.id

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log values; wandb ignores steps before its last one."""
        self._run.log(dict(values), step=step)

    def finish(self, failed: bool) -> None:
        """End the run."""
        self._run.finish(exit_code=int(failed))
