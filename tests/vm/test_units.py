"""What a process can do that has the rights of one of our units; and that vendordata runs there."""

import re
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.vm.conftest import GUARD, UNIT, VENDORDATA, sh, until, upgrade

ESCAPE = "/job/tests/vm/escape.py"
UNITS = (UNIT, GUARD, VENDORDATA)
EXPOSURE_MAX = 2.0
OWN = re.compile(
    r"(?m)^(Wants|Type|NotifyAccess|WatchdogSec|Exec\w+|Restart\w*|CPUSched\w+|Limit\w+)=.*\n"
)
"""What makes a unit a service that runs on; the rest is its sandbox."""
KEYSTONE = """
[keystone_authtoken]
auth_type = password
auth_url = http://127.0.0.1:9/v3
www_authenticate_uri = http://127.0.0.1:9/v3
username = amp-nova
password = secret
project_name = service
user_domain_name = Default
project_domain_name = Default
"""

pytestmark = pytest.mark.skipif(
    not Path("/job/run").exists(), reason="runs in the machine of tools/vm"
)


def ended(lines):
    """How each attempt ended, by its name."""
    return dict(line.split(": ")[:2] for line in lines.splitlines())


@pytest.fixture(scope="module", autouse=True)
def _shipped():
    """This checkout and its units, also after a test that removed them."""
    upgrade()


@pytest.fixture
def target():
    """A privileged process."""
    return sh("systemctl show -P MainPID systemd-journald")


@pytest.mark.parametrize("unit", UNITS)
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


@pytest.mark.parametrize("unit", UNITS)
def test_the_exposure_of_a_unit_is_low(unit):
    """As systemd-analyze rates it."""
    said = sh(f"systemd-analyze security --no-pager {unit} | tail -n 1")
    print(said)
    assert float(re.search(r"([\d.]+) \w+ ", said)[1]) <= EXPOSURE_MAX


def status_of(url):
    """The HTTP status of an answer, ``None`` while nothing answers."""
    try:
        return urllib.request.urlopen(url, timeout=20).status
    except urllib.error.HTTPError as exc:
        return exc.code
    except OSError:
        return None


def test_vendordata_answers_as_a_user_without_rights():
    """It reads its password from the credential, and asks whoever has no token for one."""
    file = Path("/etc/amp-nova/amp-nova.conf")
    before = file.read_text()
    file.write_text(f"{before}{KEYSTONE}")
    try:
        sh(f"systemctl start {VENDORDATA}")
        until(lambda: status_of("http://127.0.0.1:9179/v1/servers/x") == 401, 120, "an answer")
        pid = sh(f"systemctl show -P MainPID {VENDORDATA}")
        assert Path("/proc", pid).stat().st_uid >= 61184  # systemd's range of dynamic users
    finally:
        file.write_text(before)
        sh(f"systemctl stop {VENDORDATA}")
