"""Runs Keras's guides and examples for JAX cell by cell on keras_dist: `python -m tests.keras_source.guides`.

The blocks of code in their texts run at their place, too, and are counted apart.
"""

import argparse
import ast
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import traceback
from typing import Any

from tests.keras_source.cells import blocks_of, cells_of, complete, shrunk, swapped

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


def run_file(file: pathlib.Path, results: pathlib.Path) -> None:
    """Run the cells of a file in one namespace, and write a line about each."""
    from tests.keras_source import downloads  # noqa: PLC0415 - it imports keras_dist, which the parent does not need

    downloads.install()
    namespace: dict[str, Any] = {"__name__": "__main__"}
    in_texts: dict[str, Any] = {}
    source = file.read_text("utf-8")
    cells = [(line, "cell", text) for line, text in cells_of(source)]
    for line, kind, text in sorted([*cells, *((line, "text", text) for line, text in blocks_of(source))]):
        names = namespace if kind == "cell" else {**namespace, **in_texts}
        runs = shrunk(swapped(text if kind == "cell" else complete(text, names)))
        begun = time.monotonic()
        error, trace = _executed(runs, line, file, names)
        record = {"kind": kind, "line": line, "error": error, "trace": trace, "seconds": time.monotonic() - begun}
        if kind == "text":
            record["statements"] = [len(ast.parse(some).body) for some in (runs, text)]
            in_texts = {name: value for name, value in names.items() if namespace.get(name) is not value}
        with results.open("a") as lines:
            lines.write(json.dumps(record) + "\n")


def _executed(text: str, line: int, file: pathlib.Path, namespace: dict[str, Any]) -> tuple[str, str]:
    """Run a cell, and return its error and where it was, or nothing."""
    try:
        exec(compile("\n" * (line - 1) + text, str(file), "exec"), namespace)
    except Exception as error:
        first = str(error).splitlines()
        return f"{type(error).__name__}: {first[0] if first else ''}", traceback.format_exc()
    return "", ""


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
    for name in FILES:
        if given.only and not any(part in name for part in given.only):
            continue
        file = given.source.resolve() / f"{name}.py"
        source = file.read_text("utf-8")
        counts = {"cell": len(cells_of(source)), "text": len(blocks_of(source))}
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
            records = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
        for kind, count in counts.items():
            missing = count - sum(record["kind"] == kind for record in records)
            records += [{"kind": kind, "line": 0, "error": end, "trace": ""}] * missing
        found[name] = records
        print(f"{name}: {_told(records)}", flush=True)
        for record in records:
            if record["error"]:
                print(f"  line {record['line']}, {record['kind']}: {record['error'][:200]}", flush=True)
        given.to.write_text(json.dumps(found, indent=1))
    print(f"all: {_told([record for records in found.values() for record in records])}")


def _told(records: list[dict[str, Any]]) -> str:
    """How many cells ran, and how many blocks in texts, of which so many statements are complete."""
    cells, texts = ([record for record in records if record["kind"] == kind] for kind in ("cell", "text"))
    told = f"{sum(not cell['error'] for cell in cells)} of {len(cells)} cells"
    if not texts:
        return told
    run, all_of_them = (sum(text.get("statements", (0, 0))[i] for text in texts) for i in (0, 1))
    right = sum(not text["error"] for text in texts)
    return f"{told}; {right} of {len(texts)} blocks in texts ({run} of {all_of_them} statements are complete)"


if __name__ == "__main__":
    main()
