# SPDX-License-Identifier: Apache-2.0
"""Gives an unprivileged user libvirt's socket, as membership in its group or polkit does elsewhere.

libvirtd takes whoever connects for this process, which is root's. Nothing else is passed on.
"""

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

LIBVIRT = "/run/libvirt/libvirt-sock"


@contextlib.contextmanager
def relayed(path: Path, uid: int) -> Iterator[str]:
    """A socket of that user's that leads to libvirt; its URI."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    os.chown(path, uid, uid)
    server.listen()
    ends: list[socket.socket] = [server]

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                here, _ = server.accept()
                there = socket.socket(socket.AF_UNIX)
                there.connect(LIBVIRT)
                ends.extend((here, there))
                for source, sink in ((here, there), (there, here)):
                    threading.Thread(target=_copy, args=(source, sink), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"qemu:///system?socket={path}"
    finally:
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
