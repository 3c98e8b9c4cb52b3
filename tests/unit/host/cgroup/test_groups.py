"""A vCPU's CPU cgroup, on fake cgroup trees of both versions."""

import errno
import os
import random

import pytest

from amp_nova.exceptions import ActuationFailed
from amp_nova.host.cgroup import groups
from amp_nova.host.cgroup.groups import DomainGroup, VcpuGroup
from amp_nova.model.bandwidth import Bandwidth
from tests.fakehost import FakeHost, Kernel, descriptors, put

NAME = "instance-00000001"
FORTY = Bandwidth(40000, 100000)


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def host(request, tmp_path, monkeypatch):
    """A fake host of either version."""
    found = FakeHost(tmp_path, request.param)
    found.kernel.install(monkeypatch)
    return found


def group(host, index=0):
    """The group of one vCPU."""
    return VcpuGroup(str(host.group(NAME, f"vcpu{index}")), host.version)


def test_no_limit_reads_as_none(host):
    """'max' and -1 mean that there is no limit."""
    assert group(host).bandwidth() is None


def test_limit_is_written_and_read_back(host):
    """Through kept descriptors, and in the kernel's files."""
    found = group(host)

    found.set_bandwidth(FORTY)

    assert found.bandwidth() == FORTY
    assert host.limit() == "40000 100000"


def test_limit_is_removed(host):
    """The period is the kernel's default again."""
    found = group(host)
    before = host.limit()
    found.set_bandwidth(Bandwidth(5000, 20000))

    found.set_bandwidth(None)

    assert found.bandwidth() is None
    assert host.limit() == before


def test_throttled_time_is_in_nanoseconds(host):
    """Version 1 counts nanoseconds and version 2 microseconds: both read as nanoseconds."""
    assert group(host).throttled_ns() == 3000


def test_group_without_the_counter_was_never_throttled(host):
    """A cpu.stat without the line for throttling reads as 0."""
    (host.group(NAME, "vcpu0") / "cpu.stat").write_text("usage_usec 9\n")

    assert group(host).throttled_ns() == 0


def test_longest_cpu_stat_is_read_completely(host):
    """The counter is found after all lines that newer kernels put before it."""
    stat = host.group(NAME, "vcpu0") / "cpu.stat"
    key = "throttled_time 8" if host.version == 1 else "throttled_usec 8"
    names = ("usage_usec", "user_usec", "system_usec", "core_sched.force_idle_usec", "nice_usec")
    longest = "".join(f"{name} {2**64 - 1}\n" for name in (*names, "nr_periods", "nr_throttled"))
    stat.write_text(longest + key + "\n")

    assert group(host).throttled_ns() == (8 if host.version == 1 else 8000)


def test_foreign_change_is_seen(host):
    """A limit that something else wrote is read, not the one that was set."""
    found = group(host)
    found.set_bandwidth(FORTY)
    other = group(host)

    other.set_bandwidth(Bandwidth(70000, 100000))

    assert found.bandwidth() == Bandwidth(70000, 100000)


def test_order_of_version_1_writes_never_grants_more(tmp_path, monkeypatch):
    """Quota and period are two files: between the writes the ratio never exceeds both limits."""
    host = FakeHost(tmp_path, 1)
    kernel = host.kernel.install(monkeypatch)
    found = group(host)
    draw = random.Random(1)
    limits = [Bandwidth(draw.randint(1000, p), p) for p in (20000, 50000, 100000, 1000000) * 50]
    draw.shuffle(limits)
    found.set_bandwidth(before := limits[0])

    for wanted in limits[1:]:
        kernel.ratios.clear()
        found.set_bandwidth(wanted)
        assert max(kernel.ratios) <= max(before.cores, wanted.cores)
        before = wanted


def test_first_version_1_limit_starts_with_the_period(tmp_path, monkeypatch):
    """Without a limit the period may change first: no other limit is ever in force."""
    host = FakeHost(tmp_path, 1)
    kernel = host.kernel.install(monkeypatch)

    group(host).set_bandwidth(Bandwidth(5000, 20000))

    assert kernel.written == [("cpu.cfs_period_us", "20000"), ("cpu.cfs_quota_us", "5000")]


def test_equal_period_is_not_written_again(tmp_path, monkeypatch):
    """A change of the quota alone is one write: every write refills the group."""
    host = FakeHost(tmp_path, 1)
    kernel = host.kernel.install(monkeypatch)

    group(host).set_bandwidth(FORTY)

    assert kernel.written == [("cpu.cfs_quota_us", "40000")]


