"""Delivered over booked instructions per second: the printed rule in both readings, and ours.

``pytest tests/benchmarks/test_ips_table.py -s -p no:randomly`` prints the table. It is simulated,
so the machine it runs on does not matter. ``B/R`` is the booking over the least that the core
gives; the last column is ours over the booking of the time that was wanted, where a guest that
rests half the time may have more, as long as that is within its booking.
"""

import statistics

import pytest

from tests.benchmarks.scale import scaled
from tests.ips_paths import PATHS, chance, guest, run

BOOKED = scaled((0.02, 0.1, 0.3, 0.5, 0.6, 0.8, 0.95, 0.98), (0.3,))
LASTS_S = 60
CONTROLLERS = ("printed", "printed-decay", "default")
PUBLISHED = {  # percent by which the printed rule misses, constant work: algorithms.md, section 1
    0.02: (1567, 733),
    0.1: (233, 150),
    0.3: (66.7, 33.3),
    0.5: (0, 0),
    0.6: (11.1, -16.7),
    0.8: (-6.2, -16.7),
    0.95: (-12.3, -15.8),
}


def guests():
    """Every cell of the table, by what it is."""
    return {
        (path, duty, core_type, booked): guest(
            f"{path} {duty} {core_type} {booked}",
            core_type,
            booked,
            made(chance(path, booked), LASTS_S),
            duty,
        )
        for path, made in PATHS.items()
        for duty in (1.0, 0.5)
        for core_type in ("slow", "fast")
        for booked in BOOKED
    }


@pytest.fixture(scope="module")
def table():
    """What every controller delivers to every guest."""
    cells = guests()
    each = len(cells) // 2
    found = {c: run(list(cells.values()), LASTS_S, c, each) for c in CONTROLLERS}
    return {cell: [found[c][g.name] for c in CONTROLLERS] for cell, g in cells.items()}


def percent(ratio):
    return f"{(ratio - 1.0) * 100.0:+8.1f}"


def line(cell, results):
    path, duty, core_type, booked = cell
    head = f"{path:<11}  {'busy' if duty == 1.0 else '50 %':<4}  {core_type:<4}  {booked:4.2f}"
    parts = (f"{percent(r.ratio)} [{percent(r.least)} {percent(r.most)}]" for r in results)
    return f"{head}  {'  '.join(parts)}  {percent(results[-1].wanted)}"


def test_the_table(table):
    """Print it; ours holds every booking within 1 %, and every second within 3 %."""
    print("\ndelivered / booked - 1, in percent: over the run [least second, greatest second]")
    titles = (f"{name:^28}" for name in ("printed, old = 0", "printed, old decays", "ours"))
    print(f"{'work':<11}  wants type   B/R  {'  '.join(titles)}  of wanted")
    for cell, results in table.items():
        print(line(cell, results))
    for position, name in enumerate(CONTROLLERS):
        found = [results[position] for results in table.values()]
        errors = [abs(r.ratio - 1.0) for r in found]
        least, most = min(r.least for r in found), max(r.most for r in found)
        print(
            f"{name}: mean error {statistics.mean(errors):.2%}, greatest {max(errors):.2%}; "
            f"seconds from {percent(least).strip()} % to {percent(most).strip()} %"
        )

    ours = {cell: results[-1] for cell, results in table.items()}
    assert {c: r.ratio for c, r in ours.items() if abs(r.ratio - 1.0) > 0.01} == {}
    assert {c: r for c, r in ours.items() if r.least < 0.97 or r.most > 1.03} == {}


@pytest.mark.parametrize("booked", [b for b in PUBLISHED if b in BOOKED])
@pytest.mark.parametrize("core_type", ["slow", "fast"])
def test_the_printed_rule_misses_as_it_must(table, core_type, booked):
    """Within half a percent of the core, since a vCPU that may not run gets 0.1 % of it here."""
    results = table["constant", 1.0, core_type, booked]
    for result, expected in zip(results, PUBLISHED[booked], strict=False):
        assert result.ratio * booked == pytest.approx((1 + expected / 100) * booked, abs=0.005)
