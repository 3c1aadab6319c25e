"""`BuiltModule`: the module of a model whose weights exist, with its variables and calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from keras_dist._support import integer_checks, tree_paths
from keras_dist._support.array_operators import value_of
from keras_dist._support.located_warnings import warn
from keras_dist._support.stateless_scope import StatelessScope, current_scope, without_scope
from keras_dist._support.types import ArrayLike, PyTree
from keras_dist._unstable.jax_internals import is_traced
from keras_dist.distribution.layout import TensorLayout
from keras_dist.distribution.placement import place_copy
from keras_dist.distribution.plan import LayoutPlan
from keras_dist.distribution.strategy import Distribution
from keras_dist.distribution.tracing import traced_in
from keras_dist.distribution.variables import CHANGED_ALWAYS
from keras_dist.errors import ModelError, with_type
from keras_dist.jobs.job import print_progress
from keras_dist.layers import Layer
from keras_dist.layers.base.names import layers_below
from keras_dist.training.compile_metrics import note_masks
from keras_dist.training.state_cell import StateCell
from keras_dist.training.step import Draw, Forward
from keras_dist.training.trainable_flags import TrainableFlags
from keras_dist.variables import call_context
from keras_dist.variables.values import checked_value

_MOST_PROGRAMS = 32  # largest number of programs that a model keeps for calls of other structures or static arguments


class BuiltModule:
    """The module of a model whose weights exist: its variables and its calls."""

    forward: Forward
    seed: int

    def __init__(
        self, cell: StateCell, distribution: Distribution, model: nnx.Module, order: Sequence[str] | None
    ) -> None:
        self.cell, self.model = cell, model
        self.distribution = distribution
        self.trainability: TrainableFlags | None = None  # None for foreign modules
        self.draws = 0  # calls, evaluations and predictions without a seed
        self._indexed: tuple[LayoutPlan, dict[str, list[Any]], dict[str, list[Any]]] | None = None
        self._programs: dict[Any, Callable[..., PyTree]] = {}  # of `call`, the last used at the end
        self._has_warned = False
        self._order = [row.path for row in cell.plan.rows] if order is None else list(order)

    def next_draw(self, seed: int | None = None) -> Draw:
        """Return the position of the random numbers of the next call, evaluation or prediction."""
        if seed is not None:
            return Draw.begun(seed, 0)
        self.draws += 1
        return Draw.begun(self.seed, self.draws)

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> PyTree:
        """Return the outputs for these arguments; keep changes of the variables.

        A program is compiled for each value of an argument that is not an array, compared by type and `==`.
        """
        kwargs, training = _without_training(kwargs)
        scope = current_scope()
        if scope is not None:
            return self._call_in_scope(scope, args, kwargs, training)
        leaves, treedef = jax.tree.flatten((args, kwargs))
        arrays = [index for index, leaf in enumerate(leaves) if isinstance(leaf, jax.Array | np.ndarray | np.inexact)]
        others = tuple(leaf for index, leaf in enumerate(leaves) if index not in arrays)

        def run(trainable: PyTree, rest: PyTree, draw: Draw, values: list[Any], masks: list[Any]) -> tuple[PyTree, ...]:
            given, plain = iter(values), iter(others)
            filled = [next(given) if index in arrays else next(plain) for index in range(len(leaves))]
            arguments, options = treedef.unflatten(filled)
            outputs, module, context = self._run(trainable, rest, arguments, options, training, draw, (values, masks))
            masks = [context.mask_of(leaf) for leaf in jax.tree.leaves(outputs)]
            flatten, split = self.cell.graph.flatten, self.cell.graph.split(module)
            before = flatten(trainable, rest)  # steps drop what a foreign module assigns to its parameters
            after = flatten(split[0] if isinstance(module, Layer) else trainable, split[1])
            return outputs, masks, dict(self._changes(before, after, training)), added_losses(module)

        stated = None if self.trainability is None else self.trainability.stated()
        is_checked = not any(map(is_traced, leaves))
        key = (training, treedef, tuple(map(_as_key, others)), stated, is_checked)
        program = self._programs.pop(key, None) or jax.jit(integer_checks.checked(run) if is_checked else run)
        self._programs[key] = program
        if len(self._programs) > _MOST_PROGRAMS:
            del self._programs[next(iter(self._programs))]
            if not self._has_warned:
                self._has_warned = True
                warn(
                    f"the model was called with {_MOST_PROGRAMS + 1} different values of static arguments, and "
                    "compiled a program for each. Pass numbers that change as arrays: model(x, scale=jnp.asarray(0.5))"
                )
        with self.cell.lock:
            state = self.cell.state
            given = [leaves[index] for index in arrays]
            masks = [getattr(array, "_keras_mask", None) for array in given]
            placed = jax.tree.map(self.placed, (given, masks))
            found = program(state.trainable, state.rest, self.next_draw(), *placed)
            if is_checked:
                error, found = found
                integer_checks.raise_found(error)
            outputs, masks, changes, losses = found
            if any(map(is_traced, changes.values())):
                self._warn_of_lost(changes)
            else:
                self._keep(changes)
        self._note_losses(losses)
        call_context.CallContext().set_mask(outputs, masks)
        return outputs

    def run_compiled(
        self,
        key: Any,
        run: Callable[..., PyTree],
        *operands: PyTree,
        donated: Sequence[int] = (),
        layouts: Sequence[int | None] = (),
        title: str = "",
    ) -> PyTree:
        """Return `run(module, *operands)` of the module in evaluation mode; it must not change the module.

        The program is compiled once for each key and for shapes of operands; `donated` operands are consumed.
        `layouts` names for each result an operand that is sharded alike, or None for the layout that XLA chooses.
        A line names a program with a title before it is compiled.
        """
        if key not in self._programs:
            alike = [None if place is None else operands[place] for place in layouts]
            shardings = tuple(jax.tree.map(lambda leaf: leaf.sharding, alike)) if layouts else None
            program, places = self.forward.in_evaluation(run), [place + 2 for place in donated]
            if title:
                print_progress(f"{title}: compiling")
            self._programs[key] = jax.jit(program, donate_argnums=places, out_shardings=shardings)
        with self.cell.lock:
            state = self.cell.state
            return self._programs[key](state.trainable, state.rest, *operands)

    def _call_in_scope(
        self, scope: StatelessScope, args: tuple[Any, ...], kwargs: dict[str, Any], training: bool | None
    ) -> PyTree:
        """Call the module with the values that the variables have in the current scope."""
        graph, rows = self.cell.graph, self.cell.plan.rows
        before = [self.variable(row.path).value for row in rows]
        with without_scope():  # the module uses only the values that it is given
            outputs, module, _ = self._run(*graph.nest(before), args, kwargs, training)
        self._note_losses(added_losses(module))
        for path, value in self._changes(before, graph.flatten(*graph.split(module)), training):
            scope.put(self.variable(path), value)
        return outputs

    def _note_losses(self, losses: Mapping[str, list[jax.Array]]) -> None:
        """Store the added losses in the layers."""
        if self.trainability is not None:
            for path, layer in self.trainability.layers.items():
                layer._record.added = losses.get(path, [])

    def _changes(
        self, before: Sequence[Any], after: Sequence[Any], training: bool | None
    ) -> Iterator[tuple[str, jax.Array]]:
        """Yield the changes of a call that are kept, by path: of a foreign module outside of training only streams."""
        rows = self.cell.plan.rows
        for row, place, old, new in zip(rows, self.cell.places, before, after, strict=True):
            if new is not old and (training or row.role in CHANGED_ALWAYS or place in self.cell.assignable):
                yield row.path, new

    def _keep(self, changes: Mapping[str, jax.Array]) -> None:
        """Keep the changes of a call."""
        shardings, places = jax.tree.leaves(self.cell.state_plan.shardings), map(self.cell.place, changes)
        pairs = zip(places, changes.values(), strict=True)
        self.cell.put({place: jax.device_put(value, shardings[place]) for place, value in pairs})

    def _warn_of_lost(self, changes: Mapping[str, jax.Array]) -> None:
        """Warn of changes inside a function that JAX traces, which cannot be kept."""
        warn(
            f"a function that JAX traces called the model and drops the new values of {', '.join(changes)}; each call "
            f"of the function begins with the same values, and draws the same random numbers\n"
            f"  fix:      model.stateless_call(trainable, rest, x, training=True), which returns them; or pass the "
            f"model to nnx.jit"
        )

    def stateless_call(
        self, trainable: PyTree, rest: PyTree, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[PyTree, PyTree, list[jax.Array]]:
        """Return the outputs for these values, `rest` after the call, and the added losses."""
        kwargs, training = _without_training(kwargs)

        def call(trainable: PyTree, rest: PyTree) -> tuple[PyTree, PyTree, list[jax.Array], PyTree]:
            with without_scope():  # the module uses only the values that it is given
                outputs, module, context = self._run(trainable, rest, args, kwargs, training)
                losses = module.losses if isinstance(module, Layer) else context.losses
            return outputs, self.cell.graph.split(module)[1], losses, context.mask_of(outputs)

        def gathering(trainable: PyTree, rest: PyTree) -> tuple[PyTree, PyTree, list[jax.Array], PyTree]:
            return self.forward.gathering(call, trainable, rest, (args, kwargs))

        remat = self.forward.remat if training else None
        outputs, rest, losses, masks = (gathering if remat is None else remat.whole(gathering))(trainable, rest)
        note_masks(outputs, masks)
        return outputs, rest, losses

    def _run(
        self,
        trainable: PyTree,
        rest: PyTree,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        training: bool | None,
        draw: Draw | None = None,
        masked: tuple[list[Any], list[Any]] = ([], []),
    ) -> tuple[PyTree, PyTree, call_context.CallContext]:
        """Return outputs, the module after the call, and its context; without `draw` as in the next training step."""
        module = self.forward.module(trainable, rest)
        if self.trainability is not None:
            self.trainability.copy_to(module)
        if training and self.forward.remat is not None:
            self.forward.remat.mark(module)

        def run(given: Any, module: Any = module) -> PyTree:
            args, kwargs = given
            if isinstance(module, Layer):
                return module(*args, **kwargs, training=training)
            return self.forward.run(module, self.cell.state.step if draw is None else draw, args[0], bool(training))

        def call() -> PyTree:
            copied = lambda given: run(given, self.forward.module(trainable, rest))  # noqa: E731
            return self.forward.with_padding(run, (args, kwargs), args[:1] or kwargs, copied)[0]

        rows = next((np.shape(leaf)[0] for leaf in jax.tree.leaves((args, kwargs)) if np.ndim(leaf)), None)
        with call_context.entered(training, anew=True) as context:
            context.set_mask(*masked)
            outputs = traced_in(self.distribution, rows, call, (trainable, rest, args, kwargs), self.forward.pads)
        return outputs, module, context

    def module(self) -> Any:
        """Return the module with copies of the current values, and current `trainable` of its layers."""
        module = self.cell.module()
        if self.trainability is not None:
            self.trainability.copy_to(module)
        return module

    def shown_module(self) -> Any:
        """Return the module of `from_nnx` with its current values; for a model of layers a copy."""
        if self.trainability is not None:
            return self.module()
        self.cell.is_shown = True
        self.cell.show()
        return self.model

    def is_trainable(self, path: str) -> bool:
        """Whether a variable is trained by the current `trainable` of its layers."""
        if self.trainability is None:
            return self.cell.is_trained(path)
        return self.trainability.is_trainable(self.cell.row(path).path)

    def placed(self, array: Any) -> Any:
        """Place an array on the model's devices; rows over the batch axis, if that divides them."""
        if is_traced(array):
            return array
        mesh = self.distribution.device_mesh
        layout = self.distribution.get_data_layout(array.shape) if array.ndim else None
        if layout is None or array.shape[0] % mesh.axis_size(layout.axes[0]):
            layout = TensorLayout.replicated(array.ndim, mesh)
        return place_copy(array, layout.backend_layout)

    def variable(self, path: str) -> Any:
        """Return the variable at `path`."""
        return self.cell.variable(path)

    def variables(self, prefix: str = "") -> list[Any]:
        """Return the variables below `prefix`, in the order of `model.weights`."""
        return list(self._below()[0].get(prefix, ()))

    def generators(self, prefix: str = "") -> list[Any]:
        """Return the states of random generators below `prefix` that `variables` omits."""
        return list(self._below()[1].get(prefix, ()))

    def _below(self) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """Return the variables, and the other generators, by all prefixes of their paths."""
        plan = self.cell.plan
        if self._indexed is None or self._indexed[0] is not plan:
            known = {*self._order}
            others = (row for row in plan.rows if row.role == "rng" and row.path not in known)
            parts = map(self.cell.row, self._order), others
            found = (tree_paths.by_prefix(rows, lambda row: (row.path, *row.aliases)) for rows in parts)
            listed, rest = (
                {at: [self.variable(row.path) for row in rows] for at, rows in below.items()} for below in found
            )
            self._indexed = plan, listed, rest
        return self._indexed[1:]

    def listed_call(
        self,
        name: str,
        handles: tuple[Sequence[Any], Sequence[Any]],
        values: tuple[Sequence[ArrayLike], Sequence[ArrayLike]],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> tuple[PyTree, list[jax.Array], list[jax.Array]]:
        """Call `stateless_call` with lists of values."""
        counts, expected = tuple(map(len, values)), tuple(map(len, handles))
        if counts != expected:
            summary = f"stateless_call of model {name!r}: the values do not fit"
            fix = f"pass {expected[0]} and {expected[1]}, as trainable_variables and non_trainable_variables"
            raise ModelError(summary, given=f"{counts[0]} trainable and {counts[1]} other values", fix=fix)
        graph, (trained, others) = self.cell.graph, handles
        pairs = zip([*trained, *others], [*values[0], *values[1]], strict=True)
        given = {self.path_of(handle): jnp.asarray(value_of(value)) for handle, value in pairs}
        nested = graph.nest([given[row.path] for row in self.cell.plan.rows])
        outputs, rest, losses = self.stateless_call(*nested, args, kwargs)
        after = graph.flatten(nested[0], rest)
        return outputs, [after[self.cell.index(self.path_of(handle))] for handle in others], losses

    def path_of(self, variable: Any) -> str:
        """Return the path of a variable in this model."""
        return self.cell.path_of(variable) or variable.path

    def place_of(self, variable: Any) -> int | None:
        """Return the index of a variable among the arrays; None if another model holds it."""
        return self.cell.place_of(variable)

    def take_values(self, module: Any) -> None:
        """Set all variables to the values of a module."""
        if not isinstance(module, nnx.Module):
            fix = "change the module that `model.module` returns, and assign it"
            raise ModelError("`model.module` must be a flax.nnx.Module", given=with_type(module), fix=fix)
        cell = self.cell
        values = zip(cell.graph.flatten(*cell.graph.split(module)), cell.plan.rows, strict=True)
        cell.write_all({index: checked_value(value, row) for index, (value, row) in enumerate(values)})


def _without_training(kwargs: dict[str, Any]) -> tuple[dict[str, Any], bool | None]:
    """Split off the argument `training`; None for the default of each layer."""
    training = kwargs.get("training")
    others = {name: value for name, value in kwargs.items() if name != "training"}
    return others, None if training is None else bool(training)


def _as_key(value: Any) -> tuple[type, Any]:
    """Return the key of a static argument: `True`, `1` and `1.0` differ, NaN equals NaN."""
    try:
        hash(value)
    except TypeError as error:
        summary = "an argument of the call is neither an array nor hashable"
        fix = "pass numbers as an array, other values as a tuple or a frozenset; a program is compiled for each value"
        raise ModelError(summary, given=with_type(value), fix=fix) from error
    return type(value), repr(value) if isinstance(value, float | complex) else value


def added_losses(module: nnx.Module) -> dict[str, list[jax.Array]]:
    """Return the losses that the layers of a module have added since it was merged, by path."""
    found = {path: layer._record.added for path, layer in layers_below(module)}
    return {path: list(terms) for path, terms in found.items() if terms}
