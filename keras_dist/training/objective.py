"""`Objective`: losses and metrics of the outputs of a model; values that `compile(report=...)` logs beside them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from keras_dist import metrics
from keras_dist._support.arguments import check_number
from keras_dist._support.traced_values import explaining_traced_values
from keras_dist._support.types import ArrayLike, PyTree
from keras_dist.errors import ModelError, shorten, unknown_name_error, with_type
from keras_dist.layers import Layer
from keras_dist.layers.base.names import free_name
from keras_dist.losses import Loss
from keras_dist.losses.identifiers import as_loss
from keras_dist.metrics import Metric
from keras_dist.optimizers.host_slots import on_device
from keras_dist.training.accumulators import Count, Latest, Observation, OpenMean
from keras_dist.training.optimization import DEFAULT, Optimizer, TrainState
from keras_dist.training.outputs import Outputs, Part, is_structured, parts_of
from keras_dist.variables import call_context

Batch = tuple[PyTree, PyTree, PyTree]
"""`(x, y, sample_weight)`; the latter two may be None."""


@dataclasses.dataclass(frozen=True)
class _Output:
    """One output, or several together, with targets, weights and mask."""

    y_true: PyTree
    y_pred: PyTree
    sample_weight: PyTree
    mask: jax.Array | None

    def observation(self, metric: Metric, sample_weight: ArrayLike | None) -> Observation:
        """Return the arguments of a metric."""
        return Observation(metric, self.y_true, self.y_pred, sample_weight, self.mask)


@dataclasses.dataclass(frozen=True)
class _Term:
    """A loss with its output."""

    name: str
    output: _Output
    loss: Loss
    loss_weight: float | None
    is_measured: bool  # metrics read the outputs, too

    def measure(self) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Return the loss, a scalar, and the scalars that it reports, by name."""
        loss, of, context = self.loss, self.output, call_context.current()
        projection = context.projection_of(of.y_pred) if context is not None and not self.is_measured else None
        y_pred = of.y_pred if projection is None or not loss.uses(projection) else projection
        with explaining_traced_values(f"loss {loss.name!r}"):
            value, reported = loss.with_reported(of.y_true, y_pred, of.sample_weight, of.mask)
        if jnp.ndim(value):
            summary = f"the loss {loss.name!r} is not reduced to a number"
            given = f"reduction={loss.reduction!r}, a loss of shape {jnp.shape(value)}"
            raise ModelError(summary, given=given, fix='leave out `reduction`, or pass "sum"')
        return value, reported

    def divisor(self) -> ArrayLike:
        """Return the divisor of the loss, a scalar."""
        of = self.output
        return self.loss.divisor(of.y_true, of.y_pred, sample_weight=of.sample_weight, mask=of.mask)

    def count(self) -> ArrayLike | None:
        """Return the number of values with a weight; None for a scalar loss."""
        of = self.output
        return self.loss.count(of.y_true, of.y_pred, of.sample_weight, of.mask)


