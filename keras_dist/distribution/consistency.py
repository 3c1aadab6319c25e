"""Comparison of the programs and data of all processes of a job, before they run.

Processes with different learning rates or losses would train a mixture of both without an error. Different shapes of a
weight would end all processes in a collective. Facts are exchanged under names that a user knows, long ones by digest:
a digest of everything would not show what differs.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

import keras_dist
from keras_dist import mixed_precision
from keras_dist._support.types import PyTree
from keras_dist._unstable.jax_internals import is_key_dtype
from keras_dist.distribution.mesh import DeviceMesh
from keras_dist.errors import ClusterError
from keras_dist.jobs import job
from keras_dist.jobs.job import connect
from keras_dist.jobs.rendezvous import Rendezvous
from keras_dist.serialization.object_configs import serialize_keras_object

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false

if TYPE_CHECKING:
    from keras_dist.distribution.plan import LayoutPlan

_SHOWN = 3
_TEXT = 100
_DIGITS = 12  # of a digest
_SETTINGS = ("jax_enable_x64", "jax_default_matmul_precision")

Fingerprint = Mapping[str, object]  # values that must be equal in all processes, by a name for users; compared by `str`


def check_agreement(about: str, mesh: DeviceMesh, make_facts: Callable[[], Fingerprint]) -> None:
    """Raise in all processes if a fact differs. All must call it; `make_facts` is called if all share the mesh."""
    if is_shared(mesh):
        _compare(Rendezvous(about), about, mesh, make_facts)


def agreed_programs(
    about: str, mesh: DeviceMesh, programs: Iterable[jax.stages.Lowered], make_facts: Callable[[], Fingerprint] = dict
) -> Iterator[jax.stages.Lowered]:
    """Yield the programs, and raise in all processes if a program differs, or one could not be made."""
    if not is_shared(mesh):
        yield from programs
        return
    meeting, texts = Rendezvous(about), hashlib.sha256()
    try:
        for program in programs:
            texts.update(program.as_text().encode())
            yield program
    except BaseException as error:
        meeting.give_up(error)
        raise
    _compare(meeting, about, mesh, lambda: {**make_facts(), "program": f"sha256 {texts.hexdigest()[:_DIGITS]}"})


def _compare(meeting: Rendezvous, about: str, mesh: DeviceMesh, make_facts: Callable[[], Fingerprint]) -> None:
    """Compare the facts; where they are equal, connect the processes for collectives over the mesh."""

    def make() -> dict[str, str]:
        return {name: _short(str(value)) for name, value in {**_facts_of_process(), **make_facts()}.items()}

    exchanged = meeting.each(make, dict)
    names = dict.fromkeys(name for facts in exchanged for name in facts)
    different = [name for name in names if len({json.dumps(facts.get(name)) for facts in exchanged}) > 1]
    if not different:
        connect(mesh.backend_mesh.devices.flat)
        return
    more = f"; and {len(different) - _SHOWN} more" if len(different) > _SHOWN else ""
    raise ClusterError(
        f"the processes of the job must run the same program: {about}",
        given="; ".join(_described(name, [facts.get(name) for facts in exchanged]) for name in different[:_SHOWN])
        + more,
        fix="start the same script with the same arguments and packages in every process; where only a program "
        "differs, compare what layers, losses and metrics are given and what their functions compute",
    )


def facts_of_plan(plan: LayoutPlan, seed: int) -> Fingerprint:
    """Return facts for creating the arrays of a plan."""
    arrays = {f"weight {row.path!r}": f"{row.dtype}{list(row.shape)} laid out {row.axes}" for row in plan.rows}
    mesh = f"{plan.mesh.describe()} of {', '.join(map(str, plan.mesh.devices.flat))}"
    return {"mesh": mesh, "seed": seed, **arrays}


def facts_of_values(plan: LayoutPlan, values: PyTree) -> Fingerprint:
    """Return facts for placing arrays by a plan that each process has."""

    def digest(value: jax.Array) -> str:
        value = jax.random.key_data(value) if is_key_dtype(value.dtype) else value
        return _digest(np.asarray(value).tobytes())

    leaves = zip(plan.rows, jax.tree.leaves(values), strict=True)
    return {f"value of {row.path!r}": f"sha256 {digest(value)}" for row, value in leaves}


def facts_of_form(name: str, arrays: PyTree) -> Fingerprint:
    """Return facts about data that each process reads in part: dtype and shape of an example."""
    leaves = jax.tree_util.tree_leaves_with_path(arrays)
    return {f"{name}{jax.tree_util.keystr(path)}": f"{leaf.dtype}{list(leaf.shape[1:])}" for path, leaf in leaves}


def facts_of_config(name: str, value: object) -> Fingerprint:
    """Return facts about an object, or a structure of objects: each value of its config, else its class."""
    try:
        leaves = _leaves_of(serialize_keras_object(value))
    except Exception:  # a user's `get_config` need not work for a model that is never saved
        leaves = _leaves_of(value)
    return {f"{name}{jax.tree_util.keystr(path)}": _text_of(leaf) for path, leaf in leaves}


def _facts_of_process() -> Fingerprint:
    return {
        "number of local devices": jax.local_device_count(),  # else JAX cannot place arrays
        "version of Python": ".".join(platform.python_version_tuple()[:2]),
        "version of jax": jax.__version__,
        "version of keras_dist": keras_dist.__version__,
        **{name: getattr(jax.config, name) for name in _SETTINGS},
        "dtype policy": str(mixed_precision.dtype_policy().identifier),
    }


def _leaves_of(written: object) -> list[tuple[Any, Any]]:
    return jax.tree_util.tree_leaves_with_path(written, is_leaf=_is_value)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:_DIGITS]


def _is_value(written: object) -> bool:
    """Return whether a part of a config is one value, as are lists of numbers."""
    if isinstance(written, list | tuple):
        return all(isinstance(one, int | float) for one in written)
    return not isinstance(written, dict) or written.get("class_name") == "__lambda__"


def _text_of(value: object) -> str:
    if isinstance(value, str | int | float | list | tuple | None):
        return repr(value)
    if isinstance(value, dict):
        return "a lambda"
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{getattr(named, '__qualname__', '')}"


def is_shared(mesh: DeviceMesh) -> bool:
    """Return whether there are several processes, each with devices in the mesh."""
    return not mesh.is_abstract and job.are_shared(mesh.backend_mesh.devices.flat)


def _short(text: str) -> str:
    """Return the text; the end of a long text is replaced by a digest."""
    return text if len(text) <= _TEXT else f"{text[:_TEXT]}... (sha256 {_digest(text.encode())})"


def _described(name: str, values: list[object]) -> str:
    """Describe a fact that differs: each value, with the processes that have it."""
    processes: dict[object, list[str]] = {}
    for process, value in enumerate(values):
        processes.setdefault(value, []).append(str(process))
    each = (f"{value if value is not None else 'nothing'} in process {', '.join(p)}" for value, p in processes.items())
    return f"{name}: {' but '.join(each)}"
