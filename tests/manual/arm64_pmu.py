#!/usr/bin/env python3
"""Manual check of the agent's hardware counters on a machine whose PMU counts instructions.

The PMU of an emulated arm64 machine (QEMU, ``-icount``) counts them exactly. Linux boots on it, and
the code that opens counters for vCPU threads counts a program of known length. It needs neither
hardware counters nor root, and installs nothing: Debian's packages are downloaded to a folder and
unpacked there. It takes about a minute and 200 MB:

    python tests/manual/arm64_pmu.py /tmp/arm64-pmu

Expected: ratios of 1.001, because the kernel's timer ticks count too; 0 with ``guest_only``,
because nothing here is a guest; no cache misses, an event that this PMU lacks; an error message for
a thread that has exited.
"""

import gzip
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import amp_nova

TURNS = (20_000_000, 40_000_000)
GUEST_PACKAGES = [
    "libc6",
    "libgcc-s1",
    "python3.11-minimal",
    "libpython3.11-minimal",
    "libpython3.11-stdlib",
    "zlib1g",
    "libexpat1",
    "libffi8",
    "busybox-static",
]
HOST_PACKAGES = ("binutils-aarch64-linux-gnu", "qemu-system-arm")

WORK = """
.globl _start
_start: mov x8, #172        // getpid
        svc #0
        mov x1, #19         // kill itself with SIGSTOP: a counter is opened meanwhile
        mov x8, #129
        svc #0
        ldr x0, ={turns}
1:      subs x0, x0, #1
        b.ne 1b
        mov x0, #0
        mov x8, #93         // exit
        svc #0
"""

INIT = """#!/bin/busybox sh
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sys /sys
/bin/busybox dmesg | /bin/busybox grep -i pmu
/usr/bin/python3.11 /check.py
/bin/busybox poweroff -f
"""

CHECK = """
import os, signal, sys
sys.path.insert(0, "/amp")
from amp_nova.exceptions import CountersUnavailable
from amp_nova.host.counters import perf
from amp_nova.host.counters.perf_vcpu import PerfCounter

open_guest = perf.open_event

def open_all(event, tid, group, flags, read_format):
    return open_guest(event, tid, group, 0, read_format)

print("PMUs:", perf.pmus(), "mediated:", perf.mediated(), flush=True)
for guest_only in (False, True):
    for turns in TURNS:
        pid = os.fork()
        if not pid:
            os.execv(f"/work{turns}", ["work"])
        os.waitpid(pid, os.WUNTRACED)
        counter = PerfCounter(pid, perf.pmus(), open_event=open_guest if guest_only else open_all)
        before = counter.read()
        os.kill(pid, signal.SIGCONT)
        os.waitpid(pid, 0)
        after = counter.read()
        gain = after.instructions - before.instructions
        print(
            f"guest_only={guest_only}, {turns} turns of 2 instructions: {gain} counted, ratio",
            f"{gain / (2 * turns):.5f}; cycles {after.cycles}, misses {after.cache_misses};",
            f"{counter.note}",
            flush=True,
        )
        counter.close()
try:
    PerfCounter(999999, perf.pmus())
except CountersUnavailable as exc:
    print("a thread that is not there:", exc, flush=True)
"""


