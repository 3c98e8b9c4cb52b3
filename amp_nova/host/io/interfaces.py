"""Byte counters of network interfaces, read through open descriptors, and the line rate."""

import contextlib
import os
from pathlib import Path

from amp_nova.host.libvirt.io_definition import InterfaceXml
from amp_nova.profiling.io_overlap import Interface

_BYTES_PER_MBIT = 125_000


def line_rate_bytes_s(root: Path) -> float | None:
    """Bandwidth of the fastest physical link that is up; ``None`` if no driver reports one.

    Taps have no ``device`` link and are left out: the speed they report is a constant.
    """
    found = []
    for device in (root / "sys/class/net").glob("*/device"):
        with contextlib.suppress(OSError, ValueError):  # a link that is down has no speed
            found.append(int((device.parent / "speed").read_text()))
    fastest = max(found, default=0)
    return fastest * _BYTES_PER_MBIT if fastest > 0 else None


class InterfaceCounters:
    """The counters of one device; a device that does not exist counts nothing."""

    def __init__(self, root: Path, defined: InterfaceXml) -> None:
        self.defined = defined
        self._fds: list[int] = []
        if defined.device is None:
            return
        folder = root / "sys/class/net" / defined.device / "statistics"
        # What the host receives from a tap, the guest has sent.
        names = ("rx_bytes", "tx_bytes") if defined.host_view else ("tx_bytes", "rx_bytes")
        try:
            for name in names:
                self._fds.append(os.open(folder / name, os.O_RDONLY))
        except OSError:
            self.close()

    @property
    def counts(self) -> bool:
        """Whether the device exists."""
        return bool(self._fds)

    def close(self) -> None:
        """Close the descriptors."""
        for fd in self._fds:
            with contextlib.suppress(OSError):
                os.close(fd)
        self._fds = []

    def read(self, line_bytes_s: float | None) -> Interface:
        """Bytes in either direction, and the limits; a missing limit is ``line_bytes_s``."""
        into: int | None = None
        out: int | None = None
        try:
            into, out = (int(os.pread(fd, 32, 0)) for fd in self._fds)
        except (OSError, ValueError):
            self.close()
        return Interface(
            self.defined.device or "?",
            into,
            out,
            self.defined.in_limit_bytes_s or line_bytes_s,
            self.defined.out_limit_bytes_s or line_bytes_s,
        )
