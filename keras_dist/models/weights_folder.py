"""Weights in a folder of orbax: each device's part is written and read by itself, and is never whole on the host."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from keras_dist import _jax
from keras_dist.checkpoint import Snapshot, Stored
from keras_dist.checkpoint.snapshot import RECORD
from keras_dist.distribution.rendezvous import Rendezvous
from keras_dist.models.session import Session

SUFFIX = ".orbax"

_PREFIX = "variables/"


class StoredWeights:
    """The weights in a folder: of `save_weights`, of a model, or of a state of a training.

    Args:
        path: the folder.
        session: of the model whose layouts they are read in.

    Attributes:
        path: likewise.
        shapes: of the weights, by their paths; of the model's random streams none.

    Raises:
        CheckpointError: it is damaged, or no checkpoint.
    """

    def __init__(self, path: pathlib.Path, session: Session) -> None:
        self.path = path
        self._session = session
        self._stored = Stored.of_job(path)
        noted = self._stored.record["arrays"]
        streams = {row.path for row in session.cell.plan.rows if row.role == "rng"}
        self._dtypes = {
            name.removeprefix(_PREFIX): one["dtype"]
            for name, one in noted.items()
            if name.startswith(_PREFIX) and name.removeprefix(_PREFIX) not in streams
        }
        self.shapes = {name: tuple(noted[f"{_PREFIX}{name}"]["shape"]) for name in self._dtypes}

    def is_complex(self, name: str) -> bool:
        """Whether the elements of a weight have an imaginary part."""
        return jnp.issubdtype(_jax.dtype_named(self._dtypes[name]), jnp.complexfloating)

    def read(self, names: Sequence[str]) -> dict[str, Any]:
        """Weights by their paths, where those of the model are.

        Raises:
            CheckpointError: they cannot be read.
        """
        for name in names:
            if _jax.is_key_dtype(_jax.dtype_named(self._dtypes[name])):
                raise self._stored.unreadable(RECORD, f"the weight {name!r} of type {self._dtypes[name]}")
        plan = self._session.cell.plan
        places = {row.path: sharding for row, sharding in zip(plan.rows, jax.tree.leaves(plan.shardings), strict=True)}
        wanted = {
            f"{_PREFIX}{name}": jax.ShapeDtypeStruct(
                self.shapes[name], jnp.dtype(self._dtypes[name]), sharding=places[plan.row(name).path]
            )
            for name in names
        }
        found: dict[str, Any] = {}
        Rendezvous("a load").each(lambda: found.update(self._stored.arrays(wanted)))
        return {name.removeprefix(_PREFIX): array for name, array in found.items()}


def write_weights(path: pathlib.Path, names: Sequence[str], session: Session) -> None:
    """Write weights to a folder, which is there whole or not at all.

    Raises:
        CheckpointError: the path cannot hold it.
        OSError: it cannot be written.
    """
    cell = session.cell
    with cell.lock:
        arrays = {f"{_PREFIX}{name}": cell.read(name) for name in names}
        finish = Snapshot(int(cell.state.step), arrays, cell.plan).begin(path)
    finish()
