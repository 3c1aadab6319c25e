"""`Bidirectional`."""

from __future__ import annotations

import inspect
from typing import Any

import jax
import jax.numpy as jnp

from keras_dist._support.arguments import check_option
from keras_dist._support.types import PyTree, Shape
from keras_dist.errors import ModelError, shorten, with_type
from keras_dist.layers.base.layer import Layer
from keras_dist.layers.base.other_frameworks import check_is_ours
from keras_dist.serialization.object_configs import lambdas_kept


class Bidirectional(Layer):
    """Merge the outputs of a recurrent layer over a sequence and over the reversed sequence.

    Both layers are created from the configs of the given layers. Paths of weights contain their names:
    `forward_lstm/lstm_cell/kernel`, `backward_lstm/lstm_cell/kernel`. Outputs of masked time steps are 0.

    Args:
        layer: an `RNN`, or a layer with `go_backwards`, `return_sequences` and `return_state`.
        merge_mode: `"concat"`, `"sum"`, `"mul"` or `"ave"`; None for both outputs.
        weights: must be None; use `set_weights`.
        backward_layer: the layer for the reversed sequence; by default a copy of `layer` with `go_backwards=True`.
        **kwargs: see `Layer`.
    """

    def __init__(
        self,
        layer: Layer,
        merge_mode: str | None = "concat",
        weights: None = None,
        backward_layer: Layer | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if weights is not None:
            given = f"weights={shorten(weights)}"
            fix = "call the layer once, then layer.set_weights(weights)"
            raise ModelError(f"`weights` of layer {self.name!r} cannot be set before it is built", given=given, fix=fix)
        _check_sequence_layer("layer", layer, self.name)
        forward = _again(layer, name=f"forward_{layer.name.removeprefix('forward_')}")
        if backward_layer is None:
            name = f"backward_{layer.name.removeprefix('backward_')}"
            backward = _again(layer, name=name, go_backwards=True)
        else:
            _check_sequence_layer("backward_layer", backward_layer, self.name)
            backward = _again(backward_layer)
        self.merge_mode = check_option("merge_mode", merge_mode, ("concat", "sum", "mul", "ave", None), self.name)
        self._check_pair(forward, backward)
        for one in (forward, backward):
            if hasattr(one, "zero_output_for_mask"):
                one.zero_output_for_mask = one.return_sequences
        self._members = {forward.name: forward, backward.name: backward}
        self._names = (forward.name, backward.name)
        self.stateful = any(bool(getattr(one, "stateful", False)) for one in (forward, backward))
        self.return_sequences = bool(layer.return_sequences)
        self.return_state = bool(layer.return_state)
        self.input_spec = layer.input_spec
        self.supports_masking = True

    @property
    def forward_layer(self) -> Layer:
        """The layer over the sequence."""
        return self._members[self._names[0]]

    @property
    def backward_layer(self) -> Layer:
        """The layer over the reversed sequence."""
        return self._members[self._names[1]]

    def reset_state(self) -> None:
        """Set the states that the layers keep to zeros."""
        for layer in (self.forward_layer, self.backward_layer):
            if getattr(layer, "stateful", False):
                layer.reset_state()

    def reset_states(self) -> None:
        """Alias of `reset_state`."""
        self.reset_state()

    @property
    def states(self) -> tuple[Any, Any] | None:
        """The kept states of both layers; None without `stateful=True`."""
        return (self.forward_layer.states, self.backward_layer.states) if self.stateful else None

    def build(self, sequences_shape: Shape, initial_state_shape: PyTree = None) -> None:
        """Create the weights of both layers."""
        for layer in (self.forward_layer, self.backward_layer):
            layer.build(sequences_shape)

    def call(
        self,
        sequences: jax.Array,
        initial_state: PyTree = None,
        mask: jax.Array | None = None,
        training: bool | None = None,
    ) -> PyTree:
        """Return the merged outputs.

        Args:
            sequences: (batch, time, features).
            initial_state: initial states of the forward layer, then of the backward layer.
            mask: boolean, valid time steps, (batch, time).
            training: passed to the layers.

        Returns:
            (batch, units), or (batch, time, units) with `return_sequences`; 2 * units for `"concat"`, two arrays for
            None. With `return_state`, a tuple of the outputs and the states of both layers.
        """
        half = 0 if initial_state is None else len(initial_state) // 2
        states = (None, None) if initial_state is None else (initial_state[:half], initial_state[half:])
        forward = self._run_one(self.forward_layer, sequences, states[0], mask, training)
        backward = self._run_one(self.backward_layer, sequences, states[1], mask, training)
        found: tuple[PyTree, ...] = ()
        if self.return_state:
            found = (*forward[1:], *backward[1:])
            forward, backward = forward[0], backward[0]
        merged = self._merge(forward, jnp.flip(backward, 1) if self.return_sequences else backward)
        if not self.return_state:
            return merged
        return (*merged, *found) if self.merge_mode is None else (merged, *found)

    def compute_mask(self, inputs: PyTree, mask: PyTree = None) -> PyTree:
        """Return the mask of the input for sequences of outputs, and None for states."""
        mask = mask if self.return_sequences else None
        if self.merge_mode is not None and not self.return_state:
            return mask
        states = 2 * len(jax.tree.leaves(self.forward_layer.state_size)) if self.return_state else 0
        return [*[mask] * (2 if self.merge_mode is None else 1), *[None] * states]

    def _run_one(
        self, layer: Layer, sequences: jax.Array, states: PyTree, mask: jax.Array | None, training: bool | None
    ) -> PyTree:
        options = {} if states is None else {"initial_state": states}
        if "mask" in inspect.signature(layer.call).parameters:
            options["mask"] = mask
        return layer(sequences, training=training, **options)

    def _merge(self, forward: jax.Array, backward: jax.Array) -> PyTree:
        match self.merge_mode:
            case "concat":
                return jnp.concatenate([forward, backward], axis=-1)
            case "sum":
                return forward + backward
            case "mul":
                return forward * backward
            case "ave":
                return (forward + backward) / 2
        return forward, backward

    def _check_pair(self, forward: Layer, backward: Layer) -> None:
        same = all(getattr(forward, name) == getattr(backward, name) for name in ("return_sequences", "return_state"))
        if not same or forward.go_backwards == backward.go_backwards or forward.name == backward.name:
            options = ("name", "go_backwards", "return_sequences", "return_state")
            summary = f"the layers of {self.name!r} must differ in name and go_backwards, and agree in other options"
            given = "; ".join(", ".join(f"{o}={getattr(one, o)!r}" for o in options) for one in (forward, backward))
            fix = "leave backward_layer out, or give it go_backwards=True, the same return_sequences and return_state"
            raise ModelError(summary, given=given, fix=fix)


def _again(layer: Layer, **changes: Any) -> Layer:
    with lambdas_kept():
        return type(layer).from_config({**layer.get_config(), **changes})


def _check_sequence_layer(argument: str, value: Any, layer: str) -> None:
    options = ("go_backwards", "return_sequences", "return_state")
    if not isinstance(value, Layer) or not all(hasattr(value, option) for option in options):
        check_is_ours(f"`{argument}` of layer {layer!r}", value)
        summary = f"`{argument}` of layer {layer!r} must be an RNN, or a layer with its go_backwards and return_*"
        fix = "for example Bidirectional(LSTM(32)); write a cell of your own and wrap it: Bidirectional(RNN(cell))"
        raise ModelError(summary, given=with_type(value), fix=fix)
