# SPDX-License-Identifier: Apache-2.0
"""Which pCPUs are the idlest."""

import dataclasses

import pytest

from amp_nova.host.calibration import idleness
from amp_nova.model.topology import PCpu
from tests.support import machines
from tests.support.calibrations import topology


def stat(root, *cpus):
    (root / "proc").mkdir(exist_ok=True)
    lines = [f"cpu{i} " + " ".join(map(str, ticks)) for i, ticks in cpus]
    (root / "proc/stat").write_text("cpu 9 9 9 9\n" + "\n".join(lines) + "\nintr 5\n")


def test_load_is_what_was_not_idle_between_two_samples(tmp_path, monkeypatch):
    """Waiting for I/O is idle; a pCPU that came online in between has no load."""
    now_ns = iter([0, 1_000_000_000])
    monkeypatch.setattr(idleness.time, "monotonic_ns", lambda: next(now_ns))
    stat(tmp_path, (0, [100, 0, 0, 500, 0, 0, 0, 0, 0, 0]), (1, [0, 0, 0, 9, 0, 0, 0, 0]))

    def later(_):
        stat(
            tmp_path,
            (0, [130, 5, 10, 530, 20, 2, 3, 0, 0, 0]),
            (1, [0, 0, 0, 109, 0, 0, 0, 0]),
            (2, [0, 0, 0, 9, 0, 0, 0, 0]),
        )

    assert idleness.loads(str(tmp_path), sleep=later) == {0: 0.5, 1: 0.0}


@pytest.mark.parametrize("text", [None, "cpu0 a b c\n"])
def test_an_unreadable_stat_says_nothing(tmp_path, text):
    """If the load is unknown, every pCPU counts as idle."""
    if text:
        (tmp_path / "proc").mkdir()
        (tmp_path / "proc/stat").write_text(text)

    assert idleness.loads(str(tmp_path), sleep=lambda _: None) == {}


def test_a_busy_sibling_counts():
    """A core is as busy as its busiest hardware thread."""
    mine = topology({"only": (0, 1, 2, 3)})
    pcpus = tuple(PCpu(i, "only", (i % 2, i % 2 + 2)) for i in range(4))
    mine = dataclasses.replace(mine, pcpus=pcpus)
    load_of = {0: 0.02, 1: 0.0, 2: 0.0, 3: 0.9}

    assert idleness.idlest(mine, "only", load_of, ()) == 2


@pytest.mark.parametrize(
    ("speeds", "found"),
    [
        ({}, 3),
        ({"max_freq_khz": (5_200_000, 5_000_000, 5_000_000, 5_200_000)}, 2),
        ({"max_freq_khz": (5_200_000,) * 4, "base_freq_khz": (2_100_000, *(2_700_000,) * 3)}, 0),
        ({"max_freq_khz": (5_000_000, 5_000_000, 5_200_000, None)}, 3),
    ],
    ids=["equal", "favoured cores", "guaranteed clocks", "not known of all"],
)
def test_a_type_is_as_fast_as_its_slowest_pcpu(speeds, found):
    """A favoured core would promise what the others do not give."""
    facts = [machines.fact(i, **{k: v[i] for k, v in speeds.items()}) for i in range(4)]
    mine = topology({"only": (0, 1, 2, 3)})

    assert idleness.idlest(mine, "only", {}, [*facts, machines.fact(4, max_freq_khz=1)]) == found
