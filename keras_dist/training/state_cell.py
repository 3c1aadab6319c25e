"""`StateCell`: the training state of a model: variables, optimizer slots and the step count.

The state between steps is a flat list: flattening and building trees cost 15 us a step. Two trainings of one model
raise, because both would donate the same buffers; readers take a lock around dispatch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist._support.stateless_scope import shapes_only
from keras_dist._support.types import ArrayLike, PyTree
from keras_dist.distribution.placement import place_copy
from keras_dist.distribution.plan import LayoutPlan, Row
from keras_dist.distribution.strategy import Distribution
from keras_dist.errors import ModelError
from keras_dist.training.borrowed_arrays import BorrowedArrays
from keras_dist.training.graph import ArrayPosition, ModuleGraph, positions_of
from keras_dist.training.optimization import Optimizer, TrainState
from keras_dist.variables.variable import Variable


class StateCell(BorrowedArrays):
    """The training state of a model, given its graph, its plan, and the positions of its arrays in the module."""

    slot_memory: str | None = None  # kind of the memory of the slots; None for the memory of the devices

    @classmethod
    def of_own_module(cls, graph: ModuleGraph, plan: LayoutPlan, state: PyTree) -> tuple[Self, Any]:
        """Create a module with these arrays, placed as planned; return its training state and the module."""
        leaves = jax.tree.leaves(state)
        module = graph.merge(*graph.nest(leaves))
        places = positions_of(module, graph.parts)
        for place, array in zip(places, leaves, strict=True):
            place.keep(array)
        return cls(graph, plan, places), module

    def row(self, path: str) -> Row:
        """Return the row of a variable in the plan."""
        return self.plan.row(path)

    def index(self, path: str) -> int:
        """Return the index of a variable in flattening order."""
        return self._indices[self.plan.row(path).path]

    def place(self, path: str) -> int:
        """Return the index of a variable in `arrays`."""
        return self._places[self.index(path)]

    @property
    def places(self) -> Sequence[int]:
        """The indices of all variables in `arrays`."""
        return self._places

    @property
    def assignable(self) -> frozenset[int]:
        """The indices in `arrays` of variables of layers that `call` may assign: untrained ones."""
        rows = self.state_plan.rows
        return frozenset(index for index, _ in self._ours if rows[index].role in ("statistic", "counter"))

    def path_of(self, variable: Any) -> str | None:
        """Return the path of a variable in this model; None if the model does not contain it."""
        index = self._index_of.get(id(variable))
        return None if index is None else self.graph.specs[index].path

    def held(self, path: str) -> Any:
        """Return the variable in the module; None if no variable holds exactly this array."""
        return self._variables[self.index(path)].variable

    def variable(self, path: str) -> Any:
        """Return the variable at a path; for an array in a foreign module, its only view."""
        index = self.index(path)
        own = self._variables[index].lendable
        if own is not None:
            return own
        spec = self.graph.specs[index]
        if spec.path not in self._views:
            holder = self._variables[index].variable
            name = None if holder is None else holder.get_metadata().get("keras_name")
            shape = jax.ShapeDtypeStruct(spec.shape, spec.dtype)
            view = Variable.view(shape, spec.path, name, self._role_of_view(index), self.graph.constraints[index])
            view.lend_for_good(self)
            self._index_of[id(view)] = index
            self._views[spec.path] = view
        return self._views[spec.path]

    def _role_of_view(self, index: int) -> str:
        spec = self.graph.specs[index]
        is_parameter = spec.role == "parameter" and jnp.issubdtype(spec.dtype, jnp.inexact)
        is_trained = self.graph.trained[index] if self.graph.is_foreign else is_parameter
        return "parameter" if is_trained else "rng" if spec.role == "rng" else "statistic"

    def slot(self, place: int) -> Variable | None:
        """Return the variable of an optimizer's array in `arrays`; None before there is one."""
        return self._slots.get(place)

    def hold_slot(self, place: int, variable: Variable) -> None:
        """Use a variable for an optimizer's array in `arrays`."""
        self._slots[place] = variable
        self._slot_of[id(variable)] = place
        variable.lend_for_good(self)

    def is_trained(self, path: str) -> bool:
        """Whether a variable is trained."""
        return self.graph.trained[self.index(path)]

    def read(self, path: str) -> jax.Array:
        """Return the array of a variable; it is valid until the next step."""
        return self.leaves()[self.index(path)]

    def leaves(self) -> list[jax.Array]:
        """Return the arrays of all variables; they are valid until the next step."""
        arrays = self.arrays
        return [arrays[place] for place in self._places]

    def write_all(self, values: Mapping[int, ArrayLike]) -> None:
        """Replace the arrays of variables, by index, by copies of these values."""
        shardings = jax.tree.leaves(self.plan.shardings)
        with self.lock:
            copies = {}
            for index, value in values.items():
                name = f"variable {self.graph.specs[index].path!r}"
                copies[self._places[index]] = place_copy(value, shardings[index], name)
            self.put(copies)

    def use(self, graph: ModuleGraph) -> None:
        """Replace the graph by another graph of the same variables; drop the slots if other variables are trained."""
        if graph.trained == self.graph.trained:
            self.graph = graph
            return
        leaves, step = self.leaves(), self.state.step
        self.graph = graph
        self.state_plan = self._plan_of_state({})
        self._arrange(TrainState(*graph.nest(leaves), {}, step))

    def extend(
        self, graph: ModuleGraph, plan: LayoutPlan, places: Sequence[ArrayPosition], creation: Callable[[], None]
    ) -> None:
        """Replace the variables by the variables of another graph, which `creation` creates; drop the slots."""
        with self.lock:
            self._creation = None if self.has_arrays else creation
            step = self._arrays[self.numbers.step]  # not of `state`, which would read variables for the old plan
            self.leave()
            self.graph, self.plan = graph, plan
            self._attach(places)
            for path, view in list(self._views.items()):
                spec = graph.specs[self._indices[path]] if path in self._indices else None
                if spec is None or (spec.shape, spec.dtype) != (view.shape, view.dtype):
                    del self._views[path]  # of a kernel that is quantized now, or was
                    self._index_of.pop(id(view), None)
                else:
                    view.become(self._role_of_view(self._indices[path]))
            self.state_plan = self._plan_of_state({})
            self._begin(step)

    def add_slots(self, optimizers: dict[str, Optimizer], memory_kind: str | None = None) -> None:
        """Reset the step count, and create slots in a kind of memory, now or with the arrays of the variables."""
        self.release_slots()
        self.slot_memory = memory_kind
        with shapes_only():
            trainable, _ = self.graph.nest([place.array() for place in self._variables])
        shapes, plans = {}, {}
        for name, optimizer in optimizers.items():
            shapes[name] = jax.eval_shape(optimizer.transformation.init, optimizer.select(trainable))
            plan = self.trainable_plan(optimizer, self.plan)
            plans[name] = plan.follow(shapes[name], memory_kind=memory_kind)

        def init() -> dict[str, PyTree]:
            params = {name: one.select(self.state.trainable) for name, one in optimizers.items()}
            return {name: plans[name].init(one.transformation.init, params[name]) for name, one in optimizers.items()}

        self.state_plan = self._plan_of_state({name: plan.prefixed(name) for name, plan in plans.items()})
        step = place_copy(np.zeros((), np.int32), self.state_plan.shardings.step)
        if self._creation is None:
            self.state = self.state.replace(slots=init(), step=step)
        else:
            self._begin(step, shapes, init)

    def trainable_plan(self, optimizer: Optimizer, plan: LayoutPlan) -> LayoutPlan:
        """Return the part of a plan for the variables that an optimizer updates, as nested dicts."""
        paths, _ = self.graph.nest([spec.path for spec in self.graph.specs])
        return plan.arrange(optimizer.select(paths))

    def move(self, distribution: Distribution, optimizers: dict[str, Optimizer]) -> None:
        """Reshard the state to another distribution; change nothing if its rules cannot be applied."""
        others = [cell for cell in self._beside if cell._index_of.keys() & self._index_of.keys()]
        if others:
            summary = f"{self.owner} cannot move: {self.name_of(others[0])} has some of its layers"
            fix = "move a model that shares no layers: keras_dist.models.clone_model(model), then set its weights"
            raise ModelError(summary, given=f"another distribution, {distribution}", fix=fix)
        plan, state = distribution.plan_variables(self.graph.specs, self.graph.treedef), self.state
        state_plan = self._plan_of_state(self._plans_of_slots(optimizers, plan), plan)
        state = state_plan.place(state)
        self.plan, self.state_plan, self.state = plan, state_plan, state
        for _, variable in self._ours:
            variable.join(self)
        for variable in (*self._views.values(), *self._slots.values()):
            variable.lend_for_good(self)

    def move_slots(self, optimizers: dict[str, Optimizer], memory_kind: str | None) -> None:
        """Move the slots to another kind of memory."""
        self.slot_memory, state = memory_kind, self.state
        plans = self._plans_of_slots(optimizers, self.plan)
        self.state_plan = self._plan_of_state(plans)
        self.state = state.replace(slots=LayoutPlan.join(plans).place(state.slots))

    def _plans_of_slots(self, optimizers: dict[str, Optimizer], plan: LayoutPlan) -> dict[str, LayoutPlan]:
        slots, kind = self.state.slots, self.slot_memory
        return {
            name: self.trainable_plan(optimizer, plan).follow(slots[name], memory_kind=kind).prefixed(name)
            for name, optimizer in optimizers.items()
        }

    def copy_of_state(self) -> TrainState:
        """Return a copy of the state, which later steps do not consume."""
        with self.lock:
            return self.state_plan.place(self.state)

    def module(self) -> Any:
        """Return an NNX module with copies of the current values."""
        with self.lock:
            copies = self.plan.place(self.graph.treedef.unflatten(self.leaves()))
        trainable, rest = self.graph.nest(jax.tree.leaves(copies))
        return self.graph.merge(trainable, rest)
