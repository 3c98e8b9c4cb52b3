# SPDX-License-Identifier: Apache-2.0
"""The two compute hosts: libvirt, nova-compute and the agent, each in the host's namespaces."""

import contextlib
import os
import shutil
import signal
import subprocess
import time
import uuid
from pathlib import Path

from amp_nova.host.calibration import file
from tests.support.programs import guards
from tools.cloud import configuration, counting
from tools.cloud.layout import (
    BIN,
    CORES,
    ETC,
    FAST,
    HOME,
    HOSTS,
    INSTANCES,
    INSTANCES_BACKING,
    NOVA_BIN,
    SLOW,
    STATE,
    Host,
)
from tools.cloud.processes import Failed, call, listens, running, start, until

CPU_TREE = Path("/sys/fs/cgroup/cpu")
CONTROL = CPU_TREE / "minicloud"
"""Where the control plane runs, which elsewhere has machines of its own."""
CONTROL_SHARES, HOST_SHARES = 8 * 1024, 64 * 1024
"""CPU weights of the control plane, and of the guests of a host; other processes have 1024."""
CALIBRATION_TRIES = 15
COEFFICIENT_LEAST, COEFFICIENT_MOST = 1.8, 2.4
"""What the tests assume of the fast core: how many guests of a size fit follows from it."""
COEFFICIENT_TRIES = 5
BUSY = bool(os.environ.get("MINICLOUD_BUSY"))
"""Other work uses this machine: for trying things out, not for figures."""
DECLARED = 2.0
"""The coefficient of the fast core if none is measured: ``slow_down`` takes half of the other."""


def enter_control() -> None:
    """Put this process, and all that it starts, into a group of the control plane's own."""
    CONTROL.mkdir(exist_ok=True)
    (CONTROL / "cgroup.procs").write_text(str(os.getpid()))


def make_way() -> None:
    """Let whatever else runs here take little from guests that want the CPU too, once it is up.

    It would have a machine of its own elsewhere, the control plane as well as what is no part of
    the cloud.
    """
    # Everybody else would take all of its time; and hosts that overlap deliver nothing exactly.
    if not BUSY and CORES == 1:
        (CONTROL / "cpu.shares").write_text(str(CONTROL_SHARES))
        for host in HOSTS:
            (CPU_TREE / host.name / "cpu.shares").write_text(str(HOST_SHARES))


def share_instances() -> None:
    """One folder of instances for both hosts, behind a mount that libvirt takes for shared storage.

    It is: but libvirt knows network file systems only, and would refuse live migrations as unsafe.
    """
    INSTANCES.mkdir()
    INSTANCES_BACKING.mkdir()
    options = "subtype=glusterfs,allow_other"
    start("instances", ["bindfs", "-f", "-o", options, INSTANCES_BACKING, INSTANCES])
    until(INSTANCES.is_mount, "the mount of the instances")


def start_libvirt(host: Host) -> None:
    """Make the host and its libvirt."""
    for name in ("run", "lib/qemu", "cache", "log", "amp-nova"):
        (host.folder / name).mkdir(parents=True)
    counting.prepare(host)
    etc = host.folder / "etc"
    shutil.copytree("/etc/libvirt", etc, symlinks=True)
    (host.folder / "hosts").write_text(f"127.0.0.1 localhost\n{host.address} {host.name}\n")
    (host.folder / "online").write_text(f"{host.pcpus}\n")
    # Live migrations name their peer by its address.
    (STATE / "hosts" / host.address).symlink_to(host.name)
    (etc / "libvirtd.conf").write_text(f'auth_unix_rw = "none"\nhost_uuid = "{uuid.uuid4()}"\n')
    first_port = 49152 + 64 * host.number
    (etc / "qemu.conf").write_text(
        # Another user might not open /dev/kvm; libvirt then gathers anew what QEMU can do, for a
        # minute, at every start of a guest.
        'user = "root"\ngroup = "root"\n'
        f'migration_address = "{host.address}"\nmigration_host = "{host.address}"\n'
        f"migration_port_min = {first_port}\nmigration_port_max = {first_port + 63}\n"
    )
    script = Path(__file__).with_name("host.sh")
    unshare = ["unshare", "--mount", "--uts", "--propagation", "private"]
    start(f"libvirt-{host.name}", [*unshare, script, host.folder, host.name, host.pcpus])
    until(lambda: _answers(host), f"libvirt of {host.name}")


