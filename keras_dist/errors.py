"""The exceptions of keras_dist, and the form in which they report a mistake.

An error has up to four parts. `expected` is left out where the summary or `fix` shows it, and `given` where the summary
shows it::

    LayoutError: cannot shard dim 1 of 'decoder/dense/kernel'
      given:    shape (1024, 30), layout (None, 'model'), rule 'decoder/.*kernel'
      expected: dim 1 divisible by axis 'model' = 8 of mesh {data: 4, model: 8}
      fix:      pad the dim to 32, or map this path to (None, None)

The parts are attributes of the exception (``error.given``). Each class also inherits the built-in that Keras raises in
the same place, so ``except ValueError`` works as before.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Any


class KerasDistError(Exception):
    """Base class of all errors of keras_dist.

    Args:
        summary: the mistake; names the variable or argument.
        given: the value that was passed.
        expected: valid values.
        fix: a way to correct the mistake.
    """

    def __init__(self, summary: str, *, given: str = "", expected: str = "", fix: str = "") -> None:
        super().__init__(summary)
        self.summary = summary
        self.given = given
        self.expected = expected
        self.fix = fix

    def __str__(self) -> str:
        lines = [self.summary]
        for label, text in (("given:", self.given), ("expected:", self.expected), ("fix:", self.fix)):
            if text:
                lines.append(f"  {label:<9} {text}")
        return printable("\n".join(lines))


class _ErrorOfProblems(KerasDistError):
    """An error with a list of single problems, ``problems``."""

    def __init__(self, summary: str, *, problems: tuple[Any, ...] = (), **parts: str) -> None:
        super().__init__(summary, **parts)
        self.problems = problems


class DeviceError(KerasDistError, ValueError, RuntimeError):
    """A device does not exist, or devices can no longer be configured."""


class ClusterError(KerasDistError, ValueError):
    """The arguments that describe the processes of a job are inconsistent."""


class ProcessAbsentError(ClusterError):
    """Another process of the job did not reach a point that all processes must reach."""


class MeshError(KerasDistError, ValueError):
    """The arguments of a `DeviceMesh` do not fit together."""


class LayoutError(_ErrorOfProblems, ValueError):
    """A layout or a layout rule cannot be applied; ``problems`` lists what is wrong with a whole plan."""


class UnknownPathError(KerasDistError, KeyError):
    """A plan has no array of this path."""


class RuleTimeoutError(KerasDistError, ValueError, TimeoutError):
    """A regular expression takes too long to match."""


class DistributionError(KerasDistError, ValueError):
    """A `Distribution` is incomplete, or differs from the one a model was built under."""


class ConfigError(_ErrorOfProblems, ValueError):
    """A config file cannot be read or has an invalid entry."""


class ConfigTypeError(ConfigError, TypeError):
    """The config of an object has the wrong type, where Keras raises a `TypeError`."""


class UnknownNameError(KerasDistError, ValueError):
    """A string identifier (optimizer, loss, metric) is not known."""


class ModelError(KerasDistError, ValueError):
    """An argument is invalid, a model is used out of order, or it does not return what is needed."""


class ArgumentTypeError(ModelError, TypeError):
    """An argument has the wrong type, where Keras raises a `TypeError`."""


class NotAvailableError(ModelError, AttributeError):
    """A property is not available in the current state of an object; `hasattr` is then False."""


class ConstructorError(ModelError, AttributeError):
    """The constructor of a subclass does not call the constructor of its base class."""


class FileMissingError(ModelError, FileNotFoundError):
    """A file does not exist, where Keras raises a `ValueError`."""


class DataError(KerasDistError, ValueError):
    """Data cannot be converted to batches for this model and mesh."""


class DataFileMissingError(DataError, FileNotFoundError):
    """A file or folder of a dataset does not exist."""


class CheckpointError(_ErrorOfProblems, ValueError):
    """A checkpoint cannot be written, is damaged, or belongs to another model.

    ``problems`` lists the files or variables.
    """


class OverwrittenError(CheckpointError, ModelError):
    """Another process has replaced files while they were read."""


class WriteError(KerasDistError, OSError):
    """The operating system cannot write a file, for example on a full disk. Has ``errno`` and ``filename``."""


class WriteDeniedError(WriteError, PermissionError):
    """The operating system does not allow this process to write there."""


class WriteFolderError(WriteError, FileNotFoundError):
    """The folder of a file to write does not exist."""


class MissingExtraError(KerasDistError, ImportError):
    """An optional package is not installed."""


class CompilationError(KerasDistError, RuntimeError):
    """XLA cannot compile a program for the planned hardware."""


class CompilationTimeoutError(CompilationError, TimeoutError):
    """A program was not compiled within its time limit."""


class EquivalenceError(KerasDistError, AssertionError):
    """Two distributions give different results for the same model."""


class PlanError(KerasDistError, AssertionError):
    """A plan differs from the one in a file."""


class PlanFileError(KerasDistError, ValueError):
    """The file of a plan cannot be read, or is damaged."""


class RecompileWarning(UserWarning):
    """A step was compiled again for batches of another shape; `data.pad_batch` reduces the number of shapes."""


class CheckpointWarning(UserWarning):
    """A checkpoint was skipped because it is damaged or incomplete."""


class LayoutWarning(UserWarning):
    """Arrays are not sharded, because rules had no effect or no distribution is set; or a slow network is used."""


def printable(text: str) -> str:
    """Escape characters that control a terminal, as in names that a file holds."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\n" else ascii(char)[1:-1] for char in text)


