"""Config files for tests, and the errors that they end in."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from keras_dist.config import RunConfig, load
from keras_dist.errors import ConfigError

Load = Callable[..., RunConfig]
Refused = Callable[..., ConfigError]


@pytest.fixture
def loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Loads a text as the file `run<suffix>` in the working directory, under an empty environment."""
    monkeypatch.chdir(tmp_path)

    def run(text: str | bytes, suffix: str = ".toml", environ: Mapping[str, str] | None = None) -> RunConfig:
        file = Path(f"run{suffix}")
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return load(file, environ={} if environ is None else environ)

    return run


@pytest.fixture
def refused(loaded: Load) -> Refused:
    """The error that a text ends in."""

    def run(text: str | bytes, suffix: str = ".toml", environ: Mapping[str, str] | None = None) -> ConfigError:
        with pytest.raises(ConfigError) as caught:
            loaded(text, suffix, environ)
        return caught.value

    return run
