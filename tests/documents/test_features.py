"""The page that compares libraries: what was read for each column is listed, and cells have what was found there."""

import pathlib
import re

import pytest

PAGE = (pathlib.Path(__file__).parents[2] / "docs" / "reference" / "features.md").read_text()
UNREAD = {"keras_dist", "DTensor", "MultiWorkerMirroredStrategy"}
"""The first is checked against this repository; the others are of TensorFlow 2.15, and no longer change."""


def cells():
    """The cells of the tables of features, by library and row."""
    found = {}
    for table in re.findall(r"^\| \| keras_dist .*(?:\n\|.*)+", PAGE.replace("&shy;", ""), re.MULTILINE):
        (_, *libraries), _, *rows = [[cell.strip() for cell in line[1:-1].split("|")] for line in table.split("\n")]
        found |= {(library, name): cell for name, *row in rows for library, cell in zip(libraries, row, strict=True)}
    return found


def test_what_was_read_is_listed_with_a_version_for_every_column():
    read = PAGE.partition("## What was read")[2]
    rows = dict(re.findall(r"^\| ([\w -]+?) \| ([^|]+) \|", read, re.MULTILINE))
    libraries = {library for library, _ in cells()}
    assert {"EasyDeL", "google-parallax", "Ray Train"} < libraries == UNREAD | ({*rows} - {"library"})
    assert all(re.search(r"20\d\d|latest|3\.15", version) for name, version in rows.items() if name != "library")


@pytest.mark.parametrize(
    ("library", "row", "words"),
    [
        ("torchtitan", "fine-tuning", ["SFT", "LoRA"]),
        ("torchtitan", "costs of a step before it runs", ["removed"]),
        ("MaxText", "fine-tuning", ["SFT", "LoRA", "DPO", "distillation"]),
        ("MaxText", "restarts after a failure", ["in the same process"]),
        ("MaxText", "search", ["remat", "batch"]),
        ("Keras 3", "fine-tuning", ["QLoRA"]),
        ("Keras 3", "runs on", ["PyTorch with DTensor layouts at HEAD"]),
        ("Keras 3", "checkpoint restored on another mesh", ["Orbax"]),
        ("tunix", "fine-tuning", ["QLoRA"]),
        ("accelerate", "expert parallel", ["Megatron-LM"]),
        ("accelerate", "costs of a step before it runs", ["Adam"]),
    ],
)
def test_a_cell_has_what_was_found(library, row, words):
    cell = cells()[library, row]
    assert all(word in cell for word in words) and "(?)" not in cell
