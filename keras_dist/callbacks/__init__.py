"""Callbacks: observers of training. The loop knows only their protocol."""

from keras_dist.callbacks.callback import Callback
from keras_dist.callbacks.callback_list import CallbackList
from keras_dist.callbacks.history import History
from keras_dist.callbacks.progbar_logger import ProgbarLogger

__all__ = ["Callback", "CallbackList", "History", "ProgbarLogger"]
