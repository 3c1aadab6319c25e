"""`DimGraph`: connects the dims of a traced step by Shardy's sharding rules, and notes events of dims.

A sharding rule maps the dims of operands and results of an operation to common factors. Names of layers or parameters
are not used. Events of products, convolutions and lookups give a class of dims its name.

Dims are classified by union-find over Shardy's sharding rules of all operations in the traced step. Names of layers and
tables of primitives do not count: a renamed model must get the same layout, and a foreign module one at all.
"""

from __future__ import annotations

import collections
import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

from keras_dist._unstable import shardy
from keras_dist.planner.exchanges import labels_of, numbers_of
from keras_dist.planner.sharded_module import ShardedModule, indexed_dims, product_dims, returned_by, text_of

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# the operations of MLIR have no types
Event = Literal[
    "produced", "consumed", "looked up", "indexed", "stacked", "batched", "contracted", "channel", "spatial", "reduced"
]
"""Events of a dim. In products with weights: `produced`, `consumed` (contracted) or `stacked` (a batching dim). In
products of activations: `batched` or `contracted`. `indexed`: a dim that tokens index; `looked up`: its other dims. In
convolutions: `channel` or `spatial`. `reduced`: a maximum is taken over the dim."""

PASSES = "sdy-flatten-call-graph,func.func(sdy-populate-op-sharding-rules)"
"""Passes that prepare a lowered step for `DimGraph`; each call gets a separate copy of its function."""

_Node = tuple[Any, int]  # a value and one of its dims


