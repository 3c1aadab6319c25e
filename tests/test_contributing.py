"""The seven examples of CONTRIBUTING.md work from outside of the package: a file each, and nothing else is changed."""

import pathlib
import re

import pytest

from tests.contracts.processes import run_fork

ROOT = pathlib.Path(__file__).parent.parent
EXAMPLES = re.findall(
    r"^```python\n(# (\w+\.py)\n.*?)^```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL | re.MULTILINE
)

PROGRAM = """
import json
import pathlib
import sys

import numpy as np
import pytest

sys.path.insert(0, ".")
import keras_dist as kd
from keras_dist.errors import ConfigError

kd.use_cpu_devices(8)
kd.set_random_seed(1337)  # the cube of an error diverges from some initial values
from csv_source import CsvSource
from cubed_error import CubedError
from largest_error import LargestError
from last_dim import LastDim
from scale import Scale
import seed_oss
from stop_below import StopBelow

table = np.random.default_rng(0).normal(size=(32, 5)).astype("float32")
np.savetxt("train.csv", table, delimiter=",")
pathlib.Path("run.toml").write_text('''
[mesh]
shape = {data = 2, model = 4}
[distribution]
strategy = "last_dim"
axis = "model"
''')

# the strategy, by a config file
distribution = kd.distribution_from_config("run.toml")
assert isinstance(distribution, LastDim) and distribution.axis == "model"

# the layer, the loss and the metric, on the data source
kd.set_distribution(distribution)
model = kd.Sequential([Scale(2.0, name="scale"), kd.layers.Dense(8), kd.layers.Dense(1)])
model.compile("sgd", loss=CubedError(), metrics=[LargestError()])
history = model.fit(pathlib.Path("train.csv"), batch_size=8, epochs=3, verbose=0, callbacks=[StopBelow(1e9)])
assert history.epoch == [0], "the callback"
assert model.layout_plan.row("dense/kernel").axes == (None, "model")
error = table[:, -1:] - model.predict(table[:, :-1], verbose=0)
found = model.evaluate(pathlib.Path("train.csv"), verbose=0, return_dict=True)
np.testing.assert_allclose(found["largest_error"], np.abs(error).max(), rtol=1e-5)
np.testing.assert_allclose(found["loss"], (np.abs(error) ** 3).mean(), rtol=1e-5)
with pytest.raises(kd.errors.DataError, match="`y` cannot be used with a dataset"):
    model.fit(pathlib.Path("train.csv"), table)

# saving and loading the layer
model = kd.Sequential([kd.Input((4,)), Scale(3.0), kd.layers.Dense(1)])
model.save("model")
loaded = kd.models.load_model("model")
assert type(loaded.layers[0]) is Scale and loaded.layers[0].initial == 3.0
np.testing.assert_array_equal(loaded.predict(table[:, :4], verbose=0), model.predict(table[:, :4], verbose=0))

# the family: its biases are in config.json, and a network has them
rotary = kd.pretrained.Rotary()
options = {"use_output_bias": True, "rotary": rotary}
heads = kd.pretrained.AttentionConfig(num_heads=4, num_kv_heads=4, head_dim=8, **options)
sizes = {"vocab_size": 32, "hidden_size": 16, "num_layers": 1, "feed_forward": kd.pretrained.FeedForwardConfig(24)}
options = {"family": "seed_oss", "attention": heads, "initializer_range": 0.5}
decoder = kd.pretrained.Decoder(kd.pretrained.DecoderConfig(**sizes, **options))
tokens = np.arange(8, dtype="int32").reshape(2, 4)
logits = decoder(tokens)
kd.pretrained.save(decoder, "seed_oss_folder")
written = json.loads(pathlib.Path("seed_oss_folder/config.json").read_text())
assert (written["attention_bias"], written["attention_out_bias"]) == (False, True)
loaded = kd.pretrained.load("seed_oss_folder")
assert any(weight.path == "layers/0/attention/output/bias" for weight in loaded.weights)
np.testing.assert_allclose(loaded(tokens), logits, rtol=1e-5)

# errors name the key, and what is near
for wrong, said in {
    'strategy = "last_dm"': "did you mean 'last_dim'?",
    'strategy = "last_dim"\\naxs = "model"': "axs: unknown key (did you mean 'axis'?)",
    'strategy = "last_dim"\\naxis = "modl"': "axis: the mesh has no axis 'modl' (did you mean 'model'?)",
    'strategy = "last_dim"\\naxis = 3': "expected: an axis name, or a list of axis names",
    'strategy = "last_dim"\\nstrict = true': "strict: is not an option of strategy 'last_dim'",
}.items():
    pathlib.Path("run.toml").write_text(f"mesh.shape = {{data = 2, model = 4}}\\n[distribution]\\n{wrong}")
    with pytest.raises(ConfigError) as caught:
        kd.distribution_from_config("run.toml")
    assert "run.toml: distribution." in str(caught.value) and said in str(caught.value), caught.value
"""


@pytest.mark.multiprocess
def test_a_stranger_adds_one_short_file(tmp_path, monkeypatch):
    assert len(EXAMPLES) == 7
    for text, name in EXAMPLES:
        assert len(text.splitlines()) <= 40
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    run_fork(PROGRAM)
