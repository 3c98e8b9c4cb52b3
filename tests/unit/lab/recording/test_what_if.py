"""How often the truth is in the interval of an answer, on simulated hosts.

One case by default; ``AMP_NOVA_CASES=24 pytest tests/unit/lab/recording/test_what_if.py`` shows
it on more.
"""

import os
import random
from dataclasses import replace

from amp_nova.plugins import read_policy
from amp_nova_lab import run as simulation
from amp_nova_lab.recording import file, what_if
from amp_nova_lab.recording.file import Surroundings
from amp_nova_lab.scenarios import document
from amp_nova_lab.scenarios.workload import Phase
from tests.unit.lab.builders import guest, scenario
from tests.unit.lab.recording.test_recording import loaded, recorded

CASES = int(os.environ.get("AMP_NOVA_CASES", "1"))
POLICIES = ("acfs", "hsp", "rr", "amp-fair", "prop-sp", "credit", "none")
"""``credit`` and ``none`` place at random."""
RECORDED = ("acfs", "hsp", "rr", "amp-fair")


def case(number):
    """A host with 2 to 5 guests: busy, with sleep, with phases, and some of two vCPUs."""
    chance = random.Random(f"what if {number}")
    guests = []
    for index in range(chance.randint(2, 5)):
        speed, kind = chance.uniform(1.1, 2.2), chance.choice(("busy", "sleeps", "phases"))
        phases = [Phase((1.0, speed), chance.choice((0.3, 0.6)) if kind == "sleeps" else 1.0)]
        if kind == "phases":
            lengths = [chance.uniform(8.0, 20.0) for _ in range(2)]
            phases = [Phase((1.0, speed), u, s) for u, s in zip((1.0, 0.3), lengths, strict=True)]
        vcpus = chance.choice((1, 1, 2))
        guests.append(guest(f"vm{index}", vcpus, phases=tuple(phases)))
    fast, slow = chance.choice(((1, 1), (1, 3), (2, 2)))
    made = scenario(*guests, duration_s=60.0, seed=number, fast=fast, slow=slow, coefficient=2.2)
    return made, chance.choice(RECORDED), chance.choice(POLICIES)


def later(made, number):
    """The same guests at another time: with chance, and in other phases."""
    chance = random.Random(f"later {number}")

    def begins(one):
        at = chance.randrange(len(one.workload.phases))
        phases = one.workload.phases[at:] + one.workload.phases[:at]
        return replace(one, workload=replace(one.workload, phases=phases))

    return replace(made, guests=tuple(map(begins, made.guests)), seed=number + 1000)


def asked(tmp_path, made, before, after):
    """The answer to a recording of a case under one policy, for the other one."""
    text = file.text(recorded(made, policy=before), Surroundings("recorded", before))
    again = loaded(tmp_path, text)
    known = what_if.recorded(document.load(tmp_path / "host.yaml"))
    model = what_if.model_error(simulation.run(again, read_policy(before)), known)
    return what_if.predict(again, read_policy(after), known, model)


def test_nine_of_ten_truths_are_in_their_interval(tmp_path, capsys):
    """The truth: the guests themselves under the other policy, at another time."""
    inside, widths, missed = [], [], []
    for number in range(CASES):
        made, before, after = case(number)
        *_, intervals = asked(tmp_path, made, before, after)
        true = simulation.run(later(made, number), read_policy(after))
        numbers = {("", "unfairness"): true.unfairness, ("", "throughput"): true.throughput}
        for name, vm in true.vms.items():
            numbers[name, "progress_refcores"] = vm.progress_refcores
        for key, value in numbers.items():
            low, high = intervals[key]
            inside.append(low <= value <= high)
            widths.append((high - low) / value)
            if not inside[-1]:
                missed.append((number, before, after, key, low, value, high))
    share = sum(inside) / len(inside)
    with capsys.disabled():
        print(
            f"\n{share:.0%} of {len(inside)} numbers in {CASES} cases are in their interval, whose "
            f"width is {sorted(widths)[len(widths) // 2]:.0%} (median)"
        )
        print(*missed, sep="\n")
    assert share >= 0.85
