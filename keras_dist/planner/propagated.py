"""`Propagated`: the figures of a step before compilation, and its `Collective`s."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable

from keras_dist.planner.backends import Kind
from keras_dist.planner.estimates import RATES, Estimate, interval_of
from keras_dist.planner.peak_memory import PeakMemory


@dataclasses.dataclass(frozen=True)
class Collective:
    """A collective of a step.

    Attributes:
        kind: name of the collective in StableHLO.
        axes: axes of the mesh along which devices exchange, in the order of the mesh.
        nbytes: bytes of the larger of operand and result on one device, in one turn.
        turns: number of executions in a step; 0 in a loop of unknown length, which is taken as 1.
        layer: path of the submodule that computed the operand; empty if not known.
        operation: the operation of JAX that computed the operand, as `dot_general`.
        needed_by: path of the submodule that needs the result; empty for reductions, and if not known.
        is_asked: whether a constraint in the program asks for it: a layout rule of an activation, the gathered weights
            of a fully sharded layout, or `jax.lax.with_sharding_constraint`. True for all reductions.
        weight: path of the weight that is gathered; empty for any other array.
        places: positions in the mesh of the first group of devices; empty for groups of all devices along `axes`.
            Compiled programs may split axes, into exchanges inside of slices and over slices.
        doubt: why XLA may exchange otherwise, a key of `RATES`; empty if it does not.
    """

    kind: Kind
    axes: tuple[str, ...]
    nbytes: int
    turns: int
    layer: str
    operation: str
    needed_by: str = ""
    is_asked: bool = True
    weight: str = ""
    places: tuple[int, ...] = ()
    doubt: str = ""

    @property
    def nbytes_per_step(self) -> int:
        """Bytes of all turns."""
        return self.nbytes * max(self.turns, 1)

    @property
    def interval(self) -> tuple[int, int]:
        """Least and most bytes of all turns in XLA's program."""
        return self.at(0).nbytes_per_step, self.at(1).nbytes_per_step

    def at(self, end: int) -> Collective:
        """Return the collective with the least bytes, or with the most if `end` is 1."""
        return dataclasses.replace(self, nbytes=interval_of(self.nbytes, self.doubt, self.turns)[end])


@dataclasses.dataclass(frozen=True)
class Repeated:
    """Matrix multiplications and convolutions of a submodule that devices repeat.

    Attributes:
        layer: path of the submodule; empty if not known.
        axes: axes of the mesh along which all devices compute the same.
        flops: FLOPs of one device in a step.
    """

    layer: str
    axes: tuple[str, ...]
    flops: int


@dataclasses.dataclass(frozen=True)
class Propagated:
    """Figures of a step before compilation, of one device.

    Attributes:
        collectives: the collectives, in program order.
        flops: FLOPs of matrix multiplications and convolutions, two for each product; products with padding, and with
            zeros that strides and transposed convolutions insert, do not count.
        dtype: element type of most of these FLOPs; empty without any.
        accessed_nbytes: bytes of arguments and results of the step, and of operands and results of matrix
            multiplications and convolutions: an estimate that takes all other operations as fused.
        activation_nbytes: estimate of the peak bytes of intermediate results; see `memory`.
        estimates: operations whose collectives in XLA's program may differ; empty if all collectives are known.
        scores_nbytes: the part of `accessed_nbytes` that is scores of attention, (..., queries, keys), which kernels of
            flash attention do not store.
        repeated: matrix multiplications and convolutions that devices repeat, in program order.
        sliced: for the position of an argument that is whole along axes of the mesh the axes, although a device uses
            only its slice.
        opaque: operations whose memory is not in `activation_nbytes`, such as custom kernels.
        interface_nbytes: the part of `accessed_nbytes` that is arguments and results of the step.
        memory: estimates of memory that verdicts bound.
    """

    collectives: tuple[Collective, ...]
    flops: int
    dtype: str
    accessed_nbytes: int
    activation_nbytes: int
    estimates: tuple[Estimate, ...] = ()
    scores_nbytes: int = 0
    repeated: tuple[Repeated, ...] = ()
    sliced: tuple[tuple[int, tuple[str, ...]], ...] = ()
    opaque: tuple[str, ...] = ()
    interface_nbytes: int = 0
    memory: PeakMemory = dataclasses.field(default_factory=PeakMemory)

    def nbytes_by_axes(self) -> dict[tuple[Kind, tuple[str, ...]], int]:
        """Return the bytes of a step by kind and axes of the mesh."""
        return nbytes_by_axes(self.collectives)

    def intervals(self) -> dict[tuple[Kind, tuple[str, ...]], tuple[int, int]]:
        """Return the least and most bytes of a step in XLA's program by kind and axes of the mesh.

        XLA may exchange estimates by another kind of collective, or along other axes.
        """
        most = nbytes_by_axes(each.at(1) for each in self.collectives)
        least = nbytes_by_axes(
            each.at(0) for each in self.collectives if not (each.doubt and RATES[each.doubt].may_change)
        )
        return {key: (least.get(key, 0), nbytes) for key, nbytes in most.items()}

    @property
    def moved_interval(self) -> tuple[int, int]:
        """Least and most bytes that a device exchanges in a step of XLA's program; equal without estimates."""
        least, most = (sum(each.interval[end] for each in self.collectives) for end in (0, 1))
        return least, most + self.unknown_nbytes

    @property
    def unknown_nbytes(self) -> int:
        """Most bytes of exchanges of estimates that are not in `collectives`."""
        inside = sum(each.interval[1] for each in self.collectives if each.doubt)
        return max(0, sum(each.most_nbytes for each in self.estimates) - inside)

    def traffic_nbytes(self, vector_nbytes: int) -> float:
        """Return the bytes read and written in main memory by a chip with this vector memory [bytes].

        The share of the intermediate results that fits into the vector memory is taken as never leaving it.
        """
        kept = min(1.0, vector_nbytes / self.activation_nbytes) if self.activation_nbytes else 1.0
        return self.interface_nbytes + (self.accessed_nbytes - self.interface_nbytes) * (1 - kept)


def nbytes_by_axes(collectives: Iterable[Collective]) -> dict[tuple[Kind, tuple[str, ...]], int]:
    """Return the bytes of a step by kind and axes of the mesh."""
    found: collections.Counter[tuple[Kind, tuple[str, ...]]] = collections.Counter()
    for collective in collectives:
        found[collective.kind, collective.axes] += collective.nbytes_per_step
    return dict(found)
