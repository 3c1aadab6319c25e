"""Gradient descent with momentum: SGD, its signs (Lion), and orthogonal steps of matrices (Muon)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Unpack

import jax
import jax.numpy as jnp
import optax

from keras_dist._support import tree_paths
from keras_dist._support.arguments import check_int, check_number, check_optional
from keras_dist._support.safe_patterns import pattern
from keras_dist._support.types import PyTree
from keras_dist.optimizers.adam import scale_by_adam
from keras_dist.optimizers.arguments import ArgumentsButDecay, CommonArguments, Rate, check_patterns, scale_by_rate
from keras_dist.optimizers.optimizer import Optimizer


class SGD(Optimizer):
    """`w += velocity` with `velocity = momentum * velocity - learning_rate * gradient`.

    Args:
        learning_rate, **common: as in `Optimizer`.
        momentum: decay of the velocity.
        nesterov: whether `w += momentum * velocity - learning_rate * gradient` instead.
    """

    takes_rows: ClassVar[bool] = True

    def __init__(
        self,
        learning_rate: Rate = 0.01,
        momentum: float = 0.0,
        nesterov: bool = False,
        **common: Unpack[CommonArguments],
    ) -> None:
        super().__init__(learning_rate, **common)
        self.momentum = check_number("momentum", momentum, 0, 1)
        self.nesterov = nesterov

    def transformation(self) -> optax.GradientTransformation:
        """Scale by the rate first, so that a new rate does not rescale the velocity."""
        if not self.momentum:
            return scale_by_rate()
        return optax.chain(scale_by_rate(), optax.trace(self.momentum, self.nesterov))


class Lion(Optimizer):
    """`w -= learning_rate * sign(beta_1 * m + (1 - beta_1) * gradient)` with a moving average `m`.

    Args:
        learning_rate, **common: as in `Optimizer`; a good rate is a third to a tenth of Adam's.
        beta_1: weight of `m`, the moving average of gradients.
        beta_2: decay of `m`.
    """

    def __init__(
        self, learning_rate: Rate = 0.001, beta_1: float = 0.9, beta_2: float = 0.99, **common: Unpack[CommonArguments]
    ) -> None:
        super().__init__(learning_rate, **common)
        self.beta_1 = check_number("beta_1", beta_1, above=0, high=1)
        self.beta_2 = check_number("beta_2", beta_2, 0, 1)

    def transformation(self) -> optax.GradientTransformation:
        return optax.chain(optax.scale_by_lion(self.beta_1, self.beta_2), scale_by_rate())


class Muon(Optimizer):
    """`w -= learning_rate * orthogonal(velocity)` for matrices, by Newton-Schulz steps; Adam for other variables.

    Args:
        learning_rate, **common: as in `Optimizer`.
        adam_beta_1, adam_beta_2, epsilon: `beta_1`, `beta_2` and `epsilon` of Adam.
        adam_weight_decay: weight decay of the variables that Adam updates.
        weight_decay: weight decay of the matrices.
        exclude_layers: regular expressions; Adam updates a matrix if one is found in its path.
        exclude_embeddings: whether Adam updates matrices with `embedding` in their path.
        muon_a: coefficient of x in the Newton-Schulz step.
        muon_b: coefficient of x xT x.
        muon_c: coefficient of x xT x xT x.
        adam_lr_ratio: Adam's learning rate divided by `learning_rate`.
        momentum: decay of the velocity.
        ns_steps: number of Newton-Schulz steps.
        nesterov: whether to use Nesterov momentum.
        rms_rate: the root mean square of a step, near Adam's; None for no scaling.
    """

    needs_params: ClassVar[bool] = True

    def __init__(
        self,
        learning_rate: Rate = 0.001,
        adam_beta_1: float = 0.9,
        adam_beta_2: float = 0.999,
        adam_weight_decay: float | None = 0.004,
        epsilon: float = 1e-7,
        weight_decay: float | None = 0.004,
        *,
        exclude_layers: Sequence[str] | None = None,
        exclude_embeddings: bool = True,
        muon_a: float = 3.4445,
        muon_b: float = -4.7750,
        muon_c: float = 2.0315,
        adam_lr_ratio: float = 1,
        momentum: float = 0.95,
        ns_steps: int = 5,
        nesterov: bool = True,
        rms_rate: float | None = 0.2,
        **common: Unpack[ArgumentsButDecay],
    ) -> None:
        super().__init__(learning_rate, weight_decay=weight_decay, **common)
        self.adam_beta_1 = check_number("adam_beta_1", adam_beta_1, 0, below=1)
        self.adam_beta_2 = check_number("adam_beta_2", adam_beta_2, 0, below=1)
        self.adam_weight_decay = check_optional(check_number, "adam_weight_decay", adam_weight_decay)
        self.epsilon = check_number("epsilon", epsilon, 0)
        self.exclude_layers = check_patterns("Muon", "exclude_layers", exclude_layers)
        self.exclude_embeddings = exclude_embeddings
        self.muon_a, self.muon_b, self.muon_c = muon_a, muon_b, muon_c
        self.adam_lr_ratio = adam_lr_ratio
        self.momentum = check_number("momentum", momentum, 0, 1)
        self.ns_steps = check_int("ns_steps", ns_steps, 1)
        self.nesterov = nesterov
        self.rms_rate = rms_rate

    def transformation(self) -> optax.GradientTransformation:
        adam = optax.chain(
            scale_by_adam(self.adam_beta_1, self.adam_beta_2, self.epsilon), optax.scale(self.adam_lr_ratio)
        )
        muon = optax.chain(
            optax.trace(self.momentum, self.nesterov),
            optax.stateless(lambda updates, _: self.map_weights(self._orthogonal, updates)),
        )
        return optax.chain(optax.partition({"adam": adam, "muon": muon}, self._labels), scale_by_rate())

    def decay_of(self, path: str, param: jax.Array) -> float | None:
        """Return the weight decay of the weight at `path`, or None if it is excluded."""
        if self._is_excluded(path):
            return None
        return self.adam_weight_decay if self._is_adams(path, param) else self.weight_decay

    def _labels(self, params: PyTree) -> PyTree:
        def label(key_path: Any, param: jax.Array) -> str:
            return "adam" if self._is_adams(tree_paths.join(tree_paths.parts_of(key_path)), param) else "muon"

        return jax.tree_util.tree_map_with_path(label, params)

    def _is_adams(self, path: str, param: jax.Array) -> bool:
        is_embedding = self.exclude_embeddings and "embedding" in path.lower()
        is_matrix = param.ndim - self.leading_of(path) == 2
        return not is_matrix or is_embedding or any(pattern(rule).search(path) for rule in self.exclude_layers)

    def _orthogonal(self, matrix: jax.Array) -> jax.Array:
        """Move singular values near 1, and scale to `rms_rate`."""
        x = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
        x = x / (jnp.linalg.norm(x) + 1e-7)
        for _ in range(self.ns_steps):
            square = x @ x.T
            x = self.muon_a * x + (self.muon_b * square + self.muon_c * square @ square) @ x
        x = x.T if matrix.shape[0] > matrix.shape[1] else x
        return x if self.rms_rate is None else x * max(matrix.shape) ** 0.5 * self.rms_rate
