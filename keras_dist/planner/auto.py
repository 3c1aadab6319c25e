"""`AutoParallel`: the strategy that finds its layout in the traced train step of the model."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import jax
import numpy as np
from pydantic import TypeAdapter, ValidationError

import keras_dist
from keras_dist._support.arguments import (
    argument_error,
    check_int,
    check_kind,
    check_option,
    check_optional,
    check_path,
    is_keras_object,
)
from keras_dist._support.types import Device, PyTree
from keras_dist.distribution.devices import list_devices
from keras_dist.distribution.layout import TensorLayout
from keras_dist.distribution.lint import frames_inside
from keras_dist.distribution.mesh import DeviceMesh, check_mesh
from keras_dist.distribution.strategy import Distribution, register_strategy
from keras_dist.errors import DistributionError, LayoutWarning
from keras_dist.planner.dim_classes import DimClasses, OneDevice, classes_of
from keras_dist.planner.propagation import propagate
from keras_dist.planner.search import Candidate, Objective, Search, blocks_of, is_possible, meshes_of
from keras_dist.planner.search_result import SearchResult, found_of
from keras_dist.planner.targets import Target, as_target, devices
from keras_dist.planner.tracing import trace_step
from keras_dist.planner.verdict import judge

_MOST_BYTES_OF_CACHE = 2**22
_MOST_COMPILED = 3


@register_strategy("auto")
class AutoParallel(Distribution):
    """Finds a layout for a model: which mesh, which dims over which axes, and whether weights are fully sharded.

    `search` traces the train step once and looks at it under each candidate, which takes milliseconds: classes of dims
    (see `dim_classes`) over the axes that the batch leaves, with weights whole or fully sharded over those of the
    batch; where memory counts or is short also with repeated blocks computed again in the backward pass. Of up to six
    classes that gain by themselves all combinations are tried; a class lies over one axis: several, as for a table of
    rows over all devices, are not tried. What is found is the same each time, unless the time
    limit ends the search.

    A compiled model that is made under it, by `set_distribution` or `scope`, has its layout found when `fit` knows its
    first batch; that needs arrays, and weights that do not exist yet. Else call `search`.

    Args:
        mesh_or_devices: the mesh, or its shape as text, `"data=2,model=4"`; or devices, as names or `jax.Device`s, of
            which all meshes `data` x `model` are tried; by default all devices of the job.
        objective: what is to be small: `"step_time"`, or the bytes of a device, `"memory"`.
        target: the machine it is meant for, such as `"v5p:4x4x4"`, see `planner.target`. Its times count, its devices
            are those of the mesh where none are given, and the best three candidates are compiled for it, where the
            extra that this needs is there.
        memory_limit: bytes that a device has; by default those of the target. What does not fit comes last.
        compiles: whether the best few candidates are compiled for the target.
        time_limit_seconds: after which the best candidate so far is taken.
        cache: a folder, as that of the checkpoints, in which what was found is kept for the same step and options.
            Nothing is kept where compiling was asked for and failed.

    Raises:
        DistributionError: an argument is none of these.
        MeshError: the text is no shape of a mesh, or a device is there twice.
        UnknownNameError, ConfigError: `target` names no machine; see `planner.target`.

    Warns:
        LayoutWarning: `cache` cannot be written.

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
        distribution = kd.ModelParallel(rules, 'data')
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
        cache: str | os.PathLike[str] | None = None,
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
        what = {"wrong": "is not a number of bytes", "example": 2**34, "error": DistributionError}
        self.memory_limit = check_optional(check_int, "memory_limit", memory_limit, 1, **what)
        if memory_limit is None and self.target is not None:
            self.memory_limit = self.target.hbm_nbytes or None
        is_number = isinstance(time_limit_seconds, int | float)  # pyright: ignore[reportUnnecessaryIsInstance]
        if not is_number or not time_limit_seconds > 0:
            raise argument_error("time_limit_seconds", time_limit_seconds, "a positive number", error=DistributionError)
        check_kind("compiles", compiles, bool, "True or False", error=DistributionError)
        self.compiles = compiles
        self.time_limit_seconds = time_limit_seconds
        self.cache = None
        if cache is not None:
            self.cache = pathlib.Path(check_path("cache", cache, "checkpoints", DistributionError))

    @classmethod
    def from_config(cls, mesh: DeviceMesh, config: Any) -> AutoParallel:
        """Return the distribution of a config file with `strategy = "auto"`."""
        return cls(mesh, config.objective, config.target, config.memory_limit)

    def search(self, model_or_factory: Any, batch: PyTree, optimizer: Any = None, loss: Any = None) -> SearchResult:
        """Find the layout of a model. Allocates nothing, and the devices need not exist.

        Args:
            model_or_factory: a `keras_dist.Model` or a `flax.nnx.Module`; or what makes one; as for `kd.plan`.
            batch: `x`, `(x, y)` or `(x, y, sample_weight)`: arrays or `jax.ShapeDtypeStruct`s, or pytrees of them.
            optimizer: in place of that of `compile`; without any `"adam"`.
            loss: in place of that of `compile`; without any the mean square of the outputs.

        Raises:
            DataError: the arrays of the batch have different lengths, or the loss needs targets that are not there.
            ModelError: there is no model, or it does not take the batch.
        """
        deadline = time.monotonic() + self.time_limit_seconds
        step = model_or_factory, batch, optimizer, loss
        traced: dict[str | None, DimClasses] = {None: self._traced(step, None)}
        key = self._key(traced[None].program.lowered)
        candidates, is_complete, is_cached = self._cached(key, traced[None]), True, True
        if candidates is None:
            search = Search(traced[None], self.objective, self.memory_limit, self.target, deadline)
            best = search.run(self._meshes())
            rule = blocks_of(traced[None])
            is_short = self.memory_limit is not None and best.nbytes > self.memory_limit
            if rule is not None and (is_short or self.objective == "memory"):
                search.classes, search.remat = traced.setdefault(rule, self._traced(step, rule)), rule
                search.run(self._meshes())
            candidates = sorted(search.candidates, key=search.rank)
            is_complete, is_cached = not search.skipped, False
            if self._compiles_for_target:
                first = [
                    self._compiled(each, traced[each.remat], step, deadline) for each in candidates[:_MOST_COMPILED]
                ]
                candidates = [*sorted(first, key=self._rank_compiled), *candidates[_MOST_COMPILED:]]
            if is_complete and self._is_compiled(candidates):
                self._keep(key, candidates)
        best = candidates[0]
        if best.remat not in traced:
            traced[best.remat] = self._traced(step, best.remat)
        mesh = self._mesh_of(best.mesh)
        return found_of(best, candidates, traced[best.remat], mesh, is_complete=is_complete, is_cached=is_cached)

    @property
    def _compiles_for_target(self) -> bool:
        return self.target is not None and self.compiles

    def _is_compiled(self, candidates: Sequence[Candidate]) -> bool:
        """Whether the best candidates were compiled, if they are to be."""
        return not self._compiles_for_target or all(
            each.compiled_seconds is not None for each in candidates[:_MOST_COMPILED]
        )

    def _traced(self, step: tuple[Any, ...], remat: str | None) -> DimClasses:
        """The classes of dims of the step, which are the same with any `remat`."""
        model, batch, optimizer, loss = step
        names = list(self._meshes()[-1])
        one_device, platform = OneDevice(names), None if self.target is None else self.target.platform
        program = trace_step(model, batch, one_device, optimizer, loss, platform=platform, remat=remat)
        return classes_of(program, one_device.own_names)

    def _compiled(self, candidate: Candidate, classes: DimClasses, step: tuple[Any, ...], deadline: float) -> Candidate:
        """A candidate with what XLA makes of its step; as it is where time is over, or an extra missing."""
        left, machine = deadline - time.monotonic(), self.target
        if machine is None or left <= 0:
            return candidate
        found = found_of(
            candidate, [candidate], classes, self._mesh_of(candidate.mesh), is_complete=True, is_cached=False
        )
        model, batch, optimizer, loss = step
        program = trace_step(
            model, batch, found.distribution, optimizer, loss, platform=machine.platform, remat=candidate.remat
        )
        verdict = judge(program, propagate(program.lowered), machine, compiles=True, timeout_seconds=left)
        if verdict.compiled is None or verdict.compiled.peak_nbytes is None:
            return candidate
        seconds = verdict.roofline.serial_step_seconds
        return dataclasses.replace(candidate, compiled_seconds=seconds, compiled_nbytes=verdict.compiled.peak_nbytes)

    def _rank_compiled(self, candidate: Candidate) -> tuple[float, ...]:
        """What is smaller the better a candidate is that was compiled; those that were not come after."""
        seconds, nbytes = candidate.compiled_seconds, candidate.compiled_nbytes
        if seconds is None or nbytes is None:
            return (1.0,)
        over = max(0, nbytes - self.memory_limit) if self.memory_limit is not None else 0
        return (0.0, over, *((seconds, nbytes) if self.objective == "step_time" else (nbytes, seconds)))

    @property
    def num_model_replicas(self) -> int:
        """Not known before `search`."""
        self._not_found()

    def get_data_layout(self, data_shape: Sequence[int]) -> TensorLayout:
        """Not known before `search`."""
        self._not_found()

    def get_variable_layout(self, variable: Any) -> TensorLayout | None:
        """Not known before `search`."""
        self._not_found()

    def _not_found(self) -> NoReturn:
        raise DistributionError(
            "AutoParallel has no layout yet: it is found in the train step of a model",
            given="a model that is made under AutoParallel, whose weights are created",
            fix="`fit` on arrays, or with distribution.search(factory, (x, y), optimizer, loss).distribution.scope()",
        )

    def _meshes(self) -> list[dict[str, int]]:
        if self._devices is None:
            return [self.device_mesh.axis_sizes]
        return meshes_of(len(self._devices))

    def _mesh_of(self, sizes: Mapping[str, int]) -> DeviceMesh:
        if self._devices is None:
            return self.device_mesh
        if self.target is not None and self._devices == devices(self.target):  # in the order of their wires
            return DeviceMesh(sizes, devices=devices(self.target, tuple(sizes.values())))
        return DeviceMesh(sizes, devices=self._devices)

    def _key(self, lowered: jax.stages.Lowered) -> str:
        named = None if self.target is None else self.target.name
        options = [self.objective, self.memory_limit, named, self._compiles_for_target, self._meshes()]
        options += [jax.__version__, keras_dist.__version__]
        return hashlib.sha256(f"{json.dumps(options)}\n{lowered.as_text()}".encode()).hexdigest()

    def _cached(self, key: str, classes: DimClasses) -> list[Candidate] | None:
        """The candidates of an earlier search; None without one, or where its file is not as it was written."""
        path = None if self.cache is None else self.cache / f"auto-{key[:16]}.json"
        try:
            if path is None or not path.is_file() or path.stat().st_size > _MOST_BYTES_OF_CACHE:
                return None
            kept = _KEPT.validate_json(path.read_bytes())
        except (ValidationError, OSError):
            return None
        found = kept.candidates if kept.key == key else []
        meshes, remats = self._meshes(), (None, blocks_of(classes))
        known = all(each.mesh in meshes and each.remat in remats and is_possible(each, classes) for each in found)
        return found if found and known and self._is_compiled(found) else None

    def _keep(self, key: str, candidates: Sequence[Candidate]) -> None:
        if self.cache is None:
            return
        path = self.cache / f"auto-{key[:16]}.json"
        draft = path.with_suffix(f".{os.getpid()}.draft")
        try:
            self.cache.mkdir(parents=True, exist_ok=True)
            draft.write_bytes(_KEPT.dump_json(_Kept(key, list(candidates))))
            draft.replace(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                draft.unlink()
            warnings.warn(
                f"AutoParallel: what was found is not kept: {str(path)!r} cannot be written "
                f"({error.strerror or error}); make room for it there, or give `cache=` a folder that can be written",
                LayoutWarning,
                stacklevel=frames_inside(),
            )


def _mesh_of_text(shape: str, target: Target | None) -> DeviceMesh:
    """The mesh of this shape; of the devices of a target along its wires."""
    if target is None:
        return DeviceMesh(shape)
    mesh = DeviceMesh(shape, devices=devices(target))
    return DeviceMesh(mesh.axis_sizes, devices=devices(target, mesh.shape))


def _checked_devices(given: Any) -> list[str | Device]:
    found = list(given) if isinstance(given, Sequence | np.ndarray) else []
    if not found or not all(isinstance(each, str | jax.Device) for each in found):
        expected = "a DeviceMesh, its shape as text, or a list of devices that is not empty"
        example = "data=2,model=4"
        raise argument_error("mesh_or_devices", given, expected, example=example, error=DistributionError)
    return found


@dataclasses.dataclass(frozen=True)
class _Kept:
    """What the file of a search holds."""

    key: str
    candidates: list[Candidate]


_KEPT = TypeAdapter(_Kept)
