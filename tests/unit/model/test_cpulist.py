# SPDX-License-Identifier: Apache-2.0
"""CPU lists in the notations of the kernel and of libvirt."""

import pytest

from amp_nova.model import cpulist


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("", ()), ("0", (0,)), ("0-3,8", (0, 1, 2, 3, 8)), ("8,0-1\n", (0, 1, 8)), ("1,1-2", (1, 2))],
)
def test_lists_are_read(text, cpus):
    """Ranges and single ids, in any order, each once."""
    assert cpulist.parse(text) == cpus


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", {0}),
        ("0-3,8", {0, 1, 2, 3, 8}),
        ("0-3,^2", {0, 1, 3}),
        (" 1 - 2 , 4 ", {1, 2, 4}),
        ("0-7,^4-5", {0, 1, 2, 3, 6, 7}),
        ("0-1,,3,", {0, 1, 3}),
    ],
)
def test_cpusets_are_read(text, expected):
    """Ranges, single CPUs and exceptions, in libvirt's notation."""
    assert cpulist.parse_cpuset(text) == expected


MALFORMED = ["-1", "a", "3-1", "0-65536"]
LISTS = [*MALFORMED, "0-", "0,,1", "0-3:1/2", "99999999"]
CPUSETS = [*MALFORMED, "", ",", "1-", "^", "65536", "0-4294967295"]


@pytest.mark.parametrize(
    ("read", "text"),
    [*((cpulist.parse, t) for t in LISTS), *((cpulist.parse_cpuset, t) for t in CPUSETS)],
)
def test_garbage_is_refused(read, text):
    """What is malformed is a ValueError, and a huge number does not exhaust the memory."""
    with pytest.raises(ValueError, match="'"):
        read(text)


def test_ids_are_shown_as_ranges():
    """In the shortest form; no id gives the empty string."""
    assert cpulist.show([]) == ""
    assert cpulist.show([8, 0, 1, 2, 2]) == "0-2,8"
    assert cpulist.show(range(12)) == "0-11"