@dataclasses.dataclass(frozen=True, eq=False)
class Objective:
    """Losses and metrics of the outputs of a model, as `resolve_objective` makes them."""

    loss: PyTree  # one for all outputs, or a list or dict by output
    loss_weights: PyTree  # in the same form; None for 1
    metrics: PyTree  # lists by output, or a list: the metrics of one output, or an entry for each output
    weighted_metrics: PyTree  # in the same form
    output_names: Sequence[str] | None  # for outputs that are lists, tuples or one array
    structured: tuple[PyTree, PyTree] | None = None  # loss and weights, nested as they were given, for `parts_of`
    layer_names: Sequence[str] | None = None  # of the layers that compute the outputs, if they are known

    @property
    def needs_targets(self) -> bool:
        """Whether losses or metrics need `y`."""
        return any(measure.needs_targets for measure in [*jax.tree.leaves(self.loss), *self.all_metrics])

    @property
    def all_metrics(self) -> list[Metric]:
        """The metrics and the weighted metrics of all outputs."""
        return jax.tree.leaves([self.metrics, self.weighted_metrics])

    def losses(self, batch: Batch, y_pred: PyTree, mask: PyTree = None) -> dict[str, jax.Array]:
        """Return the `loss` of a batch, with several outputs also the loss of each, before its weight.

        The scalars that losses report follow; with several losses their names begin with the name of the output.
        """
        terms = self._terms(batch, y_pred, mask)
        if not terms:
            return {}  # all losses are added by layers
        values, reported = zip(*(term.measure() for term in terms), strict=True)
        weighted = [
            value if term.loss_weight is None else value * term.loss_weight
            for term, value in zip(terms, values, strict=True)
        ]
        each: dict[str, jax.Array] = {}
        for term, value in zip(terms, values, strict=True) if len(terms) > 1 else ():
            name = f"{term.name}_loss"
            each[name] = each[name] + value if name in each else value
        found = {"loss": sum(weighted[1:], weighted[0]), **each}
        for term, scalars in zip(terms, reported, strict=True):
            prefix = f"{term.name}_" if len(terms) > 1 and term.name else ""
            named = {f"{prefix}{name}": value for name, value in scalars.items()}
            check_free(found, named)
            found |= named
        return found

    def batch_weight(self, batch: Batch, y_pred: PyTree, mask: PyTree = None) -> ArrayLike:
        """Return the divisor of the loss of a batch: its weight in accumulated gradients. Without a loss, its rows."""
        divisors = [term.divisor() for term in self._terms(batch, y_pred, mask)]
        return sum(divisors) / len(divisors) if divisors else float(len(jax.tree.leaves(batch[0])[0]))

    def tokens(self, batch: Batch, y_pred: PyTree, mask: PyTree = None) -> ArrayLike:
        """Count the tokens in a batch: values of the loss with a weight other than 0 that are not masked."""
        counts = [term.count() for term in self._terms(batch, y_pred, mask)]
        counts = [count for count in counts if count is not None]
        if len(counts) == 1:
            return counts[0]
        summary = "tokens_per_second: the tokens of a batch cannot be counted"
        fix = 'report "examples_per_second" instead, or let one loss alone return a value for each token'
        raise ModelError(summary, given=f"{len(counts)} losses with a value for each token", fix=fix)

    def measured(self, batch: Batch, y_pred: PyTree, mask: PyTree = None) -> PyTree:
        """Return the arrays in `y_pred` that have a loss or a metric."""
        measured = self._measured(self._outputs(y_pred), batch, y_pred, mask)
        outputs = [term.output for term in self._terms(batch, y_pred, mask)] + [output for _, output, *_ in measured]
        return [output.y_pred for output in outputs]

    def logs(
        self, losses: Mapping[str, jax.Array], batch: Batch, y_pred: PyTree, mask: PyTree = None
    ) -> dict[str, Any]:
        """Return the losses and the observations of metrics by the names they are logged under."""
        outputs = self._outputs(y_pred)
        order = self.loss if isinstance(self.loss, Mapping) and isinstance(y_pred, Mapping) else outputs.names
        names = dict.fromkeys(["loss", *(f"{name}_loss" for name in order), *losses])
        found: dict[str, Observation] = {}
        measured = self._measured(outputs, batch, y_pred, mask)
        if isinstance(self.loss, Loss) and len(measured) == 1:
            [(prefix, output, *metrics)] = measured
            given = self.loss.for_metrics(output.y_true, output.y_pred, output.sample_weight, output.mask)
            measured = [(prefix, _Output(*given), *metrics)]
        for prefix, output, plain, _ in measured:
            for metric in plain:
                found[free_name(prefix + metric.name, found)] = output.observation(metric, None)
        for prefix, output, _, weighted in measured:
            for metric in weighted:
                name = prefix + metric.name
                name = free_name(f"{prefix}weighted_{metric.name}", found) if name in found else name
                found[name] = output.observation(metric, output.sample_weight)
        if repeated := set(found) & set(losses):
            given = f"the losses {', '.join(map(repr, losses))} and the metrics {', '.join(map(repr, found))}"
            fix = "give the metric another name, or rename the value in the dict that the loss returns"
            raise ModelError(f"two values would be logged as {min(repeated)!r}", given=given, fix=fix)
        in_order = dict(sorted(found.items())) if len(outputs.names) > 1 else found
        ordered = {name: losses[name] for name in names if name in losses}
        return {**self._in_means(ordered, batch, y_pred, mask), **in_order}

    def _in_means(self, losses: dict[str, jax.Array], batch: Batch, y_pred: PyTree, mask: PyTree) -> dict[str, Any]:
        """Return the losses, weighted by their divisors if the only loss is a mean over weights."""
        if not (isinstance(self.loss, Loss) and self.loss.is_mean_by_weight):
            return losses
        weight = jnp.asarray(self.batch_weight(batch, y_pred, mask), jnp.float32)
        return {name: OpenMean(value * weight, weight) for name, value in losses.items()}

    def _outputs(self, y_pred: PyTree) -> Outputs:
        names, count = self.output_names, len(jax.tree.leaves(y_pred))
        if names is not None and len(names) != count:  # `compute_loss` of a subclass changed the outputs
            taken: dict[str, Any] = {}  # as in Keras: outputs without names get the names of their losses
            for loss in self.loss if isinstance(self.loss, list) and None not in self.loss else ():
                taken[free_name(loss.name, taken)] = loss
            names = list(taken) if len(taken) == count else None
        return Outputs(y_pred, names)

    def _takes_apart(self, outputs: Outputs, y: PyTree) -> bool:
        """Whether the loss splits targets and outputs itself, as callables of users do."""
        splits = isinstance(self.loss, Loss) and (self.loss.splits_targets or not self.loss.needs_targets)
        return splits and not outputs.fits(y)

    def _parts(self, outputs: Outputs) -> list[Part]:
        """Return the losses with the names of their outputs."""
        if self.structured is not None:
            labels = self.layer_names if len(self.layer_names or ()) == len(outputs.names) else outputs.names
            places = jax.tree.unflatten(outputs.structure, outputs.names)
            named = dict(zip(outputs.names, labels or (), strict=True))
            found = parts_of(*self.structured, places, named)
            if found is not None:
                return found
        losses = outputs.assign("loss", self.loss, one_for_all=True)
        weights = outputs.assign("loss_weights", self.loss_weights, one_for_all=True)
        return [Part(name, loss, weights.get(name), name) for name, loss in losses.items() if loss is not None]

    def _terms(self, batch: Batch, y_pred: PyTree, mask: PyTree) -> list[_Term]:
        _, y, sample_weight = batch
        outputs = self._outputs(y_pred)
        if self._takes_apart(outputs, y):
            everything = _Output(y, y_pred, sample_weight, mask)
            return [_Term("", everything, self.loss, self.loss_weights, bool(self.all_metrics))]
        parts = self._parts(outputs)
        of = self._given(outputs, batch, mask, parts)
        measured = bool(self.all_metrics)
        return [_Term(part.name, of(part.outputs), part.loss, part.weight, measured) for part in parts]

    def _measured(
        self, outputs: Outputs, batch: Batch, y_pred: PyTree, mask: PyTree
    ) -> list[tuple[str, _Output, list[Metric], list[Metric]]]:
        """Return, per output: name prefix, output, metrics, weighted metrics."""
        _, y, sample_weight = batch
        if not self.all_metrics:
            return []
        if self._takes_apart(outputs, y):
            everything = _Output(y, y_pred, sample_weight, mask)
            return [("", everything, _listed(self.metrics), _listed(self.weighted_metrics))]
        plain, weighted = self._assigned("metrics", outputs), self._assigned("weighted_metrics", outputs)
        names = [name for name in outputs.names if plain.get(name) or weighted.get(name)]
        if not names:
            return []
        try:
            parts = self._parts(outputs)
        except ModelError:  # the losses fit outputs that `compute_loss` of a subclass has changed
            parts = []
        of = self._given(outputs, batch, mask, parts)
        are_several = len(outputs.names) > 1
        return [
            (f"{name}_" if are_several and name else "", of(name), plain.get(name, []), weighted.get(name, []))
            for name in names
        ]

    def _given(
        self, outputs: Outputs, batch: Batch, mask: PyTree, parts: Sequence[Part]
    ) -> Callable[[PyTree], _Output]:
        """Return the function from the name of an output, or a structure of names, to its `_Output`."""
        _, y, sample_weight = batch
        needed = {name for part in parts for name in jax.tree.leaves(part.outputs)}
        for argument in ("metrics", "weighted_metrics"):
            needed |= {name for name, found in self._assigned(argument, outputs).items() if found}
        targets = outputs.match("y", y, [name for name in outputs.names if name in needed])
        weights = outputs.match_weights("sample_weight", sample_weight)
        masks = outputs.match_weights("mask", mask)

        def output(names: PyTree) -> _Output:
            if isinstance(names, str):
                return _Output(targets.get(names), outputs.arrays[names], weights.get(names), masks.get(names))
            y_true, y_pred, each = (jax.tree.map(found.get, names) for found in (targets, outputs.arrays, weights))
            are_several = isinstance(sample_weight, list | tuple | Mapping)
            return _Output(y_true, y_pred, each if are_several else sample_weight, None)

        return output

    def _assigned(self, argument: str, outputs: Outputs) -> dict[str, list[Metric]]:
        given = getattr(self, argument)
        if isinstance(given, list) and (not given or len(outputs.names) == 1):
            given = [_listed(given)] * len(outputs.names)
        return {name: _listed(found) for name, found in outputs.assign(argument, given, one_for_all=False).items()}


