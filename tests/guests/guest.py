# SPDX-License-Identifier: Apache-2.0
"""Real guests under libvirt and QEMU that count their own work."""

import contextlib
import shutil
import struct
import subprocess
import time
import uuid
import xml.sax.saxutils as xml
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import libvirt

from amp_nova.exceptions import AmpError

SOURCE = Path(__file__).with_name("guest.S")
PLUGIN_SOURCE = Path(__file__).parents[2] / "tools/icount.c"
INSTRUCTIONS_PER_ROUND = 20000 * 6 + 6 + 4 / 16
"""Counted in the source: 20000 turns of 6, 6 around them, 4 more after every 16 rounds."""
SENDER = Path(__file__).with_name("sender.S")
"""A guest that sends frames all the time and counts those instead of rounds."""
SERVER = Path(__file__).with_name("server.S")
"""A guest that answers requests at its serial port and counts the answers, and one more."""
_RAM_PATH = Path("/var/lib/libvirt/qemu/ram")
_RUN_PATH = Path("/run/libvirt/qemu")
_COUNTERS = 0x200000
_SLOT_BYTES = 64
_TICK_NS = 4
_NOVA = "http://openstack.org/xmlns/libvirt/nova/1.1"


def build(folder: Path, source: Path = SOURCE) -> Path:
    """Assemble a guest into ``folder`` with ``as`` and ``ld`` for x86; returns its image."""
    image = folder / f"{source.stem}.bin"
    if not _is_newer(image, source):
        folder.mkdir(parents=True, exist_ok=True)
        made = str(folder / f"{source.stem}.o")
        link = ["ld", "-m", "elf_i386", "-Ttext", "0x100000", "-e", "start", "--oformat", "binary"]
        _run(["as", "--32", str(source), "-o", made], "the guest", "binutils")
        _run([*link, made, "-o", str(image)], "the guest", "binutils")
        image.chmod(0o644)
    return image


def build_plugin(folder: Path) -> Path:
    """Compile QEMU's plugin that counts instructions into ``folder`` with ``gcc``."""
    plugin = folder / "icount.so"
    if not _is_newer(plugin, PLUGIN_SOURCE):
        folder.mkdir(parents=True, exist_ok=True)
        command = ["gcc", "-O2", "-shared", "-fPIC", "-fvisibility=hidden"]
        files = ["-o", str(plugin), str(PLUGIN_SOURCE)]
        _run([*command, *files], "the instruction counter", "gcc")
    return plugin


def _is_newer(made: Path, source: Path) -> bool:
    return made.exists() and made.stat().st_mtime > source.stat().st_mtime


def _run(command: list[str], what: str, package: str) -> None:
    if shutil.which(command[0]) is None:
        raise AmpError(f"{what} cannot be built: install {package}")
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise AmpError(f"{what} cannot be built: {result.stderr.strip()}")


@dataclass(frozen=True, slots=True)
class GuestSpec:
    """A guest to start. Nova's metadata carries its flavor's extra specs, as in Nova 32."""

    name: str
    vcpus: int = 1
    specs: Mapping[str, str] | None = None
    cpuset: str = ""
    pins: Mapping[int, str] | None = None
    metadata: str | None = None
    """Replaces Nova's metadata, to test invalid ones."""
    cputune: str = ""
    memory_mib: int = 8
    vcpus_max: int | None = None
    """If above ``vcpus``, the others can be hot-plugged."""
    counter: bool = False
    """Whether the plugin counts its instructions in ``counter_path``."""
    count: str = ""
    """How the plugin counts: ``callback`` or ``inline``; empty: the plugin decides."""
    iothreads: int = 0
    devices: str = ""
    """XML of additional devices."""

    @property
    def counter_path(self) -> Path:
        """The plugin's file of counters, in shared memory."""
        return Path(f"/dev/shm/{self.name}.icount")


def _metadata(spec: GuestSpec) -> str:
    if spec.metadata is not None:
        return spec.metadata
    extra = "".join(
        f"<nova:extraSpec name={xml.quoteattr(k)}>{xml.escape(v)}</nova:extraSpec>"
        for k, v in (spec.specs or {}).items()
    )
    return (
        f'<nova:instance xmlns:nova="{_NOVA}"><nova:name>{spec.name}</nova:name>'
        f'<nova:flavor name="lab"><nova:vcpus>{spec.vcpus}</nova:vcpus>'
        f"<nova:extraSpecs>{extra}</nova:extraSpecs></nova:flavor>"
        '<nova:owner><nova:project uuid="lab">lab</nova:project></nova:owner></nova:instance>'
    )


def domain_xml(spec: GuestSpec, image: Path, kind: str = "qemu") -> str:
    """The libvirt definition of a guest, whose memory is a shared file with the counters in it."""
    pins = "".join(
        f'<vcpupin vcpu="{v}" cpuset="{c}"/>' for v, c in sorted((spec.pins or {}).items())
    )
    cpuset = f' cpuset="{spec.cpuset}"' if spec.cpuset else ""
    vcpus = spec.vcpus_max or spec.vcpus
    current = f' current="{spec.vcpus}"' if spec.vcpus_max else ""
    return f"""<domain type="{kind}" xmlns:qemu="http://libvirt.org/schemas/domain/qemu/1.0">
<name>{spec.name}</name><uuid>{uuid.uuid4()}</uuid>
<metadata>{_metadata(spec)}</metadata>
<memory unit="MiB">{spec.memory_mib}</memory><vcpu{cpuset}{current}>{vcpus}</vcpu>
<iothreads>{spec.iothreads}</iothreads><cputune>{pins}{spec.cputune}</cputune>
<memoryBacking><source type="file"/><access mode="shared"/></memoryBacking>
<os><type arch="x86_64" machine="pc">hvm</type><kernel>{image}</kernel></os>
<features><acpi/><apic/></features>
<cpu mode="custom" match="exact"><model fallback="allow">qemu64</model></cpu>
<on_poweroff>destroy</on_poweroff><on_reboot>destroy</on_reboot><on_crash>destroy</on_crash>
<devices><emulator>/usr/bin/qemu-system-x86_64</emulator>
<controller type="usb" model="none"/><memballoon model="none"/>{spec.devices}</devices>
{_plugin(spec, image)}</domain>"""


