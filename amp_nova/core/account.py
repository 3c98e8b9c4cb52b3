"""What each vCPU was owed and got, in reference-core seconds, and why it got less.

Measured from what the vCPU really ran while it wanted to run, never from what was configured.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from amp_nova.core.losses import NOTHING, Losses, losses
from amp_nova.core.observation import Usage

CAUSES = ("throttle", "contention", "core_type", "frequency", "smt")
"""Why capacity was not delivered; the last two only where they are measured (``core.losses``)."""

RATIO_BUCKETS = (0.5, 0.8, 0.9, 0.95, 0.97, 0.99, 1.0, 1.01, 1.03, 1.05, 1.1)
"""Upper bounds of the histogram of delivered ratios over windows."""

DEMAND_LEAST_RATIO = 0.02
"""A window with demand for less of the booking than this says nothing about what is delivered."""


@dataclass(frozen=True, slots=True)
class Tenure:
    """Under what terms a vCPU ran: the core type it was on, and its booking if it has one.

    ``position`` is the core type's place in the topology and ``types`` their number;
    ``coefficient`` is ``None`` where unknown; ``period_s`` that of the bandwidth limit; the others
    as in ``CoreType``.
    """

    position: int
    types: int
    coefficient: float | None
    refcores: float | None = None
    period_s: float = 0.0
    clock_hz: float | None = None
    smt_busy_factor: float | None = None


@dataclass(frozen=True, slots=True)
class Account:
    """What one vCPU was promised and got since it is looked after.

    ``cpu_s``: CPU seconds by core type, in the topology's order; ``ref_s``: the same times the
    coefficient in force. ``shortfall_ref_s``: by cause, in
    the order of ``CAUSES``. ``balance_ref_s``: owed and not yet counted as short. ``ratio`` and
    ``delivered_refcores`` are those of the last whole window, of which there were ``windows``.
    """

    cpu_s: tuple[float, ...] = ()
    ref_s: float = 0.0
    shortfall_ref_s: tuple[float, ...] = (0.0,) * len(CAUSES)
    balance_ref_s: float = 0.0
    window_s: float = 0.0
    window_owed_ref_s: float = 0.0
    window_delivered_ref_s: float = 0.0
    windows: int = 0
    ratio: float | None = None
    delivered_refcores: float | None = None


def owed_ref_s(used: Usage, refcores: float, coefficient: float) -> float:
    """Capacity owed for an interval, in reference-core seconds.

    It is owed for the time the vCPU wanted to run. One that took its share early in the interval
    and then slept got all it wanted, so what it used within the booking counts as owed as well.
    """
    delivered = used.run_s * coefficient
    return max(refcores * used.demand_s, min(delivered, refcores * used.wall_s))


def causes(
    short_ref_s: float, used: Usage, refcores: float, coefficient: float, lost: Losses = NOTHING
) -> tuple[float, float, float, float, float]:
    """Divide a shortfall among ``CAUSES``, in reference-core seconds.

    First what CPU time that it got was worth less, then what the core type cannot give even whole,
    then what others ran while it waited; the limit itself is to blame for the rest.
    """
    frequency = min(short_ref_s, lost.frequency_ref_s)
    smt = min(short_ref_s - frequency, lost.smt_ref_s)
    left = short_ref_s - frequency - smt
    core_type = min(left, max(0.0, refcores - coefficient) * used.demand_s)
    contention = min(left - core_type, used.contention_s * coefficient)
    return left - core_type - contention, contention, core_type, frequency, smt


def _shortfall(
    account: Account, used: Usage, tenure: Tenure, owed: float, delivered: float, lost: Losses
) -> tuple[float, tuple[float, ...]]:
    """The new balance, and the shortfall by cause with this interval's share added.

    A limit lets a vCPU run in bursts, one a period, and an interval cuts them anywhere: up to one
    period's capacity is carried over, either way, before it counts.
    """
    refcores, coefficient = tenure.refcores or 0.0, tenure.coefficient or 0.0
    edge = refcores * tenure.period_s
    balance = max(-edge, account.balance_ref_s + owed - delivered)
    if balance <= edge:
        return balance, account.shortfall_ref_s
    parts = causes(balance - edge, used, refcores, coefficient, lost)
    return edge, tuple(a + b for a, b in zip(account.shortfall_ref_s, parts, strict=True))


def settle(account: Account, used: Usage, tenure: Tenure, window_s: float) -> Account:
    """Enter one interval, all on one core type; closes the window when ``window_s`` are full."""
    cpu_s = account.cpu_s if len(account.cpu_s) == tenure.types else (0.0,) * tenure.types
    at = tenure.position
    cpu_s = (*cpu_s[:at], cpu_s[at] + used.run_s, *cpu_s[at + 1 :])
    worth = used.run_s * (tenure.coefficient or 0.0)
    lost = losses(used, tenure.coefficient or 0.0, tenure.clock_hz, tenure.smt_busy_factor)
    delivered = worth - lost.total_ref_s
    owed, balance, shortfall = 0.0, account.balance_ref_s, account.shortfall_ref_s
    if tenure.refcores is not None and tenure.coefficient is not None:
        owed = owed_ref_s(used, tenure.refcores, tenure.coefficient)
        balance, shortfall = _shortfall(account, used, tenure, owed, delivered, lost)
    wall_s = account.window_s + used.wall_s
    owed += account.window_owed_ref_s
    total = account.window_delivered_ref_s + delivered
    ref_s = account.ref_s + worth
    if wall_s < window_s * 0.999:
        return Account(
            cpu_s,
            ref_s,
            shortfall,
            balance,
            wall_s,
            owed,
            total,
            account.windows,
            account.ratio,
            account.delivered_refcores,
        )
    least = DEMAND_LEAST_RATIO * (tenure.refcores or 0.0) * wall_s
    return Account(
        cpu_s=cpu_s,
        ref_s=ref_s,
        shortfall_ref_s=shortfall,
        balance_ref_s=balance,
        windows=account.windows + 1,
        ratio=total / owed if owed > least else None,
        delivered_refcores=None if tenure.coefficient is None else total / wall_s,
    )


def bucket(ratio: float, bounds: Sequence[float] = RATIO_BUCKETS) -> int:
    """Index of the histogram bucket a ratio falls in; ``len(bounds)`` is the one without bound."""
    return next((i for i, bound in enumerate(bounds) if ratio <= bound), len(bounds))
