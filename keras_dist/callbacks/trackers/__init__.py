"""`Tracker` and the trackers that it knows by name: each module registers one."""

from keras_dist.callbacks.trackers import event_files as event_files
from keras_dist.callbacks.trackers import mlflow as mlflow
from keras_dist.callbacks.trackers import trackio as trackio
from keras_dist.callbacks.trackers import wandb as wandb
from keras_dist.callbacks.trackers.tracker import Experiment as Experiment
from keras_dist.callbacks.trackers.tracker import Tracker as Tracker
from keras_dist.callbacks.trackers.tracker import TrackerRun as TrackerRun
from keras_dist.callbacks.trackers.tracker import register_tracker as register_tracker
