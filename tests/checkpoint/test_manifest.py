"""Not one byte of a checkpoint can differ without being noticed."""

import io
import json
import os

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_dist.checkpoint import Stored, examine, manifest
from keras_dist.checkpoint.manifest import NAME, damage_of, listed_in, write_manifest
from keras_dist.errors import CheckpointError
from tests.checkpoint.conftest import flip

FILES = {"record.json": b'{"format": 1}', "arrays/d/0": bytes(range(256)) * 8, "arrays/empty": b"", "a b/\xe4": b"x"}


def crc32c(content):
    return f"{google_crc32c.value(content):08x}"


def written(folder):
    for name, content in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    write_manifest(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return written(tmp_path_factory.mktemp("checkpoint"))


def forged(folder, files):
    """A manifest that is whole, and lists other files."""
    check = crc32c(json.dumps(files).encode())
    content = json.dumps({"format": 1, "files": files, "crc32c_of_files": check}, indent=1) + "\n"
    (folder / NAME).write_text(content)


def test_nothing_is_wrong_with_what_was_written(folder):
    assert damage_of(folder) == []
    assert listed_in(folder) == set(FILES)


@given(
    name=st.sampled_from([NAME, *(name for name, content in FILES.items() if content)]),
    offset=st.integers(0, 2**16),
    bit=st.integers(0, 7),
)
def test_one_flipped_bit_is_noticed(folder, name, offset, bit):
    path = folder / name
    content = path.read_bytes()
    damaged = bytearray(content)
    damaged[offset % len(content)] ^= 1 << bit
    path.write_bytes(damaged)
    try:
        (problem,) = damage_of(folder)
        assert problem.startswith(name)
    finally:
        path.write_bytes(content)


@given(name=st.sampled_from([NAME, "arrays/d/0", "record.json"]), share=st.floats(0, 1, exclude_max=True))
def test_each_truncation_is_noticed(folder, name, share):
    path = folder / name
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    try:
        (problem,) = damage_of(folder)
        assert problem.startswith(name)
    finally:
        path.write_bytes(content)


@pytest.mark.parametrize("offset", [0, 1, -1, 997])
def test_a_byte_of_any_file_of_a_real_state_is_noticed(write, offset):
    (path,) = write(1)
    for file in [file for file in path.rglob("*") if file.is_file() and file.stat().st_size]:
        flip(file, offset)
        with pytest.raises(CheckpointError, match="is damaged") as raised:
            Stored(path)
        assert len(raised.value.problems) == 1
        assert raised.value.problems[0].startswith(file.relative_to(path).as_posix())
        flip(file, offset)
    Stored(path)


def test_all_that_is_missing_is_named(tmp_path):
    folder = written(tmp_path)
    (folder / "record.json").unlink()
    (folder / "arrays/empty").unlink()
    assert damage_of(folder) == ["arrays/empty is missing", "record.json is missing"]
    (folder / NAME).unlink()
    assert damage_of(folder) == ["manifest.json is missing"]


def test_what_was_appended_is_noticed(tmp_path):
    folder = written(tmp_path)
    with (folder / "record.json").open("ab") as file:
        file.write(b" ")
    assert damage_of(folder) == ["record.json has 14 bytes instead of 13"]


def test_a_folder_in_the_place_of_a_file_is_noticed(tmp_path):
    folder = written(tmp_path)
    (folder / "arrays/empty").unlink()
    (folder / "arrays/empty").mkdir()
    assert damage_of(folder)[0].startswith("arrays/empty ")


def test_files_that_came_later_are_none_of_the_checkpoint(write):
    (path,) = write(1)
    (path / "training.json").write_text("{}")
    stored = Stored(path)
    assert stored.document("training") is None
    assert stored.document("model") == {"seed": 0, "fits": 0}


@pytest.mark.parametrize("name", ["../secret", "/etc/hostname", "arrays/../../secret", "..", "a\0b"])
def test_names_outside_of_the_checkpoint_are_refused(tmp_path, name):
    (tmp_path / "secret").write_text("s")
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    forged(folder, {name: {"bytes": 1, "crc32c": crc32c(b"s")}})
    (problem,) = damage_of(folder)
    assert problem.startswith(name)
    assert ("cannot be read" if "\0" in name else "not inside of the checkpoint") in problem


@pytest.mark.parametrize(
    "content", [b"", b"null", b"[]", b'{"files": []}', b'{"files": {"a": 1}}', b"\xff", b"{", b"[" * 10**5]
)
def test_other_manifests_are_damaged(tmp_path, content):
    (tmp_path / NAME).write_bytes(content)
    assert damage_of(tmp_path) == ["manifest.json is damaged"]


def test_a_manifest_without_files_is_no_checkpoint(tmp_path):
    forged(tmp_path, {})
    (tmp_path / "record.json").write_text('{"format": 1}')
    with pytest.raises(CheckpointError, match="format"):
        Stored(tmp_path)


def test_a_manifest_that_is_a_folder(tmp_path):
    (tmp_path / NAME).mkdir()
    assert damage_of(tmp_path)[0].startswith("manifest.json cannot be read")


def _zero(path):
    path.symlink_to("/dev/zero")


def _elsewhere(path):
    (path.parent.parent / "elsewhere").mkdir(exist_ok=True)
    path.symlink_to(path.parent.parent / "elsewhere")


@pytest.mark.parametrize("name", ["record.json", "arrays/d/0", "arrays/not listed", NAME])
@pytest.mark.parametrize("make", [_zero, os.mkfifo, _elsewhere])
def test_links_pipes_and_devices_are_not_read(tmp_path, name, make):
    folder = written(tmp_path / "checkpoint")
    (folder / name).unlink(missing_ok=True)
    make(folder / name)
    (problem,) = damage_of(folder)
    assert problem.startswith(name) and "link" in problem
    with pytest.raises(CheckpointError, match="is damaged"):
        Stored(folder)
    assert not examine(folder).is_good


def test_folders_that_are_links_are_not_read(tmp_path):
    folder = written(tmp_path / "checkpoint")
    (folder / "arrays").rename(tmp_path / "arrays")
    (folder / "arrays").symlink_to(tmp_path / "arrays")
    assert damage_of(folder) == ["arrays is a link, a pipe or a device"]


def test_no_more_is_read_than_is_stated(tmp_path, monkeypatch):
    folder = written(tmp_path / "checkpoint")
    read = []
    monkeypatch.setattr(manifest, "open_regular", lambda path: Endless(read))
    assert manifest._checksum(folder, "record.json", 13) == crc32c(bytes(13))
    assert sum(read) == 13


class Endless(io.BytesIO):
    """A file that grows while it is read."""

    def __init__(self, read):
        super().__init__()
        self._read = read

    def read(self, size):
        self._read.append(size)
        return bytes(size)
