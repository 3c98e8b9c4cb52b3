# SPDX-License-Identifier: Apache-2.0
"""Two compute nodes, one of them a controller too: containers with systemd, libvirt and Nova."""

import functools
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.guests.guest import GuestSpec, build, domain_xml
from tests.support import programs
from tests.support.programs import run

until = functools.partial(programs.until, pause_s=0.5)
ROOT = Path(__file__).parents[2]
CONTAINER = ROOT / "tools/container"
FOLDER = Path(os.environ.get("AMP_DEPLOY_FOLDER", ROOT / "dist/deploy-test")).absolute()
"""What takes long to make stays here for the next run."""
HOSTS = ("compute1", "compute2")
PACKAGES = """build-essential debhelper dh-python python3-all python3-pip python3-wheel
    python3-apt python3-packaging python3-venv nova-scheduler
    libvirt-clients libvirt-daemon-system libvirt-daemon-driver-qemu qemu-system-x86 curl"""
VERSIONS = ("0.9.0.dev1", "0.9.0.dev2")
GUEST = "instance-00000001"
PERIOD_US = "cpu.cfs_period_us"
QUOTA_US = "cpu.cfs_quota_us"
RECAP = re.compile(r"^(\S+) +: ok=\d+ +changed=(\d+) +unreachable=(\d+) +failed=(\d+)", re.M)
LOADED = """
from nova import config
config.parse_args(["nova-scheduler"])
from nova.conf import CONF
from nova.scheduler import filters, weights
options = CONF.filter_scheduler
classes = filters.HostFilterHandler().get_matching_classes(options.available_filters)
known = {c.__name__ for c in classes}
weighers = weights.HostWeightHandler().get_matching_classes(options.weight_classes)
print([name for name in options.enabled_filters if name in known][-1])
print(sum(c.__module__.startswith("amp_nova") for c in weighers))
"""
"""Nova's own code, with the configuration that nova-scheduler reads."""
SEEN = "/etc /opt /root /usr /var/lib /var/cache /run/amp-nova"
UNSEEN = re.compile(
    r"/var/lib/(apt|dpkg|systemd|libvirt|nova|dbus)/|/var/cache/(apt|debconf|libvirt|man)/"
    r"|/root/\.|/__pycache__|/etc/[\w.]+-$|/etc/libvirt/"
)
"""What changes for other reasons, and backups of /etc/passwd and so on."""


class Node:
    """One booted container."""

    def __init__(self, folder: Path, root: Path, share: Path) -> None:
        """Boot it, with a file system that begins as ``root`` is and ends with it."""
        self.run = functools.partial(run, CONTAINER, "run", folder)
        self.stop = functools.partial(run, CONTAINER, "stop", folder)
        self._pid = ""
        run(CONTAINER, "boot", root, folder, "--volatile=overlay", f"--bind-ro={share}:/share")
        # libvirt makes cgroups for guests.
        self.sh("for tree in /sys/fs/cgroup/*; do mount -o remount,bind,rw $tree; done")
        self.sh("systemctl restart libvirtd virtlogd")
        until(lambda: self.sh("virsh uri 2>&1 || true").startswith("qemu:"), 60, "libvirt")

    def sh(self, command: str) -> str:
        """Run a shell command in it; its output."""
        return self.run("sh", "-c", command)

    def files(self) -> dict[str, str]:
        """Files, directories and links with their mode and owner, users and packages."""
        found = self.sh(f"find {SEEN} -printf '%p\\t%M %U %G %l\\n' 2>/dev/null || true")
        lines = (line.split("\t") for line in found.splitlines())
        seen = {path: what for path, what in lines if not UNSEEN.search(path + "/")}
        others = "getent passwd; getent group; dpkg-query --list"
        return seen | dict.fromkeys(self.sh(f"({others}) | grep amp-nova || true").splitlines(), "")

    def start_guest(self) -> None:
        """Start a guest that computes without end and books half a reference core."""
        spec = GuestSpec(GUEST, specs={"amp:pref_core": "0.5"})
        text = domain_xml(spec, Path("/share/guest.bin"))
        self.sh(f"virsh create /dev/stdin <<'XML'\n{text}\nXML")
        self._pid = self.sh(f"cat /run/libvirt/qemu/{GUEST}.pid").strip()

    def booked(self) -> bool:
        """Whether the guest's limit is its booking over the coefficient of a core type."""
        limit = self.quota_cores()
        types = json.loads(self.sh("amp-nova topology --format json"))["core_types"]
        wanted = [0.5 / t["coefficient"] for t in types]
        return limit is not None and any(abs(limit / each - 1) < 0.05 for each in wanted)

    def quota_cores(self) -> float | None:
        """The limit of the guest's vCPU in the kernel, ``None`` without one."""
        self.sh(f"kill -0 {self._pid}")
        vcpu = f'$(grep -l "^CPU 0/" /proc/{self._pid}/task/*/comm)'
        group = f'/sys/fs/cgroup/cpu$(sed -n "s/.*:cpu://p" "$(dirname {vcpu})/cgroup")'
        quota, period = map(int, self.sh(f"cd {group} && cat {QUOTA_US} {PERIOD_US}").split())
        return None if quota < 0 else quota / period