@pytest.mark.parametrize("wanted", [Bandwidth(9000, 10000), Bandwidth(18000, 20000)])
def test_refused_second_version_1_write_leaves_the_old_limit(tmp_path, monkeypatch, wanted):
    """When the kernel accepts the first file and refuses the second, the first is restored."""
    host = FakeHost(tmp_path, 1)
    kernel = host.kernel.install(monkeypatch)
    found = group(host)
    found.set_bandwidth(FORTY)
    kernel.ratio_max = 0.6

    with pytest.raises(OSError, match="Invalid argument"):
        found.set_bandwidth(wanted)

    assert found.bandwidth() == FORTY


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EROFS, errno.EACCES, errno.ENODEV])
def test_refusal_by_the_kernel_is_raised(host, code):
    """The caller gets the kernel's error of a write."""
    names = ("cpu.max", "cpu.cfs_quota_us")
    host.kernel.refuse = dict.fromkeys(names, code)

    with pytest.raises(OSError, match=os.strerror(code)) as caught:
        group(host).set_bandwidth(FORTY)

    assert caught.value.errno == code


def test_quota_under_a_millisecond_is_refused(host):
    """With the kernel's EINVAL."""
    with pytest.raises(OSError, match="Invalid argument"):
        group(host).set_bandwidth(Bandwidth(500, 100000))


def test_limit_that_reads_back_otherwise_is_a_failure(host):
    """The message has both limits."""
    host.kernel.twist = {"cpu.max": "50000 100000\n", "cpu.cfs_quota_us": "50000\n"}

    with pytest.raises(ActuationFailed) as caught:
        group(host).set_bandwidth(FORTY)

    assert str(caught.value) == (
        "vcpu0 has the limit 50000/100000 us after the limit 40000/100000 us was set"
    )


def test_real_write_raises_the_kernels_error():
    """A raw descriptor gives the answer at once: /dev/full accepts nothing."""
    with pytest.raises(OSError, match="No space left"):
        groups._write("/dev/full", "1")


def test_real_write_leaves_no_descriptor_behind():
    """Neither a write that succeeds nor one that fails."""
    before = descriptors()

    groups._write("/dev/null", "1")
    with pytest.raises(OSError, match="No space left"):
        groups._write("/dev/full", "1")

    assert descriptors() == before


def test_reading_a_group_that_is_gone_fails(host):
    """Reads through kept descriptors fail with an error in ``GONE``."""
    found = group(host)
    host.start()
    host.stop()

    for read in (found.bandwidth, found.throttled_ns):
        with pytest.raises(OSError, match="No such device") as caught:
            read()
        assert caught.value.errno in groups.GONE


def test_writing_to_a_group_that_is_gone_fails(host):
    """With an error in ``GONE``, too."""
    found = group(host)
    host.start()
    host.stop()

    with pytest.raises(OSError, match="No such") as caught:
        found.set_bandwidth(FORTY)

    assert caught.value.errno in groups.GONE


def test_close_closes_all_descriptors(host):
    """It may be called twice."""
    before = descriptors()
    found = group(host)
    assert descriptors() > before

    found.close()
    found.close()

    assert descriptors() == before


def test_group_that_cannot_be_opened_leaks_nothing(host):
    """If one of its files is missing, no descriptor of the others stays open."""
    before = descriptors()
    for name in ("cpu.max", "cpu.cfs_period_us"):
        (host.group(NAME, "vcpu0") / name).unlink(missing_ok=True)

    with pytest.raises(FileNotFoundError):
        group(host)

    assert descriptors() == before


def test_version_1_controller_is_used_if_both_trees_are_mounted(tmp_path):
    """The process's own file says which tree has the controller."""
    host = FakeHost(tmp_path, 1, hybrid=True)
    mounted = groups.mounts(tmp_path)

    found = groups.path_of("5:memory:/a\n2:cpu,cpuacct:/machine/v/vcpu0\n0::/other\n", mounted)

    assert found == (f"{host.mount}/machine/v/vcpu0", 1)


def test_unified_tree_is_used_if_no_version_1_controller_is_named(tmp_path):
    """A process without a version 1 cpu controller has its limit in the unified tree."""
    FakeHost(tmp_path, 1, hybrid=True)

    found = groups.path_of("5:cpuset:/a\n0::/other/vcpu0\n", groups.mounts(tmp_path))

    assert found == (f"{tmp_path}/sys/fs/cgroup/unified/other/vcpu0", 2)


