"""What `keras_dist.config` offers, and what it does not load."""

import subprocess
import sys

import pytest

from keras_dist import config

HEAVY = ("jax", "jaxlib", "flax", "optax", "numpy", "tensorflow", "torch", "keras")


def loaded_by(code: str) -> set[str]:
    """The top-level modules in a fresh process after `code`."""
    code += "\nimport sys\nprint(*sorted({name.partition('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_exports() -> None:
    assert set(config.__all__) <= set(dir(config))
    assert all(getattr(config, name).__name__ == name for name in config.__all__ if name not in ("Axes", "Layout"))
    with pytest.raises(AttributeError, match="no attribute 'Lod'"):
        _ = config.Lod


@pytest.mark.multiprocess
def test_no_jax_is_loaded() -> None:
    code = "import keras_dist.config as c\nc.RunConfig.model_validate({'mesh': {'shape': 'data=8'}}), c.load"
    assert loaded_by(code).isdisjoint(HEAVY)


@pytest.mark.multiprocess
def test_a_mesh_shape_is_parsed_without_pydantic() -> None:
    code = "from keras_dist.config import parse_mesh_shape\nparse_mesh_shape('data=8')"
    assert loaded_by(code).isdisjoint({*HEAVY, "pydantic", "yaml"})
