"""The rendezvous port of a run on several hosts."""

from __future__ import annotations

import errno
import socket

from tympan.errors import UserError


def require_free_port(port: int) -> None:
    """Raise UserError if the port is in use. torch would fail with a traceback, or wait for hosts forever."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise UserError(f"--dist_master_port {port}: can't be used on this host ({error.strerror}).") from error
            raise UserError(
                f"--dist_master_port {port}: the port is in use on this host, by another run or another program. "
                f"Use another port, the same on every host (`ss -ltnp 'sport = :{port}'` shows the program)."
            ) from error
