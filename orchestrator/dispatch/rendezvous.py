"""A port for a step's rendezvous that nobody else is given."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Collection
from pathlib import Path
from types import TracebackType


class HeldPort:
    """A TCP port of this machine, bound but not listening for as long as this object is open.

    The kernel gives a bound port to nobody who asks for any free one, neither to `bind` with port 0 nor to an
    outgoing connection, while a server that names it and sets SO_REUSEADDR may still listen on it (inet_csk_get_port in
    Linux; both of torch's TCPStore servers set the option). So two trials, or two users, can never be handed the
    same one, and there is no gap between choosing and using it.
    """

    def __init__(self) -> None:
        """Hold any free port.

        Raises:
            OSError: every port of the machine is taken.
        """
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind(("0.0.0.0", 0))
        except BaseException:
            self._socket.close()
            raise
        self.port: int = self._socket.getsockname()[1]

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> HeldPort:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST, _HIGHEST = 10_000, 65_535


def port_elsewhere(taken: Collection[int]) -> int:
    """A port for another machine, which cannot be held from here: none that a kernel hands out by itself.

    Outgoing connections and `bind` with port 0 never get it, so that only a server of its own number can be in the way,
    and none of `taken`. Assumes that nodes have this machine's range of ports.
    """
    first, last = ephemeral_ports()
    usable: list[int] = [*range(_LOWEST, first), *range(last + 1, _HIGHEST + 1)]
    free = [port for port in usable if port not in taken]
    return secrets.choice(free or list(range(_LOWEST, _HIGHEST + 1)))


def ephemeral_ports() -> tuple[int, int]:
    """The first and last port that this machine's kernel hands out; Linux's own choice where it does not say."""
    try:
        first, last = map(int, _EPHEMERAL.read_text(encoding="ascii").split())
    except (OSError, ValueError):
        return 32_768, 60_999
    return first, last
