"""What google-parallax's AUTO makes of a model: a layout, or an error. Runs in the environment of `make parallax`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import jax
from flax import nnx
from jax.sharding import AbstractMesh
from parallax.sharding import auto_shard

from benchmarks.bench_auto import planned_model


def measure(model: str, mesh: Mapping[str, int], rows: int, tiny: bool = False) -> dict[str, Any]:
    """The axes of each parameter by path, as `layouts`; or what was raised, as `error`.

    As its `create_sharded_model` finds them, which creates the arrays, too.
    """
    planned = planned_model(model, tiny)
    if planned.is_ours:
        return {"error": "takes modules of Flax alone"}
    module = nnx.eval_shape(lambda: planned.factory(rngs=nnx.Rngs(0)))
    graph, state = nnx.split(module)
    try:
        with jax.sharding.use_abstract_mesh(AbstractMesh(tuple(mesh.values()), tuple(mesh))):
            (found, *_), _ = auto_shard.get_shardings(
                lambda state, x: nnx.merge(graph, state)(x), state, planned.batch(rows)[0]
            )
    except Exception as error:
        operation = re.search(r" = (\w+)", str(error))
        return {"error": f"{type(error).__name__} for {operation[1] if operation else error}"}
    specs = {
        path: spec.get_value() if isinstance(spec, nnx.Variable) else spec for path, spec in nnx.to_flat_state(found)
    }
    axes = {path: tuple(spec) for path, spec in specs.items()}
    parameters = dict(nnx.to_flat_state(nnx.state(module, nnx.Param)))
    return {"layouts": {"/".join(map(str, path)): axes[path] for path in parameters if any(axes[path])}}
