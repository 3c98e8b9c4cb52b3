# SPDX-License-Identifier: Apache-2.0
"""``perf_event_open``: the machine's PMUs, and the meaning of errors."""

import errno
import os

import pytest

from amp_nova.exceptions import CountersUnavailable
from amp_nova.host.counters import perf
from amp_nova.host.counters.perf import Event
from tests.support.fakehost import put

HYBRIDS = {
    # Intel: 6 cores with two threads, 8 without.
    "cpu_core cpu_atom": (("cpu_core", "0-11", "4"), ("cpu_atom", "12-19", "10")),
    # Arm: three designs of core, each with a PMU of its own.
    "three designs": (
        ("armv8_cortex_a510", "0-2", "8"),
        ("armv8_cortex_a710", "3-4", "9"),
        ("armv8_cortex_x3", "5-7", "10"),
    ),
}


def devices(root, *pmus):
    """The sysfs of a machine with these PMUs, and others that do not count events of cores."""
    base = root / "sys/bus/event_source/devices"
    for name, cpus, kind in pmus:
        put(base / name / "cpus", cpus)
        put(base / name / "type", kind)
    put(base / "uncore_imc_0/cpumask", "0")
    put(base / "uncore_imc_0/type", "23")
    put(base / "software/type", "1")
    return root


@pytest.mark.parametrize("pmus", HYBRIDS.values(), ids=HYBRIDS)
def test_a_hybrid_machine_has_a_pmu_for_every_core_type(tmp_path, pmus):
    """A plain event would count on one core type only: each type has an event of its own."""
    found = perf.pmus(devices(tmp_path, *pmus))

    assert {(p.name, p.kind) for p in found} == {(name, int(kind)) for name, _, kind in pmus}
    cycles = Event("cycles", perf.TYPE_HARDWARE, 0)
    assert {p.event(cycles).config for p in found} == {int(kind) << 32 for *_, kind in pmus}


@pytest.mark.parametrize("pmus", [(), (("armv8_pmuv3_0", "0-7", "8"),)])
def test_equal_cores_have_one_pmu_and_plain_events(tmp_path, pmus):
    """With or without the kernel's list of its cores."""
    (only,) = perf.pmus(devices(tmp_path, *pmus))

    assert only.event(Event("instructions", perf.TYPE_HARDWARE, 1)).config == 1


SENTENCES = {
    errno.ENOENT: "no hardware counter for instructions",
    errno.ENODEV: "no hardware counter for instructions",
    errno.EOPNOTSUPP: "mediated vPMU",
    errno.EBUSY: "kernel.nmi_watchdog=0",
    errno.EINVAL: "does not support this way of counting instructions",
    errno.EMFILE: "LimitNOFILE",
    errno.ENFILE: "fs.file-max",
    errno.ENOSYS: "no performance counters",
    errno.ESRCH: "thread has ended",
    errno.EACCES: "perf_event_paranoid is 4; run as root, grant CAP_PERFMON, or lower it",
    errno.EPERM: "perf_event_paranoid is 4; run as root, grant CAP_PERFMON, or lower it",
    errno.E2BIG: os.strerror(errno.E2BIG),
}


@pytest.mark.parametrize("code", SENTENCES, ids=errno.errorcode.get)
def test_every_error_is_explained(tmp_path, monkeypatch, code):
    """Operators read what it means and what to do."""
    put(tmp_path / "proc/sys/kernel/perf_event_paranoid", "4")

    def refuse(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(perf, "_perf_event_open", refuse)

    with pytest.raises(OSError, match=r"\w") as caught:
        perf.open_event(Event("instructions", 0, 1), 0)
    sentence = perf.why(caught.value, "instructions", tmp_path)
    assert SENTENCES[code] in sentence
    with pytest.raises(CountersUnavailable):
        perf.ThreadCounter()


@pytest.mark.parametrize(("value", "mediated"), [("Y", True), ("N", False), (None, False)])
def test_the_host_does_not_use_a_mediated_pmu(tmp_path, value, mediated):
    """A counter that is opened before the first vCPU would prevent that guest from starting."""
    if value is not None:
        put(tmp_path / "sys/module/kvm_intel/parameters/enable_mediated_pmu", value)

    found = perf.mediated(tmp_path)

    assert (found is not None) is mediated
    if found is not None:
        assert "enable_mediated_pmu=0" in found
