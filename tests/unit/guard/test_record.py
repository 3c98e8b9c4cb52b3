# SPDX-License-Identifier: Apache-2.0
"""Records: what is written is what is read, and nothing else is taken for a record."""

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amp_nova.guard import record
from amp_nova.guard.record import RecordedDomain, RecordedVcpu, Tuning
from amp_nova.model.bandwidth import Bandwidth, SafeState

PCPUS = st.frozensets(st.integers(0, 512), max_size=6)
LIMITS = st.none() | st.builds(Bandwidth, st.integers(1000, 10**6), st.integers(1000, 10**6))
SAFE = st.builds(
    SafeState,
    st.none() | PCPUS,
    st.lists(st.tuples(PCPUS, LIMITS), max_size=3).map(tuple),
    st.booleans(),
)
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
NUMBERS = st.integers(0, 2**64 - 1)
PROCESS = "/proc/4711"
TASKS = st.integers(1, 2**22).map(lambda tid: f"{PROCESS}/task/{tid}")
VCPUS = st.builds(
    RecordedVcpu, TASKS, TEXT, TEXT, NUMBERS, st.sampled_from([1, 2]), PCPUS,
    st.builds(Tuning, LIMITS, PCPUS, st.integers(0, 10**6)), SAFE,
)  # fmt: skip
DOMAINS = st.builds(
    RecordedDomain,
    st.uuids().map(str), TEXT, TEXT, st.just(PROCESS), TEXT, TEXT, NUMBERS, st.booleans(),
    st.integers(0, 10000), st.dictionaries(st.integers(0, 99), VCPUS, max_size=3),
)  # fmt: skip


@given(DOMAINS)
def test_what_is_written_is_what_is_read(tmp_path_factory, domain):
    """Every field, whatever a tenant named the instance."""
    folder = tmp_path_factory.mktemp("records")
    record.save(folder, domain)

    assert record.load(folder, domain.resource) == domain
    assert list(record.load_all(folder)) == [(domain.resource, domain)]
    assert [p.name for p in folder.iterdir()] == [f"{domain.resource}.json"]


@pytest.fixture
def folder(tmp_path):
    """A folder with one good record, of the instance ``vm``."""
    record.save(tmp_path, RecordedDomain("vm", "name", "", "/proc/1", "2"))
    return tmp_path


def test_a_write_that_fails_leaves_the_old_record(folder, monkeypatch):
    """And no half-written file."""

    def full(_fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        record.save(folder, RecordedDomain("vm", "other", "", "/proc/1", "2"))

    assert record.load(folder, "vm").name == "name"
    assert [p.name for p in folder.iterdir()] == ["vm.json"]


def test_what_is_set_aside_is_kept_whatever_is_recorded_since(folder):
    """Twice: neither is lost."""
    for text in ("first", "second"):
        (folder / "vm.json").write_text(text)
        assert record.set_aside(folder, "vm").read_text() == text
        record.save(folder, RecordedDomain("vm", "name", "", "/proc/1", "2"))

    kept = sorted(folder.glob("*.aside"))
    assert [p.read_text() for p in kept] == ["first", "second"]
    assert [name for name, _ in record.load_all(folder)] == ["vm"]


FORMAT = """{"version": 2, "resource": "vm", "name": "instance-1", "display_name": "web",
"process": "/proc/7", "started": "99", "group": "/sys/fs/cgroup/vm", "inode": 5, "weight": 1024,
"safe_weight": 5120, "vcpus": {"0": {"task": "/proc/7/task/9", "started": "100",
"group": "/sys/fs/cgroup/vm/vcpu0", "inode": 6, "version": 1, "allowed": [0, 1],
"found": {"pcpus": [0, 1], "quota_us": null, "period_us": 100000, "burst_us": 0},
"safe": {"pcpus": [1], "limits": [{"pcpus": [1], "quota_us": 5000, "period_us": 20000,
"burst_us": 0}], "leave": false}}}}"""
"""As every agent with this version of records writes them."""


def test_the_format_of_a_record_is_fixed(folder):
    """After an upgrade, the agent finds the guests and the records of before."""
    (folder / "vm.json").write_text(FORMAT)

    found = record.load(folder, "vm")

    everywhere, limits = frozenset({0, 1}), ((frozenset({1}), Bandwidth(5000, 20000)),)
    assert (found.name, found.started, found.group, found.weight, found.safe_weight) == (
        "instance-1", "99", "/sys/fs/cgroup/vm", 1024, 5120,
    )  # fmt: skip
    assert found.vcpus[0] == RecordedVcpu(
        "/proc/7/task/9", "100", "/sys/fs/cgroup/vm/vcpu0", 6, 1, everywhere,
        Tuning(None, everywhere), SafeState(frozenset({1}), limits),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("damaged", "said"),
    [
        (FORMAT[:100], "Expecting"),
        ("", "Expecting value"),
        ("1", "not a valid record"),
        ("[" * 100_000, "not a valid record"),
        ('{"version": 2}', "not a valid record"),
        # Whole as it is otherwise, but its fields may mean something else.
        (FORMAT.replace('"version": 2, "resource"', '"version": 1, "resource"'), "version 1 "),
        (FORMAT.replace('"version": 2, "resource"', '"version": 3, "resource"'), "version 3 "),
        (FORMAT.replace('"version": 1, "allowed"', '"version": 3, "allowed"'), "version 3 is"),
        (FORMAT.replace('"burst_us": 0', '"burst_us": Infinity', 1), "not a valid record"),
        (FORMAT.replace('"period_us": 100000', '"period_us": 0'), "its limit None/0 us"),
        (FORMAT.replace('"allowed": [0', '"allowed": [1000000000000000000'), "not all below 8192"),
        (FORMAT.replace("/proc/7/task/9", "/proc/7/task/9\\u0000"), "not a thread of its process"),
        (FORMAT.replace("/proc/7/task/9", "/proc/1/task/9"), "not a thread of its process"),
    ],
    ids=range(13),
)
def test_a_damaged_record_is_not_used(folder, damaged, said):
    """It is one kind of error, whatever is wrong with it."""
    (folder / "vm.json").write_text(damaged)

    with pytest.raises(ValueError, match=said):
        record.load(folder, "vm")


def test_a_record_that_somebody_else_may_have_written_is_not_used(folder):
    """By its mode, by a link, or by the name of another instance."""
    text = (folder / "vm.json").read_text()
    (folder / "open.json").write_text(json.dumps({**json.loads(text), "resource": "open"}))
    os.chmod(folder / "open.json", 0o666)
    (folder / "link.json").symlink_to(folder / "vm.json")
    (folder / "copy.json").write_text(text)
    os.chmod(folder / "copy.json", 0o600)

    found = dict(record.load_all(folder))

    assert {name for name, what in found.items() if isinstance(what, RecordedDomain)} == {"vm"}


def test_a_record_of_another_user_is_not_used(folder, monkeypatch):
    """That user could change it at any time."""

    def foreign(fd, real=os.fstat):
        about = real(fd)
        return os.stat_result((*about[:4], 12345, *about[5:]))

    monkeypatch.setattr(os, "fstat", foreign)

    with pytest.raises(ValueError, match="only the agent's user can write"):
        record.load(folder, "vm")


def test_a_record_is_not_read_through_a_link(tmp_path):
    """Whoever could place one there would choose what the guard reads."""
    (tmp_path / "elsewhere").write_text("{}")
    (tmp_path / "web.json").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(OSError, match="symbolic links"):
        record.load(tmp_path, "web")
