"""Where a launcher stands among the nodes of its job."""

import pytest

from keras_dist.cli.nodes import NodePosition
from keras_dist.errors import ClusterError

SLURM = {
    "SLURM_STEP_NODELIST": "gpu[007-009,012],login",
    "SLURM_STEP_NUM_NODES": "5",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_NODEID": "2",
    "SLURM_JOB_ID": "4097",
}
OPEN_MPI = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "3"}


@pytest.mark.parametrize(
    ("environ", "given", "expected"),
    [
        ({}, {}, NodePosition()),
        ({}, {"nodes": 1, "coordinator": "10.0.0.1:99"}, NodePosition(1, 0, "10.0.0.1:99")),
        ({}, {"nodes": 2, "rank": 1, "coordinator": "a:1"}, NodePosition(2, 1, "a:1")),
        (SLURM, {}, NodePosition(5, 2, "gpu007:61442")),
        (SLURM, {"nodes": 1}, NodePosition()),
        (SLURM, {"nodes": 3}, NodePosition(3, 2, "gpu007:61442")),
        (SLURM, {"coordinator": "10.0.0.1:99"}, NodePosition(5, 2, "10.0.0.1:99")),
        (SLURM | {"SLURM_STEP_NODELIST": "one,two"}, {"rank": 0}, NodePosition(5, 0, "one:61442")),
        (SLURM | {"SLURM_STEP_NODELIST": "n[3]-ib"}, {}, NodePosition(5, 2, "n3-ib:61442")),
        ({"SLURM_NNODES": "2", "SLURM_NODEID": "0"}, {}, NodePosition()),  # a batch script, without srun
        (OPEN_MPI, {"coordinator": "a:1"}, NodePosition(4, 3, "a:1")),
        (
            {"JOB_COMPLETION_INDEX": "1"},
            {"nodes": 2, "coordinator": "train-0.train:1"},
            NodePosition(2, 1, "train-0.train:1"),
        ),
    ],
)
def test_the_place_is_given_or_found(environ, given, expected):
    assert NodePosition.resolve(**given, environ=environ) == expected


@pytest.mark.parametrize(
    ("environ", "given", "message"),
    [
        ({}, {"nodes": 2}, "no --node-rank"),
        ({}, {"rank": 0}, "--node-rank 0, no --nodes"),
        ({}, {"rank": 0, "coordinator": "a:1"}, "--node-rank 0 --coordinator a:1, no --nodes"),
        ({}, {"nodes": 2, "rank": 2}, "--node-rank 2"),
        ({}, {"nodes": 2, "rank": 1}, "no --coordinator"),
        ({}, {"nodes": 2, "rank": 1, "coordinator": "node0"}, '--coordinator must be "host:port"'),
        ({}, {"nodes": 1, "coordinator": "127.0.0.1:70000"}, '--coordinator must be "host:port"'),
        ({}, {"nodes": 1, "rank": 1}, "its --node-rank, 0 to 0"),
        (OPEN_MPI, {}, "node 3 of 4 has no address of the coordinator"),
        ({"JOB_COMPLETION_INDEX": "1"}, {}, "no --nodes"),
        (SLURM | {"SLURM_STEP_NUM_TASKS": "10"}, {}, "10 tasks on 5 nodes"),
        (SLURM | {"SLURM_NODEID": "two"}, {}, "SLURM_NODEID='two'"),
    ],
)
def test_what_is_missing_or_wrong_is_named(environ, given, message):
    with pytest.raises(ClusterError, match=message):
        NodePosition.resolve(**given, environ=environ)
