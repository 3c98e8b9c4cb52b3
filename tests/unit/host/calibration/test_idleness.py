"""Which pCPUs are idle enough for a measurement."""

import dataclasses

import pytest

from amp_nova.exceptions import CalibrationInvalid
from amp_nova.host.calibration import idleness
from amp_nova.host.calibration.idleness import Load
from amp_nova.model.topology import PCpu
from tests.calibrations import topology


def stat(root, *cpus):
    (root / "proc").mkdir(exist_ok=True)
    lines = [f"cpu{i} " + " ".join(map(str, ticks)) for i, ticks in cpus]
    (root / "proc/stat").write_text("cpu 9 9 9 9\n" + "\n".join(lines) + "\nintr 5\n")


def test_load_is_the_difference_of_two_samples(tmp_path):
    """Busy and stolen time are shares of the time in between; iowait is idle."""
    stat(tmp_path, (0, [100, 0, 0, 500, 0, 0, 0, 0, 0, 0]), (1, [0, 0, 0, 9, 0, 0, 0, 0]))

    def later(_):
        stat(
            tmp_path,
            (0, [130, 5, 10, 530, 10, 2, 3, 10, 0, 0]),
            (1, [0, 0, 0, 9, 0, 0, 0, 0]),
            (2, [0, 0, 0, 9, 0, 0, 0, 0]),
        )

    found = idleness.loads(str(tmp_path), sleep=later)

    assert found == {0: Load(0.5, 0.1), 1: Load(0.0, 0.0)}


@pytest.mark.parametrize("text", [None, "cpu0 a b c\n"])
def test_an_unreadable_stat_is_an_error(tmp_path, text):
    """If the load is unknown, the message names the remedy."""
    if text:
        (tmp_path / "proc").mkdir()
        (tmp_path / "proc/stat").write_text(text)

    with pytest.raises(CalibrationInvalid, match="--force"):
        idleness.loads(str(tmp_path), sleep=lambda _: None)


def test_the_idlest_pcpu_is_chosen():
    """Of several the last, since interrupts arrive on the first."""
    mine = topology({"only": (0, 1, 2)})

    assert idleness.idlest(mine, "only", {0: Load(0, 0), 1: Load(0.5, 0), 2: Load(0.2, 0)}) == 0
    assert idleness.idlest(mine, "only", {}) == 2


def test_a_busy_sibling_counts():
    """A core is as busy as its busiest hardware thread."""
    mine = topology({"only": (0, 1, 2, 3)})
    pcpus = tuple(PCpu(i, "only", (i % 2, i % 2 + 2)) for i in range(4))
    mine = dataclasses.replace(mine, pcpus=pcpus)
    load_of = {0: Load(0.02, 0), 1: Load(0, 0), 2: Load(0, 0), 3: Load(0.9, 0)}

    assert idleness.idlest(mine, "only", load_of) == 2
    assert idleness.why_busy(mine, {"only": 2}, load_of) is None
    assert "pCPU 1" in idleness.why_busy(mine, {"only": 1}, load_of)


@pytest.mark.parametrize(
    ("load", "said"),
    [
        (
            Load(0.37, 0),
            "pCPU 1, the idlest of core type 'slow', is 37% busy, and at most 5% is allowed",
        ),
        (
            Load(0, 0.2),
            "a hypervisor takes 20% of pCPU 1 of core type 'slow', and at most 2% is allowed",
        ),
        (Load(0.04, 0.01), None),
    ],
)
def test_a_busy_machine_is_described_in_one_sentence(load, said):
    """The sentence names the pCPU, its load and the limit."""
    assert idleness.why_busy(topology(), {"slow": 1}, {1: load}) == said
