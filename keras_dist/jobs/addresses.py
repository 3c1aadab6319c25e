"""Addresses at which processes of a job listen and reach each other.

Debian gives a machine's own name the address 127.0.1.1, at which no other machine reaches it. Where the name of the
coordinator is such an address, the processes of that machine use an address that other machines reach. Addresses given
as numbers, and `localhost`, are used as they are.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
from collections.abc import Collection, Iterable

from keras_dist.errors import ClusterError

BIND_VARIABLE = "JAX_COORDINATOR_BIND_ADDRESS"

EVERYWHERE = ("0.0.0.0", "::")
_FAR = ("203.0.113.1", "2001:db8::1")  # reserved for documentation, so reached over the default route


def check_address(name: str, address: str) -> None:
    """Check the form `"host:port"`."""
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal() and port.isascii() and 0 < int(port) < 2**16):
        fix = f'"{address.partition(":")[0] or "10.0.0.1"}:1234", with a free port of that machine'
        raise ClusterError(f'{name} must be "host:port"', given=f"{address!r}", fix=fix)


def host_and_port(address: str) -> tuple[str, int]:
    """Return the parts of `"host:port"`, without brackets."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def numbers_of(host: str) -> list[str]:
    """Return the numeric addresses of a host on this machine; empty if it is unknown."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return list(dict.fromkeys(str(place[0]) for *_, place in found))


def are_same(address: str, other: str) -> bool:
    """Whether two addresses `"host:port"` have the same port, and a host or a number in common on this machine."""
    (host, port), (other_host, other_port) = host_and_port(address), host_and_port(other)
    numbers = {host, *numbers_of(host)} & {other_host, *numbers_of(other_host)}
    return port == other_port and bool(numbers)


def is_loopback(number: str) -> bool:
    """Whether only this machine reaches this numeric address."""
    return ipaddress.ip_address(number.partition("%")[0]).is_loopback


class CoordinatorAddress:
    """The coordinator's address for one process.

    Attributes:
        given: `"host:port"`, the same in all processes.
        loopback: loopback address of the host's name on this machine, which other machines cannot reach, or None.
        reached: `"host:port"` at which this process reaches the coordinator.
        bound: `"host:port"` on which the first process lets it listen.
    """

    def __init__(self, given: str, processes: int, listed: Collection[str] = ()) -> None:
        """Resolve the address `given`. `listed` has the addresses of all processes, or fewer if not all are known."""
        self.given = self.reached = given
        host, port = host_and_port(given)
        chosen = os.environ.get(BIND_VARIABLE)
        if chosen is not None:
            check_address(BIND_VARIABLE, chosen)
        hosts = {address.rpartition(":")[0].strip("[]") for address in listed}
        is_one_machine = processes == 1 or (len(listed) > 1 and len(hosts) == 1)
        numbers = [] if is_one_machine or "localhost" in host.lower() else numbers_of(host)
        self.loopback = next((number for number in numbers if is_loopback(number) and host not in numbers), None)
        if self.loopback is not None:
            own, port = (None, port) if chosen is None else host_and_port(chosen)
            if own in (None, *EVERYWHERE):
                own = next((number for number in numbers if not is_loopback(number)), None)
                own = own or own_address_towards(hosts - {host})
            if own is not None:
                self.reached = f"[{own}]:{port}" if ":" in own else f"{own}:{port}"
        self.bound = chosen or self.reached

    def note(self) -> str | None:
        """Describe an address at which others may not reach the coordinator; None if the user has chosen it."""
        if self.loopback is None or BIND_VARIABLE in os.environ:
            return None
        host, port = host_and_port(self.given)
        instead = f"listens on {self.bound} instead" if self.bound != self.given else "listens there all the same"
        return (
            f"{host} is {self.loopback} on its own machine, where no other machine reaches it, so the coordinator "
            f"{instead}; to choose, set {BIND_VARIABLE}=address:{port} on this machine"
        )

    def __str__(self) -> str:
        """Return the given address, and its meaning on this machine."""
        host, _ = host_and_port(self.given)
        if self.reached != self.given:
            return f"{self.given} (here {self.loopback}, so tried at {self.reached})"
        numbers = " or ".join(numbers_of(host)) or "unknown"
        return self.given if numbers == host else f"{self.given} (here {numbers})"


def own_address_towards(hosts: Iterable[str]) -> str | None:
    """Return the address from which this machine reaches the first of these hosts or the default route, or None."""
    for host in (*sorted(hosts), *_FAR):
        with contextlib.suppress(OSError, UnicodeError):
            family, kind, _, _, place = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, kind) as probe:
                probe.connect(place)  # looks up the route, and sends nothing
                own = str(probe.getsockname()[0])
            if not is_loopback(own):
                return own
    return None


def answers(address: str) -> bool:
    """Whether something listens at `"host:port"`."""
    with contextlib.suppress(OSError, UnicodeError), socket.create_connection(host_and_port(address), 1):
        return True
    return False


def check_can_listen(address: str) -> str:
    """Return the host as a number; raise if this process cannot listen there, as jax 0.12 would exit then."""
    host, _, port = address.rpartition(":")
    try:
        family, kind, _, _, place = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
    except (OSError, UnicodeError) as error:
        raise cannot_listen(address, error) from error
    return str(place[0])


def cannot_listen(address: str, reason: Exception) -> ClusterError:
    """Return the error for a coordinator that cannot listen on its address."""
    given = f"{address!r}: {reason}"
    fix = f"name an address of this machine and a free port; if others use another address, set {BIND_VARIABLE}"
    return ClusterError("initialize: the coordinator cannot listen on its address", given=given, fix=fix)
