"""`BorrowedArrays`: the arrays of a model's variables, borrowed for training and returned."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist._support.stateless_scope import shapes_only, trace_error
from keras_dist._support.types import ArrayLike, PyTree
from keras_dist._unstable.jax_internals import is_traced, outside_of_traces
from keras_dist.distribution.layout import TensorLayout, layout_on
from keras_dist.distribution.mesh import DeviceMesh
from keras_dist.distribution.placement import host_copy, place_constant, place_copy
from keras_dist.distribution.plan import LayoutPlan, Row
from keras_dist.errors import ModelError
from keras_dist.training.graph import ArrayPosition, ModuleGraph
from keras_dist.training.loop import interrupt_between_steps
from keras_dist.training.optimization import TrainState
from keras_dist.variables.lending import Changes, Keeper, Lendable, switching
from keras_dist.variables.values import checked_value
from keras_dist.variables.variable import Variable


class BorrowedArrays(Keeper):
    """The arrays of a model's variables, its optimizer slots and its step count.

    The variables of the layers hold the arrays. A training borrows them, donates them to each step and returns the
    results of the last step. Slots and the step count are held here.
    """

    def __init__(
        self,
        graph: ModuleGraph,
        plan: LayoutPlan,
        places: Sequence[ArrayPosition],
        owner: str = "a model",
        creation: Callable[[], None] | None = None,
    ) -> None:
        self.graph, self.plan, self.owner = graph, plan, owner
        self._creation = creation  # creates the arrays that do not exist yet, when one is needed; None when all exist
        self._slots_init: Callable[[], PyTree] | None = None  # returns the slots that do not exist yet
        # initial values that are functions of other arrays, by variable
        self._derived: list[tuple[Any, Callable[[], jax.Array]]] = []
        self.is_shown = not graph.is_foreign  # the user holds the module: arrays in foreign variables may be shared
        # held from reading the state until its use is dispatched, so that no thread dispatches donated buffers
        self.lock = threading.RLock()
        self._training = threading.RLock()
        self._trainings = 0
        self._is_borrowing = False
        self._shown: dict[int, Any] = {}  # arrays in foreign variables while their current arrays are borrowed
        self._beside: weakref.WeakSet[BorrowedArrays] = weakref.WeakSet()
        self._views: dict[str, Variable] = {}
        self._slots: dict[int, Variable] = {}
        self._slot_of: dict[int, int] = {}
        self._attach(places)
        self.state_plan = self._plan_of_state({})
        self._begin(place_constant(np.zeros((), np.int32), self.state_plan.shardings.step))

    def name_of(self, other: BorrowedArrays) -> str:
        """Return the name of another model, which may be the same as of this one."""
        return other.owner if other.owner != self.owner else f"another {self.owner}"

    def leave(self) -> None:
        """Detach from the variables."""
        for place in self._variables:
            if place.lendable is not None:
                place.lendable.leave(self)
        for cell in self._beside:
            cell._beside.discard(self)

    def create(self) -> None:
        """Create the arrays of the variables that have none."""
        with self.lock:
            creation, self._creation = self._creation, None
            derived, self._derived = self._derived, []
            try:
                waiting = [one for one in derived if one[0].is_deferred]  # others have been loaded
                if creation is not None:
                    creation()
                with outside_of_traces():
                    for variable, value in waiting:
                        self.set_to_copy(variable, value())
            except BaseException:
                self._creation, self._derived = creation, derived
                raise

    def derive(self, variable: Any, value: Callable[[], jax.Array]) -> None:
        """Set a variable to a function of other arrays, now or when these are created."""
        if not self.has_arrays:
            self._derived.append((variable, value))
        elif not self.mesh.is_abstract:
            self.set_to_copy(variable, value())

    @property
    def has_arrays(self) -> bool:
        """Whether the arrays of the variables have been created, or are never created, as in a plan."""
        return self._creation is None

    @property
    def steps_taken(self) -> int:
        """The number of steps taken; arrays that do not exist are not created."""
        step = None if self._creation is not None else self.state.step
        return 0 if step is None or isinstance(step, jax.ShapeDtypeStruct) else int(step)

    def _begin(self, step: jax.Array, slots: PyTree = None, init: Callable[[], PyTree] | None = None) -> None:
        """Start; read the arrays of the variables on first use, and create slots of these shapes after it."""
        with shapes_only():
            leaves = [place.array() for place in self._variables]
        self._arrange(TrainState(*self.graph.nest(leaves), slots or {}, step))
        self._slots_init = init
        arrays: list[Any] = self._arrays
        for index in self._at:
            arrays[index] = None

    def _attach(self, places: Sequence[ArrayPosition]) -> None:
        """Attach to the variables at these positions."""
        self._indices = {spec.path: index for index, spec in enumerate(self.graph.specs)}
        self._variables = list(places)
        self._index_of = {id(place.holder): index for index, place in enumerate(places) if place.variable is not None}
        for place in places:
            if place.lendable is not None:
                self._beside.update(cell for cell in place.lendable.keepers if cell is not self)
                place.lendable.join(self)
        for cell in self._beside:
            cell._beside.add(self)
        for path, view in self._views.items():
            if path in self._indices:
                self._index_of[id(view)] = self._indices[path]

    def _arrange(self, state: TrainState) -> None:
        """Take over the arrays of a state."""
        arrays: list[Any]
        arrays, treedef = jax.tree.flatten(state)
        if self._slots and treedef != self._treedef:
            self.release_slots()
        self._treedef = treedef
        self.numbers: TrainState = jax.tree.unflatten(treedef, range(len(arrays)))  # the indices in `arrays`
        self._places = self.graph.flatten(self.numbers.trainable, self.numbers.rest)
        self._at = dict(zip(self._places, self._variables, strict=True))
        self._ours = [(index, place.lendable) for index, place in self._at.items() if place.lendable is not None]
        self._foreign = [(index, place) for index, place in self._at.items() if place.lendable is None]
        self._arrays = arrays
        self._looked_at = -1

    @property
    def state(self) -> TrainState:
        """The current arrays; the next train step consumes them."""
        return jax.tree.unflatten(self._treedef, self.arrays)

    @state.setter
    def state(self, state: TrainState) -> None:
        self._arrange(state)
        if not self._is_borrowing:
            self._give_back()

    @property
    def arrays(self) -> list[jax.Array]:
        """The current arrays as a flat list, the form in which steps take and return them."""
        if not self._is_borrowing:
            others_train = any(cell._is_borrowing for cell in self._beside)
            if self._looked_at != Changes.last or others_train or (self.is_shown and self._foreign):
                self._look()
        elif self.is_shown and self._foreign:
            self._take_foreign()
        return self._arrays

    @arrays.setter
    def arrays(self, arrays: list[jax.Array]) -> None:
        self._arrays = arrays
        if not self._is_borrowing:
            self._give_back()

    def put(self, arrays: Mapping[int, jax.Array]) -> None:
        """Replace some arrays by index; they must be placed as planned."""
        deferred = [
            index for index in arrays if index in self._at and getattr(self._at[index].lendable, "is_deferred", False)
        ]
        for index in deferred:
            variable: Any = self._at[index].lendable
            variable.keep(arrays[index])
            variable.begin_with(None)
        arrays = {index: array for index, array in arrays.items() if index not in deferred}
        if not arrays:
            return
        self._arrays = [arrays.get(index, array) for index, array in enumerate(self.arrays)]
        if not self._is_borrowing:
            for index in arrays.keys() & self._at.keys():
                place, borrower = self._at[index], getattr(self._at[index].lendable, "borrower", None)
                if borrower is None:
                    place.keep(arrays[index])
                else:  # another model that has the variable is training
                    borrower.set_to_copy(place.lendable, arrays[index])

    def _look(self) -> None:
        """Read the arrays of all variables; create slots that do not exist."""
        self.create()
        self._read_variables()
        init, self._slots_init = self._slots_init, None
        if init is not None:
            try:
                with outside_of_traces():
                    made = dict(zip(jax.tree.leaves(self.numbers.slots), jax.tree.leaves(init()), strict=True))
            except BaseException:
                self._slots_init = init
                raise
            self._arrays = [made.get(index, array) for index, array in enumerate(self._arrays)]

    def _read_variables(self) -> None:
        """Read the arrays of variables that changed; copy and reshard those that are shared or placed otherwise."""
        self._looked_at = Changes.last
        arrays: list[Any] = self._arrays
        ours = [(index, variable, variable.current()) for index, variable in self._ours]
        foreign = [(index, place, place.array()) for index, place in self._foreign]
        changed = [found for found in (*ours, *foreign) if found[2] is not arrays[found[0]]]
        if not changed:
            return
        arrays, shardings = list(arrays), jax.tree.leaves(self.state_plan.shardings)
        with jax.ensure_compile_time_eval():  # the first read may happen inside a trace
            for index, holder, array in changed:
                is_lent = isinstance(holder, Lendable) and holder.borrower is not None
                is_free = is_lent or (holder.is_own if isinstance(holder, Lendable) else not self.is_shown)
                if is_free and _is_sharded_as(array, shardings[index]):
                    arrays[index] = array
                else:
                    row = self.state_plan.rows[index]
                    value = checked_value(array, row)
                    arrays[index] = place_copy(value, shardings[index], f"variable {row.path!r}")
                    if not is_lent:
                        holder.keep(arrays[index])
        self._arrays = arrays

    @contextlib.contextmanager
    def borrowing(self) -> Iterator[None]:
        """Borrow the arrays of the variables, and return the current arrays at exit."""
        if self._is_borrowing:
            yield
            return
        try:
            self._borrow()
            yield
        finally:
            with self.lock:
                if self._is_borrowing:
                    if self.is_shown:
                        self._take_foreign()
                    self._is_borrowing = False
                    self._give_back()

    def _borrow(self) -> None:
        with self.lock:
            self._look()
            with switching:
                for index, variable in self._ours:
                    if variable.borrower is not None:
                        other: Any = variable.borrower
                        summary = f"{self.owner} cannot train now: {self.name_of(other)} is training variables of it"
                        given = f"variable {self.state_plan.rows[index].path!r}, which both have"
                        fix = "wait for its end, or give the models separate variables: keras_dist.models.clone_model"
                        raise ModelError(summary, given=given, fix=fix)
                self._is_borrowing = True
                for _, variable in self._ours:
                    variable.lend_to(self)
                read = [(index, variable) for index, variable in self._ours if not variable.is_own]
        for cell in list(self._beside):
            with cell.lock:  # a dispatch in progress may read the arrays
                pass
        with self.lock:
            for index, variable in read:
                self._arrays[index] = self.copied(self._arrays[index])
                variable.keep(self._arrays[index])  # releases the old array, unless the reader holds it
            for index, place in self._foreign if self.is_shown else ():
                self._shown[index] = place.array()
                self._arrays[index] = self.copied(self._arrays[index])

    def _give_back(self) -> None:
        """Return the current arrays to the variables."""
        arrays = self._arrays
        with switching:
            for index, variable in self._ours:
                if variable.borrower in (None, self):
                    variable.keep(arrays[index])
                    variable.lend_to(None)
        for index, place in self._foreign:
            place.keep(arrays[index])
        self._shown = {}

    def show(self) -> None:
        """Store copies of the current arrays in foreign variables, where callbacks may read them."""
        if self._is_borrowing and self.is_shown:
            with self.lock:
                self._take_foreign()
                for index, place in self._foreign:
                    self._shown[index] = self.copied(self._arrays[index])
                    place.keep(self._shown[index])

    def _take_foreign(self) -> None:
        """Take over values that were written into foreign variables while their arrays are borrowed."""
        for index, place in self._foreign:
            array, row = place.array(), self.state_plan.rows[index]
            if array is not self._shown.setdefault(index, array):
                self._shown[index] = array
                sharding = jax.tree.leaves(self.state_plan.shardings)[index]
                self._arrays[index] = place_copy(checked_value(array, row), sharding, f"variable {row.path!r}")

    def array_of(self, variable: Lendable) -> jax.Array:
        place = self.place_of(variable)
        holder = self._at.get(place)
        is_here = self._slots_init is None and (holder is None or holder.lendable is not None)
        return (self._arrays if is_here else self.arrays)[place]

    def unshared(self, variable: Lendable) -> jax.Array:
        place: Any = self.place_of(variable)
        array, holder = self.arrays[place], self._at.get(place)
        is_free = holder is None or holder.lendable is not None or not self.is_shown
        if is_free or self._is_borrowing or is_traced(array):
            return array
        self.put({place: self.copied(array)})
        return self._arrays[place]

    def copy_of(self, variable: Lendable) -> jax.Array:
        with self.lock:
            return self.copied(self.array_of(variable))

    def copied(self, array: jax.Array) -> jax.Array:
        with jax.ensure_compile_time_eval():  # also inside a trace
            return place_copy(array, array.sharding)

    def host_copy(self, array: jax.Array) -> np.ndarray:
        return host_copy(array)

    def take(self, variable: Lendable, array: jax.Array) -> None:
        self.put({self.place_of(variable): array})

    def set_to_copy(self, variable: Lendable, value: ArrayLike) -> None:
        if is_traced(value):
            raise trace_error(self._row(variable).path)
        place, value = self.place_of(variable), self.checked(variable, value)
        sharding = jax.tree.leaves(self.state_plan.shardings)[place]
        with self.lock:
            self.put({place: place_copy(value, sharding, f"variable {variable.path!r}")})

    def checked(self, variable: Lendable, value: ArrayLike) -> ArrayLike:
        """Return a value cast to the dtype of a variable; raise unless its shape fits."""
        index = self._index_of.get(id(variable))
        return checked_value(value, self._row(variable) if index is None else self.plan.rows[index])

    def layout_of(self, variable: Lendable) -> TensorLayout:
        return layout_on(self._row(variable).axes, self.mesh)

    def _row(self, variable: Lendable) -> Row:
        return self.state_plan.rows[self.place_of(variable)]

    def drop(self, variable: Lendable) -> None:
        """Release the previous array of a variable before a write."""
        if not self._is_borrowing:
            place: Any = self.place_of(variable)
            arrays: list[Any] = list(self._arrays)
            arrays[place] = None
            self._arrays = arrays

    def free(self, place: int) -> None:
        """Delete an array that is replaced next, unless the user or a training may hold it."""
        holder = self._at.get(place)
        if holder is None or self._is_borrowing or getattr(holder.lendable, "is_deferred", False):
            return
        lendable = holder.lendable
        is_free = not self.is_shown if lendable is None else lendable.is_own and lendable.borrower is None
        if is_free and len(self._beside) == 0:
            self.arrays[place].delete()

    @property
    def mesh(self) -> DeviceMesh:
        """The `DeviceMesh`."""
        return self.plan.mesh

    @property
    def is_training(self) -> bool:
        """Whether a thread is inside `training`."""
        return self._trainings > 0

    @contextlib.contextmanager
    def training(self) -> Iterator[None]:
        """Context manager of a training: exclusive among threads, delays Ctrl-C, and can be nested in a thread."""
        with interrupt_between_steps():
            if not self._training.acquire(blocking=False):
                given = f"a second training in thread {threading.current_thread().name!r}"
                fix = "wait for the first to end, or give each thread a separate model"
                raise ModelError("the model is training in another thread", given=given, fix=fix)
            self._trainings += 1
            try:
                with self.borrowing():
                    yield
            finally:
                self._trainings -= 1
                self._training.release()

    def place_of(self, variable: Any) -> Any:
        """Return the index of a variable in `arrays`; None if the model does not contain it."""
        index = self._index_of.get(id(variable))
        return self._slot_of.get(id(variable)) if index is None else self._places[index]

    def release_slots(self) -> None:
        """Return the arrays of optimizers to their variables."""
        if self._slots and self._slots_init is not None:
            self._look()
        for place, variable in self._slots.items():
            variable.lend_to(None)
            variable.keep(self._arrays[place])
        self._slots, self._slot_of = {}, {}

    def _plan_of_state(self, slot_plans: dict[str, LayoutPlan], plan: LayoutPlan | None = None) -> LayoutPlan:
        plan = self.plan if plan is None else plan
        trainable, rest = self.graph.nest([spec.path for spec in self.graph.specs])
        step = LayoutPlan.replicated_scalar("step", jnp.int32, plan.mesh)
        return LayoutPlan.join(TrainState(plan.arrange(trainable), plan.arrange(rest), slot_plans, step))


def _is_sharded_as(array: Any, sharding: jax.sharding.Sharding) -> bool:
    """Whether an array has this sharding; true for abstract arrays of a planned model."""
    if isinstance(array, jax.ShapeDtypeStruct):
        return True
    return isinstance(array, jax.Array) and array.sharding.is_equivalent_to(sharding, array.ndim)
