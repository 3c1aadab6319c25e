"""Callbacks: observers of training. The loop knows only their protocol."""

from typing import TYPE_CHECKING

from keras_dist._docstrings import complete_docstrings
from keras_dist._not_here import missing_from
from keras_dist.callbacks.backup_and_restore import BackupAndRestore
from keras_dist.callbacks.callback import Callback
from keras_dist.callbacks.callback_list import CallbackList
from keras_dist.callbacks.csv_logger import CSVLogger
from keras_dist.callbacks.early_stopping import EarlyStopping
from keras_dist.callbacks.history import History
from keras_dist.callbacks.lambda_callback import LambdaCallback
from keras_dist.callbacks.learning_rate_scheduler import LearningRateScheduler
from keras_dist.callbacks.model_checkpoint import ModelCheckpoint
from keras_dist.callbacks.orbax_checkpoint import OrbaxCheckpoint
from keras_dist.callbacks.progbar_logger import ProgbarLogger
from keras_dist.callbacks.reduce_lr_on_plateau import ReduceLROnPlateau
from keras_dist.callbacks.swap_ema_weights import SwapEMAWeights
from keras_dist.callbacks.tensorboard import TensorBoard
from keras_dist.callbacks.terminate_on_nan import TerminateOnNaN

__all__ = [
    "BackupAndRestore",
    "CSVLogger",
    "Callback",
    "CallbackList",
    "EarlyStopping",
    "History",
    "LambdaCallback",
    "LearningRateScheduler",
    "ModelCheckpoint",
    "OrbaxCheckpoint",
    "ProgbarLogger",
    "ReduceLROnPlateau",
    "SwapEMAWeights",
    "TensorBoard",
    "TerminateOnNaN",
]
complete_docstrings(vars())

if not TYPE_CHECKING:
    __getattr__ = missing_from(__name__)
