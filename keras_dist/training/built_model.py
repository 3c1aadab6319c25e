"""`BuiltModel`: the state and the compiled steps of a model whose weights exist."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from flax import nnx

from keras_dist._support import tree_paths
from keras_dist._support.located_warnings import warn
from keras_dist.distribution.consistency import Fingerprint, check_agreement
from keras_dist.distribution.devices import check_memory_kind, check_not_forked
from keras_dist.distribution.plan import LayoutPlan
from keras_dist.distribution.strategy import Distribution
from keras_dist.distribution.strategy import distribution as current_distribution
from keras_dist.errors import DistributionError, ModelError, shorten
from keras_dist.layers.base.weights import walk_owned
from keras_dist.mixed_precision import DTypePolicy
from keras_dist.optimizers.optimizer_variables import ModelState, variables_in
from keras_dist.training.built_module import BuiltModule
from keras_dist.training.compile_config import CompileConfig
from keras_dist.training.graph import ModuleGraph, positions_of
from keras_dist.training.objective import Objective
from keras_dist.training.optimization import Optimizer, resolve_optimizers
from keras_dist.training.rowwise import resolve_tables
from keras_dist.training.state_cell import StateCell
from keras_dist.training.step import Forward, ModuleCall
from keras_dist.training.step_runner import StepRunner
from keras_dist.training.trainable_flags import TrainableFlags
from keras_dist.variables.variable import Variable


class BuiltModel(BuiltModule):
    """The state and the compiled steps of a model whose weights exist."""

    def __init__(
        self,
        *,
        cell: StateCell,
        distribution: Distribution,
        seed: int,
        model: nnx.Module,
        call: ModuleCall | None = None,
        order: Sequence[str] | None = None,  # paths of the weights in the order of `model.weights`
        compute_loss: Callable[..., Any] | None = None,
        precision: DTypePolicy | None = None,
    ) -> None:
        super().__init__(cell, distribution, model, order)
        self.seed = seed  # fixes initial values, Dropout and the order of rows
        self.compile_config: CompileConfig | None = None
        self.fits = 0  # calls of `fit` without a seed
        self.lost_steps = False  # whether a merge of adapters reset a trained optimizer, until training or `compile`
        self.stated: tuple[bool, ...] = ()  # `trainable` of each layer at the last `compile`
        self._call = call
        self._precision = precision
        self._compute_loss = compute_loss
        self._optimizer_states: list[ModelState] = []
        self._make_steps(distribution)

    def _make_steps(self, distribution: Distribution) -> None:
        """Create the steps for this distribution and the last `compile`."""
        self.distribution = distribution
        config = self.compile_config or CompileConfig()
        self.forward = Forward(
            graph=self.cell.graph,
            call=self._call,
            distribution=distribution,
            seed=self.seed,
            compute_loss=self._compute_loss,
            remat=config.remat,
            plan=self.cell.plan,
            precision=self._precision,
            pads=config.options.pads,
            micro_batches=config.options.micro_batches,
            tables=config.tables,
        )
        self._programs.clear()
        self.step_runner = StepRunner(self.cell, self.forward, config)

    def compile(self, config: CompileConfig) -> None:
        """Set how the model is trained; plan slots, unless an optimizer has slots for all trained variables."""
        check_not_forked()
        if config.options.slot_memory is not None:
            check_memory_kind(config.options.slot_memory, self.cell.mesh)

        def facts() -> Fingerprint:  # of the current layers, also of attributes set since the weights were created
            return {**config.facts(), **({} if self.trainability is None else self.trainability.facts())}

        check_agreement("compile", self.cell.mesh, facts)
        before = {
            name: (optimizer.transformation, optimizer.transformation.slots_in(self.cell))
            for name, optimizer in self.optimizers.items()
        }
        if self.trainability is not None:
            self.release_optimizers()
            self._follow_layers(self.trainability)
        if config.remat is not None:
            config.remat.check(self.cell.graph.described())
        optimizers = resolve_optimizers(config.optimizer, self.cell.graph)
        tables = resolve_tables(config.rowwise, self.cell.graph, optimizers, config.options.slot_memory)
        for optimizer in optimizers.values():
            optimizer.transformation.check_free(self.cell, set(map(tree_paths.join, optimizer.parts)))
        known: dict[str, dict[str, Variable]] = {}
        if self.compile_config is None or not _are_same(self.optimizers, optimizers):
            for name, optimizer in optimizers.items():
                used, slots = before.get(name, (None, {}))
                is_same = used is not None and used == optimizer.transformation
                known[name] = slots if is_same else optimizer.transformation.slots_in(self.cell)
        self.release_optimizers()
        if known:
            steps = self.cell.steps_taken
            self.cell.add_slots(optimizers, config.options.slot_memory)
            known = self._fitting(known, optimizers, steps)
        elif self.cell.slot_memory != config.options.slot_memory:
            self.cell.move_slots(optimizers, config.options.slot_memory)
        self.compile_config = dataclasses.replace(config, optimizers=optimizers, tables=tables)
        self.lost_steps = False
        values = {name: {path: one.current() for path, one in slots.items()} for name, slots in known.items()}
        self._attach_optimizers(optimizers, known)
        for name, arrays in values.items():
            optimizers[name].transformation.continue_from(arrays)
        constraints = tuple(self.variable(row.path).constraint for row in self.cell.plan.rows)
        self.cell.graph = dataclasses.replace(self.cell.graph, constraints=constraints)
        self.cell.graph.warn_of_untrained()
        self._make_steps(self.distribution)

    def _fitting(
        self, known: Mapping[str, dict[str, Variable]], optimizers: Mapping[str, Optimizer], steps: int
    ) -> dict[str, dict[str, Variable]]:
        """Return the variables of optimizers whose variables fit their new states; warn of those that start again."""
        found: dict[str, dict[str, Variable]] = {}
        for name, variables in known.items():
            flat, _ = jax.tree_util.tree_flatten_with_path(self.cell.state_plan.shapes.slots[name])
            shapes = {tree_paths.join(tree_paths.parts_of(path)): array.shape for path, array in flat}
            if variables and all(path in variables and variables[path].shape == shapes[path] for path in shapes):
                found[name] = {path: variables[path] for path in shapes}
            elif variables and (count := _steps_of(variables, steps)):
                warn(
                    f"compile: the optimizer {optimizers[name].transformation.name!r} starts again without its state "
                    f"after {count} steps, because it has no slots for variables that are trained now: `trainable` of "
                    "a layer has changed"
                )
        return found

    def extend(self, graph: ModuleGraph, plan: LayoutPlan, creation: Callable[[], None]) -> None:
        """Replace the layers' weights by changed ones, given their graph and plan; recompile a compiled model.

        `creation` creates those that do not exist, if no weight of the model exists yet.
        """
        config, lost_steps = self.compile_config, self.lost_steps
        if len(graph.specs) > len(self.cell.graph.specs):
            self._warn_of_reset()
        elif self.cell.steps_taken:  # a merge of adapters may end the training: only `fit` warns
            lost_steps = True
        self.release_optimizers()
        self.compile_config = None
        if self.trainability is not None:
            self.trainability = self.trainability.of(graph.specs)
            self.stated = self.trainability.stated()
            graph = dataclasses.replace(graph, trained=self.trainability.flags())
        self.cell.extend(graph, plan, positions_of(self.model, graph.parts), creation)
        if self.trainability is not None:
            self.label_variables()
        else:
            self._indexed, self._order = None, [row.path for row in plan.rows]
        self._make_steps(self.distribution)
        if config is not None:
            self.compile(config)
            self.lost_steps = lost_steps

    def _warn_of_reset(self) -> None:
        """Warn of optimizers that have taken steps, and lose their state."""
        for optimizer in self.optimizers.values():
            if count := _steps_of(optimizer.transformation.slots_in(self.cell), self.cell.steps_taken):
                warn(
                    f"the optimizer {optimizer.transformation.name!r} starts again without its state after {count} "
                    "steps, because weights were added to the model: do this before `fit`, or continue a "
                    f"schedule of its learning rate by `optimizer.iterations.assign({count})`"
                )

    def label_variables(self) -> None:
        """Set path and owners of the variables, unless another model has them; store their order."""
        self._indexed, self._order = None, []
        for parts, variable, owners in walk_owned(self.model):
            path = self.cell.path_of(variable)
            if path is None:
                if isinstance(variable, nnx.RngState):
                    continue
                raise _of_a_structure(parts, variable)
            if not isinstance(variable, Variable):
                self.cell.variable(path).belong_to(owners, path)
            elif variable.keepers[0] is self.cell:
                variable.belong_to(owners, path)
            if not isinstance(variable, nnx.RngState):
                self._order.append(path)

    def _follow_layers(self, trainability: TrainableFlags) -> None:
        """Apply changes of `trainable` of the layers."""
        flags, stated = trainability.flags(), trainability.stated()
        if (flags, stated) != (self.cell.graph.trained, self.stated):
            self.cell.use(self.cell.graph.edited(trainability.copy_to, flags))
            self.stated = stated

    @property
    def optimizers(self) -> dict[str, Optimizer]:
        """The optimizers of `compile` by name."""
        return {} if self.compile_config is None else self.compile_config.optimizers

    def release_optimizers(self) -> None:
        """Detach the optimizers, before they are replaced or their state is dropped."""
        for optimizer in self.optimizers.values():
            optimizer.transformation.detach()

    def _attach_optimizers(self, optimizers: Mapping[str, Optimizer], kept: Mapping[str, dict[str, Variable]]) -> None:
        """Give the optimizers their state, in the variables `kept` by path, and the variables that they update."""
        self._optimizer_states.clear()
        cell, rows, numbers = self.cell, self.cell.state_plan.rows, self.cell.numbers

        def create(path: str, place: int, own: Mapping[str, Variable]) -> Variable:
            shape = jax.ShapeDtypeStruct(rows[place].shape, rows[place].dtype)
            if path in own:
                own[path].keep(shape)  # the cell holds the array
                return own[path]
            known = cell.slot(place)
            return Variable.holding(shape, rows[place].path) if known is None else known

        steps = create("step", numbers.step, {})
        cell.hold_slot(numbers.step, steps)
        for name, optimizer in optimizers.items():
            paths = {tree_paths.join(parts): parts for parts in optimizer.parts}
            updated = {path: self.variable(path) for path in paths}
            optimizer.transformation.know_variables(updated)
            listed = [variable for variable in self.variables() if self.path_of(variable) in paths]
            parts = [paths[self.path_of(variable)] for variable in listed]
            known_as = optimizer.transformation.name
            reuse = functools.partial(create, own=kept.get(name, {}))
            slots = optimizer.transformation.in_variables(numbers.slots[name], reuse)
            for place, variable in zip(jax.tree.leaves(numbers.slots[name]), variables_in(slots), strict=True):
                variable.set_metadata(keras_path=_path_of_keras(known_as, rows[place].path))
                cell.hold_slot(place, variable)
            state = ModelState(
                slots,
                steps,
                cell,
                listed,
                parts,
                lambda grads: self.forward.scattered(grads),
                lambda: self.forward.placements(),
            )
            self._optimizer_states.append(state)
            optimizer.transformation.attach(state)

    def use_seed(self, seed: int) -> None:
        """Set the seed for Dropout of foreign modules and for the order of rows."""
        if seed != self.seed:
            self.seed = seed
            self.step_runner.use_seed(seed)
            self._programs.clear()

    def redistribute(self, distribution: Distribution) -> None:
        """Move the whole state to another distribution; change nothing if its rules cannot be applied."""
        distribution = distribution.snapshot()
        self.cell.move(distribution, self.optimizers)
        self._make_steps(distribution)

    def objective(self, method: str) -> Objective:
        """Return the loss and metrics of `compile`."""
        objective = None if self.compile_config is None else self.compile_config.objective
        if objective is None:
            fix = 'for example model.compile(optimizer, loss="mse", train_step=train_step)'
            raise ModelError(f"{method} needs a loss", given="compile(train_step=...) without a loss", fix=fix)
        return objective

    def check_measures(self, method: str) -> None:
        """Check that the model has a loss or a custom test step."""
        if self.compile_config is None or not self.compile_config.is_own("test"):
            self.objective(method)

    def next_shuffle_key(self) -> tuple[int, ...]:
        """Return the key for the order of rows in the next `fit` without a seed."""
        self.fits += 1
        return self.seed, self.fits - 1

    def warn_of_trainable(self) -> None:
        """Warn if `trainable` of a layer has changed since `compile`."""
        if self.trainability is not None and self.trainability.stated() != self.stated:
            warn("`trainable` of a layer was set after compile; it has no effect before the next compile")

    def check_current_distribution(self, method: str) -> None:
        """Check that the current distribution, if there is one, equals the distribution of the model."""
        current = current_distribution()
        if current is not None and current != self.distribution and not current.is_searched:
            raise DistributionError(
                f"{method}: the current distribution is not the one this model was built under",
                given=f"current {describe(current)}",
                expected=describe(self.distribution),
                fix="model.redistribute(keras_dist.distribution.distribution()) moves the model; "
                "set_distribution(None) or model.distribution.scope() keeps its layouts",
            )


def _of_a_structure(parts: tree_paths.Parts, variable: nnx.Variable) -> ModelError:
    summary = f"variable {tree_paths.join(parts)!r} of a layer must contain one array, not a structure"
    given = f"{type(variable).__name__} of {shorten(jax.tree.structure(variable.get_raw_value()))}"
    return ModelError(summary, given=given, fix="nnx.Dict(a=nnx.Param(...), b=nnx.Param(...)), or a list of variables")


def _path_of_keras(optimizer: str, path: str) -> str:
    """Return Keras's path of an array of an optimizer: it differs for the step count and the learning rate."""
    *above, name = path.split("/")
    if not {*above} <= {"optimizer", "inner"} or name not in ("iterations", "learning_rate"):
        return path
    return f"{optimizer}/{name.removesuffix('s')}"


def _are_same(before: Mapping[str, Optimizer], now: Mapping[str, Optimizer]) -> bool:
    """Whether the optimizers are the same objects, for the same variables."""
    return before.keys() == now.keys() and all(
        before[name].transformation == now[name].transformation and before[name].parts == now[name].parts
        for name in now
    )


def describe(distribution: Distribution) -> str:
    """Describe a distribution with its rules."""
    rules = distribution.layout_map
    return f"{distribution}" if rules is None else f"{distribution} with rules {rules}"


def _steps_of(variables: Mapping[str, Variable], steps: int) -> int:
    """Return how many steps an optimizer has taken, here or in loops."""
    counts = [one.current() for path, one in variables.items() if path.rpartition("/")[2] in ("iterations", "count")]
    return max(steps, *map(int, counts), 0)
