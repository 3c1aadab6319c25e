"""Checkpoints of 500 MB on eight devices: saving and restoring against bare orbax, and how long a loop stands still.

Orbax writes and reads the same arrays with its PyTree handler as it comes; ours checks every file, too. The peak is
that of a fresh process, above what it has before the model is made: the high-water mark of its resident memory from the
birth of the weights to the end of restoring, on another mesh than the one that has written.
"""

from __future__ import annotations

import dataclasses
import pathlib
import shutil
import tempfile
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from orbax import checkpoint as orbax

import keras_dist as kd
from benchmarks import measure as m
from keras_dist.checkpoint import CheckpointManager, Stored
from keras_dist.checkpoint.manifest import NAME, write_manifest

WIDTH, LAYERS = 3952, 8
DEVICES = 8
BLOCKS_AIM, BARE_AIM, MANIFEST_AIM, PEAK_AIM = 0.05, 1 / 0.9, 0.1, 1.25


def make_model(width: int, shape: tuple[int, ...]) -> Any:
    """Matrices of this width, sharded over a mesh."""
    mesh = kd.DeviceMesh(shape, ("batch", "model")[: len(shape)])
    layouts = kd.LayoutMap(mesh)
    layouts[".*kernel"] = ("batch", None) if len(shape) == 1 else (None, "model")
    with kd.ModelParallel(layout_map=layouts, batch_dim_name="batch").scope():
        layers = [kd.layers.Dense(width, use_bias=False, name=f"d{index}") for index in range(LAYERS)]
        model = kd.Sequential([kd.Input((width,)), *layers])
    model.compile("sgd", "mse")
    return model


def seconds(run: Callable[[], Any]) -> float:
    """How long something takes, until its arrays are there."""
    began = time.perf_counter()
    jax.block_until_ready(run())
    return time.perf_counter() - began


def times(folder: pathlib.Path, rounds: int) -> dict[str, list[float]]:
    """What saves and restores take, in turns, on one mesh."""
    model = make_model(WIDTH, (DEVICES,))
    like = {
        name: jax.ShapeDtypeStruct(one.shape, one.dtype, sharding=one.sharding)
        for name, one in model.snapshot().arrays.items()
    }
    how = {name: orbax.ArrayRestoreArgs(sharding=one.sharding) for name, one in like.items()}
    sync = CheckpointManager(model, folder / "sync", 1)
    behind = CheckpointManager(model, folder / "async", 1, asynchronous=True)
    bare = folder / "orbax"

    def numbered(index: int) -> Any:
        return dataclasses.replace(model.snapshot(), step=index)

    def bare_save() -> None:
        with orbax.Checkpointer(orbax.PyTreeCheckpointHandler()) as checkpointer:
            checkpointer.save(bare, args=orbax.args.PyTreeSave(model.snapshot().arrays))

    def bare_restore() -> Any:
        with orbax.Checkpointer(orbax.PyTreeCheckpointHandler()) as checkpointer:
            return checkpointer.restore(bare, args=orbax.args.PyTreeRestore(item=like, restore_args=how))

    def restore() -> Any:
        sync.restore_or_initialize()
        return model.snapshot().arrays

    def manifest() -> None:
        path = pathlib.Path(sync.latest_checkpoint or "")
        (path / NAME).unlink()
        write_manifest(path)

    runs: dict[str, Callable[[int], float]] = {
        "save": lambda index: seconds(lambda: sync.save(numbered(index))),
        "orbax saves": lambda index: seconds(bare_save),
        "restore": lambda index: seconds(restore),
        "orbax restores": lambda index: seconds(bare_restore),
        "save returns": lambda index: seconds(lambda: behind.save(numbered(index))),
        "manifest": lambda index: seconds(manifest),
    }
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for index in range(1 + rounds):
        for name, run in runs.items():
            found = run(index)
            behind.wait_until_finished()
            if index:
                taken[name].append(found)
        shutil.rmtree(bare)
    sync.close()
    behind.close()
    return taken


def measure(small: str, large: str) -> tuple[float, float]:
    """The peak of restoring `large` on another mesh, and the bytes that are there in the end.

    What a process has beside, after it has restored `small`, does not count.
    """
    kd.use_cpu_devices(DEVICES)
    make_model(8, (2, 4)).restore(Stored(pathlib.Path(small)))
    before = resident_bytes("VmRSS")
    model = make_model(WIDTH, (2, 4))
    state = sum(shard.data.nbytes for one in model.snapshot().arrays.values() for shard in one.addressable_shards)
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # the high-water mark begins anew
    model.restore(Stored(pathlib.Path(large)))
    return resident_bytes("VmHWM") - before, state


def resident_bytes(name: str) -> int:
    """What the system notes of this process under this name."""
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def run(quick: bool) -> list[dict[str, Any]]:
    """Measure."""
    kd.use_cpu_devices(DEVICES)
    rounds = 2 if quick else 7
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        taken = times(folder, rounds)
        paths = {"small": folder / "small", "large": folder / "large"}
        for name, width in (("small", 8), ("large", WIDTH)):
            make_model(width, (DEVICES,)).save(paths[name])
        peaks = [
            m.in_process(__spec__.name, **{name: str(path) for name, path in paths.items()})
            for _ in range(1 if quick else 3)
        ]
    return [
        m.result("save, checked / bare orbax", taken["save"], taken["orbax saves"], "s", 1, BARE_AIM),
        m.result("restore, checked / bare orbax", taken["restore"], taken["orbax restores"], "s", 1, BARE_AIM),
        m.result(
            "save behind the loop, until it returns / save", taken["save returns"], taken["save"], "s", 1, BLOCKS_AIM
        ),
        m.result("checksums of all files / save", taken["manifest"], taken["save"], "s", 1, MANIFEST_AIM),
        m.result("checksums of all files / bare orbax's save", taken["manifest"], taken["orbax saves"], "s"),
        m.result("peak of a restore on another mesh / state", *np.transpose(peaks).tolist(), "MB", 1e6, PEAK_AIM),
    ]


if __name__ == "__main__":
    m.main("checkpoint", "checkpoints of 500 MB, 8 devices", run, __doc__)
