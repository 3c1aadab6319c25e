"""What `model.summary()` says."""

import re

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


def totals_of(model, **options):
    """The lines below the table: label, number and bytes."""
    printed = []
    model.summary(line_length=200, print_fn=printed.append, **options)
    found = re.findall(r"^(.+): ([\d,]+) \((.+)\)$", printed[0], re.MULTILINE)
    return {label: (int(number.replace(",", "")), nbytes) for label, number, nbytes in found}


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
        "bytes",
        "per device",
        "rule",
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
    assert lines[3][:1] + lines[3][4:7] == ["out/output", "activation", "(data, model)", "out/output"]


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
    slots = [row for row in model.state_plan.rows if row.role == "slot"]
    count, numbers = model.count_params(), sum(int(np.prod(row.shape)) for row in slots)
    assert totals_of(model) == {
        "Total params": (count, f"{4 * count} B"),
        "Trainable params": (32 + 4 + 8, "176 B"),
        "Non-trainable params": (72 + 8, "320 B"),
        "Optimizer params": (numbers, f"{sum(row.nbytes for row in slots)} B"),
        "Counters and random states": (1, "4 B"),
        "Whole training state": (count + numbers + 1, f"{sum(row.nbytes for row in model.state_plan.rows)} B"),
    }
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
    assert totals_of(model)["Total params"][0] == 8 * 4 + 4 + 4 * 2 + 2


def test_a_subclass_lists_its_layers_and_what_is_in_none_of_them():
    model = Net()
    model.build((None, 8))
    lines = lines_of(model)
    assert cell(lines, "dense (Dense)", "output shape") == "?"
    assert cell(lines, "dense (Dense)", "params") == "36"
    assert cell(lines, "foreign/kernel", "output shape") == "4 x 2 float32"
    assert sum(cells[0] == "d1/kernel" for cells in lines) == 1
    assert totals_of(model)["Total params"][0] == 46
    assert "Optimizer params" not in totals_of(model), "it is not compiled"


def test_some_layers_only():
    model = kd.Sequential([kd.Input((8,)), *(layers.Dense(8, name=f"d{number}") for number in range(5))])
    named = [cells[0] for cells in lines_of(model, layer_range=["d1", "d[23]"]) if "(" in cells[0]]
    assert named == ["layer (type)", "d1 (Dense)", "d2 (Dense)", "d3 (Dense)"]
    assert lines_of(model, layer_range=("d3", "d1"))[1][0] == "d1 (Dense)"
    for wrong in (["d1"], ["d1", "d9"], [1, 2], "d1"):
        with pytest.raises(ModelError, match="`layer_range` must be the names of two layers") as caught:
            model.summary(layer_range=wrong)
        assert "'d4'" in caught.value.fix


def mlp():
    return kd.Sequential([kd.Input((16,)), layers.Dense(32, name="hidden"), layers.Dense(5, name="out")])


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120])
@pytest.mark.parametrize("make", [mlp, branches, Net, lambda: kd.Model.from_nnx(Foreign)])
def test_params_stay_and_the_last_lines_are_keras_s(make, width):
    with layouts.on("data=2,model=4", {}).scope():
        model = make()
        if make is Net:
            model.build((None, 8))
    printed = []
    model.summary(line_length=width, print_fn=printed.append)
    header, _, totals = printed[0].partition("Total params: ")
    columns = re.split(r"─{3}", header)[0]
    assert "params" in columns and max(map(len, printed[0].splitlines())) <= width
    assert "rule" not in columns or "per device" in " ".join(columns.split()) or "device" in columns
    assert totals.startswith(f"{model.count_params():,} (")
    labels = re.findall(r"^(\S*rainable params): [\d,]+ \(", totals, re.MULTILINE)
    assert labels == ["Trainable params", "Non-trainable params"]
