"""The exception tree, and the one form in which keras_dist reports a mistake.

Every error has up to four parts: what is wrong, what was given, what was expected, and the way out. Each part adds
something: `expected` is left out where the summary or `fix` shows it, `given` where the summary shows it::

    LayoutError: cannot shard dim 1 of 'decoder/dense/kernel'
      given:    shape (1024, 30), layout (None, 'model'), rule 'decoder/.*kernel'
      expected: dim 1 divisible by axis 'model' = 8 of mesh {data: 4, model: 8}
      fix:      pad the dim to 32, or map this path to (None, None)

The parts stay on the exception (``error.given``), so that callers read fields and not text. Each class also
inherits the built-in that Keras raises in the same place, so ``except ValueError`` goes on working.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


class KerasDistError(Exception):
    """Base of everything keras_dist raises on purpose.

    Args:
        summary: what is wrong, naming the variable or argument.
        given: what the caller passed.
        expected: what would have been accepted.
        fix: the way out.
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
        return "\n".join(lines)


class _ErrorOfProblems(KerasDistError):
    """An error that lists single problems in ``problems``."""

    def __init__(self, summary: str, *, problems: tuple[Any, ...] = (), **parts: str) -> None:
        super().__init__(summary, **parts)
        self.problems = problems


class DeviceError(KerasDistError, ValueError, RuntimeError):
    """A device does not exist, or the devices can no longer be configured."""


class ClusterError(KerasDistError, ValueError):
    """The description of the processes of a job is inconsistent."""


class ProcessAbsentError(ClusterError):
    """Another process of the job does not come to what all of them do together."""


class MeshError(KerasDistError, ValueError):
    """A `DeviceMesh` cannot be made of what was given."""


class LayoutError(_ErrorOfProblems, ValueError):
    """A layout or a layout rule cannot be applied.

    ``problems`` holds one entry for each thing found when a whole plan was checked, else it is empty.
    """


class UnknownPathError(KerasDistError, KeyError):
    """A path names no array of a plan."""


class RuleTimeoutError(KerasDistError, ValueError, TimeoutError):
    """A regular expression takes too long to match."""


class DistributionError(KerasDistError, ValueError):
    """A `Distribution` is incomplete, or is not the one a model was built under."""


class ConfigError(KerasDistError, ValueError):
    """A config file cannot be read or says something that is not allowed."""


class ConfigTypeError(ConfigError, TypeError):
    """What should be the config of an object is something else, where Keras raises a `TypeError`."""


class UnknownNameError(KerasDistError, ValueError):
    """A string identifier (optimizer, loss, metric) names nothing."""


class ModelError(KerasDistError, ValueError):
    """An argument is wrong, a model was used out of order, or it does not return what its use needs."""


class ArgumentTypeError(ModelError, TypeError):
    """An argument is of a kind that cannot be used, where Keras raises a `TypeError`."""


class NotAvailableError(ModelError, AttributeError):
    """A property that an object does not have in the state it is in, so that `hasattr` is False."""


class ConstructorError(ModelError, AttributeError):
    """The constructor of a subclass does not call that of its base."""


class FileMissingError(ModelError, FileNotFoundError):
    """There is no such file, where Keras raises a `ValueError`."""


class DataError(KerasDistError, ValueError):
    """Data cannot be turned into batches for this model and mesh."""


class DataFileMissingError(DataError, FileNotFoundError):
    """A file or folder that data are read from does not exist."""


class CheckpointError(_ErrorOfProblems, ValueError):
    """A checkpoint cannot be written or read: its place is busy, it is damaged, or it is one of another model.

    ``problems`` names each file or variable that is wrong.
    """


class OverwrittenError(CheckpointError, ModelError):
    """Another process has replaced files while they were read."""


class WriteError(KerasDistError, OSError):
    """The operating system could not write a file, for example because the disk is full.

    ``errno`` is the system's number, and ``filename`` the place.
    """


class WriteDeniedError(WriteError, PermissionError):
    """The operating system does not allow this process to write there."""


class WriteFolderError(WriteError, FileNotFoundError):
    """The folder in which a file was to be written does not exist."""


class MissingExtraError(KerasDistError, ImportError):
    """What was called needs a package that keras_dist does not install without being asked to."""


class CompilationError(KerasDistError, RuntimeError):
    """XLA cannot compile a program for the machine that is planned for."""


class CompilationTimeoutError(CompilationError, TimeoutError):
    """A program was not compiled in the time it was given."""


class EquivalenceError(KerasDistError, AssertionError):
    """Two distributions do not give the same model."""


class PlanError(KerasDistError, AssertionError):
    """A plan is not the one that was kept in a file."""


class PlanFileError(KerasDistError, ValueError):
    """A file that a plan is kept in cannot be read, or is damaged."""


class RecompileWarning(UserWarning):
    """A step was compiled once more, for batches of yet another shape; `data.pad_batch` makes few shapes of many."""


class CheckpointWarning(UserWarning):
    """A checkpoint was skipped because it is damaged, or a writer was killed in the middle of one."""


class LayoutWarning(UserWarning):
    """Something is not sharded: rules of a plan had no effect, or no distribution is set. Or over a slow network."""


def shorten(value: object) -> str:
    """Return the repr of a value on one line of at most 120 characters; its type where its repr fails."""
    try:
        text = " ".join(repr(value).split())
    except Exception as error:  # the user's own __repr__
        text = f"<{type(value).__name__}, whose __repr__ raises {type(error).__name__}>"
    return text if len(text) <= 120 else f"{text[:117]}..."


def with_type(value: object) -> str:
    """Return the repr of a value, as `shorten` does, and the name of its class."""
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
        summary: what does not have the name, such as "the mesh has no axis"; the name follows it.
        name: what was given.
        options: all names, in the order in which the error lists them.
        given: where the name was given; by default the name.
        fix: another way out than one of `options`.
        error: the class of the error.
    """
    known = list(options)
    near = did_you_mean(name, known) if isinstance(name, str) else ""
    fix = f"correct the name, {one_of(known)}" + (f"; or {fix}" if fix else "")
    return error(f"{summary} {shorten(name)}{near}", given=given or shorten(name), fix=fix)


def unreadable(error: Exception) -> type[DataError]:
    """Return the class of the error that tells that a file of data cannot be read, for what reading it raised."""
    return DataFileMissingError if isinstance(error, FileNotFoundError) else DataError


def type_name(value: object) -> str:
    """Return the name of the class of a value, with a note where it is a class of Keras."""
    is_keras_s = any(cls.__module__.split(".")[0] in ("keras", "tf_keras") for cls in type(value).__mro__)
    return type(value).__name__ + (" of keras; that of keras_dist is another class" if is_keras_s else "")


def did_you_mean(name: str, options: Iterable[str]) -> str:
    """Return `` (did you mean 'x'?)`` for the nearest of ``options``, or an empty string when none is near."""
    near = nearest(name, options)
    return f" (did you mean {near!r}?)" if near is not None else ""


def nearest(name: str, options: Iterable[str]) -> str | None:
    """Return the option most like ``name``, or None when none is like it."""
    matches = difflib.get_close_matches(name, list(options), n=1, cutoff=0.5)
    return matches[0] if matches else None
