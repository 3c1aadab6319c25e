"""Muon: orthogonal steps of matrices. Which weights are matrices is known from their layers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, Unpack

import jax
import jax.numpy as jnp
import optax

from keras_dist._support import tree_paths
from keras_dist._support.arguments import argument_error, check_int, check_number, check_optional
from keras_dist._support.dim_names import leading
from keras_dist._support.safe_patterns import pattern
from keras_dist._support.types import PyTree
from keras_dist.errors import ModelError
from keras_dist.optimizers.adam import scale_by_adam
from keras_dist.optimizers.arguments import ArgumentsButDecay, Rate, check_patterns, scale_by_rate
from keras_dist.optimizers.optimizer import Optimizer
from keras_dist.optimizers.whole_matrices import MatrixDims, matrix_dims, over_matrices

Triple = tuple[float, float, float]

POLAR_EXPRESS: Sequence[Triple] = (
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
    (1.891301407787398, -1.2679958271945868, 0.37680408948524835),
    (1.8750014808534479, -1.2500016453999487, 0.3750001645474248),
    (1.875, -1.25, 0.375),
)
"""Coefficients of the steps of Polar Express, https://arxiv.org/abs/2505.16932, algorithm 1."""

_SAFETY = 1.01
"""Polar Express divides the matrix by this factor, first and before each step but the last."""

_DTYPES = (None, "bfloat16", "float32")  # float16 has too few exponents for gradients

_VECTORS = ("alpha", "beta", "bias", "gamma", "positions", "scale")
"""Names of weights for Adam, whatever their number of dims, where their layer does not name the dims."""


