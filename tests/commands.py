"""Commands of `keras-dist`, in the process of the test."""

import pytest

from keras_dist.cli.app import app


def run(*arguments):
    """Run a command; its exit code."""
    with pytest.raises(SystemExit) as ended:
        app([*map(str, arguments)], prog_name="keras-dist")
    return ended.value.code
