"""A bucket at `gs://bucket`, kept in a folder: what etils reaches through fsspec, and orbax through tensorstore."""

import contextlib
import os
import pathlib

from etils.epath import backend, gpath
from fsspec.spec import AbstractFileSystem
from orbax.checkpoint._src.path import gcs_utils

BUCKET = "gs://bucket"


class Bucket(AbstractFileSystem):
    """Objects, of which folders are made up: as in gcsfs, making one does nothing, and listings are remembered."""

    protocol = ("gcs", "gs")
    cachable = False  # instances; listings are remembered

    def __init__(self, root=pathlib.Path(), **options):
        super().__init__(**options)
        self.root, self.written, self.moved = root, [], []

    @classmethod
    def _strip_protocol(cls, path):
        return path.removeprefix("gs://").removeprefix("gcs://").rstrip("/")

    def _at(self, path):
        return self.root / self._strip_protocol(path)

    def ls(self, path, detail=True, **options):
        path = self._strip_protocol(path)
        found = self.dircache.get(path)
        if found is None:
            found = [self._info(path, name) for name in self._names(path)]
            if not found:
                raise FileNotFoundError(path)
            self.dircache[path] = found
        return found if detail else [one["name"] for one in found]

    def _names(self, path):
        place = self._at(path)
        if place.is_file():
            return [""]
        names = os.listdir(place) if place.is_dir() else []
        return sorted(name for name in names if any(files for _, _, files in os.walk(place / name)) or
                      (place / name).is_file())  # fmt: skip

    def _info(self, path, name):
        place, full = self._at(path) / name, f"{path}/{name}".rstrip("/")
        kind = "directory" if place.is_dir() else "file"
        return {"name": full, "type": kind, "size": 0 if place.is_dir() else place.stat().st_size}

    def mkdir(self, path, create_parents=True, **options):
        pass

    def makedirs(self, path, exist_ok=False):
        pass

    def _open(self, path, mode="rb", **options):
        place = self._at(path)
        if "w" in mode:
            place.parent.mkdir(parents=True, exist_ok=True)
            self.written.append(place.name)
            self.invalidate_cache()
        return open(place, mode)

    def _rm(self, path):
        self._at(path).unlink()
        self.invalidate_cache()

    def rm(self, path, recursive=False, maxdepth=None):
        for one in sorted(self.find(path)) if recursive else [path]:
            self._rm(one)

    def cp_file(self, path1, path2, **options):
        if self._at(path1).is_dir():
            return
        self.moved.append(path1)
        target = self._at(path2)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(self._at(path1).read_bytes())
        self.invalidate_cache()

    def invalidate_cache(self, path=None):
        self.dircache.clear()


@contextlib.contextmanager
def bucket_in(root, patch):
    """Let `gs://bucket` be the objects below a folder; gives their file system."""
    bucket = Bucket(root)
    patch.setattr(gpath, "_is_tf_installed", lambda: False)
    patch.setattr(backend.fsspec_backend, "_get_filesystem", lambda name: bucket, raising=False)
    patch.setattr(gcs_utils, "get_kvstore_for_gcs", lambda path: {"driver": "file", "path": str(bucket._at(path))})
    yield bucket