def _plugin(spec: GuestSpec, image: Path) -> str:
    """The plugin is beside the guest's image."""
    if not spec.counter:
        return ""
    how = f",count={spec.count}" if spec.count else ""
    value = f"{image.with_name('icount.so')},out={spec.counter_path}{how}"
    return (
        '<qemu:commandline><qemu:arg value="-plugin"/>'
        f"<qemu:arg value={xml.quoteattr(value)}/></qemu:commandline>"
    )


class Guest:
    """A running guest and its counters."""

    def __init__(self, conn: Any, spec: GuestSpec, image: Path) -> None:
        """Start it on the libvirt connection ``conn``; ``AmpError`` if it does not start."""
        self.spec = spec
        if spec.counter:
            build_plugin(image.parent)
        with contextlib.suppress(libvirt.libvirtError):
            conn.lookupByName(spec.name).destroy()
        try:
            self.domain = conn.createXML(domain_xml(spec, image), 0)
        except libvirt.libvirtError as exc:
            raise AmpError(f"guest {spec.name} does not start: {exc}") from exc
        self.resource = str(self.domain.UUIDString())
        self._schedstats: tuple[Path, ...] = ()
        try:
            self.pid = int((_RUN_PATH / f"{spec.name}.pid").read_text())
            # libvirt truncates names here.
            folder = _RAM_PATH / f"{self.domain.ID()}-{spec.name[:20]}"
            # Unbuffered, so that every read is of the guest's memory.
            self._memory = next(iter(folder.iterdir())).open("r+b", buffering=0)
        except OSError as exc:
            self.domain.destroy()
            raise AmpError(f"guest {spec.name} has no counters: {exc}") from exc

    def rounds(self) -> tuple[int, ...]:
        """Rounds of work that every vCPU has done."""
        return tuple(self._slot(i) for i in range(self.spec.vcpus))

    def _slot(self, index: int) -> int:
        self._memory.seek(_COUNTERS + _SLOT_BYTES * index)
        return int(struct.unpack("<Q", self._memory.read(8))[0])

    def instructions(self) -> tuple[int, ...]:
        """Instructions of every vCPU so far, from the plugin's file."""
        raw = self.spec.counter_path.read_bytes()
        return tuple(struct.unpack_from("=Q", raw, 64 + 64 * i)[0] for i in range(self.spec.vcpus))

    def nap(self, length_ns: int) -> None:
        """Make every vCPU sleep for ``length_ns`` after each 16 rounds; 0 stops that."""
        self._control(length_ns // _TICK_NS)

    def pause(self, turns: int) -> None:
        """Make a sender loop for ``turns`` after each batch of frames."""
        self._control(turns)

    def _control(self, word: int) -> None:
        """Write the word that every vCPU reads between its rounds."""
        for index in range(self.spec.vcpus):
            self._memory.seek(_COUNTERS + _SLOT_BYTES * index + 8)
            self._memory.write(struct.pack("<I", word))

    def wait(self, timeout_s: float = 30.0) -> "Guest":
        """Wait until every vCPU counts; ``AmpError`` if that takes too long."""
        end = time.monotonic() + timeout_s
        while not all(self.rounds()):
            if time.monotonic() > end:
                raise AmpError(f"guest {self.spec.name} does not count: {self.rounds()}")
            time.sleep(0.02)
        return self

    def task(self, vcpu: int = 0) -> Path:
        """The folder of a vCPU's thread below /proc; ``AssertionError`` if it has none."""
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            if (task / "comm").read_text().startswith(f"CPU {vcpu}/"):
                return task
        raise AssertionError(f"vCPU {vcpu} of {self.spec.name} has no thread")

    def cpu_ns(self) -> tuple[int, ...]:
        """CPU time of every vCPU thread so far, in nanoseconds."""
        if not self._schedstats:
            vcpus = range(self.spec.vcpus)
            self._schedstats = tuple(self.task(vcpu) / "schedstat" for vcpu in vcpus)
        return tuple(int(path.read_text().split()[0]) for path in self._schedstats)

    def work(self, turns: int) -> None:
        """Make a server loop for ``turns`` before each answer."""
        self._control(turns)

    def pin(self, vcpu: int, cpus: Sequence[int], host_cpus: int) -> None:
        """Pin a vCPU through libvirt, as Nova or an operator would."""
        self.domain.pinVcpu(vcpu, tuple(i in cpus for i in range(host_cpus)))

    def close(self) -> None:
        """Destroy the guest."""
        self._memory.close()
        with contextlib.suppress(libvirt.libvirtError):
            self.domain.destroy()
        if self.spec.counter:
            self.spec.counter_path.unlink(missing_ok=True)
