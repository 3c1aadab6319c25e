"""`keras-dist train`: runs a config."""

from __future__ import annotations

from keras_dist.cli.arguments import Config, Fake, Mesh, Settings, load


def train(config: Config, mesh: Mesh = None, settings: Settings = None, fake: Fake = None) -> int:
    """Train the run of a config."""
    run = load(config, mesh, settings)
    from keras_dist import assembly
    from keras_dist.distribution.devices import use_cpu_devices

    if fake is not None:
        use_cpu_devices(fake)
    assembly.train(run)
    return 0
