"""`Verdict`: whether a step fits on a target, and its least time there, each figure with its tier."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from keras_dist.distribution.devices import device_name
from keras_dist.distribution.render import render_bytes, render_seconds
from keras_dist.errors import CompilationError, MissingExtraError
from keras_dist.planner.compiled import CompiledFigures, figures
from keras_dist.planner.peak_memory import PeakMemory
from keras_dist.planner.propagated import Collective, Propagated
from keras_dist.planner.roofline import Roofline, roofline
from keras_dist.planner.targets import Target
from keras_dist.planner.tracing import StepProgram
from keras_dist.training.executions import RESIDENT_PART

Tier = Literal["propagated", "compiled"]


class _Margins(NamedTuple):
    """Factors of estimates that bound XLA's peak of intermediate results."""

    least: float  # times `PeakMemory.nbytes`
    most: float  # times `PeakMemory.most_nbytes`


_MARGINS = {"tpu": _Margins(0.4, 1.6), "cpu": _Margins(0.5, 5)}
_UNMEASURED = _Margins(0.3, 3)
"""Rates of `python -m tests.planner.random_programs`, in docs/concepts/memory_estimates.md."""
_ALWAYS = 2**20
"""Bytes of small arrays, which are aligned."""
_PROGRAM, _MOST_PROGRAM = 20 * 2**10, 2**28
"""Bytes of an operation in the program of a TPU, and of all: at most 19 KiB, and 27 MiB, in 60 programs."""
_HOW = "plan(..., compiles=True), or keras-dist plan --compile"
_COMPILE = f"compile to decide: {_HOW}"
_RESERVED_PART = 64
"""Part of the memory of a TPU that XLA keeps for itself: 0.25 of the 16 GiB of v5e (libtpu 0.0.42)."""
_EXACT = ("least", "ahead", "resident", "reserved", "host", "slots", "snapshot")
_LEAST_SLOTS = 64
"""The part of the memory from which optimizer slots are worth to be kept on the host."""
_LARGE_PADDING = 10
"""The part of state and batch from which padding is listed."""
_ONE_PROCESS = 8
"""Most devices of one process. Jobs of several processes keep no dataset on the devices."""


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Whether a step fits on a target, and its least time there. Bytes are of one device.

    Attributes:
        target: name of the machine.
        limit_nbytes: bytes of memory; 0 for a device that uses the memory of its host.
        least_nbytes: *exact*: bytes of state and batch.
        ahead_nbytes: *exact*: bytes that `fit` adds; by default a second batch, transferred during a step.
        resident_nbytes: *exact*: the largest dataset that `fit` would keep on the device; 0 with
            `steps_per_execution=1` and in jobs of several processes.
        most_nbytes: *propagated*: all of these, and a bound of the peak of intermediate results.
        peak_bounds_nbytes: *propagated*: least and most bytes of XLA's peak of a step, without what `fit` adds.
        padding_nbytes: *propagated*: bytes that the chip stores for state and batch in addition to theirs: TPUs pad
            dims of few elements to tiles of 8 x 128.
        opaque: operations whose memory is not in `most_nbytes`: with any, it is unknown whether the step fits.
        rooflines: least times of a step, by the tier that they are computed from; *propagated* with the least bytes of
            estimates.
        compiled: *compiled*: figures of XLA's program for the target; None if it was not compiled.
        note: why it was not compiled.
        reserved_nbytes: *exact*: bytes that XLA keeps for itself on a TPU.
        host_nbytes: *exact*: bytes of optimizer slots in the memory of the host, of each device.
        devices_per_host: devices whose slots are in the memory of one host.
        slots_nbytes: *exact*: bytes of optimizer slots on the device, which `compile(slot_memory="pinned_host")` would
            keep on the host.
        snapshot_nbytes: *exact*: bytes of the state that a save copies at most to the memory of a host, where they stay
            until it is written.
        in_config: whether advice is a line of a config, and not Python.
        most_step_seconds: *propagated*: the least time with the most bytes of estimates; None without estimates.
        calibrated_seconds: *calibrated*: estimated time of a step, from measured trainings; see `planner.calibrate`.
    """

    target: str
    limit_nbytes: int
    least_nbytes: int
    most_nbytes: int
    rooflines: Mapping[Tier, Roofline]
    compiled: CompiledFigures | None
    note: str = ""
    ahead_nbytes: int = 0
    resident_nbytes: int = 0
    reserved_nbytes: int = 0
    opaque: tuple[str, ...] = ()
    calibrated_seconds: float | None = None
    host_nbytes: int = 0
    devices_per_host: int = 1
    slots_nbytes: int = 0
    snapshot_nbytes: int = 0
    in_config: bool = False
    most_step_seconds: float | None = None
    padding_nbytes: int = 0
    peak_bounds_nbytes: tuple[int, int] = (0, 0)

    @property
    def fits(self) -> bool | None:
        """Whether the step fits into memory; None if not known, or on memory of the host."""
        if not self.limit_nbytes:
            return None
        if self.short_by_nbytes:
            return False
        if self.compiled is not None:
            return True if self._needed_nbytes + self.resident_nbytes <= self.limit_nbytes else None
        return True if self.most_nbytes <= self.limit_nbytes and not self.opaque else None

    @property
    def _needed_nbytes(self) -> int:
        """Bytes without which the step cannot run."""
        if self.compiled is not None:
            return self.compiled.peak_nbytes + self.ahead_nbytes
        return self.least_nbytes + self.padding_nbytes

    @property
    def _least_nbytes(self) -> int:
        """Least bytes of a step in `fit`."""
        return self.peak_bounds_nbytes[0] + self.ahead_nbytes

    @property
    def short_by_nbytes(self) -> int:
        """Missing bytes of memory, at least; 0 if the step fits or this is not known."""
        limit = self.compiled.limit_nbytes if self.compiled else self.limit_nbytes
        return max(0, self._needed_nbytes - limit) if limit else 0

    @property
    def roofline(self) -> Roofline:
        """The roofline of the compiled step if there is one, else of the propagated step."""
        return self.rooflines.get("compiled") or self.rooflines["propagated"]

    def __str__(self) -> str:
        parts = f"{self.target}: {self.memory}", *self._bound, *self._padding, *self._slots, self._time
        return "; ".join(parts) + (f"; not compiled: {self.note}" if self.note else "")

    @property
    def _bound(self) -> Iterator[str]:
        """Yield the parts of `most_nbytes`, the largest first, where the memory names it."""
        if not self.limit_nbytes or self.fits is False or self.compiled is not None:
            return
        stored = self.least_nbytes + self.padding_nbytes
        known = stored + self.ahead_nbytes + self.resident_nbytes + self.reserved_nbytes
        parts = {
            "of state and batch": stored,
            "of a second batch, transferred during a step": self.ahead_nbytes,
            "for a dataset that fit may keep on the device (none with steps_per_execution=1)": self.resident_nbytes,
            "that XLA reserves": self.reserved_nbytes,
            "as a bound of intermediate results": self.most_nbytes - known,
        }
        largest = sorted(((nbytes, part) for part, nbytes in parts.items() if nbytes > 0), reverse=True)
        listed = ", ".join(f"{render_bytes(nbytes)} {part}" for nbytes, part in largest)
        yield f"the {render_bytes(self.most_nbytes)} are {listed}"

    @property
    def _padding(self) -> Iterator[str]:
        """Yield the memory that the chip stores for state and batch, where it is much more than their bytes."""
        if self.padding_nbytes * _LARGE_PADDING > self.least_nbytes:
            stored = render_bytes(self.least_nbytes + self.padding_nbytes)
            yield f"{render_bytes(self.least_nbytes)} of state and batch are stored as {stored}, in tiles of 8 x 128"

    @property
    def _slots(self) -> Iterator[str]:
        """Yield the memory of optimizer slots on the host, or the memory that this would save."""
        if self.host_nbytes:
            each, host = render_bytes(self.host_nbytes), render_bytes(self.host_nbytes * self.devices_per_host)
            yield f"optimizer slots take {host} of each host (exact), and {each} a device move there and back in a step"
        elif not self.fits and self.slots_nbytes >= self.limit_nbytes / _LEAST_SLOTS > 0:
            saved, least = render_bytes(self.slots_nbytes), render_bytes(self.least_nbytes - self.slots_nbytes)
            rest = f"state and batch would need {least} of {render_bytes(self.limit_nbytes)}"
            how = 'training.slot_memory = "pinned_host"' if self.in_config else "compile(slot_memory='pinned_host')"
            yield f"slots in host memory, {how}, would save {saved}: {rest}"

    @property
    def memory(self) -> str:
        """Whether the step fits, as text."""
        limit = render_bytes(self.limit_nbytes)
        if not self.limit_nbytes:
            return f"uses memory of the host: {self._on_host}"
        if self.fits is False:
            known = "propagated" if self.padding_nbytes else "exact"
            tier = "compiled" if self.compiled else f"{known}: state and batch alone"
            return f"does not fit (short by {render_bytes(self.short_by_nbytes)} of {limit}; {tier})"
        if self.compiled is not None:
            needed = f"{render_bytes(self._needed_nbytes)} of {limit}; compiled"
            if self.fits:
                return f"fits ({needed})"
            kept = f"a dataset of up to {render_bytes(self.resident_nbytes)}, unless steps_per_execution=1"
            return f"may fit ({needed}); fit may also keep {kept}"
        if self.opaque:
            first, *others = self.opaque
            more = f" and {len(others)} more" if others else ""
            known = f"{render_bytes(self.most_nbytes)} of {limit}, propagated"
            return f"unknown ({known}, without the memory of {first}{more}); {_COMPILE}"
        if self.fits:
            return f"fits (at most {render_bytes(self.most_nbytes)} of {limit}; propagated)"
        least, most = render_bytes(self._least_nbytes), render_bytes(self.most_nbytes)
        return f"may fit (between {least} and {most} of {limit}; propagated); {_COMPILE}"

    @property
    def _on_host(self) -> str:
        if self.compiled is not None:
            return f"{render_bytes(self.compiled.peak_nbytes)} at the peak, compiled"
        least, most = map(render_bytes, self.peak_bounds_nbytes)
        without = f", without the memory of {self.opaque[0]}" if self.opaque else ""
        return f"between {least} and {most} at the peak, propagated{without}; the exact peak: {_HOW}"

    @property
    def _time(self) -> str:
        tier: Tier = "compiled" if "compiled" in self.rooflines else "propagated"
        line = self.roofline
        about = self.calibrated_seconds
        estimated = "" if about is None else f", about {render_seconds(about)} (calibrated)"
        is_known = tier == "compiled" or self.most_step_seconds in (None, line.step_seconds)
        most = "" if is_known else f" ({render_seconds(self.most_step_seconds or 0)} with the most of estimates)"
        least = f"a step takes at least {render_seconds(line.step_seconds)}{most}, limited by {line.bottleneck}"
        return f"{least} ({tier}){estimated}"

    def to_dict(self) -> dict[str, Any]:
        """Return the verdict as plain values for JSON."""
        compiled, times = self.compiled, {tier: {"roofline": line.to_dict()} for tier, line in self.rooflines.items()}
        return {
            "target": self.target,
            "fits": self.fits,
            "limit_nbytes": self.limit_nbytes,
            "short_by_nbytes": self.short_by_nbytes,
            "exact": {f"{name}_nbytes": getattr(self, f"{name}_nbytes") for name in _EXACT},
            "propagated": {
                "most_nbytes": self.most_nbytes,
                "peak_bounds_nbytes": list(self.peak_bounds_nbytes),
                "padding_nbytes": self.padding_nbytes,
                "opaque": list(self.opaque),
                "most_step_seconds": self.most_step_seconds,
                **times["propagated"],
            },
            "compiled": None if compiled is None else {**dataclasses.asdict(compiled), **times.get("compiled", {})},
            "calibrated": None if self.calibrated_seconds is None else {"step_seconds": self.calibrated_seconds},
            "note": self.note,
        }


def bound_nbytes(platform: str | None, step: Propagated) -> int:
    """Return a bound of XLA's peak beside the bytes of state and batch; it does not include `step.opaque`."""
    return bounds_nbytes(platform or "", step.memory)[1]


