"""Reports as pages: self-contained, escaped, and readable in a browser of 1200 pixels, light and dark."""

import dataclasses
import html.parser
import re
from xml.etree import ElementTree

import numpy as np
import pytest

import keras_dist as kd
from keras_dist import layers
from keras_dist.distribution.render import render_axes, render_bytes
from keras_dist.errors import WriteError
from keras_dist.planner import CompiledFigures, PlanReport
from tests import browser, layouts

STRANGE = "<script>alert(1)&\"'"
RULES = {"d1/kernel": (None, "model"), f"{re.escape(STRANGE)}/(kernel|<b>)": ("model", None)}


def model_on(distribution):
    with distribution.scope():
        model = kd.Sequential([kd.Input((64,)), layers.Dense(64, name="d1"), layers.Dense(64, name=STRANGE)])
    model.compile("adam", "mse")
    return model


@pytest.fixture(scope="module")
def report() -> PlanReport:
    return model_on(layouts.on("data=2,model=4", RULES)).plan(np.zeros((8, 64)), np.zeros((8, 64)))


@pytest.fixture(scope="module")
def large() -> PlanReport:
    """Four blocks on 1024 devices that are not there."""
    mesh = kd.DeviceMesh("slice=2,data=32,model=16", devices=[f"tpu:{index}" for index in range(1024)])
    rules = kd.LayoutMap(mesh)
    rules["up.*/kernel"], rules["down.*/kernel"] = (("slice", "data"), "model"), ("model", ("slice", "data"))

    def factory():
        blocks = [
            layer
            for index in range(4)
            for layer in (layers.Dense(65536, name=f"up_{index}"), layers.Dense(2048, name=f"down_{index}"))
        ]
        return kd.Sequential([kd.Input((2048,)), *blocks])

    x = np.zeros((64, 2048), np.float32)
    return kd.plan(factory, (x, x), kd.ModelParallel(rules, batch_dim_name=("slice", "data")), "adam", "mse")