def run(*command: str, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    """Run a command; its output."""
    return subprocess.run(
        command, cwd=cwd, env=env, check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def fetch(folder: Path) -> None:
    """Unpack the packages of the emulated machine, and of this one, below the folder."""
    state = folder / "apt"
    for name in ("lists/partial", "cache/archives/partial"):
        (state / name).mkdir(parents=True)
    (state / "status").touch()
    said = {
        "Dir::State": state,
        "Dir::State::status": state / "status",
        "Dir::Cache": state / "cache",
        "APT::Architecture": "arm64",
        "APT::Architectures": "arm64",
    }
    options = [word for key, value in said.items() for word in ("-o", f"{key}={value}")]
    run("apt-get", *options, "-q", "update")
    found = run("apt-cache", *options, "search", "--names-only", "^linux-image-6.*-cloud-arm64$")
    kernels = sorted(n for n in re.findall(r"^\S+", found, re.M) if "unsigned" not in n)
    for where, packages, more in (
        ("kernel", kernels[-1:], options),
        ("root", GUEST_PACKAGES, options),
        ("tools", HOST_PACKAGES, []),
    ):
        debs = folder / f"{where}-debs"
        debs.mkdir()
        run("apt-get", *more, "-q", "download", *packages, cwd=debs)
        for deb in sorted(debs.iterdir()):
            run("dpkg-deb", "-x", str(deb), str(folder / where))


def fill(root: Path, tools: Path) -> None:
    """What the emulated machine runs: our code, the check, and programs of known length."""
    package = Path(amp_nova.__file__).parent
    for part in ("__init__.py", "exceptions.py", "core", "host"):
        copy = shutil.copytree if (package / part).is_dir() else shutil.copy
        (root / "amp/amp_nova").mkdir(parents=True, exist_ok=True)
        copy(package / part, root / "amp/amp_nova" / part)
    (root / "check.py").write_text(f"TURNS = {TURNS}\n{CHECK}")
    (root / "init").write_text(INIT)
    (root / "init").chmod(0o755)
    for name in ("proc", "sys", "dev"):
        (root / name).mkdir(exist_ok=True)
    env = {**os.environ, "LD_LIBRARY_PATH": str(tools / "usr/lib/x86_64-linux-gnu")}
    for turns in TURNS:
        source = root.parent / "work.s"
        source.write_text(WORK.format(turns=turns))
        assembler, linker = (str(tools / f"usr/bin/aarch64-linux-gnu-{n}") for n in ("as", "ld"))
        run(assembler, str(source), "-o", str(source.with_suffix(".o")), env=env)
        run(linker, str(source.with_suffix(".o")), "-o", str(root / f"work{turns}"), env=env)


def pack(root: Path, image: Path) -> None:
    """An initial RAM disk ("newc" archive) of the folder."""
    with gzip.open(image, "wb", 1) as out:

        def put(name: str, mode: int, data: bytes = b"", device: tuple[int, int] = (0, 0)) -> None:
            path = name.encode() + b"\0"
            fields = (1, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(path), 0)
            header = b"070701" + b"".join(b"%08X" % field for field in fields) + path
            out.write(header + b"\0" * (-len(header) % 4) + data + b"\0" * (-len(data) % 4))

        for path in sorted(root.rglob("*")):
            mode, name = path.lstat().st_mode, str(path.relative_to(root))
            if stat.S_ISLNK(mode):
                put(name, mode, os.readlink(path).encode())
            elif stat.S_ISDIR(mode):
                put(name, mode)
            else:
                put(name, mode, path.read_bytes())
        put("dev/console", 0o020600, device=(5, 1))
        put("TRAILER!!!", 0)


def main() -> None:
    """Fetch, boot, print."""
    if len(sys.argv) != 2:
        sys.exit("name one folder that does not exist yet, for about 200 MB")
    folder = Path(sys.argv[1]).resolve()
    folder.mkdir(parents=True)
    fetch(folder)
    fill(folder / "root", folder / "tools")
    pack(folder / "root", folder / "initrd.gz")
    (kernel,) = (folder / "kernel/boot").glob("vmlinuz-*")
    tools = folder / "tools/usr"
    machine = [
        "-M",
        "virt",
        "-cpu",
        "cortex-a57",
        "-m",
        "512",
        "-icount",
        "shift=0",
        "-nographic",
        "-nic",
        "none",
    ]
    subprocess.run(
        [
            str(tools / "bin/qemu-system-aarch64"),
            *machine,
            *("-kernel", str(kernel), "-initrd", str(folder / "initrd.gz")),
            *("-append", "console=ttyAMA0 quiet rdinit=/init"),
            *("-L", str(tools / "share/qemu"), "-L", "/usr/share/qemu"),
        ],
        stdin=subprocess.DEVNULL,
        check=True,
        timeout=300,
    )


if __name__ == "__main__":
    main()
