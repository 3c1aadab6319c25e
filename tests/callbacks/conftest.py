"""What the tests of this room share."""

from tests.compile_once import compile_once  # noqa: F401
