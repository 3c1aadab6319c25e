"""Callbacks: observers of training. The loop knows only their protocol.

Source: names, arguments and defaults as in `keras.callbacks`.
"""

from typing import TYPE_CHECKING

from keras_dist._support.missing_names import missing_from
from keras_dist._support.raw_errors import explain_functions
from keras_dist.callbacks.backup_and_restore import BackupAndRestore as BackupAndRestore
from keras_dist.callbacks.callback import Callback as Callback
from keras_dist.callbacks.callback import LambdaCallback as LambdaCallback
from keras_dist.callbacks.callback_list import CallbackList as CallbackList
from keras_dist.callbacks.early_stopping import EarlyStopping as EarlyStopping
from keras_dist.callbacks.history import CSVLogger as CSVLogger
from keras_dist.callbacks.history import History as History
from keras_dist.callbacks.learning_rates import LearningRateScheduler as LearningRateScheduler
from keras_dist.callbacks.learning_rates import ReduceLROnPlateau as ReduceLROnPlateau
from keras_dist.callbacks.model_checkpoint import ModelCheckpoint as ModelCheckpoint
from keras_dist.callbacks.model_checkpoint import OrbaxCheckpoint as OrbaxCheckpoint
from keras_dist.callbacks.progbar import ProgbarLogger as ProgbarLogger
from keras_dist.callbacks.swap_ema_weights import SwapEMAWeights as SwapEMAWeights
from keras_dist.callbacks.tensorboard import TensorBoard as TensorBoard
from keras_dist.callbacks.terminate_on_nan import TerminateOnNaN as TerminateOnNaN
from keras_dist.callbacks.throughput import Throughput as Throughput
from keras_dist.callbacks.trackers import Experiment as Experiment
from keras_dist.callbacks.trackers import Tracker as Tracker
from keras_dist.callbacks.trackers import TrackerRun as TrackerRun
from keras_dist.callbacks.trackers import register_tracker as register_tracker

__all__ = [name for name, value in vars().items() if getattr(value, "__module__", "").startswith(f"{__name__}.")]  # pyright: ignore[reportUnsupportedDunderAll]

explain_functions(vars())
if not TYPE_CHECKING:
    __getattr__ = missing_from(__name__)
