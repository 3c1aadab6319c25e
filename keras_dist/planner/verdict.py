"""Whether a step fits on a target, and how long it takes there at least: each figure with the tier that it is from."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from keras_dist.distribution.devices import device_name
from keras_dist.distribution.mesh import DeviceMesh
from keras_dist.distribution.render import render_bytes
from keras_dist.errors import CompilationError, MissingExtraError
from keras_dist.planner.compiled import CompiledFigures, figures
from keras_dist.planner.propagation import Propagated
from keras_dist.planner.roofline import Roofline, roofline
from keras_dist.planner.targets import Target
from keras_dist.planner.tracing import StepProgram

Tier = Literal["propagated", "compiled"]


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Whether a step fits on a target, and how long it takes there at least.

    Attributes:
        target: the name of the machine.
        limit_nbytes: bytes of memory of one device; 0 where it has that of its host.
        least_nbytes: *exact*: bytes of state and batch on one device.
        most_nbytes: *propagated*: these and the most bytes of intermediate results at once, if XLA fuses nothing. What
            it copies, and pads to tiles, comes on top: for small programs it was seen to be as much again.
        rooflines: the least times of a step, by the tier of what they are computed from.
        compiled: *compiled*: what XLA makes of the step for the target; None where that is not known.
        note: why it is not known.
    """

    target: str
    limit_nbytes: int
    least_nbytes: int
    most_nbytes: int
    rooflines: Mapping[Tier, Roofline]
    compiled: CompiledFigures | None
    note: str = ""

    @property
    def fits(self) -> bool | None:
        """Whether a device has the memory. None where only compiling tells, or it has no memory of its own."""
        if not self.limit_nbytes:
            return None
        if self.compiled is not None:
            return self.compiled.fits
        if self.least_nbytes > self.limit_nbytes:
            return False
        return True if self.most_nbytes <= self.limit_nbytes else None

    @property
    def short_by_nbytes(self) -> int:
        """Bytes of memory that a device lacks, at least; 0 where it fits, or that is not known."""
        if self.fits is not False:
            return 0
        return self.compiled.short_by_nbytes if self.compiled else self.least_nbytes - self.limit_nbytes

    @property
    def roofline(self) -> Roofline:
        """That of the compiled step, if it is known, else of the propagated one."""
        return self.rooflines.get("compiled") or self.rooflines["propagated"]

    def __str__(self) -> str:
        return f"{self.target}: {self._memory}; {self._time}" + (f"; not compiled: {self.note}" if self.note else "")

    @property
    def _memory(self) -> str:
        limit = render_bytes(self.limit_nbytes)
        if not self.limit_nbytes:
            return "memory is that of the host"
        if self.fits is False:
            tier = "compiled" if self.compiled else "exact: state and batch alone"
            return f"does not fit (short by {render_bytes(self.short_by_nbytes)} of {limit}; {tier})"
        if self.compiled is not None:
            return f"fits ({render_bytes(self.compiled.peak_nbytes)} of {limit}; compiled)"
        if self.fits:
            return f"fits (about {render_bytes(self.most_nbytes)} of {limit}; propagated)"
        least, most = render_bytes(self.least_nbytes), render_bytes(self.most_nbytes)
        return f"may fit (between {least}, exact, and {most}, propagated, of {limit}): only compiling tells"

    @property
    def _time(self) -> str:
        tier: Tier = "compiled" if "compiled" in self.rooflines else "propagated"
        line = self.roofline
        return f"a step takes at least {1e3 * line.step_seconds:.3g} ms, limited by {line.bottleneck} ({tier})"

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values that JSON can hold."""
        return {
            "target": self.target,
            "fits": self.fits,
            "limit_nbytes": self.limit_nbytes,
            "short_by_nbytes": self.short_by_nbytes,
            "exact": {"least_nbytes": self.least_nbytes},
            "propagated": {"most_nbytes": self.most_nbytes, "roofline": _roofline_dict(self.rooflines["propagated"])},
            "compiled": None if self.compiled is None else self._compiled_dict(self.compiled),
            "note": self.note,
        }

    def _compiled_dict(self, compiled: CompiledFigures) -> dict[str, Any]:
        found = dataclasses.asdict(compiled)
        if "compiled" in self.rooflines:
            found["roofline"] = _roofline_dict(self.rooflines["compiled"])
        return found


def judge(program: StepProgram, step: Propagated, target: Target, *, compiles: bool, timeout_seconds: float) -> Verdict:
    """Say whether a step fits on a target, and how long it takes there at least.

    Args:
        program: traced for the platform of the target, on a mesh with as many devices.
        step: what Shardy finds in it.
        target: the machine.
        compiles: whether the program is compiled for it, if the extra that this needs is there.
        timeout_seconds: after which compiling is given up.

    Raises:
        MeshError: the mesh is of another number of devices.
    """
    mesh = program.state.mesh
    rooflines: dict[Tier, Roofline] = {
        "propagated": _roofline_of(target, mesh, step.flops, step.accessed_nbytes, step.collectives, step.dtype)
    }
    compiled, note = None, "" if compiles else "not asked for"
    if compiles:
        try:
            compiled = figures(program, target, timeout_seconds=timeout_seconds)
        except (MissingExtraError, CompilationError) as error:
            note = f"{error.summary} ({error.fix})"
    if compiled is not None and not compiled.note:
        of = compiled.flops or step.flops
        rooflines["compiled"] = _roofline_of(
            target, mesh, of, compiled.accessed_nbytes, compiled.collectives, step.dtype
        )
    least = program.state.nbytes_per_device + program.batch.nbytes_per_device
    return Verdict(target.name, target.hbm_nbytes, least, least + step.activation_nbytes, rooflines, compiled, note)


def _roofline_of(
    target: Target, mesh: DeviceMesh, flops: float, accessed: float, collectives: Any, dtype: str
) -> Roofline:
    return roofline(
        target,
        mesh.axis_sizes,
        flops=flops,
        accessed_nbytes=accessed,
        collectives=collectives,
        dtype=dtype if dtype in target.chip.flops_per_second else "float32",
        devices=[device_name(device) for device in mesh.devices.flat],
    )


def _roofline_dict(line: Roofline) -> dict[str, Any]:
    return {
        "step_seconds": line.step_seconds,
        "serial_step_seconds": line.serial_step_seconds,
        "bottleneck": line.bottleneck,
        "seconds": line.seconds_by_resource,
    }
