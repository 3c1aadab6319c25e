"""Runs of Trackio, https://huggingface.co/docs/trackio."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keras_dist.callbacks.trackers.tracker import Experiment, TrackerRun, register_tracker


@register_tracker("trackio")
class TrackioRun(TrackerRun):
    """A run of trackio; the layouts are in its config."""

    package = "trackio"

    def __init__(self, experiment: Experiment, **options: Any) -> None:
        config = {**experiment.config, "layout": dict(experiment.layout)}
        name = experiment.run_id or experiment.name
        if experiment.run_id is not None:
            options = {"resume": "allow", **options}
        self.id = self.library().init(project=experiment.project, name=name, config=config, **options).name

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log values."""
        self.library().log(dict(values), step=step)

    def finish(self, failed: bool) -> None:
        """End the run."""
        self.library().finish()
