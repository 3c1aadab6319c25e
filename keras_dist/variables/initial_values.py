"""Initial values: what a variable has before its array exists, and the programs that create arrays.

An array is a function of seed, number, initializer, shape and dtype, so that it is the same on every mesh, in every
form of a model and in every process. Variables that differ in their number alone share a compiled program, since
compiling takes longer than drawing: XLA takes 60 ms for each drawn array. Random bits take three times the bytes of
their result, so arrays are created one after the other, and each in its shards.
"""

from __future__ import annotations

import dataclasses
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist import initializers
from keras_dist._support import backend_environment
from keras_dist._support.types import ArrayLike, DTypeLike
from keras_dist._unstable import jaxprs
from keras_dist._unstable.jax_internals import outside_of_traces, without_mesh
from keras_dist.distribution.consistency import agreed_programs, is_shared
from keras_dist.distribution.mesh import DeviceMesh
from keras_dist.distribution.placement import place_copy
from keras_dist.errors import ModelError, shorten
from keras_dist.jobs import heartbeat
from keras_dist.random.seeds import next_numbers

_SMALL_BYTES = 1 << 20
_FILLED = {initializers.Zeros: 0, initializers.Ones: 1}
_CPU_OPTIONS = {"xla_backend_optimization_level": 1}
"""Above level 1, LLVM vectorizes small shards differently from whole arrays, and initial values differ in the last bit
between meshes (seen with jax 0.12). Level 1 is as fast here."""


@dataclasses.dataclass(eq=False)
class Copies:
    """Variables that begin with one value, as a layer and its deep copies do: the first one in use has the numbers."""

    numbers: tuple[int, int] | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Drawn:
    """The output of an initializer.

    Attributes:
        draw: called as `draw(shape, dtype, key=key)`.
        label: names the variable in errors.
        numbers: the seed and the number of its key: of the model, or of the process for a variable outside of models.
        group: variables that one call initializes have the number of the first of them.
        copies: variables that have the same numbers in all models.
    """

    draw: Callable[..., Any]
    label: str
    numbers: tuple[int, int]
    group: Any = None
    copies: Copies | None = None

    def numbered(self, numbers: tuple[int, int]) -> Drawn:
        """Return the initial value with these numbers, or with those that a copy has already."""
        if self.copies is not None:
            numbers = self.copies.numbers = self.copies.numbers or numbers
        return dataclasses.replace(self, numbers=numbers)

    def shared(self, is_planned: bool) -> Drawn:
        """Return the initial value for this variable and a copy of it, given whether the numbers are of a model."""
        copies = self.copies or Copies(self.numbers if is_planned else None)
        return dataclasses.replace(self, copies=copies)


@dataclasses.dataclass(frozen=True, eq=False)
class Given:
    """An array, which is copied."""

    value: ArrayLike

    def shared(self, is_planned: bool) -> Given:
        """Return the initial value for this variable and a copy of it."""
        del is_planned
        return self


InitialValue = Drawn | Given


@dataclasses.dataclass(frozen=True, eq=False)
class Wanted:
    """An array to create."""

    initial: InitialValue
    shape: tuple[int, ...]
    dtype: Any
    sharding: jax.sharding.Sharding | None = None


def initial_of(draw: Callable[..., Any], label: str) -> InitialValue:
    """Return the initial value that an initializer describes; `label` names the variable in errors."""
    if type(draw) is initializers.FromArray:
        return Given(draw.value)
    group = getattr(draw, "group", None)
    return Drawn(draw, label, next_numbers() if group is None else group.numbers, group)


@dataclasses.dataclass(frozen=True, eq=False)
class EachSlice:
    """An initializer of a weight whose leading dims are of layers or experts, given the initializer of a slice."""

    draw: Callable[..., Any]
    leading: int

    def __call__(self, shape: tuple[int, ...], dtype: DTypeLike, key: jax.Array) -> jax.Array:
        """Return the slices, each drawn with another key."""
        keys = jax.random.split(key, int(np.prod(shape[: self.leading])))
        each = jax.vmap(lambda key: self.draw(shape[self.leading :], dtype, key=key))
        return each(keys).reshape(shape)


def identity_of(draw: Callable[..., Any]) -> Hashable:
    """Return what is equal for initializers that compute the same; None where that cannot be known."""
    if isinstance(draw, EachSlice):
        inner = identity_of(draw.draw)
        return None if inner is None else (EachSlice, draw.leading, inner)
    if isinstance(draw, initializers.FromFunction):
        return draw.function if draw.wants_key and isinstance(draw.function, Hashable) else None
    if type(draw).__module__.startswith("keras_dist.variables."):
        return draw  # a frozen record
    if type(draw).__module__.startswith("keras_dist.initializers."):
        return type(draw), repr(draw.get_config())
    return None


_programs: OrderedDict[Hashable, jax.stages.Compiled] = OrderedDict()
_KEPT_PROGRAMS = 512
_lock = threading.Lock()


