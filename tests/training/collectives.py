"""Reads the collectives out of a compiled program."""

from keras_dist.planner.hlo import KINDS, parse_program
from keras_dist.planner.hlo_text import arrays_of


def collectives_of(lowered):
    """`(kind, [shapes of its results])` for every collective in the compiled program."""
    return collectives_in(lowered.compile())


def collectives_in(program):
    """The same of a program that is compiled."""
    return [
        (instruction.opcode.removesuffix("-start"), [shape for _, shape in arrays_of(instruction.result)])
        for computation in parse_program(program.as_text()).computations.values()
        for instruction in computation.instructions.values()
        if instruction.opcode.removesuffix("-start") in KINDS
    ]


def of_kind(collectives, kind):
    """The results of the collectives of one kind."""
    return [shapes for found, shapes in collectives if found == kind]
