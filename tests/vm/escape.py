# SPDX-License-Identifier: Apache-2.0
"""Tries to leave the sandbox of a unit; prints a line for each attempt and how it ended.

Run outside the sandbox as root, no attempt is refused, so a refusal is the sandbox's work.
"""

import ctypes
import errno
import os
import socket
import subprocess
import sys
from pathlib import Path

LIBC = ctypes.CDLL(None, use_errno=True)
REFUSED = {errno.EPERM, errno.EACCES, errno.EROFS, errno.ENOENT, errno.EAFNOSUPPORT}
PTRACE_SEIZE, PTRACE_DETACH = 0x4206, 17
FINIT_MODULE = 313
"""Its number on x86-64."""
CLONE_NEWUSER = 0x10000000


def call(name, *arguments):
    """Call a function of the C library; ``OSError`` if it fails."""
    ctypes.set_errno(0)
    if getattr(LIBC, name)(*arguments) == -1:
        raise OSError(ctypes.get_errno(), name)


def write_memory(pid):
    """``process_vm_writev``; EFAULT means that the kernel would have allowed it."""
    number = ctypes.c_int(0)

    class Vector(ctypes.Structure):
        _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]

    here = Vector(ctypes.addressof(number), 4)
    there = Vector(4096, 4)
    try:
        call("process_vm_writev", pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
    except OSError as exc:
        if exc.errno != errno.EFAULT:
            raise


def trace(pid):
    """Attach to a process as a debugger does."""
    call("ptrace", PTRACE_SEIZE, pid, None, None)
    LIBC.ptrace(PTRACE_DETACH, pid, None, None)


def load_module():
    """ENOEXEC or EINVAL for what is no module means that a module would have been loaded."""
    with open(sys.executable, "rb") as file:
        try:
            call("syscall", FINIT_MODULE, file.fileno(), b"", 0)
        except OSError as exc:
            if exc.errno not in (errno.ENOEXEC, errno.EINVAL):
                raise


def connect(path):
    """Connect to a local socket."""
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(path)


def create(folder):
    """Create a file."""
    path = Path(folder, "amp-nova-was-here")
    path.touch()
    path.unlink()


def rewrite(path):
    """Write what a file holds already."""
    path = Path(path)
    path.write_text(path.read_text())


def run(*command):
    """Run a command; ``PermissionError`` if it fails."""
    done = subprocess.run(command, capture_output=True, check=False, timeout=60)
    if done.returncode:
        raise PermissionError(errno.EPERM, done.stderr.decode()[:80])


def raw_socket(family, protocol):
    """Open a socket that sees or forges packets."""
    socket.socket(family, socket.SOCK_RAW, protocol).close()


def attempts(pid):
    """What is tried; ``pid``: a privileged process."""
    return {
        "write into another process": lambda: write_memory(pid),
        "trace another process": lambda: trace(pid),
        "open another process's memory": lambda: os.close(os.open(f"/proc/{pid}/mem", os.O_RDWR)),
        "connect to the manager": lambda: connect("/run/systemd/private"),
        "connect to D-Bus": lambda: connect("/run/dbus/system_bus_socket"),
        "start a unit": lambda: run("systemd-run", "--quiet", "--wait", "true"),
        "manage libvirt": lambda: run("virsh", "-c", "qemu:///system", "list"),
        "write to /etc": lambda: create("/etc"),
        "write to /usr/bin": lambda: create("/usr/bin"),
        "write to /root": lambda: create("/root"),
        "write to /run": lambda: create("/run"),
        "write a service's cgroup": lambda: rewrite("/sys/fs/cgroup/system.slice/cgroup.max.depth"),
        "write a sysctl": lambda: rewrite("/proc/sys/kernel/printk"),
        "load a module": load_module,
        "open a raw socket": lambda: raw_socket(socket.AF_INET, socket.IPPROTO_ICMP),
        "open a packet socket": lambda: raw_socket(socket.AF_PACKET, 0),
        "become root": lambda: os.setuid(0),
        "make a user namespace": lambda: call("unshare", CLONE_NEWUSER),
    }


def main():
    """Try everything; each attempt in a process of its own."""
    for name, attempt in attempts(int(sys.argv[1])).items():
        if (child := os.fork()) == 0:
            try:
                attempt()
            except OSError as exc:
                end = "refused" if exc.errno in REFUSED else "failed"
                print(f"{name}: {end}: {str(exc)!r}", flush=True)
            else:
                print(f"{name}: done", flush=True)
            os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
