"""Dtype policies under the names that Keras users look for.

Source: names, arguments and defaults as in `keras.dtype_policies`.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from keras_dist._support.missing_names import missing_from
from keras_dist.mixed_precision import DTypePolicy, get
from keras_dist.serialization import serialize_keras_object

FloatDTypePolicy = DTypePolicy  # all policies are of one kind

__all__ = ["DTypePolicy", "FloatDTypePolicy", "deserialize", "get", "serialize"]


def deserialize(config: Any, custom_objects: Mapping[str, Any] | None = None) -> DTypePolicy:
    """Return the policy of a name or a config of `serialize`; `custom_objects` is unused.

    Raises:
        ModelError: the policy is unknown.
    """
    del custom_objects
    return get(config)


def serialize(dtype_policy: DTypePolicy) -> dict[str, Any]:
    """Return the config of a policy."""
    return serialize_keras_object(dtype_policy)


if not TYPE_CHECKING:
    __getattr__ = missing_from(__name__)
