# SPDX-License-Identifier: Apache-2.0
"""Instructions of emulated guests: the plugin of every QEMU, and what a core retires."""

import shutil
import statistics
import struct
import subprocess
import time
from dataclasses import replace
from pathlib import Path

from amp_nova.hardware.calibration import Estimate
from amp_nova.host.calibration import file
from tests.guests.guest import build, build_plugin
from tools.cloud.layout import STATE, Host
from tools.cloud.processes import until

FOLDER = STATE / "counting"
QEMU = Path("/usr/bin/qemu-system-x86_64")
SAMPLES, SAMPLE_S = 5, 0.4
CONFIDENCE_RATIO = 1 - 2 * 0.5**SAMPLES
"""Of the median lying between the least and the greatest sample."""
WRAPPER = """\
#!/bin/sh
# Guests have a name; libvirt's questions about what QEMU can do have none.
case " $* " in
    *" -name guest="*) set -- "$@" -plugin {plugin},out=/dev/shm/minicloud-{host}-$$.icount ;;
esac
exec {real} "$@"
"""


def prepare(host: Host) -> None:
    """The program that host.sh binds over the host's QEMU, and the plugin that it adds."""
    plugin = build_plugin(FOLDER)
    folder = host.folder / "qemu"
    real = folder / "bin" / QEMU.name
    real.parent.mkdir(parents=True)
    real.touch()  # the machine's QEMU is bound over it
    for shared in ("lib", "share"):  # QEMU finds its files from where it is itself
        (folder / shared).symlink_to(QEMU.parents[1] / shared)
    wrapper = folder / "wrapper"
    wrapper.write_text(WRAPPER.format(plugin=plugin, host=host.name, real=real))
    wrapper.chmod(0o755)


def counts_of(host: Host, pid: int) -> Path:
    """The plugin's file of a QEMU process."""
    return Path(f"/dev/shm/minicloud-{host.name}-{pid}.icount")


def add_nominal_ips(host: Host, inside: list[object]) -> None:
    """Measure what a guest retires per CPU second of the host's core, into its calibration.

    ``amp-nova calibrate`` does that where a core has counters; here only guests are counted.
    """
    what = ("-nodefaults", "-display", "none", "-machine", "accel=tcg", "-m", "16")
    name = ("-name", "guest=nominal,debug-threads=on")
    pinned = ("taskset", "-c", host.pcpus, QEMU, *name, *what, "-kernel", build(FOLDER))
    # Each of these programs replaces itself by the next: one process, whose id names the file.
    qemu = subprocess.Popen([str(word) for word in (*inside, *pinned)], stdin=subprocess.DEVNULL)
    try:
        until(lambda: _counted(host, qemu.pid), f"the counting guest of {host.name}", 20)
        samples = [_sample(host, qemu.pid) for _ in range(SAMPLES)]
    finally:
        qemu.kill()
        qemu.wait()
        counts_of(host, qemu.pid).unlink(missing_ok=True)
    value = statistics.median(samples)
    estimate = Estimate(value, min(samples), max(samples), CONFIDENCE_RATIO)
    (calibration,) = file.read(host.calibration)
    types = tuple(replace(t, nominal_ips=estimate) for t in calibration.core_types)
    file.write(host.calibration, [replace(calibration, core_types=types, nominal_ips_missing=None)])


def _counted(host: Host, pid: int) -> int:
    try:
        raw = counts_of(host, pid).read_bytes()
    except FileNotFoundError:
        return 0
    return int(struct.unpack_from("=Q", raw, 64)[0])


def _sample(host: Host, pid: int) -> float:
    """Instructions per CPU second."""
    before, ran_ns = _counted(host, pid), _vcpu_ns(pid)
    time.sleep(SAMPLE_S)
    return 1e9 * (_counted(host, pid) - before) / (_vcpu_ns(pid) - ran_ns)


def _vcpu_ns(pid: int) -> int:
    for task in Path(f"/proc/{pid}/task").iterdir():
        if (task / "comm").read_text().startswith("CPU 0/"):
            return int((task / "schedstat").read_text().split()[0])
    raise FileNotFoundError(f"QEMU {pid} has no vCPU")


def remove_counts() -> None:
    """Files of guests that were killed; a QEMU that ends by itself removes its own."""
    for path in Path("/dev/shm").glob("minicloud-*.icount"):
        path.unlink()
    shutil.rmtree(FOLDER, ignore_errors=True)
