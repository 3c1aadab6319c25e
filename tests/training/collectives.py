"""Reads the collectives out of a compiled program."""

import collections

from keras_dist.planner.hlo import KINDS, parse_program


def collectives_of(lowered):
    """`(kind, [shapes of its results])` for every collective in the compiled program."""
    return collectives_in(lowered.compile())


def collectives_in(program):
    """The same of a program that is compiled."""
    found, left = {}, [parse_program(program.as_text()).entry]
    while left:
        computation = left.pop()
        found[id(computation)] = computation
        called = [
            each for line in computation.instructions.values() for parts in line.called.values() for each in parts
        ]
        left += [each for each in called if id(each) not in found]
    return [
        (instruction.opcode.removesuffix("-start"), [array.shape for array in instruction.arrays])
        for computation in found.values()
        for instruction in computation.instructions.values()
        if instruction.opcode.removesuffix("-start") in KINDS
    ]


def of_kind(collectives, kind):
    """The results of the collectives of one kind."""
    return [shapes for found, shapes in collectives if found == kind]


def nbytes_by_axes(compiled, mesh):
    """Bytes that a run of a compiled program moves by kind and axes of the mesh, as `propagate` gives them.

    XLA on CPUs has no reduce-scatter: an all-reduce of which each device takes a slice counts as what it is.
    """
    found = collections.Counter()
    for each in parse_program(compiled.as_text()).collectives(mesh):
        found[each.kind, each.axes] += each.nbytes_per_step
    return dict(found)
