"""`keras-dist train`: the run that a config describes."""

from __future__ import annotations

from keras_dist.cli.arguments import Config, Mesh, Settings, load


def train(config: Config, mesh: Mesh = None, settings: Settings = None) -> int:
    """Train as a config says."""
    run = load(config, mesh, settings)
    from keras_dist import assembly

    assembly.train(run)
    return 0
