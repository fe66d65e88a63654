"""The port at which the processes of several hosts meet."""

from __future__ import annotations

import errno
import socket

from tympan.errors import UserError


def require_free_port(port: int) -> None:
    """Say so if another program listens there; torch would end in a traceback, or wait for hosts that never come."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise UserError(f"--dist_master_port {port}: it can't be used here ({error.strerror}).") from error
            raise UserError(
                f"--dist_master_port {port}: the port is taken on this host, by another training or another program. "
                f"Choose another one, the same on every host (`ss -ltnp 'sport = :{port}'` shows who has it)."
            ) from error