def bounds_nbytes(platform: str, memory: PeakMemory, vector_nbytes: int = 0) -> tuple[int, int]:
    """Return the least and most bytes of XLA's peak beside the bytes of state and batch.

    Args:
        platform: the platform that the step was lowered for.
        memory: estimates of the step.
        vector_nbytes: bytes of vector memory, in which arrays may be instead.
    """
    margins = _MARGINS.get(platform, _UNMEASURED)
    least = max(0, int(margins.least * memory.nbytes) - vector_nbytes)
    program = min(_PROGRAM * memory.operations, _MOST_PROGRAM) if platform == "tpu" else 0
    most = int(margins.most * memory.most_nbytes) + program + _ALWAYS
    return memory.padding_nbytes + least, memory.padding_nbytes + most


def judge(
    program: StepProgram,
    step: Propagated,
    target: Target,
    *,
    compiles: bool,
    timeout_seconds: float,
    flash_attention: bool = False,
    in_config: bool = False,
) -> Verdict:
    """Return the verdict on a step that was traced for the platform of the target, on a mesh with as many devices."""
    mesh = program.state.mesh
    options: dict[str, Any] = {
        "dtype": step.dtype if step.dtype in target.chip.flops_per_second else "float32",
        "devices": [device_name(device) for device in mesh.devices.flat],
        "host_nbytes": sum(
            row.nbytes_per_device
            for row in program.state.rows
            if row.memory_kind is not None and row.path in program.arguments
        ),
    }

    def line(flops: float, accessed: float, collectives: Sequence[Collective]) -> Roofline:
        moved = {"accessed_nbytes": accessed, "collectives": collectives}
        return roofline(target, mesh.axis_sizes, flops=flops, **moved, **options)

    kept = dataclasses.replace(step, accessed_nbytes=step.accessed_nbytes - step.scores_nbytes * flash_attention)
    accessed = kept.traffic_nbytes(target.chip.vector_nbytes)
    rooflines: dict[Tier, Roofline] = {
        "propagated": line(step.flops, accessed, [each.at(0) for each in step.collectives])
    }
    most_seconds = line(step.flops, accessed, [each.at(1) for each in step.collectives]).step_seconds
    compiled, note = None, "" if compiles else "not asked for"
    if compiles:
        try:
            compiled = figures(program, target, timeout_seconds=timeout_seconds)
        except (MissingExtraError, CompilationError) as error:
            note = f"{error.summary} ({error.fix})"
    if compiled is not None and not compiled.note:
        accessed = accessed if flash_attention else compiled.accessed_nbytes
        rooflines["compiled"] = line(compiled.flops or step.flops, accessed, compiled.collectives)
    least, limit = program.state.nbytes_per_device + program.batch.nbytes_per_device, target.hbm_nbytes
    keeps_data = program.keeps_data and mesh.size <= _ONE_PROCESS and limit
    resident = max(0, limit - program.state.nbytes_per_device) // RESIDENT_PART if keeps_data else 0
    reserved = limit // _RESERVED_PART if target.platform == "tpu" else 0
    beside = bounds_nbytes(target.platform, step.memory, target.chip.vector_nbytes)
    peak = least + beside[0], least + beside[1]
    most = peak[1] + program.ahead_nbytes + resident + reserved
    slots = sum(row.nbytes_per_device for row in program.state.rows if row.role == "slot" and row.shape)
    host = program.state.host_nbytes_per_device
    rest: dict[str, Any] = {"host_nbytes": host, "slots_nbytes": 0 if host else slots, "in_config": in_config}
    rest |= {"padding_nbytes": step.memory.padding_nbytes, "peak_bounds_nbytes": peak}
    count = collections.Counter(place.host for place in target.places).most_common(1)[0][1]
    saved = sum(min(row.nbytes, count * row.nbytes_per_device) for row in program.state.rows)
    rest |= {"devices_per_host": count, "snapshot_nbytes": saved}
    rest["most_step_seconds"] = most_seconds if step.estimates else None
    of_fit = program.ahead_nbytes, resident, reserved, step.opaque
    return Verdict(target.name, limit, least, most, rooflines, compiled, note, *of_fit, **rest)
