"""What `model.summary()` says."""

import numpy as np
import pytest
from flax import nnx

import keras_dist as kd
from keras_dist import layers
from keras_dist.errors import ModelError
from tests import layouts


class Net(kd.Model):
    def __init__(self):
        super().__init__(name="net")
        self.d1 = layers.Dense(4)
        self.foreign = nnx.Linear(4, 2, rngs=nnx.Rngs(0))

    def call(self, inputs):
        return self.foreign(self.d1(inputs))


def lines_of(model, **options):
    """The cells of each line of the table."""
    printed = []
    model.summary(line_length=200, print_fn=printed.append, **options)
    assert len(printed) == 1
    return [[cell.strip() for cell in line.split("│")] for line in printed[0].splitlines() if "│" in line]


def cell(lines, first, header):
    """What the column says in the line that begins with `first`."""
    found = [cells for cells in lines if cells[0] == first]
    assert len(found) == 1, [cells[0] for cells in lines]
    return found[0][lines[0].index(header)]


def branches():
    x = kd.Input((8,), name="x")
    shared = layers.Dense(8, name="d1")
    inner = kd.Sequential([layers.Dense(4), layers.BatchNormalization()], name="inner")
    return kd.Model(x, inner(shared(shared(x)) + x), name="branches")


def test_layers_their_outputs_and_their_variables():
    with layouts.on("data=2,model=4", {"d1/kernel": (None, "model")}).scope():
        lines = lines_of(branches())
    assert lines[0] == [
        "layer (type)",
        "output shape",
        "params",
        "connected to",
        "layout",
        "rule",
        "bytes",
        "per device",
    ]
    assert cell(lines, "x (InputLayer)", "output shape") == "(None, 8)"
    assert cell(lines, "x (InputLayer)", "connected to") == "-"
    assert cell(lines, "d1 (Dense)", "params") == "72"
    assert cell(lines, "d1 (Dense)", "connected to") == "x[0][0], d1[0][0]"
    assert cell(lines, "add (operation)", "connected to") == "d1[1][0], x[0][0]"
    assert cell(lines, "inner (Sequential)", "output shape") == "(None, 4)"
    assert cell(lines, "inner (Sequential)", "params") == str(8 * 4 + 4 + 4 * 4)
    kernel = {header: cell(lines, "d1/kernel", header) for header in lines[0][1:]}
    assert kernel["output shape"] == "8 x 8 float32" and kernel["layout"] == "(-, model)"
    assert (kernel["bytes"], kernel["per device"]) == ("256 B", "64 B")
    assert cell(lines, "inner/batch_normalization/moving_mean", "layout") == "replicated"
    assert kernel["rule"] == "d1/kernel" and cell(lines, "d1/bias", "rule") == "no rule"


def test_rules_for_activations_have_lines():
    rules = {"d1/output": ("data", "model"), "inner/dense.*/output": ("data", None), "input/x": ("data", None)}
    with layouts.on("data=2,model=4", rules).scope():
        lines = lines_of(branches())
    names = [cells[0] for cells in lines]
    assert names[names.index("d1 (Dense)") :][:4] == ["d1 (Dense)", "d1/kernel", "d1/bias", "d1/output"]
    assert cell(lines, "d1/output", "layout") == "(data, model)" and cell(lines, "d1/output", "rule") == "d1/output"
    assert cell(lines, "d1/output", "output shape") == "(None, 8)" and cell(lines, "d1/output", "bytes") == ""
    assert names.index("inner (Sequential)") < names.index("inner/dense/output")
    assert cell(lines, "inner/dense/output", "rule") == "inner/dense.*/output"
    assert cell(lines, "inner/dense/output", "output shape") == "", "which is that of the layer inside"
    assert cell(lines, "input/x", "layout") == "(data, -)"
    with layouts.on("data=2,model=4", rules).scope():
        expanded = lines_of(branches(), expand_nested=True)
    assert cell(expanded, "inner/dense/output", "output shape") == "(None, 4)"


