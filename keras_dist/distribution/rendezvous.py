"""`Rendezvous`: what the processes of a job tell each other beside their devices."""

from __future__ import annotations

import itertools
import pickle
import time
from collections.abc import Callable
from typing import Any, TypeVar, cast

from keras_dist import _jax
from keras_dist.distribution import cluster
from keras_dist.errors import ClusterError, shorten

T = TypeVar("T")

TIMEOUT_S = 3600.0
"""How long one process waits for the others. Those that die are noticed earlier, by JAX, which ends the job."""

_POLL_MS = 1000  # so that Ctrl-C is heard while one waits

_numbers = itertools.count()


class Rendezvous:
    """A conversation of all processes of a job, each of which makes it at the same point of the program.

    It uses no devices, so that it may go on in another thread while steps run. What one process raises, all raise: none
    waits for one that has given up. In a job of one process it does nothing but call.

    Args:
        about: what it is about, by which others are told from it.
        client: JAX's client of the service by which the processes know each other; by default that of this process.

    Attributes:
        process: the index of this process.
        processes: how many there are.
    """

    def __init__(self, about: str = "meet the others", client: Any = None) -> None:
        # asked for now: in a thread that is there longer than JAX's backend, the answer would be a new backend
        self.process, self.processes = cluster.process_id(), cluster.num_processes()
        self._about = about
        self._client = client
        self._place = f"keras_dist/{next(_numbers)}"
        self._given_up = f"{self._place}/given_up/"
        self._rounds = itertools.count()

    def each(self, action: Callable[[], T]) -> list[T]:
        """Do something in every process.

        Args:
            action: what to do. Its value can be pickled.

        Returns:
            The values of all processes, by their indices.

        Raises:
            BaseException: what the first of the processes that failed has raised, in all of them.
            ClusterError: a process does not come, has given up, or is somewhere else in the program.
        """
        if self.processes == 1:
            return [action()]
        value, error = None, None
        try:
            value = action()
        except Exception as raised:
            error = raised
        except BaseException as raised:
            self.give_up(raised)
            raise
        outcomes = [pickle.loads(outcome) for outcome in self._gathered(_packed(self._about, value, error))]
        abouts = [about for about, _, _ in outcomes]
        if len({*abouts}) > 1:
            raise ClusterError(
                "the processes of the job are not at the same point of the program",
                given=", ".join(f"process {process}: {about!r}" for process, about in enumerate(abouts)),
                expected="the same saves and restores in the same order, in the same thread of each process",
                fix="call save and restore in every process, not in the first one alone",
            )
        for process, (_, _, raised) in enumerate(outcomes):
            if raised is not None:
                if process == self.process and error is not None:
                    raise error
                raised.add_note(f"in process {process} of {self.processes}")
                raise raised
        return [value for _, value, _ in outcomes]

    def first(self, action: Callable[[], T]) -> T:
        """Do something in the first process; the others wait for it, and have its value. See `each`."""
        return cast(T, self.each(lambda: action() if self.process == 0 else None)[0])

    def give_up(self, reason: BaseException) -> None:
        """Come no more, and let those that wait know.

        Args:
            reason: why.
        """
        if self.processes > 1:
            told = f"it has given up: {shorten(reason)}"
            self._service().key_value_set(f"{self._given_up}{self.process}", told, allow_overwrite=True)

    def _service(self) -> Any:
        return _jax.job_client() if self._client is None else self._client

    def _gathered(self, mine: bytes) -> list[bytes]:
        """What all processes give in this round, by their indices."""
        client = self._service()
        number = next(self._rounds)
        place = f"{self._place}/{number}"
        client.key_value_set_bytes(f"{place}/{self.process}", mine)
        found = [self._awaited(client, f"{place}/{process}", process) for process in range(self.processes)]
        if self.process == 0 and number:
            client.key_value_delete(f"{self._place}/{number - 1}/")  # who is in this round has read that of the last
        return found

    def _awaited(self, client: Any, key: str, process: int) -> bytes:
        end = time.monotonic() + TIMEOUT_S
        while True:
            try:
                return client.blocking_key_value_get_bytes(key, _POLL_MS)
            except RuntimeError as error:
                if "DEADLINE_EXCEEDED" not in str(error):
                    raise
            reasons = [told for name, told in client.key_value_dir_get(self._given_up) if name.endswith(f"/{process}")]
            if not reasons and time.monotonic() <= end:
                continue
            raise ClusterError(
                f"process {process} of the job does not come: {self._about}",
                given=reasons[0] if reasons else f"process {self.process} has waited for {TIMEOUT_S:g} s",
                expected="all processes save and restore at the same points of the program",
                fix="look what that process does; call save and restore in every process, not in the first one alone",
            )


def _packed(about: str, value: Any, error: Exception | None) -> bytes:
    """What a process has to say. The others run the same program: they may trust it."""
    try:
        outcome = pickle.dumps((about, value, error))
        pickle.loads(outcome)  # not every exception can be made again
    except Exception:
        told = ClusterError(
            f"what a process has to say cannot be pickled: {shorten(value if error is None else error)}"
        )
        outcome = pickle.dumps((about, None, told))
    return outcome
