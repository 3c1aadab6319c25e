"""`LoadableModel`: base of `Decoder` and `Encoder`. It warns if a described network is trained without its weights."""

from __future__ import annotations

import functools
from typing import Any

from keras_dist._support.located_warnings import warn
from keras_dist.formats.weight_map import WeightMap
from keras_dist.models import Model
from keras_dist.pretrained.weight_maps import weight_map
from keras_dist.training.built_model import BuiltModel

_loads: Any = functools.wraps(Model.load_weights)
_sets: Any = functools.wraps(Model.set_weights)


class LoadableModel(Model):
    """A model that creates its weights when they are first needed."""

    _described: str | None = None
    """The folder of a network of `describe`, until weights are loaded."""

    @_loads
    def load_weights(self, *args: Any, **kwargs: Any) -> Any:
        report = super().load_weights(*args, **kwargs)
        self._described = None
        return report

    @_sets
    def set_weights(self, *args: Any, **kwargs: Any) -> None:
        super().set_weights(*args, **kwargs)
        self._described = None

    def _with_weights(self, *args: Any, **kwargs: Any) -> BuiltModel:
        if self._built is None and not (args or kwargs):
            self.build()
        return super()._with_weights(*args, **kwargs)

    def _map_of_base(self) -> WeightMap:
        return weight_map(self)

    def _ready_to_train(self, method: str, x: Any) -> BuiltModel:
        built = super()._ready_to_train(method, x)
        if self._described is not None and built.cell.steps_taken == 0:  # neither trained nor restored
            fix = f"kd.pretrained.load({self._described!r}) reads them"
            self._described = None
            warn(f"{method}: no weights were loaded, since `describe` reads config.json alone; {fix}")
        return built
