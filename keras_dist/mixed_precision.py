"""Mixed precision: half precision arithmetic on float32 weights, with Keras's policies and names.

Weights are cast where they are read, as by Keras's autocast; master weights, gradients, slots and losses stay float32.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any, cast

import jax.numpy as jnp

from keras_dist._support import ambient
from keras_dist._support.arguments import argument_error, check_kind, check_option
from keras_dist._support.missing_names import missing_from
from keras_dist._support.raw_errors import explain_functions
from keras_dist._support.safe_patterns import pattern
from keras_dist.errors import ArgumentTypeError, ModelError

__all__ = [
    "DTypePolicy",
    "Policy",
    "dtype_policy",
    "floatx",
    "get",
    "global_policy",
    "set_dtype_policy",
    "set_floatx",
    "set_global_policy",
]

_MIXED = {"mixed_bfloat16": "bfloat16", "mixed_float16": "float16"}
"""Dtypes of arithmetic in mixed policies; their weights are float32."""


@dataclasses.dataclass(frozen=True, init=False)
class DTypePolicy:
    """The dtypes of arithmetic and weights of a layer.

    Args:
        name: `"mixed_bfloat16"` or `"mixed_float16"`, for half precision arithmetic on float32 weights; or a dtype for
            both. None for the current policy.
        keep: for mixed policies and modules of `flax.nnx`, a regular expression for the whole paths of parameters that
            stay float32, such as norms and routers. In an `NNXLayer` paths
            begin at its module. Layers stay float32 by `dtype="float32"`.

    Raises:
        ModelError: the policy is unknown, or `keep` is not a regular expression.

    Example:
        >>> from keras_dist import mixed_precision
        >>> policy = mixed_precision.DTypePolicy("mixed_bfloat16")
        >>> policy.compute_dtype, policy.variable_dtype
        ('bfloat16', 'float32')

    Source: `keras.DTypePolicy`, which has no `keep`.
    """

    name: str
    keep: str | None = None

    def __init__(self, name: str | None = None, *, keep: str | None = None) -> None:
        name = dtype_policy().name if name is None else _checked_name(name)
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "keep", _checked_keep(keep, name))

    @property
    def is_mixed(self) -> bool:
        """Whether arithmetic is in half precision, on float32 weights."""
        return self.name in _MIXED

    @property
    def compute_dtype(self) -> str:
        """The dtype of arithmetic and of the outputs of layers."""
        return _MIXED.get(self.name, self.name)

    @property
    def variable_dtype(self) -> str:
        """The dtype of weights, gradients and optimizer slots."""
        return "float32" if self.name in _MIXED else self.name

    def get_config(self) -> dict[str, Any]:
        """Return the name, and `keep` if given."""
        return {"name": self.name} if self.keep is None else {"name": self.name, "keep": self.keep}

    @property
    def identifier(self) -> str | dict[str, Any]:
        """The name, or the config if `keep` is given; `get` takes both."""
        return self.name if self.keep is None else self.get_config()

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> DTypePolicy:
        """Return the policy of a config."""
        return cls(**config)

    def __repr__(self) -> str:
        return f'<DTypePolicy "{self.name}"{"" if self.keep is None else f" keep={self.keep!r}"}>'


def dtype_policy() -> DTypePolicy:
    """Return the policy of layers without `dtype`, by default float32.

    Source: `keras.config.dtype_policy`.
    """
    return ambient.process.dtype_policy


def set_dtype_policy(policy: Any) -> None:
    """Set the policy, or its name, for layers that are created later in this process.

    Raises:
        ModelError: the policy is unknown.

    Source: `keras.config.set_dtype_policy`.
    """
    if policy is None:
        raise argument_error("policy", policy, "a `DTypePolicy`, or its name", example="mixed_bfloat16")
    ambient.process.dtype_policy = get(policy)


@contextlib.contextmanager
def under_policy(policy: Any) -> Generator[None]:
    """Context manager that sets the policy; None keeps the current one."""
    before = dtype_policy()
    try:
        set_dtype_policy(before if policy is None else policy)
        yield
    finally:
        set_dtype_policy(before)


def floatx() -> str:
    """Return the dtype of the weights of layers without `dtype`, by the current policy.

    Source: `keras.config.floatx`.
    """
    return dtype_policy().variable_dtype


def set_floatx(value: str) -> None:
    """Set the policy to this dtype, unless the policy already keeps weights in it, as mixed policies do in float32.

    Args:
        value: `"bfloat16"`, `"float16"`, `"float32"` or `"float64"`; the last needs `jax_enable_x64` of JAX.

    Raises:
        ModelError: `value` is another dtype.

    Differs from Keras: `random` functions and initializers without `dtype` still return float32.

    Source: `keras.config.set_floatx`.
    """
    if check_option("value", value, ("bfloat16", "float16", "float32", "float64")) != floatx():
        set_dtype_policy(value)


def get(identifier: Any) -> DTypePolicy:
    """Return the policy of a name, config or dtype, or the current policy for None.

    Raises:
        ModelError: the policy is unknown.

    Source: `keras.dtype_policies.get`.
    """
    if isinstance(identifier, Mapping):
        given = cast("Mapping[str, Any]", identifier)
        inner = given.get("config")
        config = cast("Mapping[str, Any]", inner) if isinstance(inner, Mapping) else given
        identifier = DTypePolicy(config.get("name", given), keep=config.get("keep"))
    if isinstance(identifier, DTypePolicy):
        return identifier
    if hasattr(identifier, "compute_dtype"):  # a policy of Keras
        identifier = identifier.name
    return dtype_policy() if identifier is None else DTypePolicy(identifier)


def _checked_name(name: Any) -> str:
    if isinstance(name, str) and name in _MIXED:
        return name
    try:
        return jnp.dtype(name).name
    except Exception:  # numpy raises several
        expected = 'a name or numpy dtype, "mixed_bfloat16" or "mixed_float16"'
        error = ModelError if isinstance(name, str) else ArgumentTypeError
        raise argument_error("dtype", name, expected, example="bfloat16", error=error) from None


def _checked_keep(keep: Any, name: str) -> str | None:
    if keep is None:
        return None
    expected, example = "a regular expression for whole paths of parameters", ".*norm.*"
    check_kind("keep", keep, str, expected, fix=f"for example keep={example!r}", error=ArgumentTypeError)
    if name not in _MIXED:
        wrong = f"is for mixed policies: parameters under {name!r} are not cast"
        raise argument_error("keep", keep, "None", wrong=wrong, example="mixed_bfloat16")
    try:
        pattern(keep)
    except re.error as error:
        wrong = f"is not a regular expression: {error}"
        raise argument_error("keep", keep, expected, wrong=wrong, example=re.escape(keep)) from error
    return keep


Policy = DTypePolicy
global_policy = dtype_policy
set_global_policy = set_dtype_policy

ambient.process.dtype_policy = DTypePolicy("float32")
"""The policy of layers without `dtype`."""


__all__ += ["LossScaleOptimizer"]  # defined in `optimizers`, a higher layer

explain_functions(vars())
if TYPE_CHECKING:
    from keras_dist.optimizers import LossScaleOptimizer as LossScaleOptimizer
else:
    __getattr__ = missing_from(__name__)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
