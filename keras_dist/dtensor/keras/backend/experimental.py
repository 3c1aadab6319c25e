"""What DTensor programs call before they set a seed."""

__all__ = ["enable_tf_random_generator"]


def enable_tf_random_generator() -> None:
    """Do nothing: all random numbers depend on the seed alone here, as with this switch in Keras 2.

    `keras_dist.utils.set_random_seed` sets it, for all layouts and numbers of devices the same.

    Source: `tf.keras.backend.experimental.enable_tf_random_generator`.
    """