def test_activations_in_foreign_modules_and_by_the_name_of_the_model():
    with layouts.on("data=2,model=4", {"net/output": ("data", None), "foreign/output": ("data", None)}).scope():
        model = Net()
        model.build((None, 8))
        lines = lines_of(model)
    assert cell(lines, "net/output", "rule") == "net/output"
    assert cell(lines, "foreign/output", "rule") == "foreign/output"
    rules = {"out/output": ("data", "model"), "out/kernel": (None, "model")}
    with layouts.on("data=2,model=4", rules).scope():
        lines = lines_of(kd.Model.from_nnx(Foreign))
    assert lines[3][:1] + lines[3][3:6] == ["out/output", "activation", "(data, model)", "out/output"]


class Foreign(nnx.Module):
    def __init__(self, rngs):
        self.out = nnx.Linear(8, 4, rngs=rngs)

    def __call__(self, x):
        return self.out(x)


def test_totals_and_what_is_trainable():
    model = branches()
    model.layers[1].trainable = False
    model.compile("sgd", "mse")
    lines = lines_of(model)
    counts = {cells[0]: cells[lines[0].index("params")] for cells in lines if cells[0].endswith("params")}
    slots = sum(int(np.prod(row.shape)) for row in model.state_plan.rows if row.role == "slot")
    assert counts == {
        "Total params": str(model.count_params()),
        "Trainable params": str(32 + 4 + 8),
        "Non-trainable params": str(72 + 8),
        "Optimizer params": str(slots),
    }
    assert cell(lines, "Total params", "bytes") == f"{4 * model.count_params()} B"
    assert cell(lines, "Counters and random states", "params") == "1"
    whole = sum(row.nbytes for row in model.state_plan.rows)
    assert cell(lines, "Whole training state", "bytes") == f"{whole} B"
    lines = lines_of(model, show_trainable=True)
    assert cell(lines, "d1 (Dense)", "trainable") == "N"
    assert cell(lines, "inner (Sequential)", "trainable") == "Y"
    assert cell(lines, "inner/batch_normalization/moving_mean", "trainable") == "N"
    assert cell(lines, "x (InputLayer)", "trainable") == ""


@pytest.fixture(scope="module")
def model():
    """What no test changes."""
    return branches()


def test_a_model_without_weights_yet():
    model = kd.Sequential([layers.Dense(4), layers.Dense(2)])
    assert lines_of(model)[1:] == [
        ["dense (Dense)", "?", "0 (unbuilt)", "", "", "", ""],
        ["dense_1 (Dense)", "?", "0 (unbuilt)", "", "", "", ""],
    ]
    model.build((None, 8))
    lines = lines_of(model)
    assert cell(lines, "dense_1 (Dense)", "output shape") == "(None, 2)"
    assert cell(lines, "Total params", "params") == str(8 * 4 + 4 + 4 * 2 + 2)


def test_a_subclass_lists_its_layers_and_what_is_in_none_of_them():
    model = Net()
    model.build((None, 8))
    lines = lines_of(model)
    assert cell(lines, "dense (Dense)", "output shape") == "?"
    assert cell(lines, "dense (Dense)", "params") == "36"
    assert cell(lines, "foreign/kernel", "output shape") == "4 x 2 float32"
    assert sum(cells[0] == "d1/kernel" for cells in lines) == 1
    assert cell(lines, "Total params", "params") == "46"
    assert not any(cells[0] == "Optimizer params" for cells in lines), "it is not compiled"


def test_some_layers_only():
    model = kd.Sequential([kd.Input((8,)), *(layers.Dense(8, name=f"d{number}") for number in range(5))])
    named = [cells[0] for cells in lines_of(model, layer_range=["d1", "d[23]"]) if "(" in cells[0]]
    assert named == ["layer (type)", "d1 (Dense)", "d2 (Dense)", "d3 (Dense)"]
    assert lines_of(model, layer_range=("d3", "d1"))[1][0] == "d1 (Dense)"
    for wrong in (["d1"], ["d1", "d9"], [1, 2], "d1"):
        with pytest.raises(ModelError, match="`layer_range` must be the names of two layers") as caught:
            model.summary(layer_range=wrong)
        assert "'d4'" in caught.value.fix
