# SPDX-License-Identifier: Apache-2.0
"""Where cgroups are; and limits are written as a period begins (clock and groups are fakes)."""

import pytest

from amp_nova.kernel import cgroups
from amp_nova.model.bandwidth import Bandwidth


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


@pytest.mark.parametrize(
    ("groups", "acted_s"),
    [
        ({"a": {"period_s": 0.1}, "b": {"period_s": 0.02}}, {"a": 0.05, "b": 0.01}),
        ({"idle": {"period_s": 0.02, "runs": False}}, {"idle": 0.022}),
        ({"long": {"period_s": 1.0, "runs": False}}, {"long": cgroups.WAIT_MAX_S}),
        ({"gone": {"gone": True}, "here": {"period_s": 0.1}}, {"gone": 0.0, "here": 0.05}),
    ],
    ids=["each has its own period", "without demand", "too long to wait for", "gone: at once"],
)
def test_a_limit_is_written_when_the_next_period_begins(groups, acted_s):
    """Or after the length of one: a group that does not run has no periods to wait for."""
    time, when = Time(), {}
    found = {name: FakeGroup(time, **about) for name, about in groups.items()}

    cgroups.at_period_start(
        found, lambda key: when.update({key: time.now_s}), lambda: time.now_s, time.sleep
    )

    assert when == pytest.approx(acted_s, abs=2 * cgroups.POLL_S)


V1 = b"tmpfs /run tmpfs rw 0 0\ncgroup /cg/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\n"
V2 = b"cgroup2 /cg cgroup2 rw 0 0\n"
OTHERS = b"cgroup /cg/cpuacct cgroup rw,cpuacct 0 0\ncgroup /cg/cpuset cgroup rw,cpuset 0 0\n"


@pytest.mark.parametrize(
    ("mounted", "text", "found"),
    [
        (V1 + V2, "5:memory:/a\n2:cpu,cpuacct:/vcpu0\n0::/other\n", ("cg/cpu,cpuacct/vcpu0", 1)),
        (V1 + V2, "5:cpuset:/a\n0::/other/vcpu0\n", ("cg/other/vcpu0", 2)),
        (OTHERS, "4:cpuacct:/a\n3:cpuset:/a\n", None),
        (V2, "0::/lv1/deep/machine/d/vcpu1\n", ("cg/lv1/deep/machine/d/vcpu1", 2)),
        (V2, "0::/machine/d/vcpu1\n", ("cg/machine/d/vcpu1", 2)),
    ],
    ids=["both trees", "no cpu controller named", "similar names", "nested host", "plain"],
)
def test_the_cpu_cgroup_of_a_process_is_found(tmp_path, mounted, text, found):
    """Its own file says which tree has the controller; paths are below that tree's mount."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mounts").write_bytes(mounted)

    where = cgroups.path_of(text, cgroups.mounts(tmp_path))

    assert where == (found and (f"{tmp_path}/{found[0]}", found[1]))


@pytest.mark.parametrize("odd", [b"\x0b", b"\xff", "\u2028".encode(), b"\x0c", b"\x85", b"\\040"])
def test_a_mount_point_with_an_odd_byte_does_not_hide_the_cgroups(tmp_path, odd):
    """Any user who may mount anything chooses such names, with FUSE for example."""
    (tmp_path / "proc/self").mkdir(parents=True)
    text = b"fuse /home/a" + odd + b"cgroup2 fuse rw 0 0\n" + V2
    (tmp_path / "proc/self/mounts").write_bytes(text)

    assert cgroups.mounts(tmp_path) == {"": cgroups.Mount(tmp_path / "cg")}


def mountinfo(*lines):
    """As the kernel has it: root, mount point, kind and controllers of each."""
    return "\n".join(
        f"{40 + i} 31 0:{i} {top} {where} rw,relatime shared:9 - {kind} {kind} rw,{options}"
        for i, (top, where, kind, options) in enumerate(lines)
    )


@pytest.mark.parametrize(
    ("lines", "text", "found"),
    [
        (
            [("/docker/0123", "/cg/cpu", "cgroup", "cpu")],
            "2:cpu:/docker/0123/machine/g/vcpu0",
            ("cg/cpu/machine/g/vcpu0", 1),
        ),
        (
            [
                ("/", "/hidden/cpuacct,cpu", "cgroup", "cpuacct,cpu"),
                ("/", "/cg/cpu", "cgroup", "cpuacct,cpu"),
            ],
            "2:cpuacct,cpu:/machine/g/vcpu0",
            ("cg/cpu/machine/g/vcpu0", 1),
        ),
        (
            [("/system.slice", "/cg/cpu", "cgroup2", ""), ("/", "/cg", "cgroup2", "")],
            "0::/machine.slice/g/vcpu0",
            ("cg/machine.slice/g/vcpu0", 2),
        ),
        (
            [("/docker/01", "/cg", "cgroup2", ""), ("/machine.slice", "/cg/cpu", "cgroup2", "")],
            "0::/machine.slice/g/vcpu0",
            ("cg/cpu/g/vcpu0", 2),
        ),
        (
            [("/", "/cg/cpu", "cgroup", "cpu"), ("/docker/01", "/cg/cpu", "cgroup", "cpu")],
            "2:cpu:/docker/01/machine/g/vcpu0",
            ("cg/cpu/machine/g/vcpu0", 1),
        ),
        (
            [("/", "/cg/cpu", "cgroup2", ""), ("/../..", "/cg", "cgroup2", "")],
            "0::/../../machine.slice/g/vcpu0",
            ("cg/machine.slice/g/vcpu0", 2),
        ),
        ([("/docker/01", "/cg", "cgroup", "cpu")], "2:cpu:/docker/012/g/vcpu0", None),
        ([("/", "/cg", "cgroup2", "")], "", None),
    ],
    ids=[
        "a part is mounted",
        "the first is hidden",
        "a part and all",
        "two parts",
        "one over the other",
        "the host's beside a namespace",
        "a part of a similar name",
        "no group at all",
    ],
)
def test_of_several_mounts_the_one_counts_that_shows_the_group(tmp_path, lines, text, found):
    """Containers have such mounts."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "cg/cpu").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text(mountinfo(*lines))

    where = cgroups.path_of(text, cgroups.mounts(tmp_path))

    assert where == (found and (f"{tmp_path}/{found[0]}", found[1]))


@pytest.mark.parametrize("mount", ["cg", "elsewhere"])
def test_limits_above_count_wherever_a_container_has_them(tmp_path, mount):
    """It may have a mount for all groups and another for those of guests; odd files do not."""
    (tmp_path / "cg/machine.slice/g/vcpu0").mkdir(parents=True)
    (tmp_path / "cg/machine.slice/cpu.max").write_text("50000 100000\n")
    (tmp_path / "cg/cpu.max").write_text("odd\n")

    vcpu, top = str(tmp_path / "cg/machine.slice/g/vcpu0"), str(tmp_path / mount)

    assert [limit for _, limit in cgroups.limits_above(vcpu, 2, top)] == [Bandwidth(50000, 100000)]


def test_a_container_with_its_own_cgroup_namespace_is_told_the_remedy(tmp_path):
    """The groups of guests are outside of what it sees."""
    with pytest.raises(OSError, match="cgroupns_mode: host"):
        cgroups.path_of("0::/../../machine.slice/g/vcpu0", {"": cgroups.Mount(tmp_path)})
