"""Runs Keras's guides and examples for JAX cell by cell on keras_dist: `python -m tests.keras_source.guides`."""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import traceback
from typing import Any

from tests.keras_source.cells import cells_of, shrunk, swapped

ROOT = pathlib.Path(__file__).parents[2]
FILES = (
    *(
        f"guides/{name}"
        for name in (
            "custom_train_step_in_jax",
            "distributed_training_with_jax",
            "functional_api",
            "making_new_layers_and_models_via_subclassing",
            "sequential_model",
            "training_with_built_in_methods",
            "transfer_learning",
            "understanding_masking_and_padding",
            "writing_a_custom_training_loop_in_jax",
            "writing_your_own_callbacks",
        )
    ),
    *(
        f"examples/{name}"
        for name in (
            "demo_custom_jax_workflow",
            "demo_custom_layer_backend_agnostic",
            "demo_functional",
            "demo_jax_distributed",
            "demo_mnist_convnet",
            "demo_subclass",
        )
    ),
)
"""Those that are about JAX, or about no backend. The others are written for TensorFlow or torch."""

INSTEAD = {"applications.Xception": "applications.MobileNetV2", "applications.VGG19": "applications.VGG16"}
"""What the cells after one that failed go on with: names that keras_dist does not have, and the nearest that it has."""


def run_file(file: pathlib.Path, results: pathlib.Path) -> None:
    """Run the cells of a file in one namespace, and write a line about each."""
    from tests.keras_source import downloads  # noqa: PLC0415 - it imports keras_dist, which the parent does not need

    downloads.install()
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for number, (line, text) in enumerate(cells_of(file.read_text("utf-8")), 1):
        text = shrunk(swapped(text))
        error, trace = _executed(text, line, file, namespace), traceback.format_exc()
        instead = text
        for name, other in INSTEAD.items():
            instead = instead.replace(name, other)
        again = _executed(instead, line, file, namespace) if error and instead != text else ""
        with results.open("a") as lines:
            record = {"cell": number, "line": line, "error": error, "instead": again, "text": trace if error else ""}
            lines.write(json.dumps(record) + "\n")


def _executed(text: str, line: int, file: pathlib.Path, namespace: dict[str, Any]) -> str:
    """Run a cell, and return its error, or nothing."""
    try:
        exec(compile("\n" * (line - 1) + text, str(file), "exec"), namespace)
    except Exception as error:
        first = str(error).splitlines()
        return f"{type(error).__name__}: {first[0] if first else ''}"
    return ""


def main() -> None:
    """Run the files and print which cells fail."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=pathlib.Path, required=True, help="a checkout of Keras 3.15")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--to", type=pathlib.Path, default=pathlib.Path("guides.json"))
    parser.add_argument("--seconds", type=int, default=600, help="for one file")
    parser.add_argument("--file", type=pathlib.Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.file is not None:
        run_file(given.file, given.to)
        return
    found: dict[str, Any] = {}
    total = right = 0
    for name in FILES:
        if given.only and not any(part in name for part in given.only):
            continue
        file = given.source.resolve() / f"{name}.py"
        count = len(cells_of(file.read_text("utf-8")))
        with tempfile.TemporaryDirectory() as folder:
            results = pathlib.Path(folder) / "results"
            environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "KERAS_BACKEND": "jax"}
            environment["MPLBACKEND"] = "agg"
            if "jax_distributed" in name:  # it asks for eight
                environment["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
            command = [sys.executable, "-m", "tests.keras_source.guides", "--source", str(given.source.resolve())]
            command += ["--file", str(file), "--to", str(results)]
            try:
                ended = subprocess.run(command, cwd=folder, env=environment, timeout=given.seconds, capture_output=True)
                end = f"exit code {ended.returncode}: {ended.stderr.decode()[-300:]}"
            except subprocess.TimeoutExpired:
                end = f"more than {given.seconds} seconds"
            cells = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
        if len(cells) < count:
            cells += [{"cell": i, "line": 0, "error": end, "text": ""} for i in range(len(cells) + 1, count + 1)]
        found[name] = cells
        passed = sum(not cell["error"] for cell in cells)
        total, right = total + count, right + passed
        print(f"{name}: {passed} of {count}", flush=True)
        for cell in cells:
            if cell["error"]:
                print(f"  line {cell['line']}: {cell['error'][:200]}", flush=True)
        given.to.write_text(json.dumps(found, indent=1))
    print(f"all: {right} of {total}")


if __name__ == "__main__":
    main()
