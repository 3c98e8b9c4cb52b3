"""Which of two reports of a host is newer. The host's wall clock is not used: it may be wrong.

Sequence numbers order the reports of one run of an agent. Runs are ordered by when their reports
were sent, by this scheduler's clock: the host's uptime, which cannot be set, plus the smallest
difference between the two clocks in any report of the run. How long a report took to arrive follows
from the same difference.

Anyone who can send messages can send a report in the name of a host. It counts until the host's
next report, because it cannot have been sent later than it was received.
"""

from dataclasses import dataclass

from amp_nova.exceptions import ReportInvalid
from amp_nova.wire.host_report import Origin

RUNS_MAX = 8
"""At most this many ended runs are remembered, so that late reports from them are recognized."""
DRIFT_MAX_RATIO = 1e-3
"""How much faster than the host's clock this scheduler's may be."""
SILENCE_MAX = 2.0
"""After a silence of this many times the greatest age of a report, any report counts: whatever was
received before, an agent is not locked out for longer."""


@dataclass(frozen=True, slots=True)
class Order:
    """The last report of a host.

    ``offset_s``: this scheduler's clock minus the host's uptime, in the run's fastest delivery.
    ``sent_s`` and ``received_s``: when the report was sent and received, by this scheduler's clock.
    ``ended``: earlier runs of the agent and their offsets.
    """

    boot_id: str
    sequence: int
    offset_s: float
    sent_s: float
    received_s: float
    ended: tuple[tuple[str, float], ...] = ()


def advance(before: Order | None, origin: Origin, now_s: float, age_max_s: float) -> Order:
    """The order after a report received now; ``ReportInvalid`` if it is an old one."""
    offset_s = now_s - origin.uptime_s
    ended: tuple[tuple[str, float], ...] = ()
    if before is not None and now_s - before.received_s <= SILENCE_MAX * age_max_s:
        runs = {**dict(before.ended), before.boot_id: before.offset_s}
        run_offset_s = runs.pop(origin.boot_id, None)
        if run_offset_s is None:
            _check_unknown(before, origin, now_s, age_max_s)
        else:
            run_offset_s += DRIFT_MAX_RATIO * (now_s - before.received_s)
            _check_known(before, origin, run_offset_s)
            if (late_s := offset_s - run_offset_s) > age_max_s:
                reason = f"that of {origin.node} took {late_s:.0f} s to arrive"
                raise ReportInvalid("old", reason)
            offset_s = min(offset_s, run_offset_s)
        ended = tuple(runs.items())[-RUNS_MAX:]
    sent_s = origin.uptime_s + offset_s
    return Order(origin.boot_id, origin.sequence, offset_s, sent_s, now_s, ended)


def _check_known(before: Order, origin: Origin, offset_s: float) -> None:
    """Raise ``ReportInvalid`` if a run that has reported before sent this before the last one."""
    if origin.boot_id == before.boot_id:
        if origin.sequence <= before.sequence:
            raise ReportInvalid("old", f"a newer one from {origin.node} has already been received")
    elif origin.uptime_s + offset_s <= before.sent_s:
        raise ReportInvalid("old", f"the agent of {origin.node} has been restarted since")


def _check_unknown(before: Order, origin: Origin, now_s: float, age_max_s: float) -> None:
    """Raise ``ReportInvalid`` if this run ended before the last report.

    Unless the host was rebooted since the last report was sent, which may have been ``age_max_s``
    before it was received.
    """
    later = origin.uptime_s > before.sent_s - before.offset_s
    if not later and origin.uptime_s > now_s - before.received_s + age_max_s:
        raise ReportInvalid("old", f"{origin.node} had been up for longer when it last reported")
