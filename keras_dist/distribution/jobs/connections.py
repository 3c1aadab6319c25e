"""Connections between processes, which are made by the first collective.

Gloo waits without a limit for a peer whose connection another program has taken, so all processes run one small
collective within the join time-out.
"""

from __future__ import annotations

from collections.abc import Iterable

import jax
import numpy as np

from keras_dist._support.types import Device
from keras_dist.distribution.jobs import heartbeat, job

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false


def connect(devices: Iterable[Device]) -> None:
    """Run a small collective over these devices, once. All processes must call it."""
    ordered = sorted(devices, key=lambda device: device.id)
    with heartbeat.current().connecting(frozenset(ordered)) as is_first:
        if not is_first:
            return
        # Gloo waits without a limit for a process in whose place another program has connected; the heartbeat does not
        heartbeat.current().note_act("the first collective")
        mesh = jax.sharding.Mesh(np.array(ordered), ("devices",))
        parts, whole = (jax.NamedSharding(mesh, jax.P(*axes)) for axes in (("devices",), ()))
        own = [device for device in ordered if job.process_of(device) == job.process_index()]
        ones = [jax.device_put(np.ones(1, np.float32), device) for device in own]
        array = jax.make_array_from_single_device_arrays((len(ordered),), parts, ones)
        jax.block_until_ready(jax.jit(jax.numpy.sum, out_shardings=whole)(array))
