"""XLA for TPUs, where `make test-all` has installed it."""

import importlib.util
import pathlib
import sys
from collections.abc import Iterator

import pytest


@pytest.fixture
def tpu_compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let plans compile for TPUs: only in a test, since others are of machines without this compiler."""
    monkeypatch.syspath_prepend(pathlib.Path(sys.prefix) / "tpu_compiler")
    if importlib.util.find_spec("libtpu") is None:
        pytest.skip("`make test-all` installs libtpu, where there is one for the machine")
    is_loaded = "libtpu" in sys.modules
    yield
    if not is_loaded:
        sys.modules.pop("libtpu", None)
