"""`keras-dist demo`: a classifier of handwritten digits, trained on a mesh of eight fake CPU devices."""

from __future__ import annotations

import os
import sys

from keras_dist.cli.arguments import Mesh

REQUIRED_ACCURACY = 0.95


def demo(mesh: Mesh = None) -> int:
    """Train on real handwritten digits.

    On a 2x4 mesh of eight fake CPU devices, or on another one. The exit code is 1 if the test accuracy is below 95
    percent.
    """
    from keras_dist.cli import digits

    if mesh is not None:
        os.environ["KERAS_DIST_MESH"] = mesh
    if digits.train() < REQUIRED_ACCURACY:
        print(f"expected a test accuracy of at least {REQUIRED_ACCURACY}", file=sys.stderr)
        return 1
    return 0
