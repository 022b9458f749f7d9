"""A port for a step's rendezvous that nobody else is given."""

from __future__ import annotations

import socket
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
