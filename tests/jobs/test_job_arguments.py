import json
from typing import Any

import pytest

from keras_dist.errors import ClusterError
from keras_dist.jobs.job_arguments import JobArguments

ADDRESSES = "10.0.0.1:1234,10.0.0.2:2345"
FIRST = "10.0.0.1:1234"
WORKERS = ["host1:1", "host2:2"]


def resolve(
    environ: dict[str, str] | None = None, job_addresses: Any = None, num_processes: Any = None, process_id: Any = None
) -> tuple[str | None, int | None, int | None]:
    found = JobArguments.resolve(job_addresses, num_processes, process_id, environ or {})
    return found.coordinator, found.num_processes, found.process_id


def tf_config(task: Any = None, **cluster: Any) -> dict[str, str]:
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task or {"type": "worker", "index": 0}})}


@pytest.mark.parametrize("addresses", [ADDRESSES, FIRST, "10.0.0.1:1234 , 10.0.0.2:2345"])
def test_the_first_address_is_the_coordinator(addresses: str) -> None:
    assert resolve({}, addresses, 2, 1) == (FIRST, 2, 1)


def test_arguments_come_before_variables_and_those_before_tf_config() -> None:
    environ = tf_config(worker=WORKERS)
    assert resolve(environ) == ("host1:1", 2, 0)
    environ |= {"KERAS_DISTRIBUTION_JOB_ADDRESSES": ADDRESSES, "KERAS_DISTRIBUTION_PROCESS_ID": "1"}
    assert resolve(environ) == (FIRST, 2, 1)
    environ["KERAS_DISTRIBUTION_NUM_PROCESSES"] = "2"
    assert resolve(environ | {"TF_CONFIG": "not read"}, process_id=0) == (FIRST, 2, 0)
    assert resolve(environ, "host3:3", 5, 4) == ("host3:3", 5, 4)


def test_without_anything_it_is_for_jax_to_detect() -> None:
    assert resolve() == (None, None, None)
    assert resolve({"TF_CONFIG": "{}"}) == (None, None, None)
    assert resolve({"TF_CONFIG": '{"task": {"type": "worker", "index": 0}}'}) == (None, None, None)


def test_the_chief_of_tf_config_is_the_first_process() -> None:
    chief = {"type": "chief", "index": 0}
    assert resolve(tf_config(chief, chief=["host0:1"], worker=WORKERS)) == ("host0:1", 3, 0)
    assert resolve(tf_config({"type": "worker", "index": 1}, chief=["host0:1"], worker=WORKERS)) == ("host0:1", 3, 2)
    assert resolve(tf_config({"type": "worker", "index": 1}, worker=WORKERS)) == ("host1:1", 2, 1)


@pytest.mark.parametrize(
    "environ, message",
    [
        ({"TF_CONFIG": "{"}, "must be a JSON object"),
        ({"TF_CONFIG": "[" * 100_000}, "must be a JSON object"),
        ({"TF_CONFIG": '{"cluster": [1]}'}, '"cluster" must be an object'),
        (tf_config(worker=WORKERS, ps=["host3:3"]), '"ps" is not supported'),
        (tf_config({"type": "ps", "index": 0}, worker=WORKERS), '"ps" is not supported'),
        (tf_config({"type": "evaluator", "index": 0}, worker=WORKERS), '"evaluator" is not supported'),
        (tf_config(worker=WORKERS, master=["host3:3"]), 'must be "chief" or "worker", not .master.'),
        (tf_config(worker="host1:1"), '"worker" must be a list of addresses'),
        (tf_config(chief=WORKERS, worker=WORKERS), "only one chief"),
        (tf_config({"type": "worker"}, worker=WORKERS), '"index" of the worker must be'),
        (tf_config({"type": "worker", "index": 2}, worker=WORKERS), '"index" of the worker must be'),
        (tf_config({"type": "worker", "index": True}, worker=WORKERS), '"index" of the worker must be'),
        (tf_config({"type": "chief", "index": 0}, worker=WORKERS), '"index" of the chief must be an integer below'),
        (tf_config(["worker"], worker=WORKERS), '"task" must name this process'),
        (tf_config(worker=["host1"]), 'address must be "host:port"'),
    ],
)
def test_mistakes_in_tf_config(environ: dict[str, str], message: str) -> None:
    with pytest.raises(ClusterError, match=message) as raised:
        resolve(environ)
    assert raised.value.given and raised.value.fix


def test_as_many_addresses_as_processes() -> None:
    with pytest.raises(ClusterError, match="has 2 jobs, but num_processes is 3"):
        resolve({}, ADDRESSES, 3, 0)
    with pytest.raises(ClusterError, match="has 2 jobs, but num_processes is 3"):
        resolve(tf_config(worker=WORKERS), num_processes=3)


@pytest.mark.parametrize("variable", ["KERAS_DISTRIBUTION_NUM_PROCESSES", "KERAS_DISTRIBUTION_PROCESS_ID"])
def test_a_variable_that_is_no_integer(variable: str) -> None:
    with pytest.raises(ClusterError, match=f"environment variable {variable} must be an integer"):
        resolve({variable: "two"})


@pytest.mark.parametrize("index", [-1, 2, "0", True, 0.5])
def test_the_process_is_one_of_the_job(index: Any) -> None:
    with pytest.raises(ClusterError, match="process_id"):
        resolve({}, ADDRESSES, 2, index)


@pytest.mark.parametrize("address", ["host", "host:", ":1234", "host:0", "host:65536", "host:1234x", "host:²"])
def test_the_coordinator_has_a_port(address: str) -> None:
    with pytest.raises(ClusterError, match='address must be "host:port"'):
        resolve({}, address, 2, 0)


def test_addresses_are_a_string() -> None:
    with pytest.raises(ClusterError, match="`job_addresses` must be a string"):
        resolve({}, [FIRST], 1, 0)