def resolve_objective(
    loss: PyTree,
    loss_weights: PyTree = None,
    metrics: PyTree = None,
    weighted_metrics: PyTree = None,
    output_names: Sequence[str] | None = None,
    layer_names: Sequence[str] | None = None,
) -> Objective:
    """Resolve the arguments of `compile`; see `Objective` for the names."""
    for argument, given in (("loss", loss), ("metrics", metrics), ("weighted_metrics", weighted_metrics)):
        _check_no_layers(argument, given)
    losses, factors = _resolved(as_loss, loss), _resolved(_number, loss_weights)
    objective = Objective(
        _flat(losses),
        _flat(factors),
        _resolved_metrics(metrics),
        _resolved_metrics(weighted_metrics),
        output_names,
        (losses, factors) if layer_names is not None or is_structured(losses) else None,
        layer_names,
    )
    if loss is not None and not jax.tree.leaves(objective.loss):
        raise ModelError("`loss` holds no loss", given=f"loss={shorten(loss)}", fix='for example loss="mse"')
    _check_weights(loss, loss_weights, output_names)
    return objective


def _check_weights(loss: PyTree, loss_weights: PyTree, output_names: Sequence[str] | None) -> None:
    """Check that a dict of weights has one for each loss, as in Keras."""
    losses = [name for name in loss if loss[name] is not None] if isinstance(loss, Mapping) else output_names or ()
    if not isinstance(loss_weights, Mapping) or (isinstance(loss, Mapping) and "class_name" in loss):
        return
    missing = [name for name in losses if name not in loss_weights]
    if missing:
        summary = f"`loss_weights` has no entry for output {missing[0]!r}"
        fix = f"loss_weights={{..., {missing[0]!r}: 1.0}}"
        raise ModelError(summary, given=f"loss_weights={shorten(loss_weights)}", fix=fix)


