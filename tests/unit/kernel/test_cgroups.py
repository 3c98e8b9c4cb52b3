# SPDX-License-Identifier: Apache-2.0
"""Cgroups of vCPUs and domains, on fake cgroup trees of both versions."""

import contextlib
import os
import random

import pytest

from amp_nova.kernel import cgroups
from amp_nova.kernel.cgroups import DomainGroup, VcpuGroup
from amp_nova.kernel.threads import GONE
from amp_nova.model.bandwidth import Bandwidth
from tests.support.fakehost import FakeFiles, descriptors

NAME = "instance-00000001"
FORTY = Bandwidth(40000, 100000)


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def host(request, tmp_path, monkeypatch):
    """A fake host of either version."""
    found = FakeFiles(tmp_path, request.param)
    found.kernel.install(monkeypatch)
    return found


@pytest.fixture
def v1(tmp_path, monkeypatch):
    """A fake host of version 1, where a limit is two files."""
    found = FakeFiles(tmp_path, 1)
    found.kernel.install(monkeypatch)
    return found


def group(host, index=0):
    """The group of one vCPU."""
    return VcpuGroup(str(host.group(NAME, f"vcpu{index}")), host.version)


def domain(host):
    """The group of a domain that runs."""
    host.start()
    return DomainGroup(str(host.weight(NAME).parent))


def test_a_limit_is_set_changed_by_others_and_removed(host):
    """Each is read from the kernel's files; at the end the period is the default again."""
    found, none = group(host), host.limit()
    assert found.bandwidth() is None

    found.set_bandwidth(FORTY)
    assert (found.bandwidth(), host.limit()) == (FORTY, "40000 100000")
    group(host).set_bandwidth(Bandwidth(70000, 100000))
    assert found.bandwidth() == Bandwidth(70000, 100000)

    found.set_bandwidth(Bandwidth(5000, 20000))
    found.set_bandwidth(None)
    assert (found.bandwidth(), host.limit()) == (None, none)


@pytest.mark.parametrize("burst_us", [0, 3000])
def test_a_burst_is_cleared_before_the_quota_and_set_after_it(host, burst_us):
    """The kernel refuses a quota below the burst."""
    name = host.burst().name
    host.burst().write_text("90000\n")

    group(host).set_bandwidth(FORTY, burst_us)

    written = [file for file, _ in host.kernel.written]
    assert written[0] == name
    assert (written[-1] == name) == (burst_us > 0)
    assert group(host).read_burst() == burst_us


def test_throttled_time_is_in_nanoseconds_wherever_it_is_in_the_file(host):
    """Version 2 counts microseconds; newer kernels put lines before it, older ones have none."""
    assert group(host).throttled_ns() == 3000
    stat = host.group(NAME, "vcpu0") / "cpu.stat"
    key = "throttled_time 8000" if host.version == 1 else "throttled_usec 8"
    names = ("usage_usec", "user_usec", "system_usec", "core_sched.force_idle_usec", "nice_usec")
    longest = "".join(f"{name} {2**64 - 1}\n" for name in (*names, "nr_periods", "nr_throttled"))

    stat.write_text(longest + key + "\n")
    assert group(host).throttled_ns() == 8000
    stat.write_text("usage_usec 9\n")
    assert group(host).throttled_ns() == 0


def test_order_of_version_1_writes_never_grants_more(v1):
    """Quota and period are two files: between the writes the ratio never exceeds both limits."""
    found, draw = group(v1), random.Random(1)
    limits = [Bandwidth(draw.randint(1000, p), p) for p in (20000, 50000, 100000, 1000000) * 20]
    draw.shuffle(limits)
    found.set_bandwidth(before := limits[0])

    for wanted in limits[1:]:
        v1.kernel.ratios.clear()
        found.set_bandwidth(wanted)
        assert max(v1.kernel.ratios, default=0) <= max(before.cores, wanted.cores)
        before = wanted


@pytest.mark.parametrize(
    ("wanted", "writes"),
    [
        (Bandwidth(5000, 20000), [("cpu.cfs_period_us", "20000"), ("cpu.cfs_quota_us", "5000")]),
        (FORTY, [("cpu.cfs_quota_us", "40000")]),
        (None, []),
    ],
)
def test_nothing_is_written_that_is_in_force(v1, wanted, writes):
    """Every write refills the group. A first limit begins with the period."""
    group(v1).set_bandwidth(wanted)

    assert v1.kernel.written == writes


@pytest.mark.parametrize("wanted", [Bandwidth(9000, 10000), Bandwidth(18000, 20000)])
def test_refused_second_version_1_write_leaves_the_old_limit(v1, wanted):
    """When the kernel accepts the first file and refuses the second, the first is restored."""
    found = group(v1)
    found.set_bandwidth(FORTY)
    v1.kernel.ratio_max = 0.6

    with pytest.raises(OSError, match="Invalid argument"):
        found.set_bandwidth(wanted)

    assert found.bandwidth() == FORTY


def test_real_write_raises_the_kernels_error_and_leaves_no_descriptor():
    """A raw descriptor gives the answer at once: /dev/full accepts nothing."""
    before = descriptors()

    cgroups._write("/dev/null", "1")
    with pytest.raises(OSError, match="No space left"):
        cgroups._write("/dev/full", "1")

    assert descriptors() == before


def test_a_group_that_is_gone_fails_and_closes(host):
    """Also if another group has its path by now: the descriptors belong to the old one."""
    before = descriptors()
    of_domain, vcpu = domain(host), group(host)
    host.stop()
    path = host.weight(NAME)
    group(host).close()
    weight = path.read_text()

    for act in (
        vcpu.bandwidth,
        vcpu.throttled_ns,
        lambda: vcpu.set_bandwidth(FORTY),
        of_domain.weight,
        lambda: of_domain.set_shares(5),
    ):
        with pytest.raises(OSError, match="No such") as caught:
            act()
        assert caught.value.errno in GONE
    for closes in (vcpu, of_domain):
        closes.close()
        closes.close()
    assert path.read_text() == weight
    assert descriptors() == before


def test_group_that_cannot_be_opened_leaks_nothing(host, tmp_path):
    """If one of its files is missing, no descriptor of the others stays open."""
    before = descriptors()
    for name in ("cpu.max", "cpu.cfs_period_us"):
        (host.group(NAME, "vcpu0") / name).unlink(missing_ok=True)

    with pytest.raises(FileNotFoundError):
        group(host)
    with pytest.raises(FileNotFoundError):
        DomainGroup(str(tmp_path))

    assert descriptors() == before


def test_every_weight_is_read_back_as_it_was_set(host):
    """Also where it has to be converted to shares."""
    found = domain(host)

    for weight in (5, 1, 10, 15, 20, 35, 100, 500, 1000, 3333, 10000):
        found.set_shares(found.shares_of(weight))
        assert found.weight() == weight


def test_a_replaced_group_is_not_opened(host):
    """Its path is not enough; the path that is given stays that of the group that was opened."""
    path = host.group(NAME, "vcpu0")
    inode = os.stat(path).st_ino
    with cgroups.opened(str(path), inode) as folder, contextlib.closing(group(host)) as old:
        path.rename(path.with_name("gone"))
        host.group(NAME, "vcpu0")
        VcpuGroup(folder, host.version).set_bandwidth(FORTY)
        assert old.bandwidth() == FORTY
    assert group(host).bandwidth() is None

    with pytest.raises(FileNotFoundError, match="cgroup was replaced"):
        cgroups.opened(str(path), inode).__enter__()
