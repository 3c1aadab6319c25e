"""What a run sees of the machine: an empty home, and none of the settings that a shell, a notebook or a cluster leaves.

Libraries read both when they are imported, so `tests/conftest.py` isolates a run before that. Child processes inherit
it. Fonts that matplotlib has found are kept in `.cache`: to look for them takes seconds.
"""

import contextlib
import locale
import os
import re
import shutil
import site
import tempfile
import time
from pathlib import Path

CACHE = Path(__file__).parent.parent / ".cache"

FOREIGN = re.compile(
    # settings of libraries and tools
    r"(CLICOLOR|COLAB|FLAX|GIT|HF|HUGGINGFACE|JAX|JUPYTER|KERAS|MLFLOW|ORBAX|PJRT|TF|TFDS|TRACKIO|TRANSFORMERS|TTY|WANDB"
    r"|XDG)(_|$)|IPYTHON|MATPLOTLIB|MPL"
    # clusters, whose jobs `jax.distributed` would join
    r"|(CLOUD_TPU|KUBERNETES|MEGASCALE|OMPI|PMI|PMIX|PRTE|RAY|SLURM|TPU)_|(LOCAL_RANK|MASTER|RANK|WORLD)(_|$)"
    # terminals and languages
    r"|LC_|(COLORTERM|COLUMNS|FORCE_COLOR|LANG|LANGUAGE|LINES|NO_COLOR|SOURCE_DATE_EPOCH)$"
    # Python, except where it and its packages are
    r"|PYTHON(?!(DONTWRITEBYTECODE|HASHSEED|HOME|NOUSERSITE|PATH|PYCACHEPREFIX|USERBASE)$)"
)
"""Names of variables that tests do not see. How to reach package registries (`PIP_`, `NPM_CONFIG_`, proxies) stays."""


def isolate() -> None:
    """Give this process, and those that it starts, an empty home and default settings."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        _colour_as_wished()
        if site.ENABLE_USER_SITE:
            os.environ.setdefault("PYTHONUSERBASE", site.getuserbase())  # packages may be installed at home
        os.environ["HOME"] = tempfile.mkdtemp(prefix="keras_dist_home_")
    kept = ("TPU_", "CLOUD_TPU_", "MEGASCALE_") if "ON_ACCELERATOR" in os.environ else ()  # how TPUs are reached
    for name in filter(FOREIGN.match, list(os.environ)):
        if not name.startswith(kept):
            del os.environ[name]
    os.environ |= {"MPLCONFIGDIR": str(CACHE / "matplotlib"), "PYTHONUTF8": "1", "TERM": "xterm", "TZ": "UTC"}
    for name in ("en_US.UTF-8", "C.UTF-8"):  # older macOS has the first alone
        with contextlib.suppress(locale.Error):
            os.environ["LC_ALL"] = locale.setlocale(locale.LC_CTYPE, name)
    time.tzset()
    os.umask(0o022)


def remove_home() -> None:
    """Remove the home, at the end of the process that made it."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        shutil.rmtree(os.environ["HOME"], ignore_errors=True)


def _colour_as_wished() -> None:
    """Pass on to pytest how the terminal shows colours."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        os.environ.setdefault("PY_COLORS", "0")
    elif os.environ.get("FORCE_COLOR"):
        os.environ.setdefault("PY_COLORS", "1")