def test_cpuacct_and_cpuset_are_not_the_cpu_controller(tmp_path):
    """Controllers whose names begin alike are distinguished."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mounts").write_text(
        "cgroup /sys/fs/cgroup/cpuacct cgroup rw,cpuacct 0 0\n"
        "cgroup /sys/fs/cgroup/cpuset cgroup rw,cpuset 0 0\n"
    )

    assert groups.mounts(tmp_path) == {}
    assert groups.path_of("4:cpuacct:/a\n3:cpuset:/a\n", groups.mounts(tmp_path)) is None


@pytest.mark.parametrize("prefix", ["lv1", "lv1/deep", ""])
def test_prefix_of_a_nested_host_is_kept(tmp_path, prefix):
    """Groups of a libvirt that itself runs in a group are found below that group."""
    host = FakeHost(tmp_path, 2, prefix)
    inside = f"/{prefix}/machine/d/vcpu1".replace("//", "/")

    found = groups.path_of(f"0::{inside}\n", groups.mounts(tmp_path))

    assert found == (f"{host.mount}{inside}", 2)


@pytest.mark.parametrize(
    ("version", "below", "file", "before", "after"),
    [
        (1, "vcpu0", "cpu.shares", 1024, "5120\n"),
        (2, "libvirt/vcpu0", "cpu.weight", 100, "500\n"),
    ],
    ids=["v1", "v2"],
)
def test_weight_is_that_of_the_whole_domain(
    tmp_path, monkeypatch, version, below, file, before, after
):
    """libvirt has a level between the domain and its vCPUs in version 2."""
    Kernel().install(monkeypatch)
    put(tmp_path / "domain" / file, before)
    put(tmp_path / "domain/libvirt" / file, 7)
    found = DomainGroup(f"{tmp_path}/domain/{below}", version)
    assert found.weight() == 100

    found.set_weight(500)

    assert found.weight() == 500
    assert (tmp_path / "domain" / file).read_text() == after
    assert (tmp_path / "domain/libvirt" / file).read_text() == "7\n"


def test_every_weight_is_read_back_as_it_was_set(host):
    """Also where it has to be converted to shares."""
    host.start()
    found = DomainGroup(str(host.group(NAME, "vcpu0")), host.version)
    for weight in (1, 5, 10, 15, 20, 35, 100, 500, 1000, 3333, 10000):
        found.set_weight(weight)
        assert found.weight() == weight


def test_group_without_weights_is_an_error(tmp_path):
    """And no descriptor stays open."""
    before = descriptors()

    with pytest.raises(FileNotFoundError):
        DomainGroup(f"{tmp_path}/domain/vcpu0", 2)

    assert descriptors() == before


def test_weight_in_the_idle_class_is_0_and_setting_it_ends_the_class(host):
    """As an agent before version 2 left it."""
    host.start()
    idle = host.enter_idle_class()
    found = DomainGroup(str(host.group(NAME, "vcpu0")), host.version)
    assert found.weight() == 0

    found.set_weight(5)

    assert (idle.read_text(), found.weight()) == ("0\n", 5)


def test_weight_that_reads_back_otherwise_is_a_failure(host):
    """The message names the domain."""
    host.start()
    found = DomainGroup(str(host.group(NAME, "vcpu0")), host.version)
    host.kernel.twist = {"cpu.weight": "100\n", "cpu.shares": "1024\n"}

    with pytest.raises(ActuationFailed, match=f"{NAME}.* has the CPU weight 100 after 5 was set"):
        found.set_weight(5)


def test_weight_of_another_domain_with_the_same_path_is_not_set(host):
    """The descriptor belongs to the old group."""
    host.start()
    found = DomainGroup(str(host.group(NAME, "vcpu0")), host.version)
    host.stop()
    path = host.weight(NAME)
    before = path.read_text()

    with pytest.raises(OSError, match="No such device"):
        found.set_weight(5)

    assert path.read_text() == before


def test_weight_of_a_domain_that_is_gone_fails(host):
    """With an error in ``GONE``, and ``close`` may be called twice."""
    before = descriptors()
    host.start()
    found = DomainGroup(str(host.group(NAME, "vcpu0")), host.version)
    host.stop()

    for act in (found.weight, lambda: found.set_weight(5)):
        with pytest.raises(OSError, match="No such") as caught:
            act()
        assert caught.value.errno in groups.GONE
    found.close()
    found.close()
    assert descriptors() == before


@pytest.mark.parametrize("odd", [b"\x0b", b"\xff", "\u2028".encode(), b"\x0c", b"\x85", b"\\040"])
def test_a_mount_point_with_an_odd_byte_does_not_hide_the_cgroups(tmp_path, odd):
    """Any user who may mount anything chooses such names, with FUSE for example."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mounts").write_bytes(
        b"fuse /home/a" + odd + b"cgroup2 fuse rw 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n"
    )
    assert groups.mounts(tmp_path) == {"": tmp_path / "sys/fs/cgroup"}
