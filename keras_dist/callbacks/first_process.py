"""What only one process of a job does: it writes the files and the messages of callbacks."""

from __future__ import annotations

import sys

import jax


def is_first_process() -> bool:
    """Whether this process is the one that writes."""
    return jax.process_index() == 0


def print_message(text: str) -> None:
    """Print a line, once for all processes."""
    if is_first_process():
        sys.stdout.write(f"{text}\n")
