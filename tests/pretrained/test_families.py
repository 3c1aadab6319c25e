"""Each family loads what `transformers` wrote, computes what it computed, and writes the same files again."""

import json
import os
import pathlib
import warnings

import numpy as np
import pytest
from safetensors.numpy import load_file

import keras_dist as kd
from tests.pretrained.networks import FOLDER, NETWORKS

FAMILIES = list(NETWORKS)


def inputs_of(family):
    values = load_file(FOLDER / family / "outputs.safetensors")
    if family == "vit":
        return values["pixel_values"].transpose(0, 2, 3, 1), values["outputs"], np.s_[:]
    if "bert" not in family:
        return values["input_ids"], values["outputs"], np.s_[:]
    mask = values["attention_mask"].astype("int32")
    x = {"tokens": values["input_ids"], "segments": mask}
    x |= {"types": values["token_type_ids"].astype("int32")} if family == "bert" else {}
    return x, values["outputs"], mask == 1


def distribution_of(name, family, scan):
    mesh = kd.DeviceMesh("data=2,model=4")
    if name == "one device":
        return kd.DataParallel(devices=["cpu:0"])
    if name == "fully sharded":
        return kd.FullySharded(mesh, ("data", "model"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", kd.errors.LayoutWarning)
        return kd.ModelParallel(kd.pretrained.rules(FOLDER / family, mesh, scan=scan), "data", strict=True)


QUICK = (("one device", False), ("megatron", True))
CASES = [
    pytest.param(layout, scan, marks=() if (layout, scan) in QUICK else pytest.mark.slow)
    for layout in ("one device", "megatron", "fully sharded")
    for scan in (False, True)
]


@pytest.mark.first_cases(3)
@pytest.mark.parametrize(("layout", "scan"), CASES)
@pytest.mark.parametrize("family", FAMILIES)
def test_outputs_and_files_equal_those_of_transformers(family, layout, scan, tmp_path):
    if scan and (family == "qwen3_moe_dense" or "modernbert" in family):
        pytest.skip("its layers differ")
    x, expected, valid = inputs_of(family)
    with distribution_of(layout, family, scan).scope():
        model = kd.pretrained.load(FOLDER / family, scan=scan)
        found = model(x)
        found = found["hidden"] if isinstance(found, dict) else found
    np.testing.assert_allclose(np.asarray(found)[valid], expected[valid], atol=1e-4)
    if layout != "one device":
        assert any(any(row.axes) for row in model.layout_plan.rows), "some weights are sharded"
    folder = pathlib.Path(os.environ.get("KEEP_SAVED") or tmp_path) / family
    kd.pretrained.save(model, folder, dtype="bfloat16", max_shard_size=8192 / 1024**3 if scan else None)
    same_files(folder, FOLDER / family)


def same_files(saved, original):
    """Compare names, shapes, element types and values of arrays, and the configs."""
    found = {name: value for path in sorted(saved.glob("*.safetensors")) for name, value in load_file(path).items()}
    expected = load_file(original / "model.safetensors")
    assert {name: (value.shape, value.dtype) for name, value in found.items()} == {
        name: (value.shape, value.dtype) for name, value in expected.items()
    }
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
    first, second = (json.loads((folder / "config.json").read_text()) for folder in (original, saved))
    assert {key: first[key] for key in first if key not in second} == {}
    assert {key: (first[key], second[key]) for key in first if first[key] != second[key]} == {}
