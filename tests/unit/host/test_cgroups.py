"""Where cgroups are; and limits are written as a period begins (clock and groups are fakes)."""

import pytest

from amp_nova.host import cgroups
from amp_nova.model.bandwidth import Bandwidth
from tests.fakehost import FakeHost


class FakeGroup:
    """A FAKE group: periods begin every ``period_s`` of the clock, or never, or it is gone."""

    def __init__(self, time, period_s=0.1, runs=True, gone=False):
        self.time, self.period_s, self.runs, self.gone = time, period_s, runs, gone

    def bandwidth(self):
        """A limit of that period."""
        if self.gone:
            raise OSError(19, "No such device")
        return Bandwidth(10_000, round(self.period_s * 1e6))

    def periods(self):
        """Periods that began, the first one in the middle of one of the clock's."""
        return int(self.time.now_s / self.period_s + 0.5) if self.runs else 0


class Time:
    """A clock that moves only by sleeping."""

    now_s = 0.0

    def sleep(self, seconds):
        """Let time pass."""
        self.now_s += seconds


@pytest.fixture
def acted():
    """Runs ``at_period_start`` for groups; returns when each was acted on."""

    def acted_(**groups):
        time, when = Time(), {}
        found = {name: FakeGroup(time, **said) for name, said in groups.items()}
        cgroups.at_period_start(
            found, lambda key: when.update({key: time.now_s}), lambda: time.now_s, time.sleep
        )
        return when

    return acted_


def test_limit_is_written_when_the_next_period_begins(acted):
    """Each group has periods of its own."""
    when = acted(a={"period_s": 0.1}, b={"period_s": 0.02})

    assert when["a"] == pytest.approx(0.05, abs=2 * cgroups.POLL_S)
    assert when["b"] == pytest.approx(0.01, abs=2 * cgroups.POLL_S)


def test_group_without_demand_is_written_after_a_period(acted):
    """A group that does not run has no periods to wait for."""
    when = acted(idle={"period_s": 0.02, "runs": False})

    assert when["idle"] == pytest.approx(0.022, abs=2 * cgroups.POLL_S)


def test_long_period_is_not_waited_for(acted):
    """A cycle does not wait for a period of a second."""
    when = acted(long={"period_s": 1.0, "runs": False})

    assert when["long"] <= cgroups.WAIT_MAX_S + 2 * cgroups.POLL_S


def test_group_that_is_gone_is_acted_on_at_once(acted):
    """Acting notices that it is gone; the others wait for their periods."""
    when = acted(gone={"gone": True}, here={"period_s": 0.1})

    assert when["gone"] == 0.0
    assert when["here"] == pytest.approx(0.05, abs=2 * cgroups.POLL_S)


def test_nothing_to_write_takes_no_time(acted):
    """No groups, no wait."""
    assert acted() == {}


def test_version_1_controller_is_used_if_both_trees_are_mounted(tmp_path):
    """The process's own file says which tree has the controller."""
    host = FakeHost(tmp_path, 1, hybrid=True)
    mounted = cgroups.mounts(tmp_path)

    found = cgroups.path_of("5:memory:/a\n2:cpu,cpuacct:/machine/v/vcpu0\n0::/other\n", mounted)

    assert found == (f"{host.mount}/machine/v/vcpu0", 1)


def test_unified_tree_is_used_if_no_version_1_controller_is_named(tmp_path):
    """A process without a version 1 cpu controller has its limit in the unified tree."""
    FakeHost(tmp_path, 1, hybrid=True)

    found = cgroups.path_of("5:cpuset:/a\n0::/other/vcpu0\n", cgroups.mounts(tmp_path))

    assert found == (f"{tmp_path}/sys/fs/cgroup/unified/other/vcpu0", 2)


def test_cpuacct_and_cpuset_are_not_the_cpu_controller(tmp_path):
    """Controllers whose names begin alike are distinguished."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mounts").write_text(
        "cgroup /sys/fs/cgroup/cpuacct cgroup rw,cpuacct 0 0\n"
        "cgroup /sys/fs/cgroup/cpuset cgroup rw,cpuset 0 0\n"
    )

    assert cgroups.mounts(tmp_path) == {}
    assert cgroups.path_of("4:cpuacct:/a\n3:cpuset:/a\n", cgroups.mounts(tmp_path)) is None


@pytest.mark.parametrize("prefix", ["lv1", "lv1/deep", ""])
def test_prefix_of_a_nested_host_is_kept(tmp_path, prefix):
    """Groups of a libvirt that itself runs in a group are found below that group."""
    host = FakeHost(tmp_path, 2, prefix)
    inside = f"/{prefix}/machine/d/vcpu1".replace("//", "/")

    found = cgroups.path_of(f"0::{inside}\n", cgroups.mounts(tmp_path))

    assert found == (f"{host.mount}{inside}", 2)


@pytest.mark.parametrize("odd", [b"\x0b", b"\xff", "\u2028".encode(), b"\x0c", b"\x85", b"\\040"])
def test_a_mount_point_with_an_odd_byte_does_not_hide_the_cgroups(tmp_path, odd):
    """Any user who may mount anything chooses such names, with FUSE for example."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mounts").write_bytes(
        b"fuse /home/a" + odd + b"cgroup2 fuse rw 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n"
    )
    assert cgroups.mounts(tmp_path) == {"": tmp_path / "sys/fs/cgroup"}
