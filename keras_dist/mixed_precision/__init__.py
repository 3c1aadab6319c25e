"""Mixed precision: half precision arithmetic on float32 weights, with Keras's policies and names."""

from keras_dist.mixed_precision.policy import DTypePolicy, dtype_policy, get, set_dtype_policy
from keras_dist.mixed_precision.scaling import with_loss_scale
from keras_dist.optimizers import LossScaleOptimizer

Policy = DTypePolicy
global_policy = dtype_policy
set_global_policy = set_dtype_policy

__all__ = [
    "DTypePolicy",
    "LossScaleOptimizer",
    "Policy",
    "dtype_policy",
    "get",
    "global_policy",
    "set_dtype_policy",
    "set_global_policy",
    "with_loss_scale",
]
