"""Packages of extras, imported at their first use."""

from __future__ import annotations

import importlib
from typing import Any

from keras_dist.errors import MissingExtraError

PACKAGES = {
    "chat": "jinja2 tokenizers",
    "cuda": "'jax[cuda12]'",
    "datasets": "array_record importlib_resources scikit-learn tensorflow-datasets",
    "graph": "pydot",
    "h5": "h5py",
    "hub": "huggingface_hub",
    "images": "pillow",
    "keras": "h5py keras",
    "mlflow": "mlflow",
    "parquet": "pyarrow",
    "plot": "matplotlib",
    "quantize": "qwix",
    "tensorboard": "tensorboardX",
    "tokenizers": "tokenizers",
    "tpu": "'jax[tpu]'",
    "trackio": "trackio",
    "wandb": "wandb",
}
"""Packages of each extra in `pyproject.toml`, for errors: an index may have another `keras_dist`."""


def import_extra(module: str, extra: str, needed_for: str) -> Any:
    """Import a module that `extra` installs; the error says that `needed_for` needs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        given = f"an environment in which it cannot be imported: {error}"
        fix = f"pip install {PACKAGES[extra]}"
        raise MissingExtraError(f"{needed_for} needs the package {package}", given=given, fix=fix) from error
