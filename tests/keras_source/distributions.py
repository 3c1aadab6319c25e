"""What Keras's tests of distributions use of its backend, on keras_dist."""

import importlib
from collections.abc import Callable
from typing import Any

import jax

import keras_dist as kd
from keras_dist.distribution import devices
from keras_dist.distribution.jobs import job
from keras_dist.distribution.jobs.job_arguments import JobArguments
from keras_dist.layers import Variable
from tests.keras_source.modules import PACKAGE

BACKEND = "src.backend.jax.distribution_lib"
FRONT = "src.distribution.distribution_lib"


def distribute_data_input(batch: Any, layout: jax.sharding.Sharding, batch_dim_name: str) -> jax.Array:
    """The batch of all processes, of which this one has a part."""
    return jax.make_array_from_process_local_data(layout, batch)


def initialize(job_addresses: str | None = None, num_processes: int | None = None, process_id: int | None = None):
    """Join a job by what `kd.distribution.initialize` finds in its arguments and the environment."""
    given = JobArguments.resolve(job_addresses, num_processes, process_id)
    backend = importlib.import_module(f"{PACKAGE}.{BACKEND}")
    backend.initialize(",".join(given.addresses) or None, given.num_processes, given.process_id)


def initialize_backend(job_addresses: str | None, num_processes: int | None, process_id: int | None) -> None:
    """Join a job by the arguments that JAX would be given."""
    given = JobArguments.resolve(job_addresses, num_processes, process_id)
    jax.distributed.initialize(
        coordinator_address=given.coordinator, num_processes=given.num_processes, process_id=given.process_id
    )


class TFDatasetAdapter:
    """The part of a `tf.data.Dataset` that a process reads."""

    def __init__(self, dataset: Any, distribution: Any = None) -> None:
        self.dataset = dataset if distribution is None else distribution.distribute_dataset(dataset)

    def get_tf_dataset(self) -> Any:
        """Return it."""
        return self.dataset


def stand_ins() -> dict[str, Any]:
    """Values by full names, as `modules.install` takes them."""
    of_backend = {
        "initialize": initialize_backend,
        "get_device_count": kd.distribution.get_device_count,
        "list_devices": kd.distribution.list_devices,
        "distribute_tensor": kd.distribution.distribute_tensor,
        "distribute_data_input": distribute_data_input,
        "num_processes": job.process_count,
        "process_id": job.process_index,
        "_to_backend_device": devices.find_device,
        "_to_backend_mesh": lambda mesh: mesh.backend_mesh,
        "_to_backend_layout": lambda layout: layout.backend_layout,
    }
    return {
        "keras.distribution.initialize": initialize,
        "keras.src.trainers.data_adapters.tf_dataset_adapter.TFDatasetAdapter": TFDatasetAdapter,
        f"keras.{FRONT}.Distribution": kd.distribution.Distribution,
        **{f"keras.{BACKEND}.{name}": value for name, value in of_backend.items()},
    }


def connect() -> None:
    """Let keras_dist ask what a test has put in the place of functions of Keras; `_value` is a variable's value."""
    for module, name, owner, own in (
        (BACKEND, "num_processes", job, "process_count"),
        (FRONT, "list_devices", devices, "list_devices"),
    ):
        setattr(owner, own, asking(importlib.import_module(f"{PACKAGE}.{module}"), name, getattr(owner, own)))
    Variable._value = property(lambda self: self.value)  # type: ignore[attr-defined]


def asking(module: Any, name: str, own: Callable[..., Any]) -> Callable[..., Any]:
    """A function that is what a test has set in a module of `as_keras`, which has no names else, or our own."""
    return lambda *args: vars(module).get(name, own)(*args)
