"""Names of Keras and TensorFlow that are not here: the error says what takes their place, as `KERAS.md` does.

Or they live on a floor above: the package of all floors says where, and they are loaded when they are first used.
"""

from __future__ import annotations

import importlib
import pathlib
import re
from collections.abc import Callable, Iterable
from typing import Any

_TABLE = pathlib.Path(__file__).parents[1] / "KERAS.md"
_OF_TENSORFLOW = {
    **dict.fromkeys(("cast", "convert_to_tensor", "reduce_mean", "reduce_sum", "split"), "`jax.numpy`"),
    "GradientTape": "`value_and_grad` of `keras_dist.dtensor`, or `jax.value_and_grad`; `model.fit` needs neither",
    "Module": "`keras_dist.dtensor.Module`, or `flax.nnx.Module`",
    "Tensor": "`jax.Array`",
    **dict.fromkeys(("config.list_logical_devices", "config.list_physical_devices"), "`kd.list_devices`"),
    **dict.fromkeys(
        ("config.LogicalDeviceConfiguration", "config.set_logical_device_configuration"), "`kd.use_cpu_devices(8)`"
    ),
    **dict.fromkeys(("data.AUTOTUNE", "data.Dataset"), "`fit` takes `tf.data.Dataset`s, arrays and generators"),
    **dict.fromkeys(
        ("distribute", "MirroredStrategy"),
        "`kd.DataParallel`, `kd.ModelParallel`, `kd.FullySharded`; `kd.initialize` for several processes",
    ),
    "experimental": "`keras_dist.dtensor` for `tf.experimental.dtensor`",
    "dtensor.GradientTape": "`dtensor.value_and_grad`: JAX differentiates functions, and records nothing",
    "dtensor.LayoutMap": "`dtensor.keras.LayoutMap`, or `kd.LayoutMap`, whose rules are those of Keras 3",
    "dtensor.MATCH": "the entries of `dtensor.fetch_layout(tensor).sharding_specs` where they are to stay",
    "dtensor.create_tpu_mesh": "`dtensor.create_distributed_mesh`, which arranges TPUs as they are connected",
    "dtensor.device_name": "`dtensor.default_mesh(mesh)`: there is no device that stands for a mesh",
    "dtensor.enable_save_as_bf16": "`dtensor.name_based_save` of `variable.astype('bfloat16')`",
    "dtensor.heartbeat_enabled": "`kd.initialize(heartbeat_timeout_s=...)`: processes always watch each other",
    **dict.fromkeys(
        ("dtensor.initialize_multi_client", "dtensor.initialize_tpu_system"), "`dtensor.initialize_accelerator_system`"
    ),
    "dtensor.sharded_save": "`dtensor.name_based_save(mesh, path, dict(zip(names, tensors)))`",
    "dtensor.shutdown_tpu_system": "`dtensor.shutdown_accelerator_system`",
    "dtensor.keras.experimental": "`dtensor.keras` itself",
    "dtensor.keras.layers": "`kd.layers`, whose layers take `kernel_layout=` and the like",
    **{
        f"dtensor.keras.optimizers.{name}": f"`kd.optimizers.{name}`, which takes `mesh=`, too"
        for name in ("Adafactor", "Adamax", "Ftrl", "Lion", "Nadam")
    },
    "function": "`keras_dist.dtensor.function`, or `jax.jit`",
    "io": "`pathlib`, or `etils.epath` for buckets",
    "keras": "`keras_dist` itself; `keras_dist.dtensor.keras` for `tf.keras.dtensor.experimental`",
    "math": "`jax.numpy`",
    "nn": "`jax.nn`",
    "random.Generator": "`kd.random.SeedGenerator`",
    "random.set_seed": "`kd.utils.set_random_seed`",
    "train": "`kd.checkpoint`",
}
"""What takes the place of names that DTensor programs have."""


_above: dict[str, str] = {}


def tell_place(package: str, names: Iterable[str], module: str) -> None:
    """Tell that a package has names, which live in a module that it must not import.

    Args:
        package: whose `__getattr__` `missing_from` has made.
        names: in its `__all__`.
        module: what defines them.
    """
    _above.update(dict.fromkeys((f"{package}.{name}" for name in names), module))


def replacement_of(name: str) -> str | None:
    """Return the note of `KERAS.md` on a name of Keras that is not here, such as `ops` or `layers.Hashing`.

    Returns:
        The note, which may be empty; None for a name that Keras 3.15 does not have, or that is here.
    """
    package, _, attribute = name.rpartition(".")
    section = re.escape(f"## keras.{package}".rstrip("."))
    row = rf"\| `{re.escape(attribute)}(?:\.\*)?` \| no \| (?P<note>.*) \|"
    found = re.search(rf"^{section}$(?:\n(?!## ).*)*?\n{row}$", _TABLE.read_text("utf-8"), re.MULTILINE)
    return None if found is None else found["note"].strip()


def missing_from(module: str) -> Callable[[str], Any]:
    """Return the `__getattr__` of a module, whose AttributeError names what to use instead of a name of others."""

    def __getattr__(name: str) -> Any:
        if place := _above.get(f"{module}.{name}"):
            return getattr(importlib.import_module(place), name)
        text = f"module {module!r} has no attribute {name!r}"
        if not name.startswith("_"):
            known_as = f"{module.partition('.')[2]}.{name}".lstrip(".")
            note, library = replacement_of(known_as), "Keras"
            if note is None:
                note, library = _OF_TENSORFLOW.get(known_as), "TensorFlow"
            if note is not None:
                instead = f"instead: {note}" if note else "nothing takes its place"
                text += f": keras_dist does not have this name of {library}; {instead}"
        raise AttributeError(text, name=name)

    return __getattr__