def shorten(value: object) -> str:
    """Return the repr of a value on one line of at most 120 characters."""
    try:
        text = " ".join(repr(value).split())
    except Exception as error:  # the user's own __repr__
        text = f"<{type(value).__name__}, whose __repr__ raises {type(error).__name__}>"
    return text if len(text) <= 120 else f"{text[:117]}..."


def with_type(value: object) -> str:
    """Return the repr of a value, shortened, and the name of its class."""
    return f"{shorten(value)} of type {type_name(value)}"


def cause(error: BaseException) -> str:
    """Return the class and the text of an exception, for `given`."""
    return f"{type(error).__name__}: {error}"


def one_of(options: Iterable[object]) -> str:
    """Return `` one of 'a', 'b' ``."""
    return f"one of {', '.join(map(repr, options))}"


def unknown_name_error(
    summary: str,
    name: object,
    options: Iterable[str],
    *,
    given: str = "",
    fix: str = "",
    error: type[KerasDistError] = UnknownNameError,
) -> KerasDistError:
    """Return the error for a name that is not among `options`.

    Args:
        summary: the mistake, such as "the mesh has no axis"; the name is appended.
        name: the given name.
        options: all valid names, in the order in which the error lists them.
        given: where the name was given; by default the name.
        fix: an alternative to choosing one of `options`.
        error: class of the error.
    """
    known = list(options)
    near = did_you_mean(name, known) if isinstance(name, str) else ""
    fix = f"correct the name, {one_of(known)}" + (f"; or {fix}" if fix else "")
    return error(f"{summary} {shorten(name)}{near}", given=given or shorten(name), fix=fix)


def unreadable(error: Exception) -> type[DataError]:
    """Return the class of error for a data file that cannot be read, by the exception that reading raised."""
    return DataFileMissingError if isinstance(error, FileNotFoundError) else DataError


def type_name(value: object) -> str:
    """Return the name of the class of a value, with a note where it is a class of Keras."""
    is_keras_s = any(cls.__module__.split(".")[0] in ("keras", "tf_keras") for cls in type(value).__mro__)
    return type(value).__name__ + (" of keras; that of keras_dist is another class" if is_keras_s else "")


def did_you_mean(name: str, options: Iterable[str]) -> str:
    """Return `` (did you mean 'x'?)`` for the nearest of ``options``, or an empty string if none is near."""
    near = nearest(name, options)
    return "" if near is None else f" (did you mean {near!r}?)"


_SYNONYMS = {"rules": "layout_map", "layout_map": "rules"}
"""Names of one thing that are not similar."""


def nearest(name: str, options: Iterable[str]) -> str | None:
    """Return the option most similar to ``name``, those with all its words before others, or None; never ``name``."""
    known, text = [option for option in options if option != name], name.casefold()
    same = [option for option in known if option.casefold().replace("_", "") == text.replace("_", "")]
    words = [word for word in re.split(r"[^a-z0-9]+", text) if word]
    longer = [option for option in known if len(words) > 1 and all(word in option.casefold() for word in words)]
    similar = difflib.get_close_matches(name, same or longer or known, n=1, cutoff=0.5) or same
    return next((option for option in (*similar, _SYNONYMS.get(name)) if option in known), None)
