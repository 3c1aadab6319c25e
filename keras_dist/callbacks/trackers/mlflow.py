"""Runs of MLflow, https://mlflow.org/docs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keras_dist.callbacks.trackers.tracker import Experiment, TrackerRun, register_tracker


@register_tracker("mlflow")
class MlflowRun(TrackerRun):
    """A run of mlflow: parameters, the artifact `layout.txt`, and metrics."""

    package = "mlflow"

    def __init__(self, experiment: Experiment, **options: Any) -> None:
        mlflow = self.library()
        mlflow.set_experiment(experiment.project)
        run = mlflow.start_run(run_id=experiment.run_id, run_name=experiment.name, **options)
        self.id = run.info.run_id
        if experiment.run_id is None:  # parameters cannot change
            mlflow.log_params(dict(experiment.config))
            mlflow.log_text(str(experiment.model.layout_plan), "layout.txt")

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log values."""
        self.library().log_metrics(dict(values), step=step)

    def finish(self, failed: bool) -> None:
        """End the run."""
        self.library().end_run("FAILED" if failed else "FINISHED")
