"""Checkpoints: folders of arrays and JSON that are written atomically and checked before they are read."""

from keras_dist.checkpoint.doctor import Diagnosis, SavedArray, SavedState, examine
from keras_dist.checkpoint.manager import CheckpointManager
from keras_dist.checkpoint.snapshot import Snapshot, Stored

__all__ = ["CheckpointManager", "Diagnosis", "SavedArray", "SavedState", "Snapshot", "Stored", "examine"]
