# SPDX-License-Identifier: Apache-2.0
"""What a process can do that has the rights of one of our units; and that vendordata runs there."""

import re
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.vm.conftest import (
    GUARD,
    UNIT,
    VENDORDATA,
    Machine,
    main_pid,
    sh,
    until,
    upgrade,
)

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


def authenticate_nobody(*, without):
    """Whether libvirt's socket for writing lets in whoever may open it: root and its group."""
    folder = Path("/etc/systemd/system/libvirtd.socket.d")
    if without:
        folder.mkdir(parents=True)
        (folder / "mode.conf").write_text("[Socket]\nSocketMode=0770\n")
        sh("echo 'auth_unix_rw = \"none\"' >> /etc/libvirt/libvirtd.conf")
    else:
        sh(f"rm -r {folder}; sed -i '/^auth_unix_rw/d' /etc/libvirt/libvirtd.conf")
    restart_libvirt()


def restart_libvirt():
    """With new sockets, as where libvirt itself makes them."""
    sockets = "libvirtd.socket libvirtd-ro.socket libvirtd-admin.socket"
    sh(f"systemctl daemon-reload; systemctl stop libvirtd {sockets}; systemctl start {sockets}")
    sh("systemctl start libvirtd")


@pytest.fixture(params=["polkit", "none"])
def authentication(request):
    """``auth_unix_rw`` of libvirt."""
    if request.param == "none":
        authenticate_nobody(without=True)
    yield request.param
    if request.param == "none":
        authenticate_nobody(without=False)


def attempts(unit, target, more=""):
    """How each attempt ended of a program with the rights of a unit, with ``more`` lines in it."""
    text = OWN.sub("", Path("/etc/systemd/system", unit).read_text())
    program = f"ExecStart=/usr/bin/python3 {ESCAPE} {target}"
    run = f"Type=oneshot\n{program}\nStandardOutput=file:/escaped\n{more}"
    Path("/run/systemd/system/escape.service").write_text(
        text.replace("[Service]\n", f"[Service]\n{run}\n", 1)
    )
    sh("rm -f /escaped; systemctl daemon-reload; systemctl start escape.service")
    said = Path("/escaped").read_text()
    print(said)
    return ended(said)


@pytest.mark.parametrize("unit", UNITS)
def test_a_process_with_the_rights_of_a_unit_cannot_leave_it(unit, target, authentication):
    """The shipped unit, with another program: everything it tries is refused."""
    inside = attempts(unit, target)
    outside = ended(sh(f"/usr/bin/python3 {ESCAPE} {target}"))

    assert len(inside) == len(outside) > 15
    assert {name for name, end in outside.items() if end != "done"} == set()
    assert {name for name, end in inside.items() if end != "refused"} == set()
    if unit == UNIT and authentication == "none":  # so it is the view of /run that protects
        whole = attempts(unit, target, "BindReadOnlyPaths=/run/libvirt")
        assert {name for name, end in whole.items() if end == "done"} == {"manage libvirt"}


def test_the_agent_finds_sockets_that_libvirt_made_again():
    """Its unit shows it those of its start, so it starts anew; nobody has to notice."""
    sh(f"systemctl start {UNIT}")
    until(lambda: metric_up() == 1, 90, "a connection to libvirt")
    pid = main_pid()

    restart_libvirt()

    until(lambda: main_pid() not in (0, pid) and metric_up() == 1, 90, "a new connection")
    assert "takes a restart to be seen" in sh(f"journalctl -q -o cat -u {UNIT} -n 50")


def metric_up():
    """``amp_hypervisor_up`` of the agent, ``None`` while it does not answer."""
    try:
        return Machine.metric("amp_hypervisor_up")
    except OSError:
        return None


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
