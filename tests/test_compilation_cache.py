"""Compiled programs that the next process finds."""

import json
import os
import pathlib
import sys
from typing import Any

import pytest

import keras_dist as kd
from tests import forks

PROGRAM = """
import collections, json, sys
import jax
import numpy as np
import keras_dist as kd

folder = kd.use_compilation_cache(*sys.argv[1:])
counts = collections.Counter()
jax.monitoring.register_event_listener(lambda event, **_: counts.update([event.rsplit("/", 1)[-1]]))
with kd.DataParallel().scope():
    model = kd.Sequential([kd.Input((4,)), kd.layers.Dense(8), kd.layers.Dropout(0.5), kd.layers.Dense(1)])
model.compile("adam", "mse")
logs = model.fit(np.ones((10, 4), np.float32), np.ones(10, np.float32), batch_size=4, verbose=0).history
print(json.dumps([str(folder), counts["cache_hits"], counts["cache_misses"], logs]))
"""

GENERATING = """
import collections, json, sys
import jax
import keras_dist as kd
from keras_dist.pretrained import AttentionConfig, Decoder, DecoderConfig, FeedForwardConfig

kd.use_compilation_cache(sys.argv[1])
kd.set_random_seed(0)
attention = AttentionConfig(num_heads=4, num_kv_heads=2, head_dim=8)
sizes = {"vocab_size": 64, "hidden_size": 16, "num_layers": 2, "feed_forward": FeedForwardConfig(32)}
with kd.DataParallel().scope():
    model = Decoder(DecoderConfig(family="llama", attention=attention, **sizes))
model.build()
counts = collections.Counter()
jax.monitoring.register_event_listener(lambda event, **_: counts.update([event.rsplit("/", 1)[-1]]))
steps = kd.generate(model, [list(range(1, int(sys.argv[2])))], 20, stream=True, verbose=0)
first = next(steps)
found = [counts["cache_hits"], counts["cache_misses"]]
print(json.dumps([*found, counts["cache_misses"] if list(steps) else None]))
"""


def start(*arguments: str, program: str = PROGRAM, **environment: str) -> Any:
    done = forks.python("-c", program, *arguments, env=os.environ | environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.multiprocess
def test_a_second_start_compiles_nothing(tmp_path):
    cache = str(tmp_path / "programs")
    _, hits, misses, first = start(cache)
    assert not hits and misses
    folder, hits, later_misses, second = start(cache)
    assert folder == cache
    assert hits == misses and not later_misses
    assert first != second  # each start draws a seed, which is no part of the programs


@pytest.mark.multiprocess
def test_the_first_token_of_a_second_start_compiles_nothing(tmp_path):
    _, misses, later = start(str(tmp_path), "7", program=GENERATING)
    assert 0 < misses < later
    hits, *later = start(str(tmp_path), "30", program=GENERATING)
    assert hits and later == [0, 0], "prompts of 6 and 29 tokens have the same programs"


@pytest.mark.multiprocess
@pytest.mark.skipif(sys.platform != "linux", reason="caches have another place")
def test_the_default_is_a_folder_of_the_user_alone(tmp_path):
    folder, *_ = start(XDG_CACHE_HOME=str(tmp_path))
    assert pathlib.Path(folder) == tmp_path / "keras_dist" / "programs"
    assert pathlib.Path(folder).stat().st_mode & 0o077 == 0
    assert any(pathlib.Path(folder).iterdir())


@pytest.mark.parametrize(
    "path", [3, "", "gs://bucket/x", pathlib.Path("s3://bucket"), "a file", "a file/below", "with\0null"], ids=str
)
def test_what_is_no_folder_is_refused(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pathlib.Path("a file").touch()
    with pytest.raises(kd.errors.WriteError, match="use_compilation_cache: programs cannot be kept there"):
        kd.use_compilation_cache(path)
