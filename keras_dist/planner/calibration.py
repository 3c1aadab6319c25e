"""`calibrate`: efficiency factors of a chip, from measured trainings and their plans.

A roofline is a lower bound. Measured steps take longer by factors that depend on the chip and on the resource that
limits a step; the factors of earlier trainings estimate the time of later ones.
"""

from __future__ import annotations

import dataclasses
import math
import os
import pathlib
import statistics
from typing import Annotated, Any, ClassVar, Literal, get_args

import pydantic

from keras_dist._support.arguments import argument_error, check_kind, check_path
from keras_dist.errors import ModelError
from keras_dist.files.drafts import write_file
from keras_dist.jobs.job import is_chief
from keras_dist.planner.plan_snapshots import read_file
from keras_dist.planner.report import PlanReport
from keras_dist.planner.roofline import Roofline
from keras_dist.training.throughput import Timing

Resource = Literal["compute", "memory", "communication"]
_Seconds = Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)]
_Name = Annotated[str, pydantic.Field(max_length=64)]

_MOST_MEASUREMENTS, _MOST_BYTES = 64, 2**16


@dataclasses.dataclass(frozen=True)
class Measurement:
    """A training: its least times by the plan for each resource, and the measured time of a step [s]."""

    least_seconds: Annotated[dict[Resource, _Seconds], pydantic.Field(min_length=3)]
    measured_seconds: Annotated[float, pydantic.Field(gt=0, allow_inf_nan=False)]

    __pydantic_config__: ClassVar[pydantic.ConfigDict] = pydantic.ConfigDict(extra="forbid", strict=True)

    def __post_init__(self) -> None:
        """Check that a resource limits the step."""
        if not any(self.least_seconds.values()):
            raise ValueError("least_seconds must have a time above 0")


@dataclasses.dataclass(frozen=True)
class Calibration:
    """Measured trainings on a kind of chip, and the efficiency factors that they give.

    Attributes:
        chip: name of the chip, such as `v5e`.
        measurements: the trainings, the newest last; at most 64.

    Example:
        >>> import keras_dist as kd
        >>> times = {"compute": 0.1, "memory": 0.03, "communication": 0.02}
        >>> calibration = kd.planner.Calibration("v5e", (kd.planner.Measurement(times, 0.2),))
        >>> calibration.efficiencies["compute"], calibration.step_seconds(kd.planner.Roofline(0.3, 0.1, {}))
        (0.5, 0.6)
    """

    chip: _Name
    measurements: Annotated[tuple[Measurement, ...], pydantic.Field(min_length=1, max_length=_MOST_MEASUREMENTS)]
    format: Literal["keras_dist calibration 1"] = "keras_dist calibration 1"

    __pydantic_config__: ClassVar[pydantic.ConfigDict] = pydantic.ConfigDict(extra="forbid", strict=True)

    @property
    def efficiencies(self) -> dict[Resource, float]:
        """For each resource its least time divided by the measured time: the median of the steps that it limits.

        A resource that limits no step has the lowest factor of the others.
        """
        found: dict[Resource, list[float]] = {}
        for each in self.measurements:
            resource = max(each.least_seconds, key=each.least_seconds.__getitem__)
            found.setdefault(resource, []).append(each.least_seconds[resource] / each.measured_seconds)
        known = {resource: statistics.median(factors) for resource, factors in found.items()}
        return {resource: known.get(resource, min(known.values())) for resource in get_args(Resource)}

    def step_seconds(self, line: Roofline) -> float:
        """Return the estimated time of a step with this roofline [s]: the largest time divided by its efficiency."""
        efficiencies = self.efficiencies
        return max(seconds / efficiencies[name] for name, seconds in _times_of(line).items())

    def apply(self, report: PlanReport) -> PlanReport:
        """Return a report with the estimated time of a step, labelled *calibrated*.

        Args:
            report: a report for a target with the same kind of chip.

        Raises:
            ModelError: the report has no target, or another chip.
        """
        verdict = _verdict_of(report)
        if (chip := _chip(report)) != self.chip:
            fix = f"calibrate with a training on {chip}"
            raise ModelError(f"the calibration is for {self.chip!r}", given=f"a report for {verdict.target!r}", fix=fix)
        verdict = dataclasses.replace(verdict, calibrated_seconds=self.step_seconds(verdict.roofline))
        return dataclasses.replace(report, verdict=verdict)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Calibration:
        """Read the file of a calibration.

        Args:
            path: path of the file.

        Raises:
            PlanFileError: the file cannot be read, or is damaged.
            ModelError: `path` is not a path.
        """
        file = pathlib.Path(check_path("path", path, "calibration.json"))
        return read_file(file, _FILE, _MOST_BYTES, "a calibration", "delete it, and calibrate")


_FILE = pydantic.TypeAdapter(Calibration)


def calibrate(history: Any, report: PlanReport, path: str | os.PathLike[str] | None = None) -> Calibration:
    """Fit efficiency factors from a training and its plan.

    Args:
        history: the result of `fit`, whose `timing` has the median duration of a step.
        report: the plan of the same step, for the machine of the training.
        path: a file with earlier trainings on the same kind of chip, to which this one is added. It is created if it
            does not exist; in a job of several processes the first one writes it.

    Raises:
        ModelError: the history has no finished step; or the report has no target, or another chip than the file.
        PlanFileError: the file cannot be read, or is damaged.
        WriteError: the file cannot be written.

    Example:
        >>> import keras_dist as kd, numpy as np
        >>> with kd.DataParallel(kd.DeviceMesh("batch=8")).scope():
        ...     model = kd.Sequential([kd.Input((16,)), kd.layers.Dense(64)])
        >>> model.compile("sgd", "mse")
        >>> history = model.fit(np.zeros((64, 16)), np.zeros((64, 64)), batch_size=32, verbose=0)
        >>> report = model.plan(target="cpu:8", compiles=False)
        >>> calibration = kd.planner.calibrate(history, report)
        >>> "(calibrated)" in str(calibration.apply(report))
        True
    """
    check_kind("report", report, PlanReport, "a PlanReport, as kd.plan and model.plan return it")
    timing = getattr(history, "timing", None)
    if not isinstance(timing, Timing) or not math.isfinite(timing.median_step_seconds):
        raise argument_error("history", history, "a History with finished steps", example="model.fit(...)")
    measured = Measurement(_times_of(_verdict_of(report).roofline), timing.median_step_seconds)
    found = Calibration(_chip(report), (measured,))
    if path is None:
        return found
    file = pathlib.Path(check_path("path", path, "calibration.json"))
    if file.exists():
        before = Calibration.load(file)
        if before.chip != found.chip:
            fix = f"name another file for {found.chip}"
            raise ModelError(f"{str(file)!r} is for {before.chip!r}", given=f"a training on {found.chip!r}", fix=fix)
        kept = (*before.measurements, *found.measurements)[-_MOST_MEASUREMENTS:]
        found = dataclasses.replace(found, measurements=kept)
    if is_chief():
        write_file(file, _FILE.dump_json(found, indent=1).decode() + "\n")
    return found


def _times_of(line: Roofline) -> dict[Resource, float]:
    moved = sum(line.communication_seconds.values())
    return {"compute": line.compute_seconds, "memory": line.memory_seconds, "communication": moved}


def _verdict_of(report: PlanReport) -> Any:
    if report.verdict is None:
        fix = 'plan for the machine, as in model.plan(target="v5e:2x4")'
        raise ModelError("a calibration needs the plan for a target", given="a report without target", fix=fix)
    return report.verdict


def _chip(report: PlanReport) -> str:
    return _verdict_of(report).target.partition(":")[0]
