from typing import Any

import jax
import pytest

import keras_dist as kd
from keras_dist import random
from keras_dist.distribution import num_processes, process_id, processes
from keras_dist.errors import ClusterError

ADDRESSES = "10.0.0.1:1234,10.0.0.2:2345"
FIRST = "10.0.0.1:1234"
ARGUMENTS = {"coordinator_address": FIRST, "coordinator_bind_address": FIRST, "num_processes": 2}


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The arguments with which JAX's runtime was started, instead of starting it."""
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr(jax.distributed, "initialize", lambda **arguments: calls.append(arguments))
    monkeypatch.setattr(processes, "_check_can_listen", lambda address: None)
    monkeypatch.setattr(random.seeds, "_seed", None)
    return calls


def test_this_process_alone_is_a_job() -> None:
    assert num_processes() == 1
    assert process_id() == 0


@pytest.mark.parametrize("addresses", [ADDRESSES, "10.0.0.1:1234", "10.0.0.1:1234 , 10.0.0.2:2345"])
def test_the_first_address_is_the_coordinator(joined: list[dict[str, Any]], addresses: str) -> None:
    kd.initialize(addresses, 2, 1)
    assert joined == [ARGUMENTS | {"process_id": 1}]


def test_what_is_left_out_comes_from_the_environment(
    joined: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERAS_DISTRIBUTION_JOB_ADDRESSES", ADDRESSES)
    monkeypatch.setenv("KERAS_DISTRIBUTION_NUM_PROCESSES", "2")
    monkeypatch.setenv("KERAS_DISTRIBUTION_PROCESS_ID", "0")
    kd.initialize()
    kd.initialize(process_id=1)
    assert joined == [ARGUMENTS | {"process_id": 0}, ARGUMENTS | {"process_id": 1}]
    monkeypatch.setenv("JAX_COORDINATOR_BIND_ADDRESS", "0.0.0.0:1234")
    kd.initialize()
    assert joined[2] == ARGUMENTS | {"process_id": 0, "coordinator_bind_address": "0.0.0.0:1234"}


def test_without_anything_jax_finds_the_cluster(joined: list[dict[str, Any]]) -> None:
    kd.initialize()
    assert joined == [dict.fromkeys([*ARGUMENTS, "process_id"])]


def test_afterwards_all_processes_have_one_seed(joined: list[dict[str, Any]]) -> None:
    kd.set_random_seed(1337)
    kd.initialize(ADDRESSES, 2, 0)
    assert random.current_seed() == 1337


def test_an_unset_seed_is_drawn_once(joined: list[dict[str, Any]]) -> None:
    kd.initialize(ADDRESSES, 2, 0)
    assert random.current_seed() == random.current_seed()


def test_as_many_addresses_as_processes(joined: list[dict[str, Any]]) -> None:
    with pytest.raises(ClusterError, match="has 2 jobs, but num_processes is 3"):
        kd.initialize(ADDRESSES, 3, 0)
    assert joined == []


@pytest.mark.parametrize("variable", ["KERAS_DISTRIBUTION_NUM_PROCESSES", "KERAS_DISTRIBUTION_PROCESS_ID"])
def test_a_variable_that_is_no_integer(
    joined: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "two")
    with pytest.raises(ClusterError, match=f"environment variable {variable} is not an integer"):
        kd.initialize()
    assert joined == []


@pytest.mark.parametrize("index", [-1, 2])
def test_the_process_is_one_of_the_job(joined: list[dict[str, Any]], index: int) -> None:
    with pytest.raises(ClusterError, match="process_id is out of range"):
        kd.initialize(ADDRESSES, 2, index)
    assert joined == []
