"""What two processes say to each other: lines of JSON over a pair of connected sockets."""

import json
import socket
from typing import Any


class Line:
    """One end. It hands nothing on to processes that its own starts."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self.socket.set_inheritable(False)
        self._heard = b""

    def fileno(self) -> int:
        """For `select`."""
        return self.socket.fileno()

    def say(self, **what: Any) -> None:
        """One message. Raises OSError when nobody listens any more."""
        self.socket.sendall(json.dumps(what).encode() + b"\n")

    def hear(self) -> list[dict[str, Any]] | None:
        """Messages that have come whole, once anything has; None: the other end is gone."""
        try:
            found = self.socket.recv(2**20)
        except ConnectionError:  # it went with something of ours unread
            found = b""
        if not found:
            return None
        *lines, self._heard = (self._heard + found).split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        """The other end hears that."""
        self.socket.close()
