"""`MixtureOfExperts`: tokens are routed to a few of many feed-forward networks.

Routing is local to a row of the batch, so that one device and a mesh drop the same tokens. Each row fills `capacity`
slots of each expert. Two layouts of these slots, by row and then by expert, make XLA exchange tokens by all-to-all and
leave the weights of experts in place. The slots are read by index: dispatch matrices (tokens, experts, capacity) would
be quadratic in the number of tokens.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Unpack

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from keras_dist import activations
from keras_dist._support.arguments import argument_error, check_int, check_number, check_optional, check_size
from keras_dist._support.dim_names import EXPERTS, INPUTS, OUTPUTS
from keras_dist.distribution.mesh import axis_tuple
from keras_dist.distribution.strategy import Distribution
from keras_dist.distribution.tracing import may_use_kernels, note_kernel, traced_distribution
from keras_dist.distribution.variables import describe_variables
from keras_dist.layers.base.call_arguments import InputSpec
from keras_dist.layers.base.lora import AdaptableLayer, AdaptedWeight, lora_update
from keras_dist.layers.base.quantized import product_with
from keras_dist.layers.base.weight_arguments import Identifier, LayerArguments, Layout
from keras_dist.variables.variable import Variable

_Constraint = Callable[[jax.Array], jax.Array]


class MixtureOfExpertsArguments(LayerArguments, total=False):
    """Keyword arguments of `MixtureOfExperts`."""

    router_initializer: Identifier
    router_regularizer: Identifier
    router_constraint: Identifier
    router_layout: Layout
    kernel_initializer: Identifier
    kernel_regularizer: Identifier
    kernel_constraint: Identifier
    kernel_layout: Layout


class _Routes(NamedTuple):
    """The experts of tokens; choices (rows, top_k * tokens) are ordered by rank, then by token.

    Attributes:
        slots: slot of each choice, expert by expert; `experts * capacity` for none.
        tokens: token of each slot (rows, experts * capacity); the number of tokens for none.
        weights: weight of each choice.
        chosen: whether a choice is of an expert, (rows, top_k * tokens, experts).
        dropped: number of choices of each expert without a slot.
        logits: scores of the router (rows, tokens, experts).
    """

    slots: jax.Array
    tokens: jax.Array
    weights: jax.Array
    chosen: jax.Array
    dropped: jax.Array
    logits: jax.Array


class MixtureOfExperts(AdaptableLayer):
    """Sum of the `top_k` experts of each token, weighted by a router, and of shared experts.

    An expert is `(activation(x @ gate) * (x @ up)) @ down`, or `activation(x @ up) @ down` without a gate. The router's
    probabilities are `softmax(x @ router)`, in float32. Inputs are (batch, ..., features); each row is routed alone.

    With `capacity_factor`, an expert takes `ceil(capacity_factor * top_k * tokens / num_experts)` tokens of a row:
    first choices before second ones, and earlier tokens before later ones. Further choices are dropped, and add nothing
    to the output. Without it nothing is dropped, and each expert has a slot for every token of a row, which takes
    `num_experts / top_k` times the memory and FLOPs of `capacity_factor=1`.

    `routed` and `dropped` (num_experts,) are exact counts of the last training step: choices of each expert before
    dropping, and dropped ones.

    The weights `experts_gate`, `experts_up` and `experts_down` are sharded by expert with `kd.presets.experts(mesh)`,
    or with `axis_names={"experts": "expert"}` of a strategy; also by a rule `".*experts_(gate|up|down)"`, or by
    `kernel_layout=`, with the layout `("expert", None, None)`. Tokens are then exchanged by all-to-all. `kd.plan` names
    the axis and the slots. Compiled steps never gather the dim of the experts, also under `FullySharded` and where the
    batch is sharded over the same axis. The rows of the batch should be sharded over that axis too.

    Args:
        num_experts: number of experts.
        units: hidden size of an expert.
        top_k: number of experts of a token.
        capacity_factor: slots of a row, as a multiple of its choices; None to drop none.
        shared_experts: number of experts that take every token, as one network of hidden size `shared_experts * units`.
        activation: a name or a function.
        gated: whether experts have a gate.
        normalize: whether the weights of the `top_k` experts of a token sum to 1.
        load_balancing: factor of the loss `num_experts * sum(fraction * probability)`, of the fraction of choices and
            the mean probability of each expert; 1 if both are uniform.
        z_loss: factor of the loss `mean(logsumexp(x @ router) ** 2)`.
        **kwargs: `router_initializer`, `router_regularizer`, `router_constraint` and `router_layout` of the weight
            `router` (features, num_experts), the same of `kernel` for the weights of the experts, and the arguments of
            `Layer`.

    Raises:
        ModelError: an argument is invalid.

    Example:
        >>> import jax, keras_dist as kd
        >>> from keras_dist import layers
        >>> mesh = kd.DeviceMesh("data=2,expert=4")
        >>> with kd.presets.experts(mesh).scope():
        ...     model = kd.Sequential([kd.Input((16, 8)), layers.MixtureOfExperts(4, 32, capacity_factor=1.25)])
        >>> plan = kd.plan(model, jax.ShapeDtypeStruct((8, 16, 8), "float32"))
        >>> plan.step.nbytes_by_axes()["all_to_all", ("expert",)]
        3840

    Source: Lepikhin et al. 2020, arXiv:2006.16668 (GShard); Fedus et al. 2021, arXiv:2101.03961; Zoph et al. 2022,
    arXiv:2202.08906.
    """

    weight_initializers: ClassVar = {"router": "glorot_uniform", "kernel": "glorot_uniform"}

    def __init__(
        self,
        num_experts: int,
        units: int,
        top_k: int = 2,
        capacity_factor: float | None = None,
        shared_experts: int = 0,
        activation: Identifier = "silu",
        gated: bool = True,
        normalize: bool = True,
        load_balancing: float = 0.01,
        z_loss: float = 0.0,
        **kwargs: Unpack[MixtureOfExpertsArguments],
    ) -> None:
        super().__init__(**kwargs)
        self.num_experts = check_size("num_experts", num_experts, self.name)
        self.units = check_size("units", units, self.name)
        self.top_k = check_size("top_k", top_k, self.name)
        if top_k > num_experts:
            expected = f"at most num_experts={num_experts}"
            raise argument_error("top_k", top_k, expected, layer=self.name, example=min(2, num_experts))
        above_zero = functools.partial(check_number, above=0, layer=self.name, example=1.25)
        self.capacity_factor = check_optional(above_zero, "capacity_factor", capacity_factor)
        self.shared_experts = check_int("shared_experts", shared_experts, 0, layer=self.name, example=1)
        self.identify("activation", activations.get, activation)
        self.gated, self.normalize = gated, normalize
        self.load_balancing = check_number("load_balancing", load_balancing, 0, layer=self.name, example=0.01)
        self.z_loss = check_number("z_loss", z_loss, 0, layer=self.name, example=0.001)
        self.input_spec = InputSpec(min_ndim=3)
        self.supports_masking = True

    def build(self, input_shape: tuple[int, ...]) -> None:
        """Create `router` (features, num_experts), `experts_up` (num_experts, features, units) and further weights.

        `experts_gate` is like `experts_up`, and `experts_down` is (num_experts, units, features). Shared experts have
        the same weights without the first dim, `shared_gate`, `shared_up` and `shared_down`.
        """
        self._build_networks(input_shape[-1])
        for name in ("routed", "dropped"):
            setattr(self, name, self.add_weight((self.num_experts,), "zeros", "int32", trainable=False, name=name))

    def _build_networks(self, features: int) -> None:
        """Create the trainable weights."""
        count, shared = self.num_experts, self.shared_experts * self.units
        self.router = self.add_weight((features, count), autocast=False, name="router", dim_names=(INPUTS, "choices"))
        for name in ("gate", "up", "down") if self.gated else ("up", "down"):
            shape = (self.units, features) if name == "down" else (features, self.units)
            setattr(self, f"experts_{name}", self._add_kernel(f"experts_{name}", (count, *shape), self.kernel_layout))
            if shared:
                shape = (shared, features) if name == "down" else (features, shared)
                setattr(self, f"shared_{name}", self._add_kernel(f"shared_{name}", shape))
        self.input_spec = InputSpec(min_ndim=3, axes={-1: features})

    def call(self, inputs: jax.Array, mask: jax.Array | None = None, training: bool | None = None) -> jax.Array:
        """Return the outputs (batch, ..., features); tokens where the `mask` (batch, ...) is False have no experts."""
        outputs, routes, kept = self._routed(inputs, mask, self.capacity_factor)
        self._add_losses(routes, kept)
        if training:
            self.routed.assign(routes.chosen.sum((0, 1)))
            self.dropped.assign(routes.dropped)
        return outputs

    def _routed(
        self, inputs: jax.Array, mask: jax.Array | None, capacity_factor: float | None
    ) -> tuple[jax.Array, _Routes, jax.Array]:
        """Return the outputs, the routes, and which tokens (rows, tokens) have experts."""
        x = inputs.reshape(len(inputs), -1, inputs.shape[-1])
        kept = jnp.ones(x.shape[:2], bool) if mask is None else jnp.asarray(mask, bool).reshape(x.shape[:2])
        capacity = self._capacity(x.shape[1], capacity_factor)
        by_row, by_row_again, by_expert = self._constraints(len(x), x.shape[1], capacity)
        routes = self._routes(by_row(x), kept, by_row, capacity)
        slots = _rows_at(x, routes.tokens).reshape(len(x), self.num_experts, -1, x.shape[-1])
        outputs = self._network("experts", by_expert(by_row_again(slots)), "gecd,edf->gecf")  # between two exchanges
        outputs = by_row_again(by_expert(outputs))
        chosen = _rows_at(outputs.reshape(len(x), -1, x.shape[-1]), routes.slots)
        chosen = chosen * routes.weights[..., None].astype(chosen.dtype)
        found = chosen.reshape(len(x), self.top_k, -1, x.shape[-1]).sum(1)
        if self.shared_experts:
            found = found + self._network("shared", x, "...d,df->...f")
        return found.reshape(inputs.shape), routes, kept

    def _add_kernel(self, name: str, shape: tuple[int, ...], layout: Layout = None) -> Variable:
        options: dict[str, Any] = {"regularizer": self.kernel_regularizer, "constraint": self.kernel_constraint}
        names = (EXPERTS, INPUTS, OUTPUTS)[-len(shape) :]
        return self.add_weight(shape, self.kernel_initializer, layout=layout, name=name, dim_names=names, **options)

    def _routes(self, x: jax.Array, kept: jax.Array, by_row: _Constraint, capacity: int) -> _Routes:
        """Choose the experts of the tokens of `x` (rows, tokens, features)."""
        rows, tokens, _ = x.shape
        logits = by_row(self._logits(x))
        probabilities = jax.nn.softmax(logits)
        # XLA gathers the rows of `jax.lax.top_k`, of jax 0.10 and 0.12 on CPUs, and shards a sort by rows
        experts = jnp.argsort(-probabilities, axis=-1)[..., : self.top_k]
        weights = jnp.take_along_axis(probabilities, experts, 2)
        if self.normalize:
            weights = weights / weights.sum(-1, keepdims=True)
        weights, experts = (each.swapaxes(1, 2).reshape(rows, -1) for each in (weights, experts))
        is_real = jnp.tile(kept, (1, self.top_k))
        chosen = by_row(jax.nn.one_hot(experts, self.num_experts, dtype=jnp.int32) * is_real[..., None])
        places = jnp.take_along_axis(jnp.cumsum(chosen, axis=1) - 1, experts[..., None], 2)[..., 0]
        has_slot = is_real & (places < capacity)
        slots = jnp.where(has_slot, experts * capacity + places, self.num_experts * capacity)
        of_choices = jnp.tile(jnp.arange(tokens), self.top_k)
        empty = jnp.full((self.num_experts * capacity,), tokens)
        of_slots = jax.vmap(lambda slots: empty.at[slots].set(of_choices, mode="drop"))(slots)
        dropped = by_row(chosen * ~has_slot[..., None]).sum((0, 1))
        return _Routes(slots, of_slots, weights, chosen, dropped, logits)

    def _logits(self, x: jax.Array) -> jax.Array:
        """Return the scores of experts (rows, tokens, experts), in float32."""
        return jnp.einsum("gtd,de->gte", x.astype(jnp.float32), self.router[...].astype(jnp.float32))

    def _capacity(self, tokens: int, factor: float | None) -> int:
        """Return the number of tokens that an expert takes from a row of `tokens`."""
        return tokens if factor is None else min(tokens, math.ceil(factor * self.top_k * tokens / self.num_experts))

    def _add_losses(self, routes: _Routes, kept: jax.Array) -> None:
        count = jnp.maximum(kept.sum(), 1)
        if self.load_balancing:
            fractions = routes.chosen.sum((0, 1)) / (count * self.top_k)
            means = (jax.nn.softmax(routes.logits) * kept[..., None]).sum((0, 1)) / count
            self.add_loss(self.load_balancing * self.num_experts * (fractions * means).sum())
        if self.z_loss:
            squares = jax.nn.logsumexp(routes.logits, axis=-1) ** 2
            self.add_loss(self.z_loss * (squares * kept).sum() / count)

    def _network(self, name: str, x: jax.Array, equation: str) -> jax.Array:
        """Return the outputs of the experts, or of the shared ones."""
        hidden = [self._product(f"{name}_{part}", x, equation) for part in ("gate", "up")[not self.gated :]]
        return self._product(f"{name}_down", self._activated(*hidden), equation)

    def _activated(self, first: jax.Array, up: jax.Array | None = None) -> jax.Array:
        """Return the hidden units, times their gate if `first` is one."""
        first = first if self.activation is None else self.activation(first)
        return first if up is None else first * up

    def _product(self, name: str, x: jax.Array, equation: str) -> jax.Array:
        """Return the product with a weight, and with its factors of LoRA."""
        outputs = product_with(self, name, x, functools.partial(jnp.einsum, equation))
        update = lora_update(self, name, x, equation)
        return outputs if update is None else outputs + update.astype(outputs.dtype)

    def adapted_weights(self) -> list[AdaptedWeight]:
        parts = ("gate", "up", "down")[not self.gated :]
        names = [f"{group}_{part}" for group in ("experts", "shared") for part in parts]
        options = {"regularizer": self.kernel_regularizer, "constraint": self.kernel_constraint}
        return [AdaptedWeight(self, name, **options) for name in names if hasattr(self, name)]

    def _constraints(self, rows: int, tokens: int, capacity: int) -> tuple[_Constraint, _Constraint, _Constraint]:
        """Return constraints of arrays (rows, ...) by row, and of slots (rows, experts, ...) by row and by expert.

        They do nothing where the experts are not sharded, or the mesh does not divide the rows. Where the batch is not
        sharded over the axis of the experts, slots stay by expert: their sums over devices are smaller than all slots.
        """
        distribution = traced_distribution() if may_use_kernels() else None
        axes = () if distribution is None else _expert_axes(self.experts_up, distribution)
        if distribution is None or not axes:
            return _unchanged, _unchanged, _unchanged
        mesh, batch = distribution.device_mesh, axis_tuple(distribution.get_data_layout((rows,)).axes[0])
        if rows % mesh.axis_size(batch):
            return _unchanged, _unchanged, _unchanged

        slots = f"{capacity} slots of each for the {tokens} tokens of a row"
        note_kernel(f"{self.num_experts} experts over {' + '.join(axes)}, with {slots}")

        def constraint(*axes: tuple[str, ...]) -> _Constraint:
            sharding = NamedSharding(mesh.backend_mesh, PartitionSpec(*axes))
            return functools.partial(jax.lax.with_sharding_constraint, shardings=sharding)

        by_row, others = constraint(batch), tuple(axis for axis in batch if axis not in axes)
        return by_row, _unchanged if others == batch else by_row, constraint(others, axes)


def _unchanged(array: jax.Array) -> jax.Array:
    return array


def _expert_axes(weight: Variable, distribution: Distribution) -> tuple[str, ...]:
    """Return the mesh axes over which the experts of a weight are sharded."""
    (spec,), _ = describe_variables({"weight": weight})
    layout = distribution.get_variable_layout(dataclasses.replace(spec, path=weight.path))
    return () if layout is None else axis_tuple(layout.axes[-3])


def _rows_at(x: jax.Array, indices: jax.Array) -> jax.Array:
    """Return, for each row of a batch, the vectors at the `indices`; zeros for an index past the end."""
    return jax.vmap(lambda x, indices: x.at[indices].get(mode="fill", fill_value=0))(x, indices)
