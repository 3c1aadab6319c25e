"""Whether all processes of a job run the same program on data of the same form, compared before it runs.

Two processes with another learning rate, or another loss, train a mixture of both and end as if all were well. Another
shape of a weight ends them all in the middle of a collective.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping

import jax

import keras_dist
from keras_dist.distribution import job
from keras_dist.distribution.mesh import DeviceMesh
from keras_dist.distribution.plan import LayoutPlan
from keras_dist.distribution.rendezvous import Rendezvous
from keras_dist.errors import ClusterError, ConfigError
from keras_dist.saving.serialization import serialize_keras_object

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false
# JAX's own types are unknown in part

_SHOWN = 3
_TEXT = 100

Facts = Mapping[str, object]
"""What must be equal in all processes, by a name that a user knows; the values as their `str`."""


def check_agreement(about: str, mesh: DeviceMesh, make_facts: Callable[[], Facts]) -> None:
    """Check that the facts are the same in all processes of the job. All must call it.

    Args:
        about: what is about to run.
        mesh: where. On the devices of some of the processes nothing is compared, since the others do not come.
        make_facts: called only where there is something to compare.

    Raises:
        ClusterError: in all processes alike, where a fact differs.
    """
    if job.process_count() == 1 or not _takes_all_processes(mesh):
        return
    told = Rendezvous(about).each(lambda: {name: _short(str(value)) for name, value in make_facts().items()}, dict)
    names = dict.fromkeys(name for facts in told for name in facts)
    different = [name for name in names if len({json.dumps(facts.get(name)) for facts in told}) > 1]
    if not different:
        return
    more = f"; and {len(different) - _SHOWN} more" if len(different) > _SHOWN else ""
    raise ClusterError(
        f"the processes of the job do not run the same program: {about}",
        given="; ".join(_told(name, [facts.get(name) for facts in told]) for name in different[:_SHOWN]) + more,
        expected="the same in every process",
        fix="start the same script with the same arguments and packages in every process",
    )


def facts_of_plan(plan: LayoutPlan, seed: int) -> Facts:
    """What must be equal where the arrays of a plan are made."""
    arrays = {f"weight {row.path!r}": f"{row.dtype}{list(row.shape)} laid out {row.axes}" for row in plan.rows}
    versions = {"version of jax": jax.__version__, "version of keras_dist": keras_dist.__version__}
    return {**versions, "mesh": plan.mesh, "seed": seed, **arrays}


def facts_of_argument(name: str, value: object) -> Facts:
    """What must be equal in an argument of `compile`: each number of its config by its place there."""
    try:
        written = serialize_keras_object(value)
    except ConfigError:
        written = value
    leaves = jax.tree_util.tree_leaves_with_path(
        written, is_leaf=lambda leaf: not isinstance(leaf, dict | list | tuple)
    )
    return {f"`{name}` of compile{jax.tree_util.keystr(path)}": _text_of(leaf) for path, leaf in leaves}


def _text_of(value: object) -> str:
    """A function or an object that cannot be written down, by its name or its class."""
    if isinstance(value, str | int | float | None):
        return repr(value)
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{getattr(named, '__qualname__', '')}"


def _takes_all_processes(mesh: DeviceMesh) -> bool:
    owners = {job.process_of(device) for device in mesh.backend_mesh.devices.flat}
    return len(owners) == job.process_count()


def _short(text: str) -> str:
    """The text; a long one with a digest in place of its end."""
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    return text if len(text) <= _TEXT else f"{text[:_TEXT]}... (sha256 {digest})"


def _told(name: str, values: list[object]) -> str:
    """A fact that differs: each value, with the processes that have it."""
    processes: dict[object, list[str]] = {}
    for process, value in enumerate(values):
        processes.setdefault(value, []).append(str(process))
    each = (f"{value if value is not None else 'nothing'} in process {', '.join(p)}" for value, p in processes.items())
    return f"{name}: {' but '.join(each)}"
