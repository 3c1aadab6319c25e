"""`BatchPlacement`: the assignment of rows to devices, and their transfer.

Small data (64 MiB on CPU devices, an eighth of free memory elsewhere) stays on the devices if there are enough steps,
one for each 256 KiB, to pay for the transfer. Rows are flat, which XLA gathers in half the time, and in one copy that
all CPU devices of a process use.
"""

from __future__ import annotations

import jax

from keras_dist.data.adapters import Source
from keras_dist.data.arrays import ArraySource
from keras_dist.data.batch import Batch
from keras_dist.data.batching import Batching, Streaming
from keras_dist.data.source import RowSource
from keras_dist.distribution.consistency import is_shared
from keras_dist.distribution.process_rows import HostSlice
from keras_dist.distribution.strategy import Distribution
from keras_dist.jobs.same_rows import SameRows
from keras_dist.training.activations import check_tensor_rules
from keras_dist.training.compile_config import StepOptions
from keras_dist.training.executions import (
    ResidentFeed,
    StreamFeed,
    compare_call,
    data_layouts,
    earns_residence,
    fits_on_devices,
    is_put_by_dispatch,
    placed,
    stack_of,
)
from keras_dist.training.graph import ModuleGraph
from keras_dist.training.loop import MAX_IN_FLIGHT, Mode
from keras_dist.training.throughput import StepsTuner
from keras_dist.training.uneven_rows import rows_multiple

Examples = Batching | Streaming
Feed = StreamFeed | ResidentFeed

_CALLS: dict[Mode, str] = {"train": "fit", "test": "evaluate", "predict": "predict"}

WORTH_COMPILING = 1000
MOST_LENGTHS = 8
"""A dataset of another length than the first one is resident for so many batches, and up to so many lengths are: each
compiles programs, which takes about as long as a thousand dispatches."""


class BatchPlacement:
    """Assigns rows to devices: pads batches, selects the rows of this process, and chooses the feed of the steps."""

    def __init__(self, graph: ModuleGraph, distribution: Distribution, options: StepOptions) -> None:
        self._graph, self._distribution, self._options = graph, distribution, options
        self._tuners: dict[Mode, StepsTuner] = {"train": StepsTuner(), "test": StepsTuner()}
        self._resident_sizes: dict[Mode, set[tuple[int, int]]] = {}
        self._compared: dict[str, SameRows | None] = {}
        self._is_checked = False

    def feed(self, mode: Mode, examples: Examples, epochs: int = 1, one_by_one: bool = False) -> Feed:
        """Return the feed of the batches; `one_by_one` runs single steps unless `compile` chose otherwise."""
        stack = self._options.steps_per_execution
        if not self._options.jit or stack == 1 or (stack is None and one_by_one):
            return self.stream(mode, examples)
        if isinstance(examples, Streaming):
            return self.stream(mode, examples, stack or 1)
        source, batch_size = examples.source, examples.batch_size
        sizes = source.length, batch_size
        # programs that gather rows are compiled for their number: further lengths must be worth a compilation
        known = self._resident_sizes.setdefault(mode, {sizes})
        if sizes in known or (len(known) < MOST_LENGTHS and epochs * source.length >= WORTH_COMPILING * batch_size):
            known.add(sizes)
        is_earned = earns_residence(source, epochs * examples.steps_of_epoch)
        if sizes in known and is_earned and fits_on_devices(source, self._distribution):
            tuner = self._tuners[mode] if stack is None else StepsTuner(stack)
            return ResidentFeed(examples, self._multiple(source), self._distribution, tuner)
        return self.stream(mode, examples, stack or stack_of(source, batch_size, epochs))

    def stream(self, mode: Mode, examples: Examples, stack: int = 1) -> StreamFeed:
        """Return the feed that transfers this many batches at a time from the host."""
        source = examples.source
        ahead, share = max(0, self._options.prefetch - MAX_IN_FLIGHT), self._share(source)
        same = self._same(f"{source.name}data of {'fit' if source.name else _CALLS[mode]}", share)
        return StreamFeed(examples, self._multiple(source), self._distribution, stack, ahead, share, same)

    def compare_call(self, call: str, source: ArraySource) -> None:
        """Compare the batches of a call among all processes that must pass the same rows."""
        if call not in self._compared:
            self._compared[call] = self._same(f"batches of {call}", self._share(source))
        same = self._compared[call]
        if same is not None:
            compare_call(same, source)

    def _same(self, about: str, share: HostSlice | None) -> SameRows | None:
        if share is None or not is_shared(self._distribution.device_mesh):
            return None
        return SameRows.where_meant(about, share.groups)

    def whole(self, source: RowSource) -> Batch:
        """Return all rows as one batch, in a job on the devices."""
        return self._global(source.whole(self._multiple(source), self._share(source)))

    def example(self, examples: Examples) -> Batch:
        """Return a batch of the examples for tracing, in a job on the devices."""
        return self._global(examples.example(self._multiple(examples.source), self._share(examples.source)))

    def _multiple(self, source: Source) -> int:
        """Return the multiple to which batches are padded; check rules for activations and inputs first."""
        if not self._is_checked:
            check_tensor_rules(self._graph.specs, self._graph.module_paths, source.x, self._distribution)
            self._is_checked = True
        return rows_multiple(source.x, self._distribution)

    def _share(self, source: Source) -> HostSlice | None:
        """Return the part of batches that this process gathers; None in a mesh of one process."""
        if not self._distribution.device_mesh.is_multi_process:
            return None
        layouts = jax.tree.leaves(data_layouts(source.like, self._distribution))
        is_own = not self._distribution.auto_shard_dataset
        return HostSlice(tuple(layout.backend_layout for layout in layouts), self._multiple(source), is_own=is_own)

    def _global(self, batch: Batch) -> Batch:
        return batch if is_put_by_dispatch(batch) else placed(batch, self._distribution)
