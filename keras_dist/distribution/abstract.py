"""Abstract meshes: while a step is planned, meshes are `jax.sharding.AbstractMesh`es, whose devices need not exist.

Planning traces the code that trains: a plan of other code would be of another program. Layers and users' functions
refer to meshes themselves, so the setting is a context; only `DeviceMesh` reads it. Arrays placed on an abstract mesh
are `jax.ShapeDtypeStruct`s.
"""

from __future__ import annotations

import contextlib

from keras_dist.distribution import trace_context

_OF_THE_MESH = ""


def abstract_meshes(platform: str | None = None) -> contextlib.AbstractContextManager[object]:
    """Make meshes abstract, to lower steps for `"cpu"`, `"tpu"`, `"cuda"`; None for the devices of the mesh."""
    return trace_context.traced_with(platform=platform or _OF_THE_MESH)


def meshes_are_abstract() -> bool:
    """Return whether this is inside `abstract_meshes`."""
    return trace_context.current().platform is not None


def planned_platform() -> str | None:
    """Return the platform given to `abstract_meshes`; None if none was given, or outside of it."""
    return trace_context.current().platform or None
