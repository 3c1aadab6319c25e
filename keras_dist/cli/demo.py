"""`make demo`: the run of `demo.toml`; the exit code says whether the model is as good as it should be."""

from __future__ import annotations

import sys

from keras_dist.cli import digits
from keras_dist.errors import KerasDistError

REQUIRED_ACCURACY = 0.95


def main() -> int:
    """Train, and say whether the accuracy is as it should be."""
    if digits.train() < REQUIRED_ACCURACY:
        print(f"expected a test accuracy of at least {REQUIRED_ACCURACY}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KerasDistError as error:
        sys.exit(f"{type(error).__name__}: {error}")
