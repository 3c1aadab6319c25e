"""`enable_tf_random_generator`, which DTensor programs call before they set a seed."""

__all__ = ["enable_tf_random_generator"]


def enable_tf_random_generator() -> None:
    """Do nothing: random numbers depend on the seed alone, as with this switch in Keras 2.

    `keras_dist.utils.set_random_seed` sets the seed. Layouts and the number of devices do not change the numbers.

    Source: `tf.keras.backend.experimental.enable_tf_random_generator`.
    """