class Muon(Optimizer):
    """`w -= learning_rate * orthogonal(velocity)` for matrices, by Newton-Schulz steps; Adam for other variables.

    Matrices are the kernels of dense layers, of attention (inputs, heads * features) and of convolutions
    (height * width * inputs, outputs), each layer of a stack and each expert; not embeddings, heads of decoders,
    routers, norms and biases. A weight of another module is a matrix if it has two dims.

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
        ns_steps: number of Newton-Schulz steps, at most 100.
        nesterov: whether to use Nesterov momentum.
        rms_rate: the root mean square of a step, near Adam's (Moonlight, https://arxiv.org/abs/2502.16982); None for no
            scaling.
        exclude: as `exclude_layers`.
        include: regular expressions; weights whose path one is found in are matrices, also heads and embeddings,
            whatever `exclude` says.
        coefficients: `(muon_a, muon_b, muon_c)` of each step, the last for further steps, or `"polar_express"`.
        ns_dtype: dtype of the exchange and of the Newton-Schulz steps, such as `"bfloat16"`; by default the weight's.
        neuron_beta: decay of the mean square of the steps of each output, by whose root they are divided; the norm of
            the matrix is kept (NorMuon, https://arxiv.org/abs/2510.05491, with 0.95). None for Muon.

    Example:
        >>> import keras_dist as kd
        >>> model = kd.Sequential([kd.Input((8,)), kd.layers.Dense(8), kd.layers.Dense(2, name="classes")])
        >>> model.compile(kd.optimizers.Muon(0.02, exclude=["classes"]), loss="mse")
        >>> model.optimizer.kind_of("classes/kernel", (8, 2)), model.optimizer.kind_of("dense/kernel", (8, 8))
        ('adam', 'muon (8 x 8)')
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
        exclude: Sequence[str] | None = None,
        include: Sequence[str] | None = None,
        coefficients: str | Sequence[Sequence[float]] | None = None,
        ns_dtype: str | None = None,
        neuron_beta: float | None = None,
        **common: Unpack[ArgumentsButDecay],
    ) -> None:
        super().__init__(learning_rate, weight_decay=weight_decay, **common)
        self.adam_beta_1 = check_number("adam_beta_1", adam_beta_1, 0, below=1)
        self.adam_beta_2 = check_number("adam_beta_2", adam_beta_2, 0, below=1)
        self.adam_weight_decay = check_optional(check_number, "adam_weight_decay", adam_weight_decay)
        self.epsilon = check_number("epsilon", epsilon, 0)
        self.exclude_layers = check_patterns("Muon", "exclude_layers", exclude_layers)
        self.exclude_embeddings = exclude_embeddings
        self.muon_a, self.muon_b, self.muon_c = (
            check_number(name, given) for name, given in (("muon_a", muon_a), ("muon_b", muon_b), ("muon_c", muon_c))
        )
        self.adam_lr_ratio = check_number("adam_lr_ratio", adam_lr_ratio, 0)
        self.momentum = check_number("momentum", momentum, 0, 1)
        self.ns_steps = check_int("ns_steps", ns_steps, 1, 100)
        self.nesterov = nesterov
        self.rms_rate = check_optional(check_number, "rms_rate", rms_rate, 0)
        self.exclude = check_patterns("Muon", "exclude", exclude)
        self.include = check_patterns("Muon", "include", include)
        self.coefficients = coefficients
        self._steps = tuple(itertools.islice(_triples(coefficients, (muon_a, muon_b, muon_c)), self.ns_steps))
        if ns_dtype not in _DTYPES:
            raise argument_error("ns_dtype", ns_dtype, f"one of {_DTYPES}", example="bfloat16")
        self.ns_dtype = ns_dtype
        self.neuron_beta = check_optional(check_number, "neuron_beta", neuron_beta, 0, below=1)

    def transformation(self) -> optax.GradientTransformation:
        adam = optax.chain(
            scale_by_adam(self.adam_beta_1, self.adam_beta_2, self.epsilon), optax.scale(self.adam_lr_ratio)
        )
        orthogonal = optax.GradientTransformationExtraArgs(optax.init_empty_state, self._orthogonalize)
        scaled = optax.stateless(lambda updates, _: self._map(self._scaled, updates))
        by_neuron = optax.GradientTransformation(self._first_neurons, self._by_neuron)
        parts = [optax.trace(self.momentum, self.nesterov), orthogonal, by_neuron, scaled]
        muon = optax.chain(*(part for part in parts if self.neuron_beta is not None or part is not by_neuron))
        return optax.chain(optax.partition({"adam": adam, "muon": muon}, self._labels), scale_by_rate())

    def decay_of(self, path: str, param: jax.Array) -> float | None:
        """Return the weight decay of the weight at `path`, or None if it is excluded."""
        if self._is_excluded(path):
            return None
        return self.adam_weight_decay if self.dims_of(path, param.shape) is None else self.weight_decay

    def kind_of(self, path: str, shape: Sequence[int]) -> str:
        """Return how the weight at `path` is updated."""
        dims = self.dims_of(path, shape)
        return "adam" if dims is None else "muon ({} x {})".format(*dims.sizes(shape))

    def dims_of(self, path: str, shape: Sequence[int]) -> MatrixDims | None:
        """Return the dims of the matrices of the weight at `path`; None if Adam updates it."""
        names = self.names_of(path)
        is_included = any(pattern(rule).search(path) for rule in self.include)
        found = matrix_dims(names, len(shape), with_heads=is_included)
        if is_included:
            if found is None:
                summary = f"Muon: `include` matches {path!r}, whose inputs and outputs are not known"
                fix = 'name them in its layer: add_weight(..., dim_names=("inputs", "outputs"))'
                fix = fix if len(shape) > 1 else "choose kernels alone, as by include=['head/kernel']"
                raise ModelError(summary, given=f"shape {tuple(shape)}, dims named {tuple(names)}", fix=fix)
            return found
        is_vector = not any(names[leading(names) :]) and path.rpartition("/")[2] in _VECTORS
        is_embedding = self.exclude_embeddings and "embedding" in path.lower()
        is_excluded = any(pattern(rule).search(path) for rule in (*self.exclude_layers, *self.exclude))
        return None if is_vector or is_embedding or is_excluded else found

    def _labels(self, params: PyTree) -> PyTree:
        return jax.tree_util.tree_map_with_path(
            lambda keys, param: "adam" if self.dims_of(_path(keys), param.shape) is None else "muon", params
        )

    def _map(self, function: Any, *trees: PyTree) -> Any:
        """Return `function` of the dims and the values of each matrix."""
        return jax.tree_util.tree_map_with_path(
            lambda keys, *leaves: function(self.dims_of(_path(keys), leaves[0].shape), *leaves), *trees
        )

    def _orthogonalize(
        self, updates: PyTree, state: PyTree, params: PyTree = None, placements: Any = None, **extra: Any
    ) -> tuple[PyTree, PyTree]:
        """Move singular values near 1."""
        del params, extra
        flat, structure = jax.tree_util.tree_flatten_with_path(updates)
        arrays = {_path(keys): array.astype(self.ns_dtype or array.dtype) for keys, array in flat}
        dims: Any = {path: self.dims_of(path, array.shape) for path, array in arrays.items()}
        made = over_matrices(self._newton_schulz, arrays, dims, placements or {})
        return structure.unflatten(made[_path(keys)].astype(array.dtype) for keys, array in flat), state

    def _newton_schulz(self, x: jax.Array) -> jax.Array:
        """Return the factors of polar decompositions of matrices (count, m, n) with m <= n, nearly."""
        norm = jnp.linalg.norm(x.astype(jnp.float32), axis=(1, 2), keepdims=True)
        x = (x / (norm + 1e-7)).astype(x.dtype)
        for a, b, c in self._steps:
            square = x @ jnp.swapaxes(x, 1, 2)
            x = a * x + (b * square + c * square @ square) @ x
        return x

    def _scaled(self, dims: MatrixDims, step: jax.Array) -> jax.Array:
        return step if self.rms_rate is None else step * max(dims.sizes(step.shape)) ** 0.5 * self.rms_rate

    def _first_neurons(self, params: PyTree) -> NeuronState:
        def zeros(dims: MatrixDims, param: jax.Array) -> jax.Array:
            return jnp.zeros([1 if dim in dims.inputs else size for dim, size in enumerate(param.shape)], param.dtype)

        return NeuronState(self._map(zeros, params))

    def _by_neuron(self, updates: PyTree, state: Any, params: PyTree = None) -> tuple[PyTree, NeuronState]:
        """Divide the steps of each output by the root of their mean square so far, and keep the norm of the matrix."""
        del params
        beta: Any = self.neuron_beta

        def mean(dims: MatrixDims, step: jax.Array, before: jax.Array) -> jax.Array:
            return beta * before + (1 - beta) * jnp.mean(jnp.square(step), dims.inputs, keepdims=True)

        def divided(dims: MatrixDims, step: jax.Array, square: jax.Array) -> jax.Array:
            found = step / (jnp.sqrt(square) + 1e-10)
            norms = (jnp.sum(jnp.square(each), (*dims.inputs, *dims.outputs), keepdims=True) for each in (step, found))
            before, after = map(jnp.sqrt, norms)
            return found * (before / (after + 1e-10))

        squares = self._map(mean, updates, state.squares)
        return self._map(divided, updates, squares), NeuronState(squares)


class NeuronState(NamedTuple):
    """Mean squares of the orthogonal steps of each output."""

    squares: PyTree


def _path(keys: Any) -> str:
    return tree_paths.join(tree_paths.parts_of(keys))


def _safe(triple: Triple) -> Triple:
    """Return the coefficients of a step for a matrix divided by the factor."""
    a, b, c = triple
    return a / _SAFETY, b / _SAFETY**3, c / _SAFETY**5


def _triples(given: Any, default: Triple) -> Any:
    """Return the coefficients of all steps, without an end."""
    if given is None:
        return itertools.repeat(default)
    if isinstance(given, str) and given == "polar_express":
        given = [*map(_safe, POLAR_EXPRESS[:-1]), POLAR_EXPRESS[-1]]
        given[0] = _safe(given[0])  # of the matrix
    try:
        found = [tuple(map(float, each)) for each in given]
    except (TypeError, ValueError):
        found = []
    if (
        isinstance(given, str)
        or not found
        or any(len(each) != 3 or not all(map(math.isfinite, each)) for each in found)
    ):
        raise argument_error(
            "coefficients", given, 'three numbers for each step, or "polar_express"', example=[(3.4445, -4.775, 2.0315)]
        )
    return itertools.chain(found, itertools.repeat(found[-1]))
