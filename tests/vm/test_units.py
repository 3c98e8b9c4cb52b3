"""What a process can do that has the rights of the agent or of the guard."""

import re
from pathlib import Path

import pytest

from tests.vm.conftest import GUARD, UNIT, install_units, sh

ESCAPE = "/job/tests/vm/escape.py"
EXPOSURE_MAX = 2.0
OWN = re.compile(
    r"(?m)^(Wants|Type|NotifyAccess|WatchdogSec|Exec\w+|Restart\w*|CPUSched\w+|Limit\w+)=.*\n"
)
"""What makes a unit a service that runs on; the rest is its sandbox."""

pytestmark = pytest.mark.skipif(
    not Path("/job/run").exists(), reason="runs in the machine of tools/vm"
)


def ended(lines):
    """How each attempt ended, by its name."""
    return dict(line.split(": ")[:2] for line in lines.splitlines())


@pytest.fixture(scope="module", autouse=True)
def _shipped():
    """The units of this checkout."""
    install_units()


@pytest.fixture
def target():
    """A privileged process."""
    return sh("systemctl show -P MainPID systemd-journald")


@pytest.mark.parametrize("unit", [UNIT, GUARD])
def test_a_process_with_the_rights_of_a_unit_cannot_leave_it(unit, target):
    """The shipped unit, with another program: everything it tries is refused."""
    text = OWN.sub("", Path("/etc/systemd/system", unit).read_text())
    program = f"ExecStart=/usr/bin/python3 {ESCAPE} {target}"
    run = f"Type=oneshot\n{program}\nStandardOutput=file:/escaped"
    Path("/run/systemd/system/escape.service").write_text(
        text.replace("[Service]\n", f"[Service]\n{run}\n", 1)
    )
    sh("rm -f /escaped; systemctl daemon-reload; systemctl start escape.service")
    inside, outside = (
        ended(Path("/escaped").read_text()),
        ended(sh(f"/usr/bin/python3 {ESCAPE} {target}")),
    )
    print(Path("/escaped").read_text())

    assert len(inside) == len(outside) > 15
    assert {name for name, end in outside.items() if end != "done"} == set()
    assert {name for name, end in inside.items() if end != "refused"} == set()


@pytest.mark.parametrize("unit", [UNIT, GUARD])
def test_the_exposure_of_a_unit_is_low(unit):
    """As systemd-analyze rates it."""
    said = sh(f"systemd-analyze security --no-pager {unit} | tail -n 1")
    print(said)
    assert float(re.search(r"([\d.]+) \w+ ", said)[1]) <= EXPOSURE_MAX
