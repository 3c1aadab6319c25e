"""What chance or size decides: `make test` tries it once and small, `make soak` often and large."""

import os

ROUNDS = int(os.environ.get("SOAK", "0"))
"""How often `make soak` tries; 0 in `make test`."""
