"""Jobs that a run joins first."""

import inspect

import pytest

import keras_dist as kd
from keras_dist import assembly
from keras_dist.assembly import runs
from tests.assembly.my_run import settings


def test_a_cluster_is_joined_first(monkeypatch):
    joined = []
    monkeypatch.setattr(runs, "initialize", lambda **told: joined.append(told))
    assembly.build(settings())
    assert joined == []
    assembly.build(
        settings('cluster={job_addresses="10.0.0.1:1", num_processes=2, process_id=1, communication="gloo"}')
    )
    told = set(inspect.signature(kd.initialize).parameters) - {"required"}  # a cluster in a config is meant
    assert set(joined[0]) == told
    assert (joined[0]["job_addresses"], joined[0]["num_processes"], joined[0]["process_id"]) == ("10.0.0.1:1", 2, 1)
    assert joined[0]["communication_options"] == kd.distribution.CommunicationOptions("gloo")
    defaults = {name: p.default for name, p in inspect.signature(kd.initialize).parameters.items()}
    assert all(joined[0][name] == defaults[name] for name in told if name.endswith("_s"))


WORKERS = '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}'


@pytest.mark.parametrize(
    ("variables", "is_joined"),
    [
        ({}, False),
        ({"KERAS_DISTRIBUTION_JOB_ADDRESSES": "10.0.0.1:1", "KERAS_DISTRIBUTION_NUM_PROCESSES": "1"}, True),
        ({"TF_CONFIG": WORKERS}, True),
        ({"TF_CONFIG": WORKERS.replace(', "b:1"', "")}, False),
    ],
)
@pytest.mark.parametrize("cluster", [(), ("cluster={}",)])
def test_the_job_of_the_environment_is_joined(monkeypatch, cluster, variables, is_joined):
    joined = []
    monkeypatch.setattr(runs, "initialize", lambda **told: joined.append(told))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assembly.build(settings(*cluster))
    assert len(joined) == is_joined
    assert all(told["job_addresses"] is None for told in joined)


def test_the_job_that_jax_detects_is_joined_where_there_is_a_cluster(monkeypatch):
    joined = []
    monkeypatch.setattr(runs, "initialize", lambda **told: joined.append(told))
    slurm = {"SLURM_JOB_ID": "1", "SLURM_STEP_NODELIST": "a,b", "SLURM_NTASKS": "2", "SLURM_PROCID": "0"}
    for name, value in (slurm | {"SLURM_LOCALID": "0", "SLURM_STEP_NUM_NODES": "2"}).items():
        monkeypatch.setenv(name, value)
    assembly.build(settings())
    assert joined == []
    assembly.build(settings("cluster={}"))
    assert len(joined) == 1
