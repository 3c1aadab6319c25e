"""Pretrained networks: from a folder of weights to a model on a mesh, and back.

One decoder, and one encoder, serve all families. A family is a file in `families` that translates `config.json` and the
names of weights of `transformers`, in both directions.
"""

from keras_dist._support.raw_errors import explain_functions
from keras_dist.pretrained import families
from keras_dist.pretrained.cache import Cache
from keras_dist.pretrained.config import (
    AttentionConfig,
    DecoderConfig,
    EncoderConfig,
    ExpertsConfig,
    FeedForwardConfig,
    NormConfig,
    Rotary,
)
from keras_dist.pretrained.decoder import Decoder
from keras_dist.pretrained.encoder import Encoder
from keras_dist.pretrained.family import Family, register_family
from keras_dist.pretrained.folder import describe, load, save
from keras_dist.pretrained.generation import generate
from keras_dist.pretrained.rules import rules
from keras_dist.training.generation import CachedModel

__all__ = [
    "AttentionConfig",
    "Cache",
    "CachedModel",
    "Decoder",
    "DecoderConfig",
    "Encoder",
    "EncoderConfig",
    "ExpertsConfig",
    "Family",
    "FeedForwardConfig",
    "NormConfig",
    "Rotary",
    "describe",
    "families",
    "generate",
    "load",
    "register_family",
    "rules",
    "save",
]

explain_functions(vars())
