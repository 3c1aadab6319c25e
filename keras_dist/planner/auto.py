"""`AutoParallel`: the strategy that finds its layout in the traced train step of the model.

For each candidate the lowered step is laid out anew and propagated, in milliseconds where tracing takes seconds.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import jax
import numpy as np

from keras_dist._support.arguments import (
    argument_error,
    check_int,
    check_kind,
    check_number,
    check_option,
    check_optional,
    is_keras_object,
)
from keras_dist._support.types import Device, PyTree
from keras_dist.distribution.consistency import is_shared
from keras_dist.distribution.devices import list_devices
from keras_dist.distribution.layout import TensorLayout
from keras_dist.distribution.mesh import DeviceMesh, check_mesh
from keras_dist.distribution.strategy import Distribution, register_strategy
from keras_dist.distribution.tracing import without_kernels
from keras_dist.errors import (
    CompilationError,
    CompilationTimeoutError,
    DeviceError,
    DistributionError,
    LayoutWarning,
    MissingExtraError,
)
from keras_dist.jobs.job import is_chief
from keras_dist.jobs.rendezvous import Rendezvous
from keras_dist.planner.compiled import CompiledFigures, start
from keras_dist.planner.compilers import Compilers
from keras_dist.planner.dim_classes import DimClasses, OneDevice, classes_of
from keras_dist.planner.propagation import propagate
from keras_dist.planner.search import Candidate, Objective, Search, meshes_of, step_seconds
from keras_dist.planner.search_result import SearchResult, distribution_of, result_of
from keras_dist.planner.targets import Target, as_target, devices, target_of
from keras_dist.planner.targets import target as target_named
from keras_dist.planner.tracing import trace_step

_MOST_COMPILED = 4
"""Candidates that are compiled beside the presets: the best, and the best with no more doubts than data parallel.

