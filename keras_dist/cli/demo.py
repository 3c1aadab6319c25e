"""`keras-dist demo`: a classifier of handwritten digits, trained on a mesh of eight fake CPU devices."""

from __future__ import annotations

import pathlib
import sys

from keras_dist.cli.arguments import Mesh, Settings, load

CONFIG = pathlib.Path(__file__).with_name("demo.toml")
DEVICES = 8
REQUIRED_ACCURACY = 0.95


def demo(mesh: Mesh = None, settings: Settings = None) -> int:
    """Train on real handwritten digits.

    The default mesh is 2x4, of eight fake CPU devices. The exit code is 1 if the test accuracy is below 95 percent.
    """
    config = load(CONFIG, mesh, settings, is_ours=True)
    from keras_dist.cli import digits

    if digits.train(config, DEVICES) < REQUIRED_ACCURACY:
        print(f"expected a test accuracy of at least {REQUIRED_ACCURACY}", file=sys.stderr)
        return 1
    return 0
