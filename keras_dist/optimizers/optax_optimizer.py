"""`OptaxOptimizer`: a transformation of optax as the optimizer of a model."""

from __future__ import annotations

from typing import Any, NoReturn

import optax

from keras_dist.errors import ModelError
from keras_dist.optimizers.custom_loops import CustomLoops


class OptaxOptimizer(CustomLoops):
    """A transformation of optax, with the variables of an optimizer: what `compile(optax.adam(1e-3))` makes of it.

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

    def init(self, params: Any) -> Any:
        """The state before the first step."""
        return self.transformation.init(params)

    def update(self, updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        """What is to be added to the weights, and the state afterwards."""
        return self.transformation.update(updates, state, params, **extra)

    def get_config(self) -> NoReturn:
        """An error: transformations of optax do not tell their arguments.

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
        """Whether it is the same transformation: `compile` goes on with its slots."""
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
