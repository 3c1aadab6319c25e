"""`KerasFileEditor`: what is in a file of weights of Keras, changed and written again."""

from __future__ import annotations

import os
import pathlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from keras_dist.errors import ModelError, did_you_mean, shorten
from keras_dist.interop.h5_files import WEIGHTS_SUFFIX, H5Writer
from keras_dist.interop.keras_archives import KERAS_SUFFIX, OWN
from keras_dist.interop.keras_paths import OPTIMIZER
from keras_dist.models.keras_weights import contents_of, opened, stored_optimizer
from keras_dist.models.weights_files import warn_unchecked
from keras_dist.saving.drafts import draft_of, writing_to

_OWN_VARIABLES = "vars"
"""The group in which a file keeps the arrays of an object itself; objects in it are beside."""


class KerasFileEditor:
    """What is in a file of weights of Keras: shown, compared with a model, changed, and written again.

    For files of models whose layers have changed since. All arrays are read to the host.

    Args:
        filepath: a file that ends in `.weights.h5` or `.keras`.

    Attributes:
        weights_dict: the arrays, in dicts of dicts by the names of objects, as in `["layers"]["dense"]["0"]`.

    Raises:
        ModelError: it is no such file, is damaged, or leads out of itself.
        FileNotFoundError: there is no such file.

    Example:
        >>> import pathlib, tempfile
        >>> import keras_dist as kd
        >>> import numpy as np
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> model = kd.Sequential([kd.Input((3,)), kd.layers.Dense(2)])
        >>> model.save_weights(folder / "old.weights.h5")
        >>> editor = kd.saving.KerasFileEditor(folder / "old.weights.h5")
        >>> editor.rename_object("layers/dense", "dense_1")
        >>> editor.add_object("layers/dense", weights={"0": np.ones((3, 3)), "1": np.zeros(3)})
        >>> larger = kd.Sequential([kd.Input((3,)), kd.layers.Dense(3), kd.layers.Dense(2)])
        >>> result = editor.compare(larger)
        success: 4 arrays fit, 0 differences
        >>> editor.save(folder / "new.weights.h5")
        >>> print(larger.load_weights(folder / "new.weights.h5"))
        4 loaded: dense/kernel, dense/bias, dense_1/kernel, dense_1/bias

    Differs from Keras: what the comparison finds is in its result, too, and `compare` looks at the state of the
    optimizer only where both have one.

    Source: `keras.saving.KerasFileEditor`.
    """

    def __init__(self, filepath: str | os.PathLike[str]) -> None:
        path = pathlib.Path(filepath)
        if not path.name.endswith((WEIGHTS_SUFFIX, KERAS_SUFFIX)):
            raise _error(
                "the path is that of another file", shorten(filepath), f"'m{WEIGHTS_SUFFIX}', 'm{KERAS_SUFFIX}'"
            )
        self.filepath = path
        self.weights_dict: dict[str, Any] = {}
        with opened(path) as reader:
            reader.check()
            if reader.lacks_checksums:
                warn_unchecked("KerasFileEditor", path)
            for name in reader.shapes:
                if not name.startswith(f"{OWN}/"):
                    _put(self.weights_dict, _visible(name), reader.read(name))

    def summary(self) -> None:
        """Print the objects and the shapes of their arrays."""
        lines = [f"{self.filepath.name}:"]
        for path, value in _walk(self.weights_dict):
            is_array = isinstance(value, np.ndarray)
            lines.append(
                f"{'  ' * (path.count('/') + 1)}{path.rpartition('/')[2]}{f' {value.shape}' if is_array else ''}"
            )
        self._print("\n".join(lines))

    def compare(self, reference_model: Any) -> dict[str, Any]:
        """Compare names and shapes with those of a model, print what differs, and return it.

        Args:
            reference_model: a model with weights.

        Returns:
            `"status"`, which is `"success"` or `"error"`, `"error_count"`, `"match_count"`, and `"errors"`, a list of
            texts. An object that only one has counts once, with all that is in it.

        Raises:
            ModelError: the weights do not exist yet.
        """
        session = reference_model._with_weights()
        slots = contents_of(reference_model, session).slots
        if OPTIMIZER in self.weights_dict and int(session.cell.state.step):
            slots = [*slots, *stored_optimizer(session)]
        wanted: dict[str, Any] = {}
        for slot in slots:
            if not slot.name.startswith(f"{OWN}/"):
                _put(wanted, _visible(slot.name), np.empty(() if slot.shape is None else slot.shape, bool))
        found = self.weights_dict
        if OPTIMIZER not in wanted:
            found = {name: value for name, value in found.items() if name != OPTIMIZER}
        errors, matches = [], 0
        for error in _differences(found, wanted, ""):
            errors += [error] if error else []
            matches += not error
        status = "error" if errors else "success"
        counts = {"status": status, "error_count": len(errors), "match_count": matches}
        self._print("\n".join([*errors, f"{status}: {matches} arrays fit, {len(errors)} differences"]))
        return {**counts, "errors": errors}

    def rename_object(self, object_name: str, new_name: str) -> None:
        """Give an object another name.

        Args:
            object_name: its path, or its name if no other object has it.
            new_name: without a path.

        Raises:
            ModelError: there is no such object, or more than one; or the new name is taken, or a path.
        """
        holder, name = self._holder(object_name)
        if "/" in new_name or new_name in holder:
            raise _error(
                f"the new name {new_name!r} is taken, or a path", new_name, "a name that nothing beside it has"
            )
        holder[new_name] = holder.pop(name)

    def delete_object(self, object_name: str) -> None:
        """Delete an object with all that is in it; see `rename_object`."""
        holder, name = self._holder(object_name)
        del holder[name]

    def add_object(self, object_path: str, weights: Mapping[str, Any]) -> None:
        """Add an object.

        Args:
            object_path: such as `layers/dense_3`; the objects that lead there are made if need be.
            weights: its arrays, by numbers, `{"0": kernel, "1": bias}`.

        Raises:
            ModelError: there is such an object.
        """
        if any(path == object_path for path, _ in _walk(self.weights_dict)):
            raise _error(f"{object_path!r} is there already", object_path, "the path of a new object")
        for name, value in weights.items():
            _put(self.weights_dict, f"{object_path}/{name}", np.asarray(value))

    def delete_weight(self, object_name: str, weight_name: str) -> None:
        """Delete an array of an object, by its number; see `rename_object`."""
        weights = self._object(object_name)
        if not isinstance(weights.get(weight_name), np.ndarray):
            raise _error(f"{object_name!r} has no array {weight_name!r}", weight_name, f"one of {', '.join(weights)}")
        del weights[weight_name]

    def add_weights(self, object_name: str, weights: Mapping[str, Any]) -> None:
        """Add arrays to an object, by their numbers, or replace some; see `rename_object`."""
        self._object(object_name).update({name: np.asarray(value) for name, value in weights.items()})

    def save(self, filepath: str | os.PathLike[str]) -> None:
        """Write the arrays to a file of weights, which replaces what is there.

        Args:
            filepath: a file that ends in `.weights.h5`.

        Raises:
            ModelError: the path ends in anything else, or HDF5 does not know the type of an array.
            OSError: it cannot be written.
        """
        path = pathlib.Path(filepath)
        if not path.name.endswith(WEIGHTS_SUFFIX):
            raise _error("the path is not that of a file of weights", shorten(filepath), f"'m{WEIGHTS_SUFFIX}'")
        with writing_to(path), draft_of(path) as folder:
            with H5Writer("KerasFileEditor.save", folder / "arrays", path) as writer:
                for name, value in _walk(self.weights_dict):
                    if isinstance(value, np.ndarray):
                        holder, _, last = name.rpartition("/")
                        writer.write("/".join(filter(None, (holder, _OWN_VARIABLES, last))), value)
            os.replace(folder / "arrays", path)

    resave_weights = save

    def _object(self, object_name: str) -> dict[str, Any]:
        holder, name = self._holder(object_name)
        return holder[name]

    def _holder(self, object_name: str) -> tuple[dict[str, Any], str]:
        """The dict that has an object, and its name there."""
        objects = [path for path, value in _walk(self.weights_dict) if isinstance(value, dict)]
        if "/" in object_name:
            paths = [path for path in objects if path == object_name.strip("/")]
        else:
            paths = [path for path in objects if path.rpartition("/")[2] == object_name]
        if len(paths) != 1:
            known = did_you_mean(object_name, objects) if not paths else f": {', '.join(paths)}"
            raise _error(
                f"{len(paths)} objects are called {object_name!r}{known}", object_name, "the path of one object"
            )
        above, _, name = paths[0].rpartition("/")
        holder = self.weights_dict
        for part in filter(None, above.split("/")):
            holder = holder[part]
        return holder, name

    def _print(self, text: str) -> None:
        sys.stdout.write(f"{text}\n")


