"""`Rendezvous`: what the processes of a job tell each other beside their devices."""

from __future__ import annotations

import itertools
import pickle
import time
from collections.abc import Callable
from typing import Any, TypeVar

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
        client: JAX's client of the service by which the processes know each other; by default that of this process.
    """

    def __init__(self, client: Any = None) -> None:
        self._client = client
        self._number = next(_numbers)
        self._rounds = itertools.count()

    def each(self, action: Callable[[], T]) -> list[T]:
        """Do something in every process.

        Args:
            action: what to do. Its value can be pickled.

        Returns:
            The values of all processes, by their indices.

        Raises:
            BaseException: what the first of the processes that failed has raised, in all of them.
            ClusterError: a process does not come.
        """
        if cluster.num_processes() == 1:
            return [action()]
        value, error = None, None
        try:
            value = action()
        except Exception as raised:
            error = raised
        outcomes = [pickle.loads(outcome) for outcome in self._gathered(_packed(value, error))]
        for process, (_, raised) in enumerate(outcomes):
            if raised is not None:
                if process == cluster.process_id() and error is not None:
                    raise error
                raised.add_note(f"in process {process} of {cluster.num_processes()}")
                raise raised
        return [value for value, _ in outcomes]

    def first(self, action: Callable[[], T]) -> T:
        """Do something in the first process; the others wait for it, and have its value. See `each`."""
        return self.each(lambda: action() if cluster.process_id() == 0 else None)[0]  # type: ignore[return-value]

    def _gathered(self, mine: bytes) -> list[bytes]:
        """What all processes give in this round, by their indices."""
        client = _jax.job_client() if self._client is None else self._client
        place = f"keras_dist/{self._number}"
        number = next(self._rounds)
        client.key_value_set_bytes(f"{place}/{number}/{cluster.process_id()}", mine)
        found = [
            self._awaited(client, f"{place}/{number}/{process}", process) for process in range(cluster.num_processes())
        ]
        if cluster.process_id() == 0 and number:
            client.key_value_delete(f"{place}/{number - 1}/")  # whoever is in this round has read that of the last
        return found

    def _awaited(self, client: Any, key: str, process: int) -> bytes:
        end = time.monotonic() + TIMEOUT_S
        while True:
            try:
                return client.blocking_key_value_get_bytes(key, _POLL_MS)
            except RuntimeError as error:
                if "DEADLINE_EXCEEDED" not in str(error):
                    raise
                if time.monotonic() > end:
                    raise ClusterError(
                        f"process {process} of the job does not come",
                        given=f"process {cluster.process_id()} has waited for {TIMEOUT_S:g} s",
                        expected="all processes save and restore at the same points of the program",
                        fix="look what that process does; call save and restore in every process, not in the first one",
                    ) from error


def _packed(value: Any, error: Exception | None) -> bytes:
    """What a process has to say. The others run the same program: they may trust it."""
    try:
        outcome = pickle.dumps((value, error))
        pickle.loads(outcome)  # not every exception can be made again
    except Exception:
        told = ClusterError(
            f"what a process has to say cannot be pickled: {shorten(value if error is None else error)}"
        )
        outcome = pickle.dumps((None, told))
    return outcome
