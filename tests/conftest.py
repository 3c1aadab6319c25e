"""Every test runs on 8 fake CPU devices, from a clean slate, with programs that compile quickly and are kept."""

import collections
import functools
import gc
import importlib
import itertools
import os
import pathlib
import re
import statistics
import subprocess
import threading
import types
import zlib
from importlib import metadata

from tests import surroundings

surroundings.isolate()

# Programs are kept from run to run. Processes that tests start (and may kill while they write) have a folder apart.
PROGRAMS = surroundings.CACHE
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(PROGRAMS / "processes")
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"

# Read once, when JAX and its CPU backend start: set before anything imports them. PJRT_NPROC sizes the thread pool, so
# that 8 devices never wait for each other in vain on a small machine.
FLAGS = [os.environ.get("XLA_FLAGS", ""), "--xla_force_host_platform_device_count=8"]
ON_ACCELERATOR = "ON_ACCELERATOR" in os.environ  # `make accelerator`: the platforms that are here, CPUs among them
if "SOAK" not in os.environ and not ON_ACCELERATOR:  # `make soak` compiles as users do
    FLAGS += ["--xla_backend_optimization_level=0", "--xla_cpu_parallel_codegen_split_count=1"]
    if metadata.version("jaxlib") < "0.11":  # later ones do not know it
        FLAGS += ["--xla_cpu_use_fusion_emitters=false"]
os.environ["XLA_FLAGS"] = " ".join(FLAGS).strip()
os.environ["PJRT_NPROC"] = "32"
os.environ["JAX_PLATFORMS"] = os.environ.get("ON_ACCELERATOR", "cpu")
os.environ["KERAS_BACKEND"] = "jax"  # read when Keras is imported

from collections.abc import Iterator  # noqa: E402

import hypothesis  # noqa: E402
import jax  # noqa: E402
import pytest  # noqa: E402
from jax._src import compilation_cache, lru_cache  # noqa: E402
from jax._src.interpreters import mlir  # noqa: E402

from keras_dist import distribution  # noqa: E402
from keras_dist._unstable import sharding_origins, shardy  # noqa: E402
from keras_dist.distribution import sharded_init  # noqa: E402
from tests import soak  # noqa: E402
from tests.guard import GUARD  # noqa: E402


def put(cache: lru_cache.LRUCache, key: str, value: bytes) -> None:
    """JAX writes in place, and another worker would read the half of it."""
    draft = pathlib.Path(cache.path) / f"{key}.{os.getpid()}.{threading.get_ident()}"
    draft.write_bytes(value)
    draft.replace(draft.with_name(f"{key}-cache"))


lru_cache.LRUCache.put = put
compilation_cache.zlib = types.SimpleNamespace(  # JAX's level 6 takes three times as long for an eighth less
    compress=functools.partial(zlib.compress, level=1), decompress=zlib.decompress
)


class Contexts(threading.local):
    """MLIR's context of the current thread, anew after 64 programs; to make one for each takes 6 % of the tests."""

    def __init__(self) -> None:
        made = (mlir_context() for _ in itertools.count())
        self.following = (context for context in made for _ in range(64))


if "SOAK" not in os.environ:
    mlir_context, contexts = mlir.make_ir_context, Contexts()
    mlir.make_ir_context = lambda: next(contexts.following)
gc.freeze()
gc.set_threshold(50_000, 20, 100)  # most of what is alive are modules and programs, for good
if "SOAK" not in os.environ:
    sharded_init._CPU_OPTIONS["xla_backend_optimization_level"] = 0
jax.config.update("jax_compilation_cache_dir", str(PROGRAMS / "tests"))


def origins_in_this_process(command: list[str], *, input: bytes, **options: object) -> types.SimpleNamespace:
    """Do what the program does that users' plans start: nothing that tests plan ends its process."""
    return types.SimpleNamespace(stdout=sharding_origins.propagated(input))


shardy.subprocess = types.SimpleNamespace(  # type: ignore[assignment]
    run=origins_in_this_process, SubprocessError=subprocess.SubprocessError
)

# In CI a round of `make soak` follows a thorough `make test-all`.
_EXAMPLES = {"dev": 10, "ci": 20, "large": 50}
for _name, _count in _EXAMPLES.items():
    hypothesis.settings.register_profile(_name, max_examples=_count, deadline=None, derandomize=True)
_IS_CI = os.environ.get("CI") and not soak.ROUNDS
hypothesis.settings.load_profile("large" if soak.LARGE else "ci" if _IS_CI else "dev")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """As many workers as keep the cores busy: in `make test-all` one in three waits for processes."""
    cores = os.cpu_count() or 1
    return cores if "SOAK" in os.environ or config.option.markexpr == "not full" else cores + cores // 2


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the medians of what tests measure, which none of them judges: `record_property("seconds ...", 1.5)`."""
    measured: dict[str, list[float]] = {}
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties if report.when == "call" else ():
            measured.setdefault(name, []).append(value)
    for name, values in measured.items():
        terminalreporter.write_line(f"{name}: {statistics.median(values):.1f} (median of {len(values)})")


IN_MAKE_TEST = (
    "tests/contracts/test_imports.py::test_loads_no_jax[import keras_dist]",
    "tests/cli/test_launch.py::test_each_process_has_its_place_and_a_coloured_prefix",  # four
)
"""What starts processes in `make test` all the same: five in all."""

MARKERS_OF_FULL = ("multiprocess", "slow")


@pytest.hookimpl(tryfirst=True)  # before pytest selects by markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as `full` what `make test` leaves out: live Keras, processes, a browser, what takes long."""
    taken: collections.Counter[str] = collections.Counter()
    for item in items:
        uses_keras = "keras" in getattr(item, "fixturenames", ())
        is_full = uses_keras or any(map(item.get_closest_marker, MARKERS_OF_FULL))
        if not is_full and (first := item.get_closest_marker("first_cases")):
            name = item.nodeid.partition("[")[0]
            taken[name] += 1
            is_full = taken[name] > first.args[0]
        if is_full and not item.nodeid.startswith(IN_MAKE_TEST):
            item.add_marker(pytest.mark.full)


def pytest_unconfigure() -> None:
    """Leave nothing in the temporary folder."""
    surroundings.remove_home()


def pytest_collection_finish() -> None:
    """Leave what has been imported out of each later collection of garbage, which takes 0.3 s otherwise."""
    gc.freeze()


def pytest_ignore_collect(collection_path: pathlib.Path, config: pytest.Config) -> bool | None:
    """In `make test` files that import Keras are not even read."""
    if config.option.markexpr != "not full" or not collection_path.match("parity/*.py"):
        return None
    return bool(re.search(r"^import keras$|^keras = ", collection_path.read_text(), re.MULTILINE)) or None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Guard all tests of `make test`, their fixtures too."""
    GUARD.is_on = not item.get_closest_marker("full") and not item.nodeid.startswith(IN_MAKE_TEST)
    try:
        return (yield)
    finally:
        GUARD.is_on = False


@pytest.fixture(scope="session")
def keras() -> types.ModuleType:
    """Keras itself, on JAX. Without it these tests are skipped, except in CI."""
    return importlib.import_module("keras") if os.environ.get("CI") else pytest.importorskip("keras")


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
