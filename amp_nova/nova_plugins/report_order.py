"""Which of two reports of a host is newer. The host's wall clock is not used: it may be wrong.

Sequence numbers order the reports of one run of an agent, and the host's uptime, which cannot be
set, orders the runs: a later run has a greater uptime, unless the host was rebooted since its last
report. How long a report took to arrive follows from the uptime, too.
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
    scheduler's clock and the uptime in a report, that is, of the fastest delivery. ``uptime_s`` and
    ``received_s``: those of the last report.
    """

    boot_id: str
    sequence: int
    offset_s: float | None = None
    ended: tuple[str, ...] = ()
    uptime_s: float | None = None
    received_s: float = 0.0


def advance(before: Order | None, origin: Origin, now_s: float, age_max_s: float) -> Order:
    """The order after a report received now; ``ReportInvalid`` if it is an old one."""
    offset_s = None if origin.uptime_s is None else now_s - origin.uptime_s
    ended: tuple[str, ...] = ()
    if before is not None:
        ended = before.ended
        if origin.boot_id != before.boot_id:
            _check_run(before, origin, now_s, age_max_s)
            others = tuple(e for e in ended if e != origin.boot_id)
            ended = (*others, before.boot_id)[-RUNS_MAX:]
        elif origin.sequence <= before.sequence:
            raise ReportInvalid("old", f"a newer one from {origin.node} was received before")
        elif offset_s is not None and before.offset_s is not None:
            if (late_s := offset_s - before.offset_s) > age_max_s:
                reason = f"that of {origin.node} was under way for {late_s:.0f} s"
                raise ReportInvalid("old", reason)
            offset_s = min(offset_s, before.offset_s)
    return Order(origin.boot_id, origin.sequence, offset_s, ended, origin.uptime_s, now_s)


def _check_run(before: Order, origin: Origin, now_s: float, age_max_s: float) -> None:
    """Raise ``ReportInvalid`` unless the run of this report is later than that of the last one."""
    earlier_s, offset_s = before.uptime_s, before.offset_s
    if origin.uptime_s is None or earlier_s is None or offset_s is None:
        if origin.boot_id in before.ended:
            raise ReportInvalid("old", f"the agent of {origin.node} has been restarted since")
        return
    later = origin.uptime_s > earlier_s
    if origin.boot_id in before.ended:
        # A late report of another run may have ended it by mistake, but not one before a reboot.
        same_boot = abs(now_s - origin.uptime_s - offset_s) <= age_max_s
        if not (later and same_boot):
            raise ReportInvalid("old", f"the agent of {origin.node} has been restarted since")
    # Rebooted since the last report was sent, which may have been age_max_s before it was received?
    elif not later and origin.uptime_s > now_s - before.received_s + age_max_s:
        raise ReportInvalid("old", f"{origin.node} had been up for longer when it last reported")