Experts over a batch of all axes take 1.8 ms in a screen, and 4.5 compiled; Megatron's rules 2.5, and 4.1.
"""

_EQUAL = 0.01
"""Candidates whose time, memory and exchanged bytes differ by less are taken as one program."""

_LATE = "the time limit ended the search before"

_PART_OF_SCREENING = 0.5
"""The part of the time limit that is left for the steps of presets and best candidates."""


@register_strategy("auto")
class AutoParallel(Distribution):
    """Strategy that finds a layout for a model: the mesh, the axes of dims, and whether weights are fully sharded.

    `search` traces the train step once and evaluates each candidate in milliseconds. Candidates are the presets
    `data_parallel`, `fully_sharded`, `tensor_parallel` and `hybrid`, and what improves on them: classes of dims (see
    `dim_classes`) are sharded over the axes, each over one, and one class after the other changes as long as the
    objective improves. Weights are unsharded or fully sharded over the axes of the batch. If memory is the objective or
    is short, repeated blocks are also recomputed in the backward pass.

    The presets, the best four others and the best four with no more estimates than data parallel are then traced
    under their layouts. With a target they are compiled, too, in several processes, and ranked by their compiled steps.
    `explanation` and `not_compiled` of the result say what was not compiled, and why. Without any compiled step
    candidates are ranked by propagated figures. The result is deterministic, unless the time limit ends the search.

    A compiled model that is made under it, by `set_distribution` or `scope`, gets its layout from the first batch of
    `fit`. This requires arrays as data, and weights that do not exist yet. Otherwise call `search`.

    Args:
        mesh_or_devices: the mesh, or its shape as text, `"data=2,model=4"`; or devices, as names or `jax.Device`s, for
            which all meshes `data` x `model` are tried. By default all devices of the job.
        objective: the quantity to minimize: `"step_time"`, or `"memory"` of a device.
        target: the machine to optimize for, such as `"v5p:4x4x4"`; see `planner.target`. Step times are estimated for
            it, its devices are the default, and presets and the best other candidates are compiled for it, if the extra
            for that is installed. By default step times are estimated for the devices of the mesh; for devices
            whose figures are not known as for GPUs of one host.
        memory_limit: memory of a device [bytes]. By default from the target, or from the devices. Candidates that
            exceed it rank last; if none fits, `search` warns, and `fits` of its result is False.
        compiles: whether the best candidates are compiled for the target.
        time_limit_seconds: longest search, of which candidates that are not presets take at most half; then the best
            candidate so far is taken [s].

    Raises:
        DistributionError: an argument has a wrong value.
        MeshError: the text is not the shape of a mesh, or a device appears twice.
        UnknownNameError, ConfigError: `target` is not the name of a machine; see `planner.target`.

    Example:
        >>> import keras_dist as kd, numpy as np
        >>> mlp = lambda: kd.Sequential(
        ...     [kd.Input((16,)), kd.layers.Dense(64, "relu", name="up"), kd.layers.Dense(16, name="down")]
        ... )
        >>> x = np.zeros((8, 16), "float32")
        >>> auto = kd.planner.AutoParallel(kd.DeviceMesh("data=2,model=4"))
        >>> found = auto.search(mlp, (x, x), "adam", "mse")
        >>> print(found.to_code())
        import keras_dist as kd
        <BLANKLINE>
        mesh = kd.DeviceMesh("data=2,model=4")
        rules = kd.LayoutMap(mesh)
        rules['down/kernel'] = ('model', None)
        rules['up/bias'] = ('model',)
        rules['up/kernel'] = (None, 'model')
        distribution = kd.FullySharded(mesh, 'data', rules, 'data')
        <BLANKLINE>

    Source: Zheng et al. 2022, arXiv:2201.12023 (Alpa); Shoeybi et al. 2019, arXiv:1909.08053 (Megatron-LM).
    """

    is_searched = True

    def __init__(
        self,
        mesh_or_devices: DeviceMesh | str | Sequence[str | Device] | None = None,
        objective: Objective = "step_time",
        target: str | Target | None = None,
        memory_limit: int | None = None,
        *,
        compiles: bool = True,
        time_limit_seconds: float = 120.0,
    ) -> None:
        self.target = None if target is None else as_target(target)
        self._devices: list[str | Device] | None = None
        if isinstance(mesh_or_devices, str):
            mesh_or_devices = _mesh_of_text(mesh_or_devices, self.target)
        if is_keras_object(mesh_or_devices, "DeviceMesh"):
            mesh_or_devices = check_mesh(mesh_or_devices, DistributionError)
        if not isinstance(mesh_or_devices, DeviceMesh):
            default = list_devices() if self.target is None else devices(self.target)
            self._devices = default if mesh_or_devices is None else _checked_devices(mesh_or_devices)
            mesh_or_devices = DeviceMesh([-1], ["data"], self._devices)
        super().__init__(mesh_or_devices)
        self.objective: Objective = check_option(
            "objective", objective, ("step_time", "memory"), error=DistributionError
        )
        self.memory_limit = check_optional(
            check_int, "memory_limit", memory_limit, 1, example=2**34, error=DistributionError
        )
        known = self.target or _machine_of(_existing(self.device_mesh))
        self._machine = known or target_named(f"h100:1x1x{self.device_mesh.size}")
        if memory_limit is None and known is not None:
            stats = None if self.target is not None else jax.local_devices()[0].memory_stats()
            self.memory_limit = (stats or {}).get("bytes_limit") or known.hbm_nbytes or None
        check_kind("compiles", compiles, bool, "True or False", error=DistributionError)
        self.compiles = compiles
        self.time_limit_seconds = check_number(
            "time_limit_seconds", time_limit_seconds, above=0, example=120, error=DistributionError
        )

    @classmethod
    def from_config(cls, mesh: DeviceMesh, config: Any) -> AutoParallel:
        """Return the distribution of a config file with `strategy = "auto"`."""
        return cls(mesh, config.objective, config.target, config.memory_limit)

    def search(self, model_or_factory: Any, batch: PyTree, optimizer: Any = None, loss: Any = None) -> SearchResult:
        """Find the layout of a model. Nothing is allocated, and the devices need not exist.

        In a job whose processes share the mesh all must call, and all get the layout that the first one finds.

        Args:
            model_or_factory: a model, a module or a factory of one, as for `kd.plan`.
            batch: `x`, `(x, y)` or `(x, y, sample_weight)`: arrays or `jax.ShapeDtypeStruct`s, or pytrees of them.
            optimizer: replaces the optimizer of `compile`. Default without `compile`: `"adam"`.
            loss: replaces the loss of `compile`. Default without `compile`: the mean square of the outputs.

        Raises:
            DataError: the arrays of the batch have different lengths, or the targets of the loss are missing.
            ModelError: `model_or_factory` is not a model, or does not accept the batch.

        Warns:
            LayoutWarning: no candidate fits into the memory of a device.
        """
        step = model_or_factory, batch, optimizer, loss
        traced = functools.cache(functools.partial(self._traced, step))
        ranked = _Ranked([], 0)

        def run() -> dict[str, Any]:
            nonlocal ranked
            ranked = self._ranked(step, traced)
            return dataclasses.asdict(ranked.candidates[0])

        # deadlines end the searches of processes at other points
        is_job = bool(_existing(self.device_mesh)) and is_shared(self.device_mesh)
        best = Candidate.of(Rendezvous("AutoParallel").each(run, dict)[0] if is_job else run())
        candidates = [best, *(each for each in ranked.candidates if not each.is_like(best))]
        mesh, notes = self._mesh_of(best.mesh), (ranked.skipped, ranked.to_compile, ranked.reasons)
        found = result_of(best, candidates, traced(best.remat), mesh, self.memory_limit, *notes)
        if found.fits is False:
            warnings.warn(found.explanation[0], LayoutWarning, stacklevel=2)
        return found

    def _ranked(self, step: tuple[Any, ...], traced: Callable[[str | None], DimClasses]) -> _Ranked:
        """Return the candidates, the best first. `traced` returns the step by `remat`."""
        deadline = time.monotonic() + self.time_limit_seconds
        until = deadline - self.time_limit_seconds * _PART_OF_SCREENING
        search = Search(traced(None), self.objective, self.memory_limit, self._machine, until)
        best = search.run(self._meshes())
        rule = traced(None).program.blocks
        is_short = self.memory_limit is not None and best.nbytes > self.memory_limit
        if rule is not None and (is_short or self.objective == "memory"):
            search.classes, search.remat = traced(rule), rule
            search.run(self._meshes())
        candidates = sorted(search.candidates, key=search.rank)
        if not is_chief():
            return _Ranked(candidates, search.skipped)
        presets = [each for each in search.presets if each.remat == candidates[0].remat]
        surest = [each for each in candidates if each.doubts <= presets[0].doubts]
        smallest = min(candidates, key=lambda each: each.nbytes)  # without it nothing is known not to fit
        asked = presets
        for group, most in ((candidates, _MOST_COMPILED), (surest, _MOST_COMPILED), ([smallest], 1)):
            asked += _distinct(group, asked)[:most]
        asked.sort(key=search.rank)
        rest = [each for each in candidates if not any(each.is_like(one) for one in asked)]
        with Compilers(self.target) if self.target and self.compiles else contextlib.nullcontext() as compilers:
            found, reasons = self._measured(traced, step, deadline, compilers, asked)
        ranked = [*sorted(found, key=search.rank), *rest]
        if compilers is None:
            return _Ranked(ranked, search.skipped + len(reasons))
        return _Ranked(ranked, search.skipped, len(found), reasons)

    def _traced(self, step: tuple[Any, ...], remat: str | None) -> DimClasses:
        model, batch, optimizer, loss = step
        names = list(self._meshes()[-1])
        one_device, platform = OneDevice(names), None if self.target is None else self.target.platform
        with without_kernels():
            program = trace_step(model, batch, one_device, optimizer, loss, platform=platform, remat=remat)
        return classes_of(program, one_device.own_names)

    def _measured(
        self,
        traced: Callable[[str | None], DimClasses],
        step: tuple[Any, ...],
        deadline: float,
        compilers: Compilers | None,
        asked: Sequence[Candidate],
    ) -> tuple[list[Candidate], list[str]]:
        """Return candidates with the figures of their own steps, also compiled, and why some are not compiled."""
        platform, (model, batch, optimizer, loss) = self.target and self.target.platform, step
        pending = list[tuple[Candidate, Callable[..., float], Callable[[], CompiledFigures] | None]]()
        for each in asked:
            left, mesh = deadline - time.monotonic(), self._mesh_of(each.mesh)
            if left <= 0:
                break
            distribution, _, _ = distribution_of(each, traced(each.remat), mesh)
            options: Any = {"platform": platform, "remat": each.remat}
            lowered = trace_step(model, batch, distribution, optimizer, loss, **options).lowered
            names = mesh.device_names
            figures = None if compilers is None else start(compilers, lowered, mesh.axis_sizes, names, left)
            own = propagate(lowered)
            of_step = functools.partial(step_seconds, each.mesh, own, self._machine, names)
            moved = sum(collective.nbytes_per_step for collective in own.collectives)
            pending.append((dataclasses.replace(each, step_seconds=of_step(), moved_nbytes=moved), of_step, figures))
        late = [(each, _LATE) for each in asked[len(pending) :]]
        found = [*(_with_figures(*each) for each in pending), *late]
        return [each for each, _ in found], [reason for _, reason in found if reason]

    @property
    def num_model_replicas(self) -> int:
        """Raise: the number is not known before the search."""
        self._not_found()

    def get_data_layout(self, data_shape: Sequence[int]) -> TensorLayout:
        """Raise: the layout is not known before the search."""
        self._not_found()

    def get_variable_layout(self, variable: Any) -> TensorLayout | None:
        """Raise: the layout is not known before the search."""
        self._not_found()

    def _not_found(self) -> NoReturn:
        raise DistributionError(
            "AutoParallel has no layout yet: it is found in the train step of a model",
            given="a model that is made under AutoParallel, whose weights are created",
            fix="`fit` on arrays, or with distribution.search(factory, (x, y), optimizer, loss).distribution.scope()",
        )

    def _meshes(self) -> list[dict[str, int]]:
        return [self.device_mesh.axis_sizes] if self._devices is None else meshes_of(len(self._devices))

    def _mesh_of(self, sizes: Mapping[str, int]) -> DeviceMesh:
        if self._devices is None:
            return self.device_mesh
        if self.target is not None and self._devices == devices(self.target):  # inner axes along its links
            return DeviceMesh(sizes, devices=devices(self.target, tuple(sizes.values())))
        return DeviceMesh(sizes, devices=self._devices)


class _Ranked(NamedTuple):
    """Candidates, the best first, and what was left out."""

    candidates: list[Candidate]
    skipped: int  # not tried
    to_compile: int = 0
    reasons: Sequence[str] = ()  # why candidates were not compiled


def _with_figures(
    candidate: Candidate, of_step: Callable[..., float], figures: Callable[[], CompiledFigures] | None
) -> tuple[Candidate, str]:
    """Return a candidate with the figures of its compiled step, or unchanged with the reason why there are none."""
    if figures is None:
        return candidate, ""
    try:
        found = figures()
    except CompilationTimeoutError:
        return candidate, _LATE
    except (CompilationError, MissingExtraError) as error:
        return candidate, f"{error.summary} ({error.fix if isinstance(error, MissingExtraError) else error.given})"
    seconds, nbytes = of_step(compiled=found), found.peak_nbytes
    return dataclasses.replace(candidate, compiled_seconds=seconds, compiled_nbytes=nbytes), ""


def _distinct(candidates: Sequence[Candidate], known: Sequence[Candidate]) -> list[Candidate]:
    """Leave out candidates with the time, exchanged bytes and memory of an earlier one: their programs are alike."""
    found = list(known)
    for each in candidates:
        if not any(_is_alike(each, other) for other in found):
            found.append(each)
    return found[len(known) :]


def _is_alike(one: Candidate, other: Candidate) -> bool:
    pairs = [(getattr(one, name), getattr(other, name)) for name in ("step_seconds", "moved_nbytes", "nbytes")]
    return one.remat == other.remat and all(math.isclose(*pair, rel_tol=_EQUAL) for pair in pairs)


def _existing(mesh: DeviceMesh) -> list[Device]:
    """Return the devices of a mesh; none if one of them does not exist here."""
    try:
        return [] if mesh.is_abstract else list(mesh.backend_mesh.devices.flat)
    except DeviceError:
        return []


def _machine_of(here: Sequence[Device]) -> Target | None:
    """Return the machine of these devices; None if its figures are not known."""
    is_cpu = bool(here) and all(device.platform == "cpu" for device in here)
    return target_named(f"cpu:{len(here)}") if is_cpu else target_of(here)


def _mesh_of_text(shape: str, target: Target | None) -> DeviceMesh:
    if target is None:
        return DeviceMesh(shape)
    mesh = DeviceMesh(shape, devices=devices(target))
    return DeviceMesh(mesh.axis_sizes, devices=devices(target, mesh.shape))


def _checked_devices(given: Any) -> list[str | Device]:
    found = list(given) if isinstance(given, Sequence | np.ndarray) else []
    if not found or not all(isinstance(each, str | jax.Device) for each in found):
        expected = "a DeviceMesh, its shape as text, or a nonempty list of devices"
        raise argument_error("mesh_or_devices", given, expected, example="data=2,model=4", error=DistributionError)
    return found
