"""Is the same work done in the same time, whatever core it runs on? Prints a table.

Simulated, so figures repeat: two fast and two slow cores, coefficient 2.375, bookings of half a
reference core, five minutes of work. ``tests/predictability.py`` says how guests are moved, and
``tests/properties/test_predictability.py`` asserts what must hold.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tests.benchmarks.scale import scaled
from tests.predictability import (
    ADAPTIVE,
    BY_IPS,
    FIXED,
    SPEEDUPS,
    STOCK,
    Bench,
    after_both,
    moved,
    spread,
    stay,
)

SEEDS = range(scaled(5, 1))
SHOWN = scaled(SPEEDUPS, SPEEDUPS[:1])
BOTH = ("fast", "slow")


@dataclass(frozen=True)
class Row:
    """One way to book, and the spread of completion times for a speed-up and a seed."""

    name: str
    spread: Callable[[float, int], float]
    seeds: range = SEEDS


def _stay(settings, **how):
    return lambda s, seed: spread([stay(settings, s, on, seed, **how) for on in BOTH])


ROWS = (
    Row("stock: no limit; fast, slow", _stay(STOCK), range(1)),
    Row(
        "solution 1 as printed: fast, slow, moved",
        lambda s, seed: spread([*(stay(FIXED, s, on) for on in BOTH), moved(FIXED, s)]),
        range(1),
    ),
    Row(
        "solution 2, Ips: fast, slow, moved",
        lambda s, seed: spread(
            [
                *(stay(FIXED, s, on, seed, BY_IPS) for on in BOTH),
                moved(FIXED, s, seed, BY_IPS),
            ]
        ),
    ),
    Row(
        "adaptive, has run on both: fast, slow, moved",
        lambda s, seed: spread(after_both(ADAPTIVE, s, seed)),
    ),
    Row("adaptive, counters alone: fast, slow", _stay(ADAPTIVE, teach=True)),
    Row(
        "adaptive, from its start: moved, slow",
        lambda s, seed: spread([moved(ADAPTIVE, s, seed), stay(ADAPTIVE, s, "slow", seed)]),
    ),
    Row("adaptive, nobody ever ran on both: fast, slow", _stay(ADAPTIVE)),
    Row("  counters alone, a miss costs it 10 % less", _stay(ADAPTIVE, teach=True, ipc_ratio=1.1)),
    Row("  counters alone, a miss costs it 10 % more", _stay(ADAPTIVE, teach=True, ipc_ratio=0.9)),
    Row("  counters alone, a miss costs it half", _stay(ADAPTIVE, teach=True, ipc_ratio=2.0)),
)


def test_predictability_across_core_types() -> None:
    """Longest over shortest completion time, minus 1; the worst of the seeds."""
    print("\nspread of completion times of the same work, by its own speed-up")
    print(f"{'':50}" + "".join(f"{s:>9g}" for s in SHOWN))
    for row in ROWS:
        worst = [
            max(row.spread(s, seed) for seed in row.seeds) for s in scaled(SPEEDUPS, SPEEDUPS[:1])
        ]
        print(f"{row.name:50}" + "".join(f"{w:>9.2%}" for w in worst))


def test_what_adaptive_coefficients_write() -> None:
    """Quota writes over an hour on a fast core, by speed-up; the first is the booking itself."""
    for speedup in SHOWN:
        bench = Bench(ADAPTIVE)
        bench.add("vm", speedup, "fast")
        bench.seconds(scaled(3600, 60))
        print(f"speed-up {speedup:g}: {bench.report.totals.writes} writes in an hour")
