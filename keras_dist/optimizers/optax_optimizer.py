"""`OptaxOptimizer`: a transformation of optax as the optimizer of a model."""

from __future__ import annotations

from typing import Any, NoReturn

import optax

from keras_dist._types import PyTree
from keras_dist.errors import ModelError
from keras_dist.optimizers.custom_loops import CustomLoops


class OptaxOptimizer(CustomLoops):
    """A transformation of optax with the variables of an optimizer, as `compile(optax.adam(1e-3))` makes it.

    Args:
        transformation: of optax.
        name: the name among the model's optimizers.

    Attributes:
        transformation: of optax.
        name: the name among the model's optimizers.
    """

    def __init__(self, transformation: optax.GradientTransformationExtraArgs, name: str) -> None:
        self.transformation = transformation
        self.name = name

    def init(self, params: PyTree) -> PyTree:
        """Return the state before the first step."""
        return self.transformation.init(params)

    def update(self, updates: PyTree, state: PyTree, params: PyTree = None, **extra: Any) -> tuple[PyTree, PyTree]:
        """Return what is to be added to the weights, and the state afterwards."""
        return self.transformation.update(updates, state, params, **extra)

    def get_config(self) -> NoReturn:
        """Raise an error: the arguments of optax transformations are not known.

        Raises:
            ModelError: always.
        """
        raise ModelError(
            f"optimizer {self.name!r} has no config",
            given="an optax transformation",
            expected="an optimizer by name, or one made by keras_dist.optimizers",
            fix="note yourself what made it",
        )

    def __eq__(self, other: object) -> bool:
        """Whether it is the same transformation: then `compile` keeps its slots."""
        return isinstance(other, OptaxOptimizer) and self.transformation == other.transformation

    def __hash__(self) -> int:
        return hash(self.transformation)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    def _begin_with(self, rate: Any) -> None:
        """Nothing: the transformation knows its first rate."""

    @property
    def _rate(self) -> Any:  # type: ignore[override]
        self._check_built("learning_rate")
        return None
