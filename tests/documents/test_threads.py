"""Questions from issue threads of other libraries find their answer within two clicks from the start page."""

import os
import pathlib
import re

import pytest

DOCS = pathlib.Path(__file__).parent.parent.parent / "docs"

# the thread: the page with the answer, and text of the answer on it
THREADS = {
    "keras#21167: batches that the devices do not divide": (
        "how_to/uneven_data.md",
        "100 rows in batches of 32 on eight",
    ),
    "keras#21634: weights are whole on one device while they load": (
        "how_to/load_a_large_model.md",
        "created in shards",
    ),
    "keras#20998: two GPUs are not faster than one": ("how_to/slow_step.md", "# A slow step"),
    "keras-hub#1850: how to train on several hosts": ("how_to/cloud_tpu.md", "# Cloud TPU"),
    "keras-hub#2158: LoRA at 8,192 tokens": ("how_to/out_of_memory.md", "## Fine-tune on long sequences"),
    "flax#4609: a state of training in NNX": ("how_to/own_loop.md", "NNX"),
    "accelerate#4200: an axis of experts beside FSDP": ("how_to/sequences_and_experts.md", "FSDP beside experts"),
    "jax#28988: optimizer state in host memory": ("how_to/out_of_memory.md", "## Optimizer slots in host memory"),
    "keras-hub#1628: which part of a fine-tuning is out of memory": ("how_to/out_of_memory.md", "counts it by role"),
    "keras-hub#2806: layouts without expressions for paths": ("how_to/tensor_parallel.md", "## Let it find the rules"),
    "mixed precision on a mesh: loss scaling": ("how_to/mixed_precision.md", "## float16: the scale of the loss"),
    "mixed precision on a mesh: what is kept": ("how_to/mixed_precision.md", "## What stays in float32"),
    "mixed precision of a layer": ("how_to/mixed_precision.md", "## A policy for one layer"),
    "which host reads which rows": ("how_to/multi_host_data.md", "## Each process has its own files"),
    "LoRA of a model of layers": ("how_to/lora.md", "`enable_lora`"),
    "keras#18983: ModelParallel(device_mesh=, layout_map=)": ("how_to/mistakes.md", "`ModelParallel(mesh, rules)`"),
}


def linked(page):
    """The pages of Markdown that a page links to."""
    targets = re.findall(r"\]\(([^)#:]+\.md)", page.read_text())
    return {pathlib.Path(os.path.normpath(page.parent / target)) for target in targets}


@pytest.mark.parametrize("thread", THREADS)
def test_the_answer_is_two_clicks_away(thread):
    page, answer = THREADS[thread]
    first = linked(DOCS / "index.md")
    second = {target for each in first if each.exists() for target in linked(each)}
    assert DOCS / page in first | second
    assert answer in (DOCS / page).read_text()
