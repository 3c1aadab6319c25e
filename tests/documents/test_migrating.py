"""What `docs/migrating.md` says to users of TensorFlow and Keras: its names exist, and its programs run."""

import functools
import json
import pathlib
import re

import jax
import pytest

import keras_dist as kd
from keras_dist import dtensor
from tests import forks
from tests.processes import environment, free_address

FOLDER = pathlib.Path(__file__).parent.parent.parent / "docs"
TEXT = (FOLDER / "migrating.md").read_text()
SECTIONS = dict(re.findall(r"^#{2,3} (.*?)\n(.*?)(?=^##|\Z)", TEXT, re.DOTALL | re.MULTILINE))
PROGRAMS = {
    re.split(r"[\n,]", part)[0]: "".join(re.findall(r"^```python\n(.*?)^```$", part, re.DOTALL | re.MULTILINE))
    for part in TEXT.split("\n## ")
}
NAMED = {"kd": kd, "dtensor": dtensor, "jax": jax}

# what TensorFlow 2.15 has in tf.experimental.dtensor, tf.distribute and tf.distribute.experimental, without modules
DTENSOR = """
DTensorCheckpoint DTensorDataset DVariable Layout MATCH Mesh UNSHARDED barrier call_with_layout check_layout client_id
copy_to_mesh create_distributed_mesh create_mesh create_tpu_mesh default_mesh device_name enable_save_as_bf16
fetch_layout full_job_name get_default_mesh heartbeat_enabled initialize_accelerator_system initialize_multi_client
initialize_tpu_system is_dtensor job_name jobs local_devices name_based_restore name_based_save num_clients
num_global_devices num_local_devices pack preferred_device_type relayout relayout_like run_on sharded_save
shutdown_accelerator_system shutdown_tpu_system unpack
"""
KERAS_DTENSOR = "LayoutMap " + " ".join(
    f"optimizers.{name}" for name in ("Adadelta", "Adagrad", "Adam", "AdamW", "RMSprop", "SGD")
)
DISTRIBUTE = """
CrossDeviceOps DistributedDataset DistributedIterator DistributedValues HierarchicalCopyAllReduce InputContext
InputOptions InputReplicationMode MirroredStrategy MultiWorkerMirroredStrategy NcclAllReduce OneDeviceStrategy
ParameterServerStrategy ReduceOp ReductionToOneDevice ReplicaContext RunOptions Server Strategy StrategyExtended
TPUStrategy experimental_set_strategy get_replica_context get_strategy has_strategy in_cross_replica_context
experimental.CentralStorageStrategy experimental.CollectiveCommunication experimental.CollectiveHints
experimental.CommunicationImplementation experimental.CommunicationOptions experimental.MultiWorkerMirroredStrategy
experimental.PreemptionCheckpointHandler experimental.PreemptionWatcher experimental.TerminationConfig
experimental.ValueContext coordinator.ClusterCoordinator coordinator.PerWorkerValue coordinator.RemoteValue
cluster_resolver.ClusterResolver
"""
MESH = """
as_proto contains_dim coords device_location device_type dim_names dim_size from_device from_proto from_string
global_device_ids global_devices host_mesh is_remote is_single_device local_device_ids local_device_locations
local_devices min_global_device_id name num_local_devices shape single_device size strides to_string unravel_index
use_xla_spmd
"""
LAYOUT = """
as_proto batch_sharded delete from_device from_proto from_single_device_mesh from_string inner_sharded
is_batch_parallel is_fully_replicated is_single_device mesh num_shards offset_to_shard offset_tuple_to_global_index
rank replicated shape sharding_specs to_parted to_string type
"""
KERAS = re.search(
    r"^## keras.distribution\n(.*?)^## ", (FOLDER.parent / "keras_dist" / "KERAS.md").read_text(), re.S | re.M
)[1]


def rows(section):
    """The cells of a section's table of names, without its head."""
    lines = [line for line in SECTIONS[section].splitlines() if line.startswith("| ")]
    return [re.split(r" \| ?", line.strip("| ")) for line in lines[1:]]


def spans(cell):
    """What a cell shows as code."""
    return re.findall(r"`([^`]+)`", cell)


def names_there(section):
    return {re.split(r"[(=]", name)[0] for cells in rows(section) for name in spans(cells[0])}


@pytest.mark.parametrize(
    ("section", "names"),
    [
        ("`tf.experimental.dtensor`", DTENSOR),
        ("`tf.keras.dtensor.experimental`, and what programs use beside it", KERAS_DTENSOR),
        ("Names", DISTRIBUTE),
        ("Keras 3", " ".join(re.findall(r"^\| `(\w+)`", KERAS, re.MULTILINE))),
    ],
)
def test_every_name_is_in_its_table(section, names):
    assert set(names.split()) <= names_there(section)


@pytest.mark.parametrize(("kind", "names"), [(dtensor.Mesh, MESH), (dtensor.Layout, LAYOUT)])
def test_methods_that_are_not_here_are_in_the_table(kind, names):
    cells = " ".join(cells[0] for cells in rows("`Mesh` and `Layout`") if kind.__name__ in cells[0])
    missing = {name for name in names.split() if not hasattr(kind, name)}
    assert missing <= set(re.findall(r"\w+", cells))


def test_names_that_are_here_exist():
    tables = [section for section in SECTIONS if re.search(r"^\| there \| here \| note \|$", SECTIONS[section], re.M)]
    assert len(tables) == 5
    here = [name for section in tables for cells in rows(section) for name in spans(cells[1])]
    assert len(here) > 100
    mentioned = spans(re.sub(r"^```.*?^```$", "", TEXT, flags=re.DOTALL | re.MULTILINE))
    for name in {*here, *(name for name in mentioned if name.startswith(("kd.", "dtensor.", "jax.")))}:
        first, *others = re.split(r"[(=]", name)[0].split(".")
        functools.reduce(getattr, others, NAMED[first])


def test_names_of_dtensor_that_are_not_here_say_what_to_use():
    for cells in rows("`tf.experimental.dtensor`"):
        (name,) = spans(cells[0])
        if cells[1] == "no":
            with pytest.raises(AttributeError, match="instead: "):
                getattr(dtensor, name)


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)]+)\)", TEXT):
        path, _, anchor = target.partition("#")
        text = (FOLDER / path).read_text() if path else TEXT
        headings = [
            re.sub(r"[^\w -]", "", line).replace(" ", "-").lower() for line in re.findall(r"^#+ (.*)$", text, re.M)
        ]
        assert not anchor or anchor in headings, target


@pytest.mark.multiprocess
@pytest.mark.parametrize("section", ["DTensor", "Keras 3"])
def test_the_program_of_a_section_runs(section, tmp_path):
    run = forks.python("-c", PROGRAMS[section], cwd=tmp_path, env=environment())
    assert run.returncode == 0, run.stderr[-2000:]


@pytest.mark.multiprocess
def test_the_program_of_several_processes_runs_with_tf_config(tmp_path):
    (tmp_path / "main.py").write_text(PROGRAMS["MultiWorkerMirroredStrategy"])
    cluster = {"worker": [free_address(), free_address()]}
    configs = [json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}}) for index in range(2)]
    processes = [forks.Python("main.py", cwd=tmp_path, env=environment() | {"TF_CONFIG": config}) for config in configs]
    codes, printed, errors = zip(*(process.outcome(240) for process in processes), strict=True)
    assert codes == (0, 0), "\n".join(errors)[-4000:]
    assert "Epoch 3/3" in printed[0] and "Epoch" not in printed[1]
    assert (tmp_path / "keras-model").is_dir()
