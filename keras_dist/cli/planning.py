"""`keras-dist plan`, `auto`, `explain` and `check`: what is known of a run before a byte is allocated."""

from __future__ import annotations

import pathlib
from typing import Annotated

import typer

from keras_dist.cli.arguments import AsJson, Config, Mesh, Settings, load
