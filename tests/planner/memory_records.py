"""Recorded memory of the models of `memory_bank`, by the estimate and by XLA, and the page that lists it.

`python -m tests.planner.memory_records v5e:2x4 MLP/fsdp` compiles cases and records them, without names all; TPUs need
the extra `tpu`, and minutes for each case. Without arguments it writes the page again.
"""

import dataclasses
import json
import pathlib
import sys

FILE = pathlib.Path(__file__).with_suffix(".json")
PAGE = pathlib.Path(__file__).parents[2] / "docs/concepts/memory_estimates.md"
WITHIN, LEAST = 0.15, 0.95


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Bytes of a device: state and batch, and intermediate results by the estimate and by XLA."""

    name: str
    layout: str
    rows: int
    state: int
    estimate: int
    compiled: int

    @property
    def ratio(self) -> float:
        """The estimate of the peak, divided by XLA's peak."""
        return (self.state + self.estimate) / (self.state + self.compiled)


def recorded() -> dict[str, list[Comparison]]:
    """Return the recorded comparisons by target."""
    return {target: [Comparison(**each) for each in cases] for target, cases in json.loads(FILE.read_text()).items()}


def record(target: str, found: list[Comparison]) -> None:
    """Add comparisons to the file, or replace them in it."""
    cases = recorded()
    known = {(each.name, each.layout): each for each in [*cases.get(target, []), *found]}
    cases[target] = sorted(known.values(), key=lambda each: (each.name.lower(), each.layout))
    lines = {name: [json.dumps(dataclasses.asdict(each)) for each in those] for name, those in cases.items()}
    text = ",\n".join(f'"{name}": [\n' + ",\n".join(those) + "\n]" for name, those in lines.items())
    FILE.write_text("{\n" + text + "\n}\n")


def summary(cases: list[Comparison]) -> str:
    """Return a sentence on the ratios."""
    ratios = sorted(each.ratio for each in cases)
    within, below = sum(abs(each - 1) <= WITHIN for each in ratios), sum(each < LEAST for each in ratios)
    counts = f"{within} of {len(ratios)} within 15 % of XLA's peak, {below} below {LEAST} of it"
    return f"{counts}; smallest ratio {ratios[0]:.2f}, median {ratios[len(ratios) // 2]:.2f}, largest {ratios[-1]:.2f}."


