# SPDX-License-Identifier: Apache-2.0
"""The choice of counter for a vCPU, and recovery after failures."""

import errno

import pytest

from amp_nova import plugins
from amp_nova.exceptions import CountersUnavailable
from amp_nova.host.counters import perf
from amp_nova.host.counters.sources import Counters, VcpuCounts
from amp_nova.model.observation import Counts
from tests.support.fakehost import put
from tests.unit.lab.test_tcg_counter import PID, file_of, started


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A machine without a PMU that runs QEMU with the plugin."""
    started(tmp_path)
    file_of(tmp_path, 1000)

    def refuse(*_):
        raise OSError(errno.ENOENT, "no PMU")

    monkeypatch.setattr(perf, "_perf_event_open", refuse)
    return tmp_path


def refusal(root, emulated):
    with pytest.raises(CountersUnavailable) as caught:
        Counters(root).open(PID, 1, 0, emulated)
    return str(caught.value)


def test_an_emulated_guest_is_counted_by_its_plugin(root):
    """Nothing else sees its instructions."""
    counter = Counters(root).open(PID, 1, 0, emulated=True)

    assert (counter.source, counter.read()) == ("tcg", Counts(1000))
    counter.close()


def test_an_emulated_guest_is_not_counted_without_the_simulator(root, monkeypatch):
    """Hardware would count the emulator: ten times as many instructions and more."""
    missing = ModuleNotFoundError("No module named 'amp_nova_lab'", name="amp_nova_lab")
    monkeypatch.setattr(plugins, "_factory", lambda *_: missing)

    assert refusal(root, True) == (
        "the guest is emulated, and its counter cannot be loaded: it is part of the simulator, "
        "which is not installed: install python3-amp-nova-lab"
    )


def test_only_hardware_counts_a_guest_under_kvm(root):
    """Without a PMU there is a reason."""
    assert "no hardware counter" in refusal(root, False)
    put(root / "sys/module/kvm_amd/parameters/enable_mediated_pmu", "Y")
    assert "mediated vPMU" in refusal(root, False)


class Scripted:
    """A FAKE counter with scripted readings."""

    source, note = "perf", "others use it"

    def __init__(self, *readings):
        self.readings, self.closed = list(readings), False

    def read(self):
        found = self.readings.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    def close(self):
        self.closed = True


class Opener:
    """A FAKE that opens scripted counters, or fails."""

    def __init__(self, *results):
        self.results, self.now = list(results), 0.0

    def __call__(self):
        found = self.results.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    def counts(self):
        return VcpuCounts(self, 30.0, lambda: self.now)


def test_opening_is_retried_after_a_while():
    """Not at every reading."""
    opener = Opener(CountersUnavailable("busy"), OSError(24, "no fd"), Scripted(Counts(5)))
    counts = opener.counts()

    assert counts.read() is None
    assert counts.state == ("none", "busy")
    opener.now = 29.0
    assert counts.read() is None
    assert len(opener.results) == 2
    opener.now = 31.0
    assert counts.read() is None
    assert "no fd" in counts.failure
    opener.now = 62.0
    assert counts.read() == Counts(5)
    assert (counts.failure, counts.state) == (None, ("perf", "others use it"))


@pytest.mark.fault("PMU lost", "it is opened again")
def test_a_lost_counter_is_reopened_at_the_next_reading():
    """One reading is missing, with a reason."""
    broken = Scripted(Counts(5), CountersUnavailable("backwards"))
    counts = Opener(broken, Scripted(Counts(1))).counts()

    assert counts.read() == Counts(5)
    assert counts.read() is None
    assert (counts.failure, broken.closed) == ("backwards", True)
    assert counts.read() == Counts(1)
    assert counts.failure is None


def test_a_counter_that_did_not_run_stays_open():
    """The reason stays until it runs."""
    patient = Scripted(None, Counts(7))
    counts = Opener(patient).counts()

    assert counts.read() is None
    assert counts.state == ("none", "others use it")
    assert not patient.closed
    assert counts.read() == Counts(7)