def _check_no_layers(argument: str, given: PyTree) -> None:
    """Raise for a layer, which could be called with two arguments like a function of targets."""
    leaves = jax.tree.leaves(given, is_leaf=lambda node: isinstance(node, Layer))
    layers = [leaf for leaf in leaves if isinstance(leaf, Layer)]
    if layers:
        fix = "a name, or a function that may call the layer: lambda y_true, y_pred: ..."
        raise ModelError(f"`{argument}` holds a layer", given=with_type(layers[0]), fix=fix)


def _resolved(resolve: Callable[[Any], Any], given: PyTree) -> PyTree:
    """Resolve an argument by output and keep its structure."""
    if isinstance(given, list | tuple):
        items = [_resolved(resolve, item) for item in given]
        return type(given)(*items) if hasattr(given, "_fields") else type(given)(items)
    if _is_by_output(given):
        return {name: _resolved(resolve, item) for name, item in given.items()}
    return None if given is None else resolve(given)


def _flat(resolved: PyTree) -> PyTree:
    """Flatten nested lists to one list, and nested dicts to one dict by path."""
    found = dict(_items(None, resolved))
    if isinstance(resolved, list | tuple):
        return list(found.values())
    return found if isinstance(resolved, Mapping) else found[None]


def _items(path: Any, given: PyTree) -> Iterator[tuple[Any, Any]]:
    if isinstance(given, list | tuple | Mapping):
        for name, item in given.items() if isinstance(given, Mapping) else enumerate(given):
            yield from _items(name if path is None else f"{path}/{name}", item)
    else:
        yield path, given


