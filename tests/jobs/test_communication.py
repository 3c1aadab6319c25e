import enum

import jax
import pytest

import keras_dist as kd
from keras_dist._unstable import jax_runtime
from keras_dist.distribution import CommunicationOptions
from keras_dist.errors import ClusterError
from keras_dist.jobs.job_arguments import apply_communication_options


class CommunicationImplementation(enum.Enum):
    """As in TensorFlow."""

    AUTO = "AUTO"
    RING = "RING"
    NCCL = "NCCL"


@pytest.fixture
def setting(monkeypatch):
    """JAX's setting, which the test may change, as if no backend had started."""
    monkeypatch.setattr(jax_runtime, "backend_started", lambda: False)
    before = jax.config.jax_cpu_collectives_implementation
    jax.config.update("jax_cpu_collectives_implementation", "mpi")
    yield lambda: jax.config.jax_cpu_collectives_implementation
    jax.config.update("jax_cpu_collectives_implementation", before)


@pytest.mark.parametrize(
    ("given", "fix"),
    [
        *((one, fix) for name, fix in (("RING", '"gloo"'), ("NCCL", '"nccl"'), ("AUTO", '"auto"'))
          for one in (name, CommunicationImplementation[name])),
        ("ring", '"gloo"'),
        ("rings", '"auto"'),
        (1024, '"auto"'),
        (None, '"auto"'),
        (["gloo"], '"auto"'),
    ],
    ids=str,
)  # fmt: skip
def test_names_of_tensorflow_are_told_the_way_out(given, fix):
    with pytest.raises(ClusterError, match="`implementation` must be one of 'auto', 'gloo', 'mpi', 'nccl'") as caught:
        CommunicationOptions(given)
    assert (given if isinstance(given, str) else repr(given)) in caught.value.given
    assert fix in caught.value.fix
    assert "'auto', 'gloo', 'mpi', 'nccl'" in caught.value.summary


def test_gloo_is_a_setting_of_jax_and_auto_leaves_it(setting):
    apply_communication_options(CommunicationOptions("auto"))
    assert setting() == "mpi"
    apply_communication_options(CommunicationOptions("gloo"))
    assert setting() == "gloo"


def test_mpi_needs_its_library(setting, monkeypatch, tmp_path):
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    for value in ("", str(tmp_path / "missing.so")):
        monkeypatch.setenv("MPITRAMPOLINE_LIB", value)
        with pytest.raises(ClusterError, match="no library of MPI") as caught:
            apply_communication_options(CommunicationOptions("mpi"))
        assert "MPITRAMPOLINE_LIB" in caught.value.fix
        assert setting() == "gloo"
    library = tmp_path / "libmpiwrapper.so"
    library.touch()
    monkeypatch.setenv("MPITRAMPOLINE_LIB", str(library))
    apply_communication_options(CommunicationOptions("mpi"))
    assert setting() == "mpi"


def test_nccl_needs_gpus(setting, monkeypatch):
    with pytest.raises(ClusterError, match="NCCL connects GPUs") as caught:
        apply_communication_options(CommunicationOptions("nccl"))
    assert 'CommunicationOptions("gloo")' in caught.value.fix
    monkeypatch.setitem(jax_runtime.xla_bridge._backend_factories, "cuda", None)
    assert not jax_runtime.looks_for_gpus()  # the tests run with JAX_PLATFORMS=cpu
    jax.config.update("jax_platforms", "gpu,cpu")
    try:
        apply_communication_options(CommunicationOptions("nccl"))
    finally:
        jax.config.update("jax_platforms", "cpu")
    assert setting() == "mpi"  # of CPU devices


@pytest.mark.parametrize("given", ["gloo", CommunicationImplementation.RING, CommunicationOptions])
def test_initialize_takes_options_alone(given):
    with pytest.raises(ClusterError, match="`communication_options` must be a CommunicationOptions"):
        apply_communication_options(given)


def test_refusals_come_before_a_job_is_joined(monkeypatch):
    monkeypatch.setattr(jax_runtime, "backend_started", lambda: False)
    with pytest.raises(ClusterError, match="NCCL connects GPUs"):
        kd.initialize("127.0.0.1:1", 1, 0, communication_options=CommunicationOptions("nccl"))


def test_options_that_differ_come_before_a_backend(setting, monkeypatch):
    monkeypatch.setattr(jax_runtime, "backend_started", lambda: True)
    apply_communication_options(CommunicationOptions("mpi"))
    with pytest.raises(ClusterError, match="JAX reads them when it starts"):
        apply_communication_options(CommunicationOptions("gloo"))
    assert setting() == "mpi"
