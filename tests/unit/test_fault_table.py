"""The table of faults, from tests that hold, fail, and are skipped."""

import pytest

TESTS = """
import pytest

@pytest.mark.fault("kill", "bookings hold")
def test_one(record_property):
    record_property("times", 50)
    record_property("recovery_s", 1.25)

@pytest.mark.fault("kill", "nothing else is written")
def test_two(record_property):
    record_property("recovery_s", 2.5)

@pytest.mark.fault("{other}", "the others go on")
def test_other():
    {code}

def test_that_injects_nothing():
    assert False
"""


@pytest.fixture
def run(pytester):
    """Runs those of these tests that are marked; the result."""
    pytester.makeconftest("from tests.support.fault_table import *")

    def run_with(other, code):
        pytester.makepyfile(TESTS.format(other=other, code=code))
        return pytester.runpytest_inprocess("-m", "fault", "-p", "no:randomly")

    return run_with


def test_all_of_it_held(run):
    """Times add up, the longest recovery counts; what injects nothing does not run."""
    result = run("hang", "pass")

    assert result.ret == 0
    result.stdout.fnmatch_lines(["hang * 1 yes * the others go on", "kill * 51 yes * 2.5 *"])
    assert result.parseoutcomes() == {"passed": 3, "deselected": 1}


@pytest.mark.parametrize(
    ("code", "held"), [("assert False", "NO"), ("pytest.skip('no broker')", "not tried")]
)
def test_what_did_not_hold_or_was_not_tried_fails(run, code, held):
    """And names the test."""
    result = run("hang", code)

    assert result.ret == 1
    result.stdout.fnmatch_lines([f"hang * {held} *", "    *::test_other"])


def test_nothing_was_tried(pytester):
    """An empty table is no success."""
    pytester.makeconftest("from tests.support.fault_table import *")
    pytester.makepyfile("def test_that_injects_nothing(): pass")

    assert pytester.runpytest_inprocess("-m", "fault").ret != 0