def _is_by_output(given: PyTree) -> bool:
    return isinstance(given, Mapping) and "class_name" not in given


def _number(weight: Any) -> float:
    return check_number("loss_weights", weight, example=[1.0, 0.5])


def _resolved_metrics(given: PyTree) -> PyTree:
    if _is_by_output(given):
        return {name: metrics.get_all(item) for name, item in given.items()}
    if isinstance(given, list | tuple) and any(item is None or isinstance(item, list | tuple) for item in given):
        return [metrics.get_all(item) for item in given]
    return metrics.get_all(given)


def _listed(given: PyTree) -> list[Metric]:
    """Return the metrics of one output as a list."""
    if isinstance(given, Mapping):
        given = list(given.values())
    return [metric for item in given for metric in _listed(item)] if isinstance(given, list) else [given]


def check_free(taken: Mapping[str, Any], reported: Mapping[str, Any]) -> None:
    """Check that the names of values that a loss or `report` adds to the logs are not taken."""
    for name in reported:
        if name in taken:
            given = f"a loss that returns a value of this name, or `report`, beside {', '.join(map(repr, taken))}"
            fix = "rename it in the dict that the loss returns, or rename the metric"
            raise ModelError(f"two values would be logged as {name!r}", given=given, fix=fix)


REPORTS = ("gradient_norm", "learning_rate", "tokens_per_second", "examples_per_second")


def check_report(report: Any, has_own_step: bool) -> tuple[str, ...]:
    """Return the names in the argument `report` of `compile`."""
    names = () if report is None else (report,) if isinstance(report, str) else report
    if not isinstance(names, Collection) or isinstance(names, Mapping):
        fix = f"for example report=['gradient_norm']; there are {', '.join(map(repr, REPORTS))}"
        raise ModelError("`report` must be a list of names", given=f"report={with_type(report)}", fix=fix)
    for name in names:
        if name not in REPORTS:
            given = f"report={shorten(report)}"
            raise unknown_name_error("`report` has an unknown name", name, REPORTS, given=given, error=ModelError)
    if names and has_own_step:
        fix = "leave it out, and log {'gradient_norm': optax.tree.norm(grads)} in train_step"
        raise ModelError("`report` goes with the train step of `compile`", given=f"report={shorten(report)}", fix=fix)
    return tuple(dict.fromkeys(names))


def reported(
    names: Collection[str],
    objective: Objective,
    optimizers: Mapping[str, Optimizer],
    states: tuple[TrainState, TrainState],
    grads: PyTree,
    batch: Batch,
    outputs: tuple[PyTree, PyTree],
    batch_weight: ArrayLike | None,
) -> dict[str, Any]:
    """Return the values of one step by name (traced), from the states before and after it."""
    before, after = states
    found: dict[str, Any] = {}
    for name in names:
        if name == "gradient_norm":
            weight = 1.0 if batch_weight is None else batch_weight
            norms = [
                one.transformation.squared_norm(one.select(grads), on_device(before.slots[key]), weight)
                for key, one in optimizers.items()
            ]
            squared = sum((jnp.where(is_due, norm, 0.0) for norm, is_due in norms), jnp.zeros((), jnp.float32))
            is_due = jnp.any(jnp.array([is_due for _, is_due in norms]))
            found[name] = OpenMean(jnp.sqrt(squared), is_due.astype(jnp.float32))
        elif name == "learning_rate":
            for key, one in optimizers.items():
                rate = one.transformation.rate_of_step(before.slots[key], after.slots[key])
                found[name if key == DEFAULT else f"{key}_{name}"] = Latest(jnp.asarray(rate, jnp.float32))
        elif name == "tokens_per_second":
            found[name] = Count(objective.tokens(batch, *outputs))
        else:
            found[name] = Count(float(len(jax.tree.leaves(batch[0])[0])))
    return found
