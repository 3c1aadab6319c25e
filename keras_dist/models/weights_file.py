"""`WeightsFile`: the weights of a model in one `.safetensors` file and back."""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from keras_dist.callbacks.first_process import is_first_process
from keras_dist.errors import ModelError, shorten

SUFFIX = ".safetensors"
_LISTED = 5


class WeightsFile:
    """Weights in a file. Subclasses say which weights there are."""

    name: str

    @property
    def weights(self) -> list[Any]:
        """Handles on the weights."""
        raise NotImplementedError

    def get_weights(self) -> list[np.ndarray]:
        """The values of `weights`, on the host."""
        raise NotImplementedError

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Set the values of `weights`, in their order."""
        raise NotImplementedError

    def save_weights(self, filepath: str | os.PathLike[str], overwrite: bool = True) -> None:
        """Write the weights to a safetensors file, whole, under their paths.

        The file is there at once or not at all: one that exists stays whole until the new one is. Where there are
        several processes, all must call, and the first one writes. Neither the keys of random streams nor the state of
        the optimizer are in it.

        Args:
            filepath: a file that ends in `.safetensors`; its folder must exist.
            overwrite: whether a file that exists is replaced.

        Raises:
            ModelError: the path ends in anything else, the file exists and is not to be replaced, a weight has an
                element type that the format does not know, or the weights are not born yet.
            OSError: the file cannot be written.

        Example:
            >>> import pathlib, tempfile
            >>> import keras_dist as kd
            >>> from safetensors.numpy import load_file
            >>> path = pathlib.Path(tempfile.mkdtemp()) / "model.weights.safetensors"
            >>> model = kd.Sequential([kd.Input((3,)), kd.layers.Dense(2, name="d1")])
            >>> model.save_weights(path)
            >>> {name: value.shape for name, value in sorted(load_file(path).items())}
            {'d1/bias': (2,), 'd1/kernel': (3, 2)}
            >>> model.load_weights(path)

        Source: `keras.Model.save_weights`.
        """
        path = weights_path("save_weights", filepath)
        if not overwrite and path.exists():
            raise ModelError(
                f"save_weights: {str(path)!r} exists",
                given="overwrite=False",
                expected="a path where there is no file",
                fix="choose another path, or pass overwrite=True",
            )
        names = [weight.path for weight in self.weights]
        # the format wants the elements in C order, and takes others without a word
        values = {name: np.asarray(value, order="C") for name, value in zip(names, self.get_weights(), strict=True)}
        if is_first_process():
            _write(path, values)

    def load_weights(self, filepath: str | os.PathLike[str]) -> None:
        """Set the weights to those of a file that `save_weights` wrote, from the next step on.

        Layouts and element types stay those of the model; so the file may come from another mesh.

        Args:
            filepath: a file that ends in `.safetensors`.

        Raises:
            ModelError: the file is none of safetensors, or its names or shapes are not those of the model; no weight is
                set then.
            FileNotFoundError: there is no such file.

        Source: `keras.Model.load_weights`.
        """
        path = weights_path("load_weights", filepath)
        try:
            values = load_file(path)
        except SafetensorError as error:
            raise ModelError(
                f"load_weights: {str(path)!r} cannot be read",
                given=str(error),
                expected="a file that model.save_weights, or safetensors, wrote",
                fix="check that the file was copied whole",
            ) from error
        weights = self.weights
        self._check_fit(path, {weight.path: weight.shape for weight in weights}, values)
        self.set_weights([values[weight.path] for weight in weights])

    def _check_fit(
        self, path: pathlib.Path, expected: Mapping[str, tuple[int, ...]], values: Mapping[str, np.ndarray]
    ) -> None:
        """Nothing, if the file has the names and shapes of the model.

        Raises:
            ModelError: it has not; all that are wrong are told.
        """
        problems = {
            "missing in the file": [name for name in expected if name not in values],
            "not in the model": [name for name in values if name not in expected],
            "of another shape": [
                f"{name} {values[name].shape} for {shape}"
                for name, shape in expected.items()
                if name in values and values[name].shape != shape
            ],
        }
        if any(problems.values()):
            raise ModelError(
                f"load_weights: {str(path)!r} does not fit model {self.name!r}",
                given="; ".join(f"{kind}: {_listed(names)}" for kind, names in problems.items() if names),
                expected=f"the names and shapes of its {len(expected)} weights",
                fix="load it into a model made like the one it was saved from; model.layout_plan lists the names",
            )


def weights_path(caller: str, filepath: Any) -> pathlib.Path:
    """The path of a file of weights.

    Raises:
        ModelError: it does not end in `.safetensors`.
    """
    if isinstance(filepath, str | os.PathLike) and os.fspath(filepath).endswith(SUFFIX):
        return pathlib.Path(filepath)
    raise ModelError(
        f"{caller}: the path of a file of weights ends in {SUFFIX!r}",
        given=f"filepath={shorten(filepath)}",
        expected=f"a path that ends in {SUFFIX!r}; Keras's '.weights.h5' and '.keras' are neither written nor read",
        fix=f"for example 'model.weights{SUFFIX}'",
    )


def _write(path: pathlib.Path, values: dict[str, np.ndarray]) -> None:
    """Write the file beside its place first, then move it there."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.touch()  # where that cannot be written, Python's error says why
    mode = draft.stat().st_mode
    try:
        save_file(values, draft)
        draft.chmod(mode)  # safetensors leaves a file that only its owner may read
        os.replace(draft, path)
    except SafetensorError as error:
        raise ModelError(
            f"save_weights: {str(path)!r} cannot be written",
            given=str(error),
            expected="element types that safetensors knows, and room on the disk",
            fix="build the model with another dtype, or free space",
        ) from error
    finally:
        with contextlib.suppress(FileNotFoundError):
            draft.unlink()


def _listed(names: Sequence[str]) -> str:
    """The first names, and how many others there are."""
    rest = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {rest} more" if rest > 0 else "")
