"""`Verdict`: whether a step fits on a target, and its least time there, each figure with its tier."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from keras_dist.distribution.devices import device_name
from keras_dist.distribution.render import render_bytes
from keras_dist.errors import CompilationError, MissingExtraError
from keras_dist.planner.compiled import CompiledFigures, figures
from keras_dist.planner.propagation import Propagated
from keras_dist.planner.roofline import Roofline, roofline
from keras_dist.planner.targets import Target
from keras_dist.planner.tracing import StepProgram

Tier = Literal["propagated", "compiled"]

_MARGIN = 2
"""Times the estimate bounds XLA's peak of intermediate results: 8 LSTM layers on v5e needed 1.55 times as much, since
XLA copies the stacked arrays of loops (jax 0.10, libtpu 0.0.42)."""


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Whether a step fits on a target, and its least time there. Bytes are of one device.

    Attributes:
        target: name of the machine.
        limit_nbytes: bytes of memory; 0 for a device that uses the memory of its host.
        least_nbytes: *exact*: bytes of state and batch.
        most_nbytes: *propagated*: `least_nbytes`, a second batch, which `fit` transfers during a step, and twice the
            estimated peak of intermediate results. XLA's programs needed up to 1.6 times the estimate.
        rooflines: least times of a step, by the tier that they are computed from.
        compiled: *compiled*: figures of XLA's program for the target; None if it was not compiled.
        note: why it was not compiled.
        calibrated_seconds: *calibrated*: estimated time of a step, from measured trainings; see `planner.calibrate`.
    """

    target: str
    limit_nbytes: int
    least_nbytes: int
    most_nbytes: int
    rooflines: Mapping[Tier, Roofline]
    compiled: CompiledFigures | None
    note: str = ""
    calibrated_seconds: float | None = None

    @property
    def fits(self) -> bool | None:
        """Whether the step fits into memory; None if not known before compilation, or on memory of the host."""
        if not self.limit_nbytes:
            return None
        if self.compiled is not None:
            return self.compiled.fits
        if self.least_nbytes > self.limit_nbytes:
            return False
        return True if self.most_nbytes <= self.limit_nbytes else None

    @property
    def short_by_nbytes(self) -> int:
        """Missing bytes of memory, at least; 0 if the step fits or this is not known."""
        if self.fits is not False:
            return 0
        return self.compiled.short_by_nbytes if self.compiled else self.least_nbytes - self.limit_nbytes

    @property
    def roofline(self) -> Roofline:
        """The roofline of the compiled step if there is one, else of the propagated step."""
        return self.rooflines.get("compiled") or self.rooflines["propagated"]

    def __str__(self) -> str:
        return f"{self.target}: {self._memory}; {self._time}" + (f"; not compiled: {self.note}" if self.note else "")

    @property
    def _memory(self) -> str:
        limit = render_bytes(self.limit_nbytes)
        if not self.limit_nbytes:
            return "uses the memory of the host"
        if self.fits is False:
            tier = "compiled" if self.compiled else "exact: state and batch alone"
            return f"does not fit (short by {render_bytes(self.short_by_nbytes)} of {limit}; {tier})"
        if self.compiled is not None:
            return f"fits ({render_bytes(self.compiled.peak_nbytes)} of {limit}; compiled)"
        if self.fits:
            return f"fits (at most {render_bytes(self.most_nbytes)} of {limit}; propagated)"
        least, most = render_bytes(self.least_nbytes), render_bytes(self.most_nbytes)
        return f"may fit (between {least}, exact, and {most}, propagated, of {limit}); compile to decide"

    @property
    def _time(self) -> str:
        tier: Tier = "compiled" if "compiled" in self.rooflines else "propagated"
        line = self.roofline
        about = self.calibrated_seconds
        estimated = "" if about is None else f", about {1e3 * about:.3g} ms (calibrated)"
        least = f"a step takes at least {1e3 * line.step_seconds:.3g} ms, limited by {line.bottleneck} ({tier})"
        return least + estimated

    def to_dict(self) -> dict[str, Any]:
        """Return the verdict as plain values for JSON."""
        compiled, times = self.compiled, {tier: {"roofline": line.to_dict()} for tier, line in self.rooflines.items()}
        return {
            "target": self.target,
            "fits": self.fits,
            "limit_nbytes": self.limit_nbytes,
            "short_by_nbytes": self.short_by_nbytes,
            "exact": {"least_nbytes": self.least_nbytes},
            "propagated": {"most_nbytes": self.most_nbytes, **times["propagated"]},
            "compiled": None if compiled is None else {**dataclasses.asdict(compiled), **times.get("compiled", {})},
            "calibrated": None if self.calibrated_seconds is None else {"step_seconds": self.calibrated_seconds},
            "note": self.note,
        }


def judge(
    program: StepProgram,
    step: Propagated,
    target: Target,
    *,
    compiles: bool,
    timeout_seconds: float,
    flash_attention: bool = False,
) -> Verdict:
    """Return the verdict on a step that was traced for the platform of the target, on a mesh with as many devices."""
    mesh = program.state.mesh
    options: dict[str, Any] = {
        "dtype": step.dtype if step.dtype in target.chip.flops_per_second else "float32",
        "devices": [device_name(device) for device in mesh.devices.flat],
    }

    def line(flops: float, figures: Propagated | CompiledFigures) -> Roofline:
        accessed = step.accessed_nbytes - step.scores_nbytes if flash_attention else figures.accessed_nbytes
        moved = {"accessed_nbytes": accessed, "collectives": figures.collectives}
        return roofline(target, mesh.axis_sizes, flops=flops, **moved, **options)

    rooflines: dict[Tier, Roofline] = {"propagated": line(step.flops, step)}
    compiled, note = None, "" if compiles else "not asked for"
    if compiles:
        try:
            compiled = figures(program, target, timeout_seconds=timeout_seconds)
        except (MissingExtraError, CompilationError) as error:
            note = f"{error.summary} ({error.fix})"
    if compiled is not None and not compiled.note:
        rooflines["compiled"] = line(compiled.flops or step.flops, compiled)
    batch = program.batch.nbytes_per_device
    least = program.state.nbytes_per_device + batch
    most = least + batch + _MARGIN * step.activation_nbytes
    return Verdict(target.name, target.hbm_nbytes, least, most, rooflines, compiled, note)
