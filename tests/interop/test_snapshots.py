"""`interop.snapshot`, with a `huggingface_hub` that has one repository and no network."""

import fnmatch
import sys
import types

import pytest

import keras_dist as kd
from keras_dist.errors import FileMissingError, MissingExtraError, ModelError
from keras_dist.interop import snapshot

REPOSITORY = """config.json model-00001-of-00002.safetensors model.safetensors.index.json tokenizer.json merges.txt
tokenizer.model chat_template.jinja pytorch_model.bin modeling_mine.py consolidated.safetensors onnx/config.json
original/model.safetensors README.md training_args.pt"""


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """The folder of downloads."""

    def snapshot_download(repo_id, *, revision=None, allow_patterns, ignore_patterns):
        if repo_id != "mine/small":
            raise OSError("404: no such repository")
        for name in REPOSITORY.split():
            fits = [any(fnmatch.fnmatch(name, each) for each in rules) for rules in (allow_patterns, ignore_patterns)]
            if fits == [True, False]:
                (tmp_path / name).write_text(str(revision))
        return str(tmp_path)

    monkeypatch.setitem(sys.modules, "huggingface_hub", types.SimpleNamespace(snapshot_download=snapshot_download))
    return tmp_path


def test_weights_configs_and_tokenizers_are_downloaded_and_nothing_that_runs(hub):
    assert snapshot("mine/small", revision="v1") == hub
    assert {file.name for file in hub.iterdir()} == {
        "config.json",
        "model-00001-of-00002.safetensors",
        "model.safetensors.index.json",
        "tokenizer.json",
        "merges.txt",
        "tokenizer.model",
        "chat_template.jinja",
    }
    assert (hub / "config.json").read_text() == "v1"


def test_a_choice_of_files(hub):
    snapshot("mine/small", allow=["config.json", "*.md"])
    assert {file.name for file in hub.iterdir()} == {"config.json", "README.md"}


@pytest.mark.parametrize("allow", [["*"], ["*.bin"], ["*.json", "model*"], "*.json", ["modeling_mine.py"]])
def test_files_of_other_kinds_are_refused(hub, allow):
    with pytest.raises(ModelError, match="`allow` must be patterns for files of weights"):
        snapshot("mine/small", allow=allow)
    assert not list(hub.iterdir())


def test_a_folder_is_returned_as_it_is(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert kd.interop.snapshot(str(tmp_path)) == snapshot(tmp_path) == tmp_path


@pytest.mark.parametrize("name", ["none", "/none/here", "a/b/c", "../mine", "./small/"])
def test_a_missing_folder_is_no_repository(hub, name):
    with pytest.raises(FileMissingError, match="does not exist"):
        snapshot(name)


def test_errors_of_the_hub_name_the_repository(hub):
    with pytest.raises(FileMissingError, match="'mine/none' is not a folder, and cannot be downloaded") as error:
        snapshot("mine/none")
    assert error.value.given == "OSError: 404: no such repository"


def test_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingExtraError, match="huggingface_hub") as error:
        snapshot("mine/small")
    assert error.value.fix == "pip install huggingface_hub"