def _answers(host: Host) -> bool:
    command = ["virsh", "-c", host.uri, "version"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def inside(host: Host) -> list[object]:
    """What to put before a command to run it on a host."""
    pid = running(f"libvirt-{host.name}")
    return ["nsenter", f"--target={pid}", "--mount", "--uts", "--cgroup", "--wd=/"]


def start_compute(host: Host) -> None:
    """The host's nova-compute."""
    (STATE / "nova" / host.name).mkdir(exist_ok=True)
    files = [ETC / "nova/nova-compute.conf", ETC / f"nova/compute-{host.name}.conf"]
    options = [f"--config-file={path}" for path in files]
    start(f"nova-compute-{host.name}", [*inside(host), NOVA_BIN / "nova-compute", *options])


def start_agent(host: Host) -> None:
    """The host's agent, at the priority that its systemd unit gives it."""
    command = ["chrt", "--rr", "1", BIN / "amp-nova-agent", "--config-file", host.agent_conf]
    # Real-time priority is to be had in the root group only.
    enter = ["sh", "-c", f'echo $$ >{CPU_TREE}/cgroup.procs && exec "$@"', "sh"]
    start(f"agent-{host.name}", [*enter, *inside(host), *command])
    until(lambda: listens(host.metrics_port), f"the agent of {host.name}")


def calibrate() -> None:
    """Measure both cores, unless an earlier ``up`` did since the machine was started.

    Again if somebody else's work slowed one of them down meanwhile; what cannot be measured well is
    declared.
    """
    kept = HOME / "calibrations" / Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    if kept.exists():
        for host in HOSTS:
            shutil.copy(kept / host.name, host.calibration)
        return
    try:
        _measure()
    except Failed as exc:
        print(
            f"{exc}: the fast core is declared {DECLARED:g} times as fast as the slow one, and "
            "figures are not exact",
            flush=True,
        )
        _calibrate(force=True)  # for the nominal Ips
        configuration.write(FAST.agent_conf, configuration.agent(FAST, f"{DECLARED:g}"))
        return
    if BUSY:
        return
    shutil.rmtree(kept.parent, ignore_errors=True)
    kept.mkdir(parents=True)
    for host in HOSTS:
        shutil.copy(host.calibration, kept / host.name)


def _measure() -> None:
    """Calibrate until the coefficient is plausible; ``Failed`` if it never is."""
    for _ in range(COEFFICIENT_TRIES):
        _calibrate(force=BUSY)
        (calibrated,) = file.read(FAST.calibration)
        coefficient = calibrated.core_types[0].coefficient.value
        if BUSY or COEFFICIENT_LEAST <= coefficient <= COEFFICIENT_MOST:
            return
    raise Failed(
        f"the fast core is {coefficient:.2f} times as fast as the slow one, and the tests assume "
        f"{COEFFICIENT_LEAST} to {COEFFICIENT_MOST}"
    )


def _calibrate(*, force: bool) -> None:
    """Measure both cores as an operator does: the reference first, then the other against it."""
    short = ("--repeat", "3", *(("--force",) if force else ()))
    for host, more in ((SLOW, ()), (FAST, ("--reference", SLOW.calibration))):
        program = (*inside(host), BIN / "amp-nova", "calibrate")
        command = (*program, "--config-file", host.agent_conf, *short, *more)
        for left in reversed(range(CALIBRATION_TRIES)):
            try:
                call(*command)
                break
            except Failed:  # somebody else was busy: it says so, and measures nothing
                if not left:
                    raise
                time.sleep(2)
        counting.add_nominal_ips(host, inside(host))


def slow_down() -> None:
    """Make the slow host's core honestly slower, for as long as the process lives."""
    program = (
        "import signal; from tests.guests.slowcore import SlowCore\n"
        f"with SlowCore({SLOW.pcpus}): print('slow', flush=True); signal.pause()"
    )
    start("slow-core", [BIN / "python", "-c", program])
    log = STATE / "log/slow-core.log"
    until(lambda: "slow" in log.read_text(), "the slow core")


def destroy_guests(host: Host) -> None:
    """End what QEMU processes there are; they would outlive libvirt."""
    if running(f"libvirt-{host.name}") is None:
        return
    for name in call("virsh", "-c", host.uri, "list", "--name").split():
        call("virsh", "-c", host.uri, "destroy", name)


def end_guards() -> None:
    """End the guards, which outlive their agents: the folders they write into go."""
    for pid in guards(STATE):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)


def unmount_instances() -> None:
    """Take the mount away; its process ends with it."""
    if INSTANCES.is_mount():
        call("fusermount", "-u", INSTANCES)


def remove_groups() -> None:
    """Take all cgroups away; nothing runs in them any more."""
    counting.remove_counts()
    for name in (*(host.name for host in HOSTS), CONTROL.name):
        for tree in Path("/sys/fs/cgroup").iterdir():
            _remove_group(tree / name)


def _remove_group(group: Path) -> None:
    if not group.is_dir():
        return
    for child in [p for p in group.iterdir() if p.is_dir()]:
        _remove_group(child)
    group.rmdir()


def leave_control() -> None:
    """Leave the group of the control plane, so that it can go."""
    if CONTROL.is_dir():
        (CPU_TREE / "cgroup.procs").write_text(str(os.getpid()))