class Cloud:
    """The nodes, and Ansible with an inventory of them."""

    def __init__(self, folder: Path, root: Path, share: Path) -> None:
        """Boot the nodes."""
        self.folder, self.share = folder, share
        self.calibration = folder / "amp-nova-calibration.json"
        self.nodes = {name: Node(folder / name, root, share) for name in HOSTS}
        # Where the kernel groups real-time work, containers may have no time for it.
        self.dropin = "[Service]\nCPUSchedulingPolicy=other\nLimitRTTIME=infinity\n"
        core_types = ["fast 0", f"slow 1-{os.cpu_count() - 1}"]
        self.conf = {"topology": {"core_type": core_types, "reference": "slow"}}
        quick = ["--repeat", "1", "--force"]
        variables = {
            "ansible_ssh_executable": f"{Path(__file__).with_name('ssh')}",
            "ansible_ssh_transfer_method": "piped",
            "ansible_python_interpreter": "/usr/bin/python3",
            "ansible_become": False,
            "amp_nova_conf": self.conf,
            "amp_nova_dropin": self.dropin,
            "amp_nova_transport_url": "rabbit://amp:secret@192.0.2.1:5672/amp",
            "amp_nova_calibrate_args": quick,
            "amp_nova_nova_services": ["nova-scheduler"],
            "amp_nova_prometheus_services": [],
        }
        controllers = {"hosts": {HOSTS[0]: {}}}
        groups = {"controller": controllers, "monitoring": controllers}
        groups["compute"] = {"hosts": {name: {} for name in HOSTS}}
        inventory = {"all": {"vars": variables, "children": groups}}
        (folder / "inventory.yaml").write_text(yaml.safe_dump(inventory))

    def play(
        self, *options: str, playbook: str = "amp-nova.yml", **variables: object
    ) -> dict[str, int]:
        """Run the playbook; how many tasks changed something, by host."""
        more = ["-e", json.dumps(variables)] if variables else []
        said = ansible(
            "-i", self.folder / "inventory.yaml", ROOT / "deploy" / playbook, *more, *options,
            AMP_CONTAINERS=str(self.folder),
        )  # fmt: skip
        print(said)
        return {host: int(changed) for host, changed, *_ in RECAP.findall(said)}

    def packages(self, version: str) -> dict[str, object]:
        """The variables that install the Debian packages of this version; no laboratory."""
        found = sorted(map(str, (self.share / version).glob("*amp-nova[-_][a0]*.deb")))
        assert len(found) == 2
        return {"amp_nova_files": found}

    def each(self, command: str) -> list[str]:
        """What a shell command prints on every node."""
        return [node.sh(command).strip() for node in self.nodes.values()]

    def files(self) -> set[tuple[str, str, str]]:
        """What ``Node.files`` finds, with the node."""
        return {(name, *each) for name, n in self.nodes.items() for each in n.files().items()}

    def scheduler(self, python: str) -> list[str]:
        """The last enabled filter that Nova finds, and how many weighers of amp-nova it finds."""
        return self.nodes[HOSTS[0]].run(python, "-W", "ignore", "-c", LOADED).split()[-2:]

    def stop(self) -> None:
        """Power off."""
        for node in self.nodes.values():
            node.stop()


def ansible(*words: object, **environment: str) -> str:
    """Run ``ansible-playbook``; its output."""
    command = Path(sys.executable).with_name("ansible-playbook")
    return run(command, *words, ANSIBLE_NOCOLOR="1", ANSIBLE_PIPELINING="1", **environment)


@pytest.fixture(scope="session")
def machine() -> Path:
    """The file system that nodes begin with."""
    if os.geteuid() != 0 or os.cpu_count() == 1:
        pytest.skip("containers take root, and core types two CPUs")
    control = (ROOT / "packaging/debian/control").read_text()
    needed = re.findall(r"^ (python3-(?!amp-nova)[\w.-]+)", control, re.M)
    run(ROOT / "tools/apt-install", "git", "binutils")
    run(CONTAINER, "make", FOLDER / "root", *PACKAGES.split(), *sorted({*needed}))
    # It waits for guests, which know no ACPI, when a node stops.
    run(CONTAINER, "chroot", FOLDER / "root", "systemctl", "mask", "libvirt-guests")
    for path in ("etc/prometheus", "var/lib/grafana/dashboards"):
        (FOLDER / "root" / path).mkdir(parents=True, exist_ok=True)
    # The real one does not start without a message bus.
    unit = FOLDER / "root/etc/systemd/system/nova-scheduler.service"
    unit.write_text(
        "[Service]\nExecStart=/bin/sleep infinity\n[Install]\nWantedBy=multi-user.target\n"
    )
    return FOLDER / "root"


@pytest.fixture(scope="session")
def share(machine: Path) -> Path:
    """Two versions of the Debian packages and of the wheel, and a guest."""
    made = FOLDER / "share"
    sources = (
        f"HEAD:{path}" for path in ("amp_nova", "amp_nova_lab", "etc", "packaging", "setup.cfg")
    )
    of = run("git", "-c", f"safe.directory={ROOT}", "-C", ROOT, "rev-parse", *sources)
    if (made / "of").exists() and (made / "of").read_text() == of:
        return made
    shutil.rmtree(made, ignore_errors=True)
    build(made)
    shutil.rmtree(machine / "src", ignore_errors=True)
    run("git", "-c", f"safe.directory={ROOT}", "clone", "--quiet", ROOT, machine / "src")
    run("chown", "-R", "root:root", machine / "src")
    inside = functools.partial(run, CONTAINER, "chroot", machine)
    for version in VERSIONS:
        inside("env", f"PBR_VERSION={version}", "/src/tools/deb", "/built")
        wheel = f"cd /src && PBR_VERSION={version} python3 setup.py --quiet bdist_wheel -d /built"
        inside("sh", "-c", wheel)
        shutil.move(machine / "built", made / version)
    shutil.rmtree(machine / "src")
    (made / "of").write_text(of)
    return made


@pytest.fixture(scope="module")
def cloud(machine: Path, share: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    """Fresh nodes."""
    made = Cloud(tmp_path_factory.mktemp("cloud"), machine, share)
    yield made
    made.stop()
