"""What the tests of models share."""

import logging

import jax
import pytest


@pytest.fixture
def compiled_names():
    """The names of the programs that JAX compiles during the test, such as `jit(train)`."""
    names = []

    class Handler(logging.Handler):
        def emit(self, record):
            message = record.getMessage()
            if message.startswith("Finished XLA compilation of "):
                names.append(message.removeprefix("Finished XLA compilation of ").split(" in ")[0])

    logger = logging.getLogger("jax")
    handler = Handler()
    propagate = logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    jax.config.update("jax_log_compiles", True)  # in all threads
    yield names
    jax.config.update("jax_log_compiles", False)
    logger.removeHandler(handler)
    logger.propagate = propagate