@pytest.fixture(scope="module")
def page(report, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "plan.html"
    report.to_html(path)
    return path


@pytest.fixture(scope="module")
def large_page(large, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "large.html"
    large.to_html(str(path))
    return path


class Parsed(html.parser.HTMLParser):
    """The elements of a page, the text in each kind of them, and whether all are closed."""

    VOID = ("meta",)

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.open, self.texts = [], [], [], {}
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in self.VOID and tag != "br":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open:
            self.texts.setdefault(self.open[-1], []).append(data)


def pictures_in(text):
    return [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", text, re.DOTALL)]


def test_a_page_needs_nothing_else(page):
    text = page.read_text()
    parsed = Parsed(text)
    assert not {"script", "link", "img", "iframe", "object", "image", "use"} & set(parsed.tags)
    assert not [name for name, _ in parsed.attributes if name in ("src", "href", "xlink:href") or name.startswith("on")]
    assert "http" not in text.replace("http-equiv", "") and "url(" not in text and "@import" not in text
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'") in (
        parsed.attributes
    )


def test_paths_and_rules_are_text(page, report):
    parsed = Parsed(page.read_text())
    cells = parsed.texts["td"]
    assert f"{STRANGE}/kernel" in cells and f"{re.escape(STRANGE)}/(kernel|<b>)" in cells
    assert f"{STRANGE}/kernel" in parsed.texts["h3"] and f"{STRANGE}/output" in cells
    assert "b" not in set(parsed.tags) - {"b"} and parsed.tags.count("b") == 4, "the figures at the top"
    assert "<script" not in page.read_text() and "<script" not in report._repr_html_()


def test_tables_say_what_the_report_says(page, report):
    cells = Parsed(page.read_text()).texts["td"]
    for row in (*report.state.rows, *report.batch.rows):
        at = cells.index(row.path)
        assert cells[at + 4 : at + 6] == [render_axes(row.axes), row.rule or "no rule"]
    for each in report.activations:
        assert cells[cells.index(each.path) + 3] == render_axes(each.axes)
    assert "data: from input/x, decided by the batch dim; model: from d1/kernel, decided by rule 'd1/kernel'" in cells
    for *names, turns, size in report.collective_lines()[:-1]:
        assert {*names, turns, size} <= {*cells, ""}


def test_pictures_of_mesh_memory_and_shards(page, report):
    pictures = pictures_in(page.read_text())
    labels = [picture.get("aria-label") for picture in pictures]
    assert labels[0] == "8 devices: data 2, model 4"
    assert all(f"{role} " in labels[1] for role in report.nbytes_by_role) and "intermediate results" in labels[1]
    bars = {
        text.text: float(bar.get("width"))
        for text, bar in zip(pictures[1].findall("text")[::2], pictures[1].findall("rect"), strict=True)
    }
    assert bars["slot"] / bars["parameter"] == pytest.approx(2, rel=0.01), "Adam's two moments"
    assert "d1/kernel: 64 x 64 in 4 blocks" in labels and f"{STRANGE}/kernel: 64 x 64 in 4 blocks" in labels
    kernel = pictures[labels.index("d1/kernel: 64 x 64 in 4 blocks")]
    assert [field.find("text").text for field in kernel.findall("g")] == ["0, 4", "1, 5", "2, 6", "3, 7"]
    mesh = pictures[labels.index("d1/kernel: 64 x 64 in 4 blocks") + 1]
    colours = [field.find("rect").get("fill") for field in mesh.findall("g")]
    assert colours[:4] == colours[4:] == [field.find("rect").get("fill") for field in kernel.findall("g")]
    assert len(set(colours)) == 4
    assert mesh.find("g/title").text == "cpu:0: data 0, model 0; holds [0:64, 0:16]"


@pytest.mark.slow
def test_arrays_that_lie_alike_share_a_picture(large_page):
    text = large_page.read_text()
    assert len(text) < 500_000
    labels = [picture.get("aria-label") for picture in pictures_in(text)]
    assert labels.count("up_0/kernel: 2048 x 65536 in 1024 blocks") == 1 and not [x for x in labels if "up_1/" in x]
    assert "and 3 more with this layout" in text and "<li>up_3/kernel</li>" in text
    assert len(labels[0]) < 100 and len(pictures_in(text)[0].findall("g")) == 16 * 16 - 16


def test_problems_and_what_is_assumed_have_sections(page):
    with pytest.warns(kd.errors.LayoutWarning):
        found = kd.plan(
            lambda: kd.Sequential([kd.Input((8,)), layers.Dense(8, name="d1")]),
            np.zeros((8, 8), np.float32),
            kd.ModelParallel(_dead_rule()),
        )
    cells = Parsed(kd.planner.html.page_of(found))
    assert {"Problems", "Chosen and assumed"} <= {text.strip() for text in cells.texts["h2"]}
    assert any("d9/kernel" in text for text in cells.texts["td"])
    assert set(found.assumed) <= set(cells.texts["p"])
    assert "Problems" not in page.read_text()


def test_a_target_has_a_section(report):
    model = model_on(layouts.on("data=2,model=4", RULES))
    x = np.zeros((8, 64), np.float32)
    found = kd.plan(model, (x, x), target="cpu:8", compiles=False)
    line, moved = found.verdict.roofline, found.step.collectives[:1]
    compiled = CompiledFigures("cpu:8", 9000, 8000, 7000, 6000, 16000, 20000, moved, 5, 6, 1.0)
    rooflines = {"propagated": line, "compiled": dataclasses.replace(line, memory_seconds=2 * line.memory_seconds)}
    verdict = dataclasses.replace(found.verdict, compiled=compiled, rooflines=rooflines, limit_nbytes=20000, note="")
    found = dataclasses.replace(found, verdict=verdict)
    text = kd.planner.html.page_of(found)
    parsed = Parsed(text)
    assert str(found.verdict) in parsed.texts["p"]
    labels = [picture.get("aria-label") for picture in pictures_in(text)]
    assert f"state and batch {render_bytes(found.verdict.least_nbytes)} (exact)" in labels[1]
    assert "at the peak 15.6 KiB (compiled); memory of a device 19.5 KiB (the limit)" in labels[1]
    for picture, line in zip(pictures_in(text)[2:4], found.verdict.rooflines.values(), strict=True):
        widths = [float(bar.get("width")) for bar in picture.findall("rect")]
        times = list(line.seconds_by_resource.values())
        assert widths == pytest.approx([520 * time / max(times) for time in times], abs=1)
    assert all(set(line) <= set(parsed.texts["td"]) for line in found.difference_lines())
    assert found.difference_lines() and "Target" not in "".join(Parsed(kd.planner.html.page_of(report)).texts["h2"])


def _dead_rule():
    rules = kd.LayoutMap(kd.DeviceMesh("data=2,model=4"))
    rules["d9/kernel"] = (None, "model")
    return rules


def test_a_place_that_is_not_there(report, tmp_path):
    for place in (tmp_path / "nowhere" / "plan.html", tmp_path):
        with pytest.raises(WriteError, match="was not written") as caught:
            report.to_html(place)
        assert isinstance(caught.value, OSError) and caught.value.filename == str(place)


SHAPES = """
(() => {
  const inside = (a, b) =>
    a.left >= b.left - 1 && a.right <= b.right + 1 && a.top >= b.top - 1 && a.bottom <= b.bottom + 1;
  const svgs = [...document.querySelectorAll("svg")];
  const texts = svgs.flatMap(svg => [...svg.querySelectorAll("text")].map(text => [svg, text]));
  const box = element => element.getBoundingClientRect();
  return {
    width: document.documentElement.scrollWidth,
    pictures: svgs.map(svg => [box(svg).width, box(svg).height]),
    outside: texts.filter(([svg, text]) => !inside(box(text), box(svg))).map(([, text]) => text.textContent),
    covered: [...document.querySelectorAll("svg g")]
      .filter(g => g.querySelector("text") && !inside(box(g.querySelector("text")), box(g.querySelector("rect"))))
      .map(g => g.textContent),
    crossing: svgs.flatMap(svg => [...svg.querySelectorAll("text")].map(text => [text.textContent, box(text)])
      .filter(([, a], i, all) => all.slice(i + 1).some(([, b]) =>
        a.left < b.right && b.left < a.right && a.top + 3 < b.bottom && b.top + 3 < a.bottom))),
    smallest: Math.min(...texts.map(([svg, text]) =>
      parseFloat(getComputedStyle(text).fontSize) * box(svg).width / svg.viewBox.baseVal.width)),
    cells: [...document.querySelectorAll("td")].filter(cell => cell.scrollWidth > cell.clientWidth + 1).length,
    colours: [getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor],
    fields: [...document.querySelectorAll("svg g rect")].map(field => getComputedStyle(field))
      .map(style => [style.fill, parseFloat(style.fillOpacity)]),
    inks: [...new Set(texts.map(([, text]) => getComputedStyle(text).fill))],
  };
})()
"""

LINES = """
[...document.querySelectorAll("tr")].filter(row => row.clientHeight).map(row =>
  row.clientHeight / 18 - 1 - Math.max(...[...row.cells].map(cell => cell.textContent.split(/[ ,]+/).length)))
"""
"""How many lines each row of a table has more than its longest cell has words."""


def numbers_in(colour):
    """Of `rgb(1, 2, 3)`."""
    return np.array([float(part) for part in re.findall(r"[\d.]+", colour)[:3]])


def contrast(one, other):
    """Of two colours, by WCAG 2."""
    least, most = sorted((luminance(one), luminance(other)))
    return (most + 0.05) / (least + 0.05)


def luminance(colour):
    parts = colour / 255
    return np.dot(
        [0.2126, 0.7152, 0.0722], [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    )


@pytest.mark.multiprocess
@pytest.mark.skipif(not browser.IS_SUPPORTED, reason="the browser's package is for Linux on x86-64")
def test_in_a_browser(page, large_page, tmp_path):
    with browser.browser() as opened:
        for path in (page, large_page):
            for scheme in ("light", "dark"):
                opened.open(path.as_uri(), 1200, scheme)
                shapes = opened.evaluate(SHAPES)
                assert opened.complaints() == []
                assert opened.requests() == [path.as_uri()]
                assert shapes["width"] <= 1200
                assert len(shapes["pictures"]) == len(pictures_in(path.read_text())) > 4
                assert min(map(min, shapes["pictures"])) > 20 and shapes["smallest"] >= 9
                assert shapes["outside"] == shapes["covered"] == shapes["crossing"] == [] and shapes["cells"] == 0
                ink, paper = map(numbers_in, shapes["colours"])
                assert shapes["inks"] == shapes["colours"][:1]
                assert contrast(ink, paper) > 10 and (luminance(paper) > luminance(ink)) == (scheme == "light")
                for fill, opacity in shapes["fields"]:
                    assert contrast(ink, opacity * numbers_in(fill) + (1 - opacity) * paper) > 7, "of text on blocks"
                opened.screenshot(tmp_path / f"{path.stem}-{scheme}.png")
            opened.open(path.as_uri(), 400)
            shapes = opened.evaluate(SHAPES)
            assert shapes["width"] <= 400, "tables and pictures scroll in their boxes, not the page"
            assert shapes["smallest"] >= 9 and shapes["outside"] == shapes["crossing"] == [] and shapes["cells"] == 0
            assert max(opened.evaluate(LINES)) <= 0, "words of tables are not broken into letters"
            opened.screenshot(tmp_path / f"{path.stem}-narrow.png")


@pytest.mark.multiprocess
@pytest.mark.skipif(not browser.IS_SUPPORTED, reason="the browser's package is for Linux on x86-64")
def test_the_browser_tells_of_errors(tmp_path):
    """What the test above relies on."""
    page = tmp_path / "wrong.html"
    page.write_text('<script>console.log("seen")</script><img src="missing.png"><script>wrong()</script>')
    with browser.browser() as opened:
        opened.open(page.as_uri())
        assert len(opened.complaints()) == 3 and len(opened.requests()) == 2