def _visible(name: str) -> str:
    """The path of an array in a file without the group of an object's own arrays."""
    return "/".join(part for part in name.split("/") if part != _OWN_VARIABLES)


def _put(tree: dict[str, Any], path: str, value: np.ndarray) -> None:
    *above, last = path.split("/")
    for part in above:
        tree = tree.setdefault(part, {})
    tree[last] = value


def _walk(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Objects and arrays by their paths, each object before what is in it."""
    for name, value in tree.items():
        path = f"{prefix}/{name}" if prefix else name
        yield path, value
        if isinstance(value, dict):
            yield from _walk(value, path)


def _differences(found: Mapping[str, Any], wanted: Mapping[str, Any], prefix: str) -> Iterator[str]:
    """A text for each difference, and an empty one for each array that fits."""
    for name in {**found, **wanted}:
        path, one, other = f"{prefix}/{name}", found.get(name), wanted.get(name)
        if isinstance(one, dict) and isinstance(other, dict):
            yield from _differences(one, other, path)
        elif one is None or other is None:
            yield f"{path}: only in the {'model' if one is None else 'file'}"
        elif isinstance(one, dict) or isinstance(other, dict) or one.shape != other.shape:
            yield f"{path}: {_described(one)} in the file, {_described(other)} in the model"
        else:
            yield ""


def _described(value: Any) -> str:
    return "an object" if isinstance(value, dict) else f"an array of shape {value.shape}"


def _error(summary: str, given: str, expected: str) -> ModelError:
    return ModelError(
        f"KerasFileEditor: {summary}",
        given=given,
        expected=expected,
        fix="editor.summary() lists what is there",
    )