def create(wanted: Sequence[Wanted], mesh: DeviceMesh | None = None) -> list[jax.Array]:
    """Return arrays, each created with its sharding, outside of all traces; all processes of a job must call it."""
    with outside_of_traces():
        filled = {} if mesh is not None and is_shared(mesh) else {id(one): _filled(one) for one in wanted}
        drawn = [one for one in wanted if isinstance(one.initial, Drawn) and filled.get(id(one)) is None]
        programs = _programs_of(drawn, mesh)
        found: list[jax.Array] = []
        since = 0
        with heartbeat.current().waiting():
            for one in wanted:
                if isinstance(one.initial, Given):
                    found.append(_copied(one.initial.value, one))
                elif id(one) not in programs:
                    found.append(_copied(filled[id(one)], one))
                else:
                    found.append(jax.block_until_ready(programs[id(one)](*map(np.uint32, one.initial.numbers))))
                since += sum(shard.data.nbytes for shard in found[-1].addressable_shards[:1])  # none in some processes
                if since >= _SMALL_BYTES:
                    backend_environment.release_freed_memory()
                    since = 0
    return found


def _filled(wanted: Wanted) -> np.ndarray | None:
    """Return a small array of zeros or ones, for which no program is compiled; None for other initial values."""
    draw: Any = wanted.initial.draw if isinstance(wanted.initial, Drawn) else None
    draw = draw.draw if isinstance(draw, EachSlice) else draw
    number = _FILLED.get(type(draw))
    is_small = number is not None and np.prod(wanted.shape) * np.dtype(wanted.dtype).itemsize <= _SMALL_BYTES
    return np.full(wanted.shape, number, wanted.dtype) if is_small else None


def _copied(value: Any, wanted: Wanted) -> jax.Array:
    if wanted.sharding is None:
        return jnp.array(initializers.FromArray(value)(wanted.shape, wanted.dtype), copy=True)
    initializers.FromArray(value).check(wanted.shape)
    value = value if getattr(value, "dtype", None) == wanted.dtype else value.astype(wanted.dtype)
    return place_copy(value, wanted.sharding, "an initial value")  # from the host each shard to its device


def _programs_of(wanted: Sequence[Wanted], mesh: DeviceMesh | None) -> dict[int, jax.stages.Compiled]:
    """Return the program for each array by id; a job compiles them anew, since all processes must do the same."""
    keys = {id(one): _key_of(one) for one in wanted}
    first: dict[Hashable, Wanted] = {}
    for one in wanted:  # in order: initializers of users may have a state
        first.setdefault(keys[id(one)], one)
    is_job = mesh is not None and is_shared(mesh)
    with _lock:
        known = {} if is_job else {key: _programs[key] for key in first if key in _programs}
    missing = {key: one for key, one in first.items() if key not in known}
    made = map(_lowered, missing.values())
    if mesh is not None:
        made = agreed_programs("compute initial values", mesh, made)
    options = [_CPU_OPTIONS if _is_of_cpus(one.sharding) else {} for one in missing.values()]
    found = dict(zip(missing, jaxprs.compile_together(made, options), strict=True))
    with _lock:
        _programs.update({key: found[key] for key in missing if not (is_job or isinstance(key, int))})
        while len(_programs) > _KEPT_PROGRAMS:
            _programs.popitem(last=False)
    return {number: {**known, **found}[key] for number, key in keys.items()}


def _key_of(wanted: Wanted) -> Hashable:
    """Return a key that is equal for arrays that share a program; the id of the array where that cannot be known."""
    identity = identity_of(wanted.initial.draw) if isinstance(wanted.initial, Drawn) else None
    config: Any = jax.config
    device = config.jax_default_device if wanted.sharding is None else None
    key = (identity, wanted.shape, wanted.dtype, wanted.sharding, device)
    return id(wanted) if identity is None else key


def _lowered(wanted: Wanted) -> jax.stages.Lowered:
    initial: Any = wanted.initial

    def drawn(seed: jax.Array, number: jax.Array) -> jax.Array:
        key = jax.random.fold_in(jax.random.key(seed), number)
        try:
            value = initial.draw(wanted.shape, wanted.dtype, key=key)
        except Exception as error:
            error.add_note(f"in the initializer of {initial.label}")
            raise
        check_initial_value(value, wanted.shape, initial.label, initial.draw)
        return jnp.asarray(value, wanted.dtype)

    program = jax.jit(drawn, out_shardings=wanted.sharding)
    return without_mesh()(lambda: program.lower(np.uint32(0), np.uint32(0)))()


def _is_of_cpus(sharding: jax.sharding.Sharding | None) -> bool:
    if sharding is None:
        return jax.default_backend() == "cpu"
    return all(device.platform == "cpu" for device in sharding.device_set)


def check_initial_value(value: Any, shape: tuple[int, ...], label: str, initializer: Any) -> None:
    """Check the output of an initializer."""
    if jnp.shape(value) != shape:
        given = f"shape {jnp.shape(value)} from {shorten(initializer)}"
        fix = "return an array of the shape that the initializer is called with"
        raise ModelError(f"the initializer of {label} must return an array of shape {shape}", given=given, fix=fix)
