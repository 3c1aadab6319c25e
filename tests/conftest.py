"""Every test runs on 8 fake CPU devices, from a clean slate."""

import os

# Read once, when JAX and its CPU backend start: set before anything imports them. PJRT_NPROC sizes the thread pool, so
# that 8 devices never wait for each other in vain on a small machine.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8".strip()
os.environ["PJRT_NPROC"] = "32"
os.environ["JAX_PLATFORMS"] = "cpu"
for _name in list(os.environ):
    if _name.startswith(("KERAS_DIST_", "KERAS_DISTRIBUTION_")) or _name == "JAX_NUM_CPU_DEVICES":
        del os.environ[_name]

from collections.abc import Iterator  # noqa: E402

import hypothesis  # noqa: E402
import pytest  # noqa: E402

from keras_dist import distribution  # noqa: E402

hypothesis.settings.register_profile("dev", max_examples=10, deadline=None, derandomize=True)
hypothesis.settings.register_profile("ci", max_examples=50, deadline=None, derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "dev")


@pytest.fixture(autouse=True)
def no_distribution() -> Iterator[None]:
    """No test sees the distribution that another one set."""
    distribution.set_distribution(None)
    yield
    distribution.set_distribution(None)


@pytest.fixture(autouse=True, scope="session")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A folder for tfds of this run alone: tests neither need nor touch the one at home."""
    with pytest.MonkeyPatch.context() as patch:
        path = str(tmp_path_factory.mktemp("tensorflow_datasets"))
        patch.setenv("TFDS_DATA_DIR", path)
        yield path
