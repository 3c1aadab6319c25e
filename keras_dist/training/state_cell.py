"""`StateCell`: the one owner of a model's arrays."""

from __future__ import annotations

import contextlib
import itertools
import threading
import weakref
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from keras_dist import _jax
from keras_dist._types import ArrayLike, PyTree
from keras_dist.distribution import liveness
from keras_dist.distribution.mesh import DeviceMesh
from keras_dist.distribution.placement import place_copy
from keras_dist.distribution.plan import LayoutPlan, Row
from keras_dist.distribution.strategy import Distribution
from keras_dist.errors import ModelError
from keras_dist.training.graph import ModuleGraph
from keras_dist.training.interrupt import interrupt_between_steps
from keras_dist.training.optimization import Optimizer
from keras_dist.training.train_state import TrainState

_clock = itertools.count(1)
_lock_of_linked_cells = threading.RLock()  # one for all, so that no two threads wait for each other


class SharedLock:
    """A reentrant lock, which becomes the one of all linked cells when its cell is linked."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        while True:
            lock = self._lock
            lock.acquire()
            if lock is self._lock:
                return
            lock.release()  # another thread has linked the cell in the meantime

    def __exit__(self, *exception: object) -> None:
        self._lock.release()

    @staticmethod
    @contextlib.contextmanager
    def joining(*locks: SharedLock) -> Iterator[None]:
        """Wait for the threads that hold the locks; from then on all of them are one. None is held by this thread."""
        with _lock_of_linked_cells, contextlib.ExitStack() as held:
            for lock in locks:
                held.enter_context(lock._lock)
                lock._lock = _lock_of_linked_cells
            yield


class _SharedVariable:
    """One variable of several models, each of which has a copy where its plan says.

    Attributes:
        value: what was written last; it lives until the next step of the model that wrote it.
        version: when that was.
        cells: those of the models.
    """

    def __init__(self, value: jax.Array) -> None:
        self.value, self.version = value, 0
        self.cells: weakref.WeakSet[StateCell] = weakref.WeakSet()

    def write(self, value: jax.Array) -> int:
        """Note what one of the models has written, and return its version."""
        self.value, self.version = value, next(_clock)
        return self.version


class StateCell:
    """The one owner of a model's arrays. The loop swaps its state after each dispatch; all others read copies.

    Attributes:
        graph: the module without its arrays.
        plan: where the variables live.
        state_plan: where everything in the state lives.
        state: the current arrays. Consumed by the next train step: never hand it out.
        arrays: the current arrays as a flat list: what the steps take and give, for trees cost them time.
        lock: held from reading the state until what uses it is dispatched, or until there is a new state, so that no
            thread dispatches on buffers that another has just donated.
    """

    def __init__(self, graph: ModuleGraph, plan: LayoutPlan, nnx_state: PyTree) -> None:
        self.graph = graph
        self._indices = {spec.path: index for index, spec in enumerate(graph.specs)}
        self.plan = plan
        self.lock = SharedLock()
        self._training = threading.RLock()
        self._trainings = 0
        trainable, rest = graph.nest(jax.tree.leaves(nnx_state))
        self.state_plan = self._plan_of_state({})
        step = place_copy(np.zeros((), np.int32), self.state_plan.shardings.step)
        self._shared: dict[int, _SharedVariable] = {}
        self._taken: dict[int, int] = {}  # the version of each of them that the arrays here have
        self.state = TrainState(trainable, rest, {}, step)

    @property
    def state(self) -> TrainState:
        """The current arrays."""
        return jax.tree.unflatten(self._treedef, self.arrays)

    @state.setter
    def state(self, state: TrainState) -> None:
        arrays, self._treedef = jax.tree.flatten(state)
        numbered = jax.tree.unflatten(self._treedef, range(len(arrays)))
        self._places = self.graph.flatten(numbered.trainable, numbered.rest)
        self.arrays = arrays

    @property
    def arrays(self) -> list[jax.Array]:
        """The current arrays, flat."""
        if any(shared.version > self._taken[index] for index, shared in self._shared.items()):
            self._take_shared()
        return self._arrays

    @arrays.setter
    def arrays(self, arrays: list[jax.Array]) -> None:
        self._arrays = arrays
        for index, shared in self._shared.items():
            self._taken[index] = shared.write(arrays[self._places[index]])

    def put(self, arrays: Mapping[int, jax.Array]) -> None:
        """Put arrays, which lie as the plan says, in the places of some of the current ones, by their index."""
        if arrays:
            self.arrays = [arrays.get(index, array) for index, array in enumerate(self.arrays)]

    def link(self, other: StateCell, indices: Mapping[int, int]) -> None:
        """Share variables with another model: what one of them writes, the other finds when it reads next.

        Args:
            other: the cell of the other model. Its values are taken over.
            indices: for each shared variable of this cell its index in the other.
        """
        with SharedLock.joining(self.lock, other.lock):
            values = other.leaves()
            for mine, theirs in indices.items():
                shared = other._shared.get(theirs) or _SharedVariable(values[theirs])
                other._share(theirs, shared)
                other._taken[theirs] = shared.write(values[theirs])
                before = self._shared.get(mine, shared)
                for cell in list(before.cells):
                    for index in [index for index, one in cell._shared.items() if one is before]:
                        cell._share(index, shared)
                self._share(mine, shared)

    def shares(self, path: str, other: StateCell, other_path: str) -> bool:
        """Whether a variable is that of another cell."""
        return self.identity(path) == other.identity(other_path)

    def identity(self, path: str) -> Hashable:
        """Return a value that is equal for all cells that share a variable."""
        index = self.index(path)
        return id(self._shared[index]) if index in self._shared else (id(self), index)

    def _share(self, index: int, shared: _SharedVariable) -> None:
        self._taken.setdefault(index, 0)
        self._shared = {**self._shared, index: shared}  # another thread may be looking at the former one
        shared.cells.add(self)

    def _take_shared(self) -> None:
        """Copy the shared variables that another model has written since they were last copied."""
        # a first read inside of a user's trace would otherwise leave tracers in the cell
        with self.lock, jax.ensure_compile_time_eval():
            shardings, arrays, taken = jax.tree.leaves(self.plan.shardings), list(self._arrays), dict(self._taken)
            for index, shared in self._shared.items():
                if shared.version > taken[index]:
                    arrays[self._places[index]] = place_copy(shared.value, shardings[index])
                    taken[index] = shared.version
            self._arrays, self._taken = arrays, taken

    @property
    def mesh(self) -> DeviceMesh:
        """The devices."""
        return self.plan.mesh

    @property
    def is_training(self) -> bool:
        """Whether some thread is inside of `training`."""
        return self._trainings > 0

    @contextlib.contextmanager
    def training(self) -> Iterator[None]:
        """Train, alone of all threads, and let Ctrl-C wait; a callback may train again in the same thread."""
        with interrupt_between_steps():
            if not self._training.acquire(blocking=False):
                raise ModelError(
                    "the model is training in another thread",
                    given=f"a second training in thread {threading.current_thread().name!r}",
                    expected="one training at a time: each step consumes the state before it",
                    fix="wait for the first to end, or give each thread a model of its own",
                )
            self._trainings += 1
            try:
                yield
            finally:
                self._trainings -= 1
                self._training.release()

    def row(self, path: str) -> Row:
        """The plan's row of a variable."""
        return self.plan.row(path)

    def index(self, path: str) -> int:
        """The place of a variable in flattening order."""
        return self._indices[self.plan.row(path).path]

    def place(self, path: str) -> int:
        """The place of a variable in `arrays`."""
        return self._places[self.index(path)]

    def is_trained(self, path: str) -> bool:
        """Whether the variable is trained."""
        return self.graph.trained[self.index(path)]

    def read(self, path: str) -> jax.Array:
        """The array of a variable; it lives until the next step."""
        return self.leaves()[self.index(path)]

    def leaves(self) -> list[jax.Array]:
        """The arrays of all variables; they live until the next step."""
        return self.graph.flatten(self.state.trainable, self.state.rest)

    def write(self, path: str, value: ArrayLike) -> None:
        """Put a copy of `value` in the place of a variable."""
        self.write_all({self.index(path): value})

    def write_all(self, values: dict[int, ArrayLike]) -> None:
        """Put copies in the places of several variables, by index."""
        shardings = jax.tree.leaves(self.plan.shardings)
        with self.lock:
            leaves = self.leaves()
            for index, value in values.items():
                leaves[index] = place_copy(value, shardings[index], f"variable {self.graph.specs[index].path!r}")
            trainable, rest = self.graph.nest(leaves)
            self.state = self.state.replace(trainable=trainable, rest=rest)

    def use(self, graph: ModuleGraph) -> None:
        """Exchange the graph for one of the same variables; where it trains others of them, slots are dropped."""
        if graph.trained == self.graph.trained:
            self.graph = graph
            return
        leaves = self.leaves()
        self.graph = graph
        self.state_plan = self._plan_of_state({})
        trainable, rest = graph.nest(leaves)
        self.state = TrainState(trainable, rest, {}, self.state.step)

    def extend(self, graph: ModuleGraph, plan: LayoutPlan, leaves: Sequence[jax.Array]) -> None:
        """Have the variables of another graph, which lie as its plan says; slots are dropped."""
        with self.lock:
            paths, shared, taken, step = list(self._indices), self._shared, self._taken, self.state.step
            self.graph, self.plan = graph, plan
            self._indices = {spec.path: index for index, spec in enumerate(graph.specs)}
            self._shared, self._taken = {}, {}
            self.state_plan = self._plan_of_state({})
            trainable, rest = graph.nest(leaves)
            self.state = TrainState(trainable, rest, {}, step)
            self._taken = {self._indices[paths[index]]: version for index, version in taken.items()}
            self._shared = {self._indices[paths[index]]: one for index, one in shared.items()}

    def is_shared(self, path: str) -> bool:
        """Whether another model has a variable, too."""
        return self.index(path) in self._shared

    def add_slots(self, optimizers: dict[str, Optimizer]) -> None:
        """Create the slots of these optimizers, in place of the previous ones, and count steps from 0."""
        plans, slots = {}, {}
        for name, optimizer in optimizers.items():
            params = optimizer.select(self.state.trainable)
            shapes = jax.eval_shape(optimizer.transformation.init, params)
            plan = self.trainable_plan(optimizer).follow(shapes)
            slots[name] = plan.init(optimizer.transformation.init, params)
            plans[name] = plan.prefixed(name)
        self.state_plan = self._plan_of_state(plans)
        step = place_copy(np.zeros((), np.int32), self.state_plan.shardings.step)
        self.state = self.state.replace(slots=slots, step=step)

    def trainable_plan(self, optimizer: Optimizer | None = None) -> LayoutPlan:
        """The plan for the trained variables, or those that one optimizer updates, as nested dicts."""
        paths, _ = self.graph.nest([spec.path for spec in self.graph.specs])
        return self.plan.arrange(paths if optimizer is None else optimizer.select(paths))

    def move(self, distribution: Distribution, optimizers: dict[str, Optimizer]) -> None:
        """Bring everything to the layouts of another distribution.

        Raises:
            LayoutError: its rules cannot be applied; nothing has moved then.
        """
        plan = distribution.plan_variables(self.graph.specs, self.graph.treedef)
        moved = StateCell(self.graph, plan, self.graph.treedef.unflatten(self.leaves()))
        moved.state_plan = moved._plan_of_state(
            {
                name: moved.trainable_plan(optimizer).follow(self.state.slots[name]).prefixed(name)
                for name, optimizer in optimizers.items()
            }
        )
        self.state = moved.state_plan.place(self.state)
        self.plan, self.state_plan = moved.plan, moved.state_plan

    def copy_of_state(self) -> TrainState:
        """A copy of the state, which later steps do not consume."""
        with self.lock:
            return self.state_plan.place(self.state)

    def module(self) -> Any:
        """The NNX module with copies of the current values."""
        with self.lock:
            copies = self.plan.place(self.graph.treedef.unflatten(self.leaves()))
        trainable, rest = self.graph.nest(jax.tree.leaves(copies))
        return self.graph.merge(trainable, rest)

    def _plan_of_state(self, slot_plans: dict[str, LayoutPlan]) -> LayoutPlan:
        trainable, rest = self.graph.nest([spec.path for spec in self.graph.specs])
        step = LayoutPlan.replicated_scalar("step", jnp.int32, self.plan.mesh)
        return LayoutPlan.join(TrainState(self.plan.arrange(trainable), self.plan.arrange(rest), slot_plans, step))


def host_copy(array: jax.Array) -> np.ndarray:
    """A copy of `array` on the host; of typed PRNG keys their data, since numpy has no such dtype.

    What other processes hold parts of is gathered: all of them must call.
    """
    data = jax.random.key_data(array) if _jax.is_key_dtype(array.dtype) else array
    if data.is_fully_addressable or data.is_fully_replicated:
        return np.array(data)
    liveness.note_act("reading a value of which each process has a part")
    with liveness.waiting():
        return np.array(multihost_utils.process_allgather(data, tiled=True))
