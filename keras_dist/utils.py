"""What Keras users look for under `utils`; re-exports only."""

from keras_dist.random import set_random_seed

__all__ = ["set_random_seed"]
