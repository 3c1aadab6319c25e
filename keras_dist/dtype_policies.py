"""What Keras users look for under `dtype_policies`; re-exports only."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from keras_dist._support.missing_names import missing_from
from keras_dist.mixed_precision import DTypePolicy, get
from keras_dist.saving import serialize_keras_object

FloatDTypePolicy = DTypePolicy  # there is no other kind here

__all__ = ["DTypePolicy", "FloatDTypePolicy", "deserialize", "get", "serialize"]


def deserialize(config: Any, custom_objects: Mapping[str, Any] | None = None) -> DTypePolicy:
    """Return the policy of a config.

    Args:
        config: what `serialize` gave, or the name of a policy.
        custom_objects: unused: policies have no code of their own.

    Raises:
        ModelError: it means none.

    Source: `keras.dtype_policies.deserialize`.
    """
    del custom_objects
    return get(config)


def serialize(dtype_policy: DTypePolicy) -> dict[str, Any]:
    """Return the config of a policy, which `deserialize` takes.

    Source: `keras.dtype_policies.serialize`.
    """
    return serialize_keras_object(dtype_policy)


if not TYPE_CHECKING:
    __getattr__ = missing_from(__name__)
