"""Layers without weights: `Lambda`, a function as a layer, `Masking` and `Identity`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Self, Unpack

import jax
import jax.numpy as jnp
from flax import nnx

from keras_dist._support.arguments import check_numbers
from keras_dist._support.types import ArrayLike, PyTree
from keras_dist.errors import ModelError, shorten
from keras_dist.layers.base.layer import Layer
from keras_dist.layers.base.weight_arguments import LayerArguments
from keras_dist.serialization import custom_object_scope, get_registered_object
from keras_dist.serialization.object_configs import is_lambda, lambda_refused


class Lambda(Layer):
    """A layer that calls a function.

    Args:
        function: a function of the inputs, and of `mask` and `training`, if it has them. Layers in it are not tracked.
        output_shape: unused; the shape follows from the function.
        mask: the mask of the output: an array, or a function of the inputs and their mask; None for no mask.
        arguments: further arguments of the function, by name.
        **kwargs: see `Layer`.

    Raises:
        ModelError: `function` is not a function, or `arguments` is not a dict.

    Example:
        >>> import jax.numpy as jnp
        >>> from keras_dist import layers
        >>> layers.Lambda(lambda x, n: jnp.sum(x, axis=1) / n, arguments={"n": 2})(layers.Input((8, 3))).shape
        (None, 3)
    """

    def __init__(
        self,
        function: Callable[..., Any],
        output_shape: PyTree = None,
        mask: ArrayLike | Callable[..., PyTree] | None = None,
        arguments: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        del output_shape
        plain = callable(function) and not isinstance(function, nnx.Module)
        if not plain or not isinstance(arguments, Mapping | None):
            summary = f"layer {self.name!r} takes a function, and a dict of its further arguments or None"
            fix = 'for example Lambda(lambda x, n: x * n, arguments={"n": 2}); layers and modules need no Lambda'
            raise ModelError(summary, given=f"function={shorten(function)}, arguments={shorten(arguments)}", fix=fix)
        self.function = function
        # partials and functions hide arrays from NNX
        self._bound = functools.partial(function, **(arguments or {}))
        self.mask = mask if mask is None or callable(mask) else lambda inputs, previous_mask: mask
        self.supports_masking = mask is not None
        self._filled_in = tuple(name for name in ("mask", "training") if name in _parameters(function))

    @property
    def arguments(self) -> dict[str, Any]:
        """Further arguments of the function, by name."""
        return dict(self._bound.keywords)

    def call(self, inputs: PyTree, mask: PyTree = None, training: bool | None = None) -> PyTree:
        known = {"mask": mask, "training": training}
        return self._bound(inputs, **{name: known[name] for name in self._filled_in})

    def compute_mask(self, inputs: PyTree, mask: PyTree = None) -> PyTree:
        """Return the mask of the output."""
        return None if self.mask is None else self.mask(inputs, mask)

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: Mapping[str, Any] | None = None, safe_mode: bool | None = None
    ) -> Self:
        """Return a layer from a config of `get_config`.

        Args:
            config: plain values.
            custom_objects: functions by name, in addition to registered ones; for a lambda, by the name of the layer.
            safe_mode: unused: code in a config never runs.

        Raises:
            ConfigError: a function is unknown, or is a lambda.
        """
        del safe_mode
        with custom_object_scope(custom_objects):
            function = config.get("function")
            if is_lambda(function) or isinstance(function, list):  # Keras 2 writes code as a list
                name = config.get("name")
                function = get_registered_object(name) if isinstance(name, str) else None
                if function is None:
                    way = f"custom_objects={{{name!r}: function}} gives the function of this layer; or "
                    raise lambda_refused(f"the function of the layer {name!r}", way)
                config = {**config, "function": function}
            return super().from_config(config)


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except ValueError:  # raised for some functions that are not written in Python
        return {}


class Masking(Layer):
    """Mask the steps of a sequence whose values all equal `mask_value`, and set them to 0.

    Args:
        mask_value: a number, or one for each feature.
        **kwargs: see `Layer`.
    """

    def __init__(self, mask_value: ArrayLike = 0.0, **kwargs: Unpack[LayerArguments]) -> None:
        super().__init__(**kwargs)
        self.mask_value = check_numbers("mask_value", mask_value, self.name)
        self.supports_masking = True

    def call(self, inputs: jax.Array) -> jax.Array:
        """Return the inputs (batch, steps, ..., features), with zeros in masked steps."""
        return jnp.where(self.compute_mask(inputs)[..., None], inputs, 0)

    def compute_mask(self, inputs: PyTree, mask: PyTree = None) -> PyTree:
        """Return which steps (batch, steps, ...) are not masked."""
        return jnp.any(inputs != jnp.asarray(self.mask_value, inputs.dtype), axis=-1)


class Identity(Layer):
    """Return the inputs."""

    supports_masking = True

    def call(self, inputs: jax.Array) -> jax.Array:
        return inputs
