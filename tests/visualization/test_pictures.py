"""Pictures of meshes, plans and trainings: their numbers, as SVG and as text."""

import re
import xml.etree.ElementTree

import numpy as np
import pytest
import rich.console

import keras_dist as kd
from keras_dist.errors import ModelError, UnknownPathError
from keras_dist.visualization import (
    plot_bars,
    plot_collectives,
    plot_curves,
    plot_memory,
    plot_mesh,
    plot_plan,
    plot_shards,
)
from tests.documents import pictures

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def report():
    rules = kd.LayoutMap(kd.DeviceMesh("data=2,model=4"))
    rules["up/kernel"], rules["down/kernel"] = (None, "model"), ("model", None)
    with kd.ModelParallel(rules).scope():
        model = kd.Sequential([kd.Input((64,)), kd.layers.Dense(256, name="up"), kd.layers.Dense(64, name="down")])
    model.compile("sgd", "mse")
    return model.plan(np.zeros((64, 64)), np.zeros((64, 64)))


def elements(picture, name, theme=None):
    return list(xml.etree.ElementTree.fromstring(picture.svg(theme)).iter(f"{SVG}{name}"))


def texts(picture):
    return [each.text for each in elements(picture, "text")]


def test_a_mesh_shows_each_device_once():
    picture = plot_mesh(kd.DeviceMesh("data=2,pipe=2,model=2"))
    rows = str(picture).splitlines()
    assert re.sub(r"\W+", " ", rows[-1]) == "data 1 pipe 1 6 7"
    assert {*map(str, range(8))} <= {*texts(picture)}
    with pytest.raises(ModelError):
        plot_mesh("data=2")


def test_shards_are_the_blocks_of_the_plan(report):
    picture = plot_shards(report, "down/kernel")
    assert str(picture) == str(report.state.show("down/kernel"))
    assert {"0, 4", "1, 5", "2, 6", "3, 7"} <= {*texts(picture)}
    with pytest.raises(UnknownPathError):
        plot_shards(report.state, "down/kernl")


def test_memory_is_that_of_the_plan_by_role(report):
    table = str(plot_memory(report))
    # 64 x 256 and 256 x 64 over 4, biases of 256 and 64 replicated, batches of 32 rows on a device
    own, whole = 4 * (2 * 64 * 256 // 4 + 256 + 64), 4 * (2 * 64 * 256 + 256 + 64)
    assert f"{own / 1024:.1f} KiB of {whole / 1024:.1f} KiB in all" in table
    assert "16.0 KiB of 32.0 KiB in all" in table and "intermediates" in table
    assert "intermediates" not in str(plot_memory(report.state))
    with pytest.raises(ModelError, match="`plan` must be a LayoutPlan or PlanReport"):
        plot_memory(3)


def test_collectives_by_layer_and_axis(report):
    table = str(plot_collectives(report))
    moved = sum(
        each.nbytes_per_step for each in report.step.collectives if each.axes == ("model",) and each.layer == "down"
    )
    assert re.search(rf"down \(model\).* {moved / 1024:.1f} KiB all_reduce", table)
    with pytest.raises(ModelError, match="`report` must be a PlanReport"):
        plot_collectives(report.state)


def test_a_plan_shows_mesh_shards_and_bytes(report):
    picture = plot_plan(report)
    for part in (plot_mesh(report.state.mesh), plot_shards(report, "up/kernel"), plot_memory(report)):
        assert str(part) in str(picture)
    assert len([text for text in texts(picture) if "on each device" in text]) == 3


def test_curves_of_a_training_and_of_several():
    losses, metric = [4.0, np.nan, 1.0], [0.5]
    picture = plot_curves({"loss": losses, "val_loss": [3.0, 2.5, 2.0], "accuracy": metric})
    assert len(elements(picture, "polyline")) == 3
    assert texts(picture).count("loss") == 1 and {"training", "validation", "accuracy"} <= {*texts(picture)}
    assert elements(picture, "polyline")[0].get("points").split()[1].endswith(",150.0")  # NaN is left out
    assert re.search(r"loss +│ +4 │ █\?▁ +│ +1", str(picture))
    runs = plot_curves({"(8, 1)": {"loss": losses}, "(2, 4)": {"loss": losses}}, "two meshes")
    assert {"(8, 1)", "(2, 4)", "two meshes"} <= {*texts(runs)} and len(elements(runs, "polyline")) == 2


@pytest.mark.parametrize("history", [{}, 3])
def test_nothing_to_draw(history):
    with pytest.raises(ModelError, match="plot_curves: there is nothing to plot"):
        plot_curves(history)


def test_bars_have_lengths_and_aims():
    picture = plot_bars({"fit": 0.9, "save": 0.3}, "ratio", "x", aims={"fit": 0.6})
    wide, narrow = (float(each.get("width")) for each in elements(picture, "rect"))
    assert wide == pytest.approx(3 * narrow, abs=1) and len(elements(picture, "path")) == 1
    assert "0.9 x" in str(picture) and str(picture).count("│") == 4 + 1 + 2  # separators, the mark
    with pytest.raises(ModelError, match="`values` must be positive numbers by name"):
        plot_bars({}, "nothing")


@pytest.mark.parametrize("columns", ["40", "80"])
def test_text_fits_a_terminal(report, columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    for picture in (plot_plan(report), plot_collectives(report), plot_bars({"a": 1.0}, "t")):
        assert max(map(len, str(picture).splitlines())) <= int(columns)
    assert str(plot_memory(report)).count("KiB") == 5  # numbers are kept where bars have no room


def test_bars_have_colours_in_rich(report):
    console = rich.console.Console(force_terminal=True, color_system="standard", width=80)
    with console.capture() as captured:
        console.print(plot_memory(report))
    assert "\x1b[36m█" in captured.get()


def test_themes_and_files(report, tmp_path):
    picture = plot_memory(report)
    picture.save(tmp_path / "dark.svg", "dark")
    assert (tmp_path / "dark.svg").read_text() == picture.svg("dark")
    assert picture.svg("dark") != picture.svg("light") and "#" not in picture._repr_html_()  # the page's own colours
    with pytest.raises(ModelError, match="theme"):
        picture.svg("blue")


def test_the_pictures_of_the_readme_are_what_the_script_draws():
    for theme in pictures.THEMES:
        kept = (pictures.FOLDER / f"plan_{theme}.svg").read_text()
        assert kept == pictures.picture().svg(theme), "python -m tests.documents.pictures draws them"


def test_collectives_of_a_step_that_moves_nothing():
    with kd.DataParallel(kd.DeviceMesh("batch=1", devices=kd.list_devices()[:1])).scope():
        model = kd.Sequential([kd.Input((4,)), kd.layers.Dense(2)])
    model.compile("sgd", "mse")
    assert str(plot_collectives(model.plan(np.zeros((8, 4)), np.zeros((8, 2))))).endswith(": none")
