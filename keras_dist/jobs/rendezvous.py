"""`Rendezvous`: exchange of JSON messages between the processes of a job, without devices.

Messages go through JAX's key-value store, to which anyone who can reach the coordinator's port may write. They are
JSON, name errors by known classes, and are checked when read: a forged message can end a job, but run no code.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar, cast

from keras_dist import errors
from keras_dist._unstable import jax_runtime
from keras_dist.errors import ClusterError, KerasDistError, ProcessAbsentError, shorten
from keras_dist.jobs import heartbeat, job

T = TypeVar("T")

_REPORT_EVERY_S = 15.0
_POLL_MS = 1000  # so that Ctrl-C is handled while a process waits
_LIMIT_BYTES = 16 * 2**20  # of a message
_REASON_BYTES = 500  # shown of the reason for which a process has given up

_BUILTINS = (
    AttributeError, FileExistsError, FileNotFoundError, IndexError, IsADirectoryError, KeyError,
    MemoryError, NotADirectoryError, NotImplementedError, OSError, PermissionError, RuntimeError,
    TimeoutError, TypeError, ValueError,
)  # fmt: skip
_OURS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, KerasDistError)]
_ERRORS: dict[str, Callable[..., Exception]] = {kind.__name__: kind for kind in (*_BUILTINS, *_OURS)}
"""Classes of errors that keep their class when another process raises them."""

_FIELDS = ("given", "expected", "fix")

_numbers = itertools.count()


class Rendezvous:
    """Exchange of messages between all processes of a job at the same point of the program; `about` names it.

    No devices are used, so it can run in another thread while steps run. When one process raises an error, all raise
    it. In a job of one process it only calls the functions.
    """

    def __init__(self, about: str = "meet the others", client: Any = None, timeout_s: float | None = None) -> None:
        # read now: in a thread that outlives JAX's backend, reading would start a new backend
        self.process, self.processes = job.process_index(), job.process_count()
        self._about = about
        self._client = client
        self._timeout_s = timeout_s
        self._place = f"keras_dist/{next(_numbers)}"
        self._given_up = f"{self._place}/given_up/"
        self._rounds = itertools.count()

    def each(self, action: Callable[[], T], of: type | tuple[type, ...] = object) -> list[T]:
        """Call a function in every process, and return the results by process index, decoded from JSON."""
        if self.processes == 1:
            return [action()]
        heartbeat.current().clear_failure()
        value, error = None, None
        try:
            value = action()
        except Exception as raised:
            error = raised
        except BaseException as raised:
            self.give_up(raised)
            raise
        number = next(self._rounds)
        with heartbeat.current().meeting(self._about, f"{self._place}/{number}"):
            outcomes = self._gathered(number, _packed(self._about, value, error))
        abouts = [about for about, _, _ in outcomes]
        if len({*abouts}) > 1:
            given = ", ".join(f"process {process}: {about!r}" for process, about in enumerate(abouts))
            fix = "call fit, evaluate, predict, save and restore in every process, in the same order and thread"
            raise ClusterError(
                "the processes of the job are not at the same point of the program", given=given, fix=fix
            )
        for process, (_, _, raised) in enumerate(outcomes):
            if raised is not None:
                if process == self.process and error is not None:
                    raise error
                raised.add_note(f"in process {process} of {self.processes}")
                raise raised
        return [self._checked(value, of, process) for process, (_, value, _) in enumerate(outcomes)]

    def first(self, action: Callable[[], T], of: type | tuple[type, ...] = object) -> T:
        """Call a function in the first process, and return its result in all processes; see `each`."""
        value = self.each(lambda: action() if self.process == 0 else None)[0]
        return cast(T, self._checked(value, of, 0))

    def give_up(self, reason: BaseException) -> None:
        """Leave the exchange; processes that wait raise the error."""
        if self.processes > 1:
            given = f"it has given up: {shorten(reason)}"
            self._service().key_value_set(f"{self._given_up}{self.process}", given, allow_overwrite=True)

    def _checked(self, value: Any, of: type | tuple[type, ...], process: int) -> Any:
        if isinstance(value, of):
            return value
        raise self._forged(process, f"{shorten(value)}, {self._about}")

    def _forged(self, process: int, given: str) -> ClusterError:
        """Return the error for a value that no process of the job wrote. Stops the others, so that they do not wait."""
        error = ClusterError(
            f"the entry of process {process} in JAX's key-value store was not written by a process of this job",
            given=given,
            fix="let nobody else reach the coordinator's port: use a firewall; run one version of keras_dist",
        )
        self.give_up(error)
        return error

    def _service(self) -> Any:
        return jax_runtime.job_client() if self._client is None else self._client

    def _gathered(self, number: int, mine: bytes) -> list[tuple[str, Any, Exception | None]]:
        """Return the messages of all processes in a round, by index: subject, value and error."""
        client = self._service()
        place = f"{self._place}/{number}"
        try:
            client.key_value_set_bytes(f"{place}/{self.process}", mine)
        except RuntimeError as error:
            if "ALREADY_EXISTS" not in str(error):
                raise
            raise self._forged(self.process, "a value that was there before its own") from error
        found: list[tuple[str, Any, Exception | None]] = []
        for process in range(self.processes):
            content = mine if process == self.process else self._awaited(client, f"{place}/{process}", process)
            try:
                found.append(_unpacked(content))
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
                raise self._forged(process, f"{shorten(content[:100])}: {shorten(error)}") from None
        if self.process == 0 and number:
            client.key_value_delete(f"{self._place}/{number - 1}/")  # a process in this round has read the last one
        return found

    def _awaited(self, client: Any, key: str, process: int) -> bytes:
        begin = reported_at = time.monotonic()
        current = heartbeat.current()
        limit_s = self._timeout_s or current.hang_timeout_s or heartbeat.LONGEST_WAIT_S
        while True:
            is_gone = current.state_of(process) == heartbeat.LEFT
            try:
                return client.blocking_key_value_get_bytes(key, _POLL_MS)
            except RuntimeError as error:
                if "DEADLINE_EXCEEDED" not in str(error):
                    raise
            given_up = client.key_value_dir_get_bytes(self._given_up)
            reasons = [reason[:_REASON_BYTES] for name, reason in given_up if name.endswith(f"/{process}")]
            if is_gone and not reasons:
                reasons = [b"its program has finished"]
            now = time.monotonic()
            if now - reported_at >= _REPORT_EVERY_S:
                reported_at = now
                sys.stderr.write(
                    f"keras_dist: process {self.process} of {self.processes} waits for process {process} "
                    f"since {now - begin:.0f} s: {self._about}\n"
                )
                sys.stderr.flush()
            if not reasons and now <= begin + limit_s:
                continue
            waited = f"process {self.process} has waited for {limit_s:g} s"
            given = reasons[0].decode(errors="replace") if reasons else waited
            fix = "check the logs of that process; call fit, evaluate, predict, save and restore in every process"
            raise ProcessAbsentError(
                f"process {process} did not reach the barrier: {self._about}", given=given, fix=fix
            )


def _packed(about: str, value: Any, error: Exception | None) -> bytes:
    try:
        content = json.dumps([about, value, None if error is None else _described(error)]).encode()
        if len(content) < _LIMIT_BYTES:
            return content
        given_up = f"a message must have less than {_LIMIT_BYTES} bytes, not {len(content)}"
    except (TypeError, ValueError, RecursionError):
        given_up = f"a message must be JSON, not {shorten(value)}"
    return json.dumps([about, None, _described(ClusterError(given_up))]).encode()


def _described(error: Exception) -> dict[str, Any]:
    """Return an error as plain data."""
    kind = type(error)
    args = list(error.args)
    fields: dict[str, Any] = {}
    if isinstance(error, KerasDistError):
        fields = {name: str(getattr(error, name)) for name in _FIELDS}
        if "problems" in vars(error):
            fields["problems"] = [str(problem) for problem in vars(error)["problems"]]
    elif isinstance(error, OSError) and len(args) == 2 and error.filename is not None:
        args += [str(error.filename), None, None if error.filename2 is None else str(error.filename2)]
    return {
        "name": kind.__name__ if _ERRORS.get(kind.__name__) is kind else f"{kind.__module__}.{kind.__qualname__}",
        "args": args if all(map(_is_plain, args)) else [str(error)],
        "fields": fields,
        "text": shorten(error),
        "notes": [str(note) for note in getattr(error, "__notes__", ())],
    }


def _unpacked(content: bytes) -> tuple[str, Any, Exception | None]:
    """Decode what `_packed` returned; raises any error for anything else."""
    if len(content) > _LIMIT_BYTES:
        raise ValueError(f"{len(content)} bytes")
    about, value, error = json.loads(content)
    if not isinstance(about, str):
        raise TypeError(f"about {shorten(about)}")
    return about, value, None if error is None else _error_of(error)


def _error_of(given_up: Any) -> Exception:
    """Return the error that `_described` has described; a `ClusterError` that quotes an error of unknown class."""
    name, text, notes, args, fields = (given_up[key] for key in ("name", "text", "notes", "args", "fields"))
    problems = {key: tuple(fields.pop(key)) for key in ("problems",) if key in fields}
    texts = (name, text, *notes, *fields.values(), *problems.get("problems", ()))
    if not all(isinstance(one, str) for one in texts) or not all(map(_is_plain, args)):
        raise TypeError("the parts of an error must be text")
    kind = _ERRORS.get(name)
    if kind is None:
        error: Exception = ClusterError(f"a process of the job has raised {name}: {text}")
    else:
        error = kind(*args, **fields, **problems)
        str(error)  # raises for summaries that are not text
    for note in notes:
        error.add_note(note)
    return error


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float)
