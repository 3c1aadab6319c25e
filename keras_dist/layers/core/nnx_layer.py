"""`NNXLayer`: any `flax.nnx.Module` as a layer."""

from __future__ import annotations

from typing import Any, ClassVar

from flax import nnx

from keras_dist._support.types import PyTree
from keras_dist.errors import ConfigError, ModelError, with_type
from keras_dist.layers.layer import Layer
from keras_dist.layers.module_precision import compute_under
from keras_dist.layers.other_frameworks import check_is_ours
from keras_dist.saving.object_registry import snake_case


class NNXLayer(Layer):
    """Any `flax.nnx.Module` as a layer. Models wrap modules among their layers automatically.

    Its variables keep their paths, such as `linear/kernel`. Under a mixed policy its parameters are cast while it is
    called, as in `Model.from_nnx`.

    Args:
        module: a module, called as `module(inputs)` in training or evaluation mode.
        name: by default the name of its class.
        **kwargs: see `Layer`.

    Raises:
        ModelError: `module` is not a module.

    Example:
        >>> from flax import nnx
        >>> from keras_dist import layers
        >>> layer = layers.NNXLayer(nnx.Linear(8, 3, rngs=nnx.Rngs(0)), name="head")
        >>> layer(layers.Input((8,))).shape
        (None, 3)
    """

    _takes_keep: ClassVar[bool] = True

    def __init__(self, module: nnx.Module, *, name: str | None = None, **kwargs: Any) -> None:
        if not isinstance(module, nnx.Module):
            check_is_ours("NNXLayer: `module`", module)
            fix = "for example NNXLayer(nnx.Linear(8, 3, rngs=nnx.Rngs(0)))"
            raise ModelError("NNXLayer: `module` must be a flax.nnx.Module", given=with_type(module), fix=fix)
        super().__init__(name=name, **kwargs)
        if name is None:
            self._base_name = self._name = snake_case(type(module).__name__)
        self._members = module
        self.built = True

    def call(self, inputs: PyTree, training: bool | None = None) -> PyTree:
        if training:
            self._members.train()
        else:
            self._members.eval()
        if not (self.autocast and self.dtype_policy.is_mixed):
            return self._members(inputs)
        return compute_under(self.dtype_policy, self._members, lambda: self._members(inputs))

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of a subclass that creates its own module.

        Raises:
            ConfigError: the module was an argument, which a config cannot contain.
        """
        if "module" in self._arguments:
            given = f"a module of {type(self._members).__module__}.{type(self._members).__name__}"
            fix = "subclass NNXLayer, make the module in __init__, and @saving.register_keras_serializable() the class"
            raise ConfigError(f"layer {self.name!r} cannot be written down in a config", given=given, fix=fix)
        return super().get_config()


def as_layer(value: Any) -> Layer:
    """Return a layer as it is, and a module as an `NNXLayer`."""
    if isinstance(value, Layer):
        return value
    if isinstance(value, nnx.Module):
        return NNXLayer(value)
    check_is_ours("not a layer: it", value)
    fix = "make an object of a class; wrap a function as layers.Lambda(function)"
    raise ModelError("not a layer", given=with_type(value), fix=fix)