class DimGraph:
    """Union-find over the dims of all values of a module after `PASSES`."""

    def __init__(self, module: Any, is_batch: Sequence[bool]) -> None:
        self._module = ShardedModule(module)  # kept alive: its values are freed with it
        self._classes, self._tight = _UnionFind(), _UnionFind()
        self._events: list[tuple[_Node, Event]] = []
        self._splits: list[tuple[_Node, _Node, int]] = []  # a dim; its minor factor, and the size of the major one
        self._origins: dict[Any, frozenset[int] | None] = {}  # weights that a value depends on; None: on the batch
        self._tokens: set[Any] = set()
        self._used: set[frozenset[int]] = set()
        main = self._module.block("main")
        self.arguments = list(main.arguments)
        for index, (argument, of_batch) in enumerate(zip(self.arguments, is_batch, strict=True)):
            self._origins[argument] = None if of_batch else frozenset([index])
            if of_batch and _is_integer(argument):
                self._tokens.add(argument)
        rows = [argument for argument, of_batch in zip(self.arguments, is_batch, strict=True) if of_batch]
        self._join([(argument, 0) for argument in rows if argument.type.rank])
        self._walk(main)

    def class_of(self, argument: int, dim: int) -> _Node:
        """Return the representative of the class of a dim of an argument of `main`."""
        return self._classes.find((self.arguments[argument], dim))

    def parts_of(self, argument: int, dim: int) -> int:
        """Return the number of parts of a dim: its size, or the number of heads of a projection.

        A dim of heads is later split in two, of which products of activations contract the minor.
        """
        value = self.arguments[argument]
        root = self._tight.find((value, dim))
        return self._parts[root] if root in self._parts else value.type.shape[dim]

    @functools.cached_property
    def _parts(self) -> dict[_Node, int]:
        """Number of parts of each dim that is split."""
        contracted = {self._classes.find(node) for node, event in self._events if event == "contracted"}
        found: dict[_Node, int] = {}
        for node, minor, parts in self._splits:
            if self._classes.find(minor) in contracted:
                root = self._tight.find(node)
                found[root] = math.gcd(found.get(root, 0), parts)
        return found

    def events(self) -> dict[_Node, list[Event]]:
        """Return the events of each class, in program order."""
        found: dict[_Node, list[Event]] = collections.defaultdict(list)
        for node, event in self._events:
            found[self._classes.find(node)].append(event)
        return dict(found)

    def order(self) -> dict[_Node, int]:
        """Return the position of each class in the order of first use."""
        found: dict[_Node, int] = {}
        for number, node in enumerate(self._classes):
            found.setdefault(self._classes.find(node), number)
        return found

    def _join(self, nodes: Iterable[_Node], is_tight: bool = True) -> None:
        first, *others = nodes or [None]
        for other in others:
            self._classes.join(first, other)  # pyright: ignore[reportArgumentType]
            if is_tight:
                self._tight.join(first, other)  # pyright: ignore[reportArgumentType]

    def _same(self, *values: Any) -> None:
        """Join the dims of values of one shape, except constants, since equal constants are often one value."""
        known = [value for value in values if hasattr(value.type, "rank") and self._origins.get(value) != frozenset()]
        for dim in range(known[0].type.rank if known else 0):
            self._join([(value, dim) for value in known])

    def _walk(self, block: Any) -> None:
        for each in block.operations:
            operation = each.operation
            if operation.name == "func.call":
                self._call(operation)
            elif operation.name == "stablehlo.while":
                self._loop(operation)
            elif operation.name in ("stablehlo.case", "stablehlo.if"):
                self._branches(operation)
            elif operation.name == "stablehlo.optimization_barrier":
                for operand, result in zip(operation.operands, operation.results, strict=True):
                    self._take_over(operand, result)
            elif operation.results:
                self._trace(operation)
                self._note(operation)
                self._apply_rule(operation)

    def _call(self, operation: Any) -> None:
        block = self._module.block(text_of(operation.attributes["callee"]))
        for given, argument in zip(operation.operands, block.arguments, strict=True):
            self._take_over(given, argument)
        self._walk(block)
        for value, result in zip(returned_by(block), operation.results, strict=True):
            self._take_over(value, result)

    def _loop(self, operation: Any) -> None:
        condition, body = (region.blocks[0] for region in operation.regions)
        returned = returned_by(body)
        for index, (given, argument) in enumerate(zip(operation.operands, body.arguments, strict=True)):
            self._take_over(given, argument)
            if returned[index] != argument:  # values that change each turn depend on the batch; counters are constants
                self._origins[argument] = None if argument.type.rank else frozenset()
        self._walk(body)
        for given, argument, value, result in zip(
            operation.operands, body.arguments, returned, operation.results, strict=True
        ):
            self._origins[result] = self._origins[argument]
            self._same(given, argument, value, result, condition.arguments[argument.arg_number])

    def _branches(self, operation: Any) -> None:
        for region in operation.regions:
            self._walk(region.blocks[0])
        for index, result in enumerate(operation.results):
            self._origins[result] = None
            self._same(result, *(returned_by(region.blocks[0])[index] for region in operation.regions))

    def _take_over(self, value: Any, other: Any) -> None:
        self._origins[other] = self._origin(value)
        if value in self._tokens:
            self._tokens.add(other)
        self._same(value, other)

    def _origin(self, value: Any) -> frozenset[int] | None:
        return self._origins.get(value, frozenset())

    def _trace(self, operation: Any) -> None:
        """Note the origins of the results."""
        origins = [self._origin(operand) for operand in operation.operands]
        is_product = operation.name == "stablehlo.dot_general" and frozenset() in origins  # with a constant gradient
        made_of = None if None in origins or is_product else frozenset[int]().union(*[each for each in origins if each])
        are_tokens = bool(origins) and all(
            value in self._tokens or origin == frozenset()
            for value, origin in zip(operation.operands, origins, strict=True)
        )
        for result in operation.results:
            self._origins[result] = made_of
            if are_tokens and made_of is None and _is_integer(result):
                self._tokens.add(result)

    def _apply_rule(self, operation: Any) -> None:
        rule = shardy.factors_of(operation)
        if rule is None:
            if operation.name == "sdy.sharding_constraint":
                self._same(operation.operands[0], operation.results[0])
            return
        tensors, sizes = rule
        whole: dict[int, list[_Node]] = collections.defaultdict(list)
        joined: list[tuple[_Node, list[int]]] = []
        for value, dims in zip([*operation.operands, *operation.results], tensors, strict=True):
            if self._origin(value) == frozenset():
                continue
            for dim, factors in enumerate(dims):
                factors = [factor for factor in factors if sizes[factor] > 1]
                if math.prod(sizes[factor] for factor in factors) != value.type.shape[dim]:
                    continue  # only a part of the dim, as in a slice
                if len(factors) == 1:
                    whole[factors[0]].append((value, dim))
                elif factors:
                    joined.append(((value, dim), factors))
        for nodes in whole.values():
            self._join(nodes)
        for node, (major, *minor) in joined:
            if major in whole:
                self._join([whole[major][0], node], is_tight=False)
            self._splits += [(node, whole[factor][0], sizes[major]) for factor in minor if factor in whole]

    def _note(self, operation: Any) -> None:
        if operation.name == "stablehlo.dot_general":
            self._note_product(operation)
        elif operation.name == "stablehlo.convolution":
            self._note_convolution(operation)
        elif operation.name in ("stablehlo.gather", "stablehlo.dynamic_gather"):
            self._note_lookup(operation)
        elif operation.name == "stablehlo.reduce" and self._origin(operation.operands[0]) is None:
            inner = operation.regions[0].blocks[0].operations[0].operation.name
            if inner == "stablehlo.maximum":
                self._mark(operation.operands[0], numbers_of(operation.attributes["dimensions"]), "reduced")

    def _note_product(self, operation: Any) -> None:
        sides = [*zip(operation.operands, product_dims(operation), strict=True)]
        if all(self._origin(value) is None for value, _ in sides):
            value, (batching, contracting) = sides[0]
            self._mark(value, batching, "batched")
            self._mark(value, contracting, "contracted")
            return
        for value, (batching, contracting) in sides:
            if self._is_first_use(value):
                free = [dim for dim in range(value.type.rank) if dim not in (*batching, *contracting)]
                self._mark(value, batching, "stacked")
                self._mark(value, contracting, "consumed")
                self._mark(value, free, "produced")

    def _note_convolution(self, operation: Any) -> None:
        if not self._is_first_use(operation.operands[1]):
            return
        for value, labels, marks in zip(operation.operands, labels_of(operation), ("f", "io"), strict=False):
            for dim, mark in enumerate(labels):
                if mark in marks:
                    self._mark(value, [dim], "channel")
                elif marks == "f" and mark != "b":
                    self._mark(value, [dim], "spatial")

    def _note_lookup(self, operation: Any) -> None:
        table, indices = operation.operands[0], operation.operands[1]
        if indices not in self._tokens:
            return
        indexed = indexed_dims(operation)
        self._mark(table, indexed, "indexed")
        if self._is_first_use(table):
            self._mark(table, [dim for dim in range(table.type.rank) if dim not in indexed], "looked up")

    def _mark(self, value: Any, dims: Iterable[int], event: Event) -> None:
        for dim in dims:
            self._events.append(((value, dim), event))

    def _is_first_use(self, value: Any) -> bool:
        """Whether a value depends on weights alone, and none of them was used before: not so in the backward pass."""
        origin = self._origin(value)
        if not origin or origin in self._used:
            return False
        self._used.add(origin)
        return True


class _UnionFind:
    def __init__(self) -> None:
        self._parents: dict[_Node, _Node] = {}

    def __iter__(self) -> Iterator[_Node]:
        return iter(list(self._parents))

    def find(self, node: _Node) -> _Node:
        parents = self._parents
        while parents.setdefault(node, node) != node:
            parents[node] = parents[parents[node]]
            node = parents[node]
        return node

    def join(self, node: _Node, other: _Node) -> None:
        self._parents[self.find(other)] = self.find(node)


def _is_integer(value: Any) -> bool:
    return str(getattr(value.type, "element_type", "")).removeprefix("u").startswith("i")