def page() -> str:
    """Return the text of the page."""
    parts = [_HEAD]
    for target, cases in sorted(recorded().items(), reverse=True):
        lines = [f"## {_TITLES[target]}", "", summary(cases), "", _COLUMNS, "|---|---|---:|---:|---:|---:|---:|"]
        for each in cases:
            sizes = " | ".join(f"{size / 2**20:,.0f}" for size in (each.state, each.estimate, each.compiled))
            lines.append(f"| {each.name} | {each.layout} | {each.rows:,} | {sizes} | {each.ratio:.2f} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


_TITLES = {"v5e:2x4": "TPU v5e, 8 devices", "cpu:8": "8 CPU devices"}
_COLUMNS = "| model | layout | rows | state and batch | estimate | compiled | peak, estimate / compiled |"
_HEAD = """# Memory estimates

A plan has three figures for the memory of a device. State and batch are *exact*. Intermediate results are an estimate
from the *propagated* program. The *compiled* peak is XLA's.

Before compilation, a plan says "fits" only if all of this fits: state, batch, the batches that `fit` transfers ahead,
the largest dataset that `fit` would keep on the device, and a bound of intermediate results. The bound is 1.4 times
the estimate for TPUs, and 3 times for others. Between the bounds the plan says "may fit". It says "unknown" where
the program contains operations whose memory the estimate does not include: FFTs, Cholesky factors, triangular solves,
large sorts, elements at steps (`x[::2]`, `jax.lax.associative_scan`), and kernels, except Pallas kernels for TPUs.
With `--compile`, the default, the plan has the peak of XLA's program if the extra for the target is installed. The exit
code of `keras-dist plan` is 1 for a step that does not fit, and 4 where this is not known.

## What the estimate models

- Results of products, convolutions, lookups, reductions, collectives and loops are allocated until their last use.
- Elementwise operations are computed where they are needed. For GPUs the results of costly ones, such as `exp`, that
  have several readers are kept, and rows that several operations broadcast, and the operands of products.
- For TPUs and GPUs a result of several readers is kept if it takes less than the arrays from which it would be computed
  again. TPUs also keep it if this reads fewer arrays, such as a sum of two arrays with three readers.
- XLA for TPUs stores a product together with its reductions, such as logits with their maximum. It stores nothing in
  place of such a product.
- TPUs compute costly values again, too, unless a loop stores them for its backward pass. Elementwise operations after a
  product are computed in it, and stored in place of its result. What `remat` keeps for the backward pass is stored.
- TPUs compute lookups of one element of each row, such as in the cross-entropy, by comparing indices.
- A product of which one operand is a vector is a multiplication and a reduction on TPUs.
- XLA for TPUs rounds float32 operands of products of default precision to bfloat16. Arrays that only such products read
  take half the bytes, also in the stacked arrays of loops. Operands of products are computed in the product.
- XLA for TPUs pads the channels of images, or the batch where that takes less, to multiples of 128 elements. It pads
  two dims of operands and results of products, but no batch dims, to 8 and 128, and so what has the same tiles: arrays
  transposed, scores scaled. The estimate adds 5 % of this padding, an allowance for copies with other tiles.
- XLA for TPUs copies a table of fewer than 128 features before lookups, if the copy takes at most 200 MiB, and pads the
  rows that are looked up. `FullySharded` tables for lookups are gathered before all else.
- Donated arguments, views and updates in place need no memory of their own.

For CPUs the estimate follows XLA's passes, in their order:

- Equal operations are computed once, except collectives, and operations on both sides of what `remat` recomputes.
- A division by a broadcast array is a product with its reciprocal. Values that are added to an array and scattered into
  zeros are scattered into the array.
- Operands of batched products are copied if their dims are in another order: batch, rows, contracted dims.
- Reductions, and elementwise operations and products around them, are kernels of a library. These read their operands
  from memory.
- Other elementwise operations are fused into each operation that reads them. Costly ones with several readers, and
  those that read more than they make and have a reader without fusion, are kept.
- Independent reductions of gradients over equal axes are joined.
- Kernels run breadth first: first in, first out. Weights are gathered early, and so are recomputed values: XLA for CPUs
  undoes `remat` outside of loops.
- Results are stored in place of equal shapes only.

XLA places arrays in one allocation with gaps between them. For these the estimate for CPUs has an allowance of 2 %. It
is calibrated on the table: without it one layout, U-Net, is 0.948 of XLA's peak.

It does not model the 128 MiB of VMEM, in which XLA for TPUs keeps arrays: small programs need less HBM than estimated.
Nor does it model when XLA for TPUs computes gradients of weights, or its copies of reversed images for gradients of
transposed convolutions.
CPU devices have no memory limit, so no verdict depends on it there. No GPU was measured. No plan for a device with one
byte less than a recorded peak says "fits": a test tries each layout.

The rules for TPUs were found on two thirds of these models. Held out were 8 LSTM, state space, BERT, DiT, DLRM, U-Net,
the scanned decoder, and the decoder with many tokens. One rule, products with a vector, came from them. Rules on sums,
products with reductions, tiles of transposed arrays, rows of tables, and several arrays in a barrier of `remat` were
found on DiT, BERT, the chunked state space, DLRM, and the decoder with remat.

New models were then compared with XLA's schedule for v5e. Of 12 layouts, 10 were within 15 %. Two led to more rules,
scaled scores and tables gathered first: a post-norm encoder (0.93), and two towers of tables under `FullySharded`
(0.77). Of 14 layouts after that, 13 were within 15 %, and one below 0.95: linear attention (1.08,
0.99), a decoder (1.00), an encoder-decoder (1.01), a ViT (0.99), 4 LSTM (1.05), 6 layers of GPT-2 (1.03), wide dense
layers (1.04 to 1.14), 8 tables (1.00, and 2.00 by VMEM), and a U-Net of width 48 (0.94).

The rules for CPUs are from XLA's source, and were compared with its programs for these models. Ten layouts were
compared only afterwards, with other sizes or new models. The ratios are 0.90 for a graph network, whose arrays XLA
places with gaps of a sixth; 0.98 for a U-Net of 16 channels; 0.99 for 2 LSTM; 1.02 for 10 linear layers; 1.02 and 1.03
for a decoder of 6 blocks, fsdp and megatron; 1.04 for a ConvNeXt; 1.09 for a state space of 3 layers; 1.09 and 1.16 for
a Perceiver, megatron and fsdp.

The tables compare train steps with Adam, compiled by jax 0.10.2 and libtpu 0.0.42 at XLA's default optimization level,
in MiB on one device. `python -m tests.planner.memory_records` writes this page."""


if __name__ == "__main__":
    import keras_dist as kd

    kd.use_cpu_devices(8)
    from tests.planner import memory_bank

    if len(sys.argv) > 1:
        cases = [(name, layout) for name, case in memory_bank.BANK.items() for layout in case.layouts]
        for name, layout in cases:
            if len(sys.argv) == 2 or f"{name}/{layout}" in sys.argv[2:]:
                record(sys.argv[1], [memory_bank.compared(name, layout, sys.argv[1])])
    PAGE.write_text(page())
