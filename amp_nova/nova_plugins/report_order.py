"""Which of two reports of a host is newer. The host's wall clock is not used: it may be wrong.

Sequence numbers order the reports of one run of an agent. A run that was not seen before is newer
than the last one. How long a report took to arrive follows from the host's uptime, which cannot be
set.
"""

from dataclasses import dataclass

from amp_nova.exceptions import ReportInvalid
from amp_nova.wire.host_report import Origin

RUNS_MAX = 8
"""At most this many ended runs are remembered, so that late reports from them are recognized."""


@dataclass(frozen=True, slots=True)
class Order:
    """The last report of a host.

    ``ended``: earlier runs of its agent. ``offset_s``: smallest difference so far between this
    scheduler's clock and the uptime in a report, that is, of the fastest delivery.
    """

    boot_id: str
    sequence: int
    offset_s: float | None = None
    ended: tuple[str, ...] = ()


def advance(before: Order | None, origin: Origin, now_s: float, age_max_s: float) -> Order:
    """The order after a report received now; ``ReportInvalid`` if it is an old one."""
    offset_s = None if origin.uptime_s is None else now_s - origin.uptime_s
    if before is None:
        return Order(origin.boot_id, origin.sequence, offset_s)
    if origin.boot_id in before.ended:
        raise ReportInvalid("old", f"the agent of {origin.node} has been restarted since")
    if origin.boot_id != before.boot_id:
        ended = (*before.ended, before.boot_id)[-RUNS_MAX:]
        return Order(origin.boot_id, origin.sequence, offset_s, ended)
    if origin.sequence <= before.sequence:
        raise ReportInvalid("old", f"a newer one from {origin.node} was received before")
    if offset_s is not None and before.offset_s is not None:
        if offset_s - before.offset_s > age_max_s:
            late_s = offset_s - before.offset_s
            raise ReportInvalid("old", f"that of {origin.node} was under way for {late_s:.0f} s")
        offset_s = min(offset_s, before.offset_s)
    return Order(origin.boot_id, origin.sequence, offset_s, before.ended)
