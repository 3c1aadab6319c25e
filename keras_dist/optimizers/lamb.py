"""LAMB: Adam with steps as long as the variable."""

from __future__ import annotations

from typing import ClassVar

import optax

from keras_dist.optimizers.adam import MomentsOptimizer
from keras_dist.optimizers.learning_rate import scale_by_rate


class Lamb(MomentsOptimizer):
    """`w -= learning_rate * norm(w) / norm(d) * d` with the direction `d` of Adam, for each variable.

    Arguments: as of `Adam`.
    """

    needs_params: ClassVar[bool] = True

    def transformation(self) -> optax.GradientTransformation:
        """Directions of Adam, brought to the norm of their variable, times the negative rate."""
        directions = optax.scale_by_adam(self.beta_1, self.beta_2, self.epsilon)
        return optax.chain(directions, optax.scale_by_trust_ratio(), scale_by_rate())
