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
PLUGIN_SOURCE = Path(__file__).with_name("icount.c")
INSTRUCTIONS_PER_ROUND = 20000 * 6 + 6 + 4 / 16
"""By hand from the source: 20000 turns of 6, 6 around them, 4 more after every 16 rounds."""
SENDER = Path(__file__).with_name("sender.S")
"""A guest that sends frames all the time, and counts them in place of rounds."""
_COUNTERS = 0x200000
_SLOT_BYTES = 64
_MEMORY = 1 << 31
_TICK_NS = 4
_NOVA = "http://openstack.org/xmlns/libvirt/nova/1.1"


def build(folder: Path, source: Path = SOURCE) -> Path:
    """Assemble the guest into ``folder``; needs ``as`` and ``ld`` for x86."""
    image = folder / f"{source.stem}.bin"
    if image.exists() and image.stat().st_mtime > source.stat().st_mtime:
        return image
    if shutil.which("as") is None or shutil.which("ld") is None:
        raise AmpError("the guest cannot be built: install binutils")
    folder.mkdir(parents=True, exist_ok=True)
    made = folder / f"{source.stem}.o"
    link = ["ld", "-m", "elf_i386", "-Ttext", "0x100000", "-e", "start", "--oformat", "binary"]
    assemble = ["as", "--32", str(source), "-o", str(made)]
    for command in (assemble, [*link, str(made), "-o", str(image)]):
        _run(command, "the guest")
    image.chmod(0o644)
    return image


def build_plugin(folder: Path) -> Path:
    """Compile the plugin that counts instructions of emulated guests; needs ``gcc``."""
    plugin = folder / "icount.so"
    if plugin.exists() and plugin.stat().st_mtime > PLUGIN_SOURCE.stat().st_mtime:
        return plugin
    if shutil.which("gcc") is None:
        raise AmpError("the instruction counter cannot be built: install gcc")
    folder.mkdir(parents=True, exist_ok=True)
    command = ["gcc", "-O2", "-shared", "-fPIC", "-fvisibility=hidden"]
    _run([*command, "-o", str(plugin), str(PLUGIN_SOURCE)], "the instruction counter")
    return plugin


def _run(command: list[str], what: str) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise AmpError(f"{what} cannot be built: {result.stderr.strip()}")


@dataclass(frozen=True, slots=True)
class GuestSpec:
    """A guest to start: its flavor's extra specs travel in Nova's metadata, as from Nova 32."""

    name: str
    vcpus: int = 1
    specs: Mapping[str, str] | None = None
    cpuset: str = ""
    pins: Mapping[int, str] | None = None
    metadata: str | None = None
    """Replaces Nova's metadata when given, for garbage."""
    cputune: str = ""
    memory_mib: int = 8
    vcpus_max: int | None = None
    """More than ``vcpus``: the others can be plugged in later."""
    counter: bool = False
    """Count its instructions with the plugin, in ``counter_path``."""
    count: str = ""
    """How the plugin counts, when it shall not decide: ``callback`` or ``inline``."""
    iothreads: int = 0
    devices: str = ""
    """More devices, as libvirt has them."""

    @property
    def counter_path(self) -> Path:
        """Where the plugin counts, in memory that the host shares."""
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
    """The libvirt definition of a guest; its memory is a shared file, which holds the counters."""
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
    """The plugin lies beside the guest's image."""
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

    def __init__(
        self,
        conn: Any,
        spec: GuestSpec,
        image: Path,
        ram_path: Path = Path("/var/lib/libvirt/qemu/ram"),
        run_path: Path = Path("/run/libvirt/qemu"),
    ) -> None:
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
            self.pid = int((run_path / f"{spec.name}.pid").read_text())
            # libvirt cuts names short here.
            folder = ram_path / f"{self.domain.ID()}-{spec.name[:20]}"
            # Unbuffered, so that every read sees the guest's memory as it is.
            self._memory = next(iter(folder.iterdir())).open("r+b", buffering=0)
        except OSError as exc:
            self.domain.destroy()
            raise AmpError(f"guest {spec.name} has no counters: {exc}") from exc

    def rounds(self) -> tuple[int, ...]:
        """Rounds of work done so far by every vCPU."""
        return tuple(self._slot(i) for i in range(self.spec.vcpus))

    def _slot(self, index: int) -> int:
        self._memory.seek(_COUNTERS + _SLOT_BYTES * index)
        return int(struct.unpack("<Q", self._memory.read(8))[0])

    def instructions(self) -> tuple[int, ...]:
        """Instructions of every vCPU so far, as the plugin's file has them."""
        raw = self.spec.counter_path.read_bytes()
        return tuple(struct.unpack_from("=Q", raw, 64 + 64 * i)[0] for i in range(self.spec.vcpus))

    def nap(self, length_ns: int) -> None:
        """Make every vCPU sleep that long after each 16 rounds; 0 makes it work all the time."""
        if length_ns >= _MEMORY * _TICK_NS:  # would mean something else
            raise ValueError(f"a nap of {length_ns} ns is too long: {_MEMORY * _TICK_NS} or more")
        self._ask(length_ns // _TICK_NS)

    def pause(self, turns: int) -> None:
        """Make a sender work that many turns of a loop after each batch."""
        self._ask(turns)

    def _ask(self, what: int) -> None:
        for index in range(self.spec.vcpus):
            self._memory.seek(_COUNTERS + _SLOT_BYTES * index + 8)
            self._memory.write(struct.pack("<I", what))

    def remember(self, mask: int) -> None:
        """Make every vCPU read memory at random, in ``mask`` + 1 bytes above 8 MiB, not compute."""
        self._ask(_MEMORY | mask)

    def wait(self, timeout_s: float = 30.0) -> "Guest":
        """Until every vCPU counts."""
        end = time.monotonic() + timeout_s
        while not all(self.rounds()):
            if time.monotonic() > end:
                raise AmpError(f"guest {self.spec.name} does not count: {self.rounds()}")
            time.sleep(0.02)
        return self

    def cpu_ns(self) -> tuple[int, ...]:
        """CPU time of every vCPU thread so far."""
        if not self._schedstats:
            found = {}
            for task in Path(f"/proc/{self.pid}/task").iterdir():
                comm = (task / "comm").read_text()
                if comm.startswith("CPU "):
                    found[int(comm[4:].split("/")[0])] = task / "schedstat"
            self._schedstats = tuple(found[i] for i in range(self.spec.vcpus))
        return tuple(int(path.read_text().split()[0]) for path in self._schedstats)

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
