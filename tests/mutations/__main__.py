# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.mutations [WORD...]``: removes each check that safety rests on; who notices?

A mutant is one line of the product made wrong, with the tests that have to notice it. It is made in
a copy of this checkout. Words select the mutants whose file or description has one of them. Exit
status 1 if a mutant survives. A new line that safety rests on belongs in this list.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
TEST_S, TIMEOUT_S = 60, 600
"""How long a test and all tests of a mutant may take: one that hangs has died."""


class Mutant(NamedTuple):
    """``old`` is ``new`` in ``file``, below ``amp_nova``; ``tests`` are below ``tests/unit``."""

    what: str
    file: str
    old: str
    new: str
    tests: str


_GUARD, _LEASE, _RECORD = "guard/test_guard.py", "guard/test_lease.py", "guard/test_record.py"
_HTTP = "agent/publish/test_web_server.py"
_TENANT = "tenant/test_application.py"
_WRITER = "host/test_writer.py"
MUTANTS = (
    Mutant(
        "the guard does not look for a new lease before a write",
        "guard/__main__.py",
        "not (lease.remaining_s(self._state_path) or resource in self._pauses.current())",
        "resource not in self._pauses.current()",
        _GUARD,
    ),
    Mutant(
        "the guard does not look for a pause before a write",
        "guard/__main__.py",
        "not (lease.remaining_s(self._state_path) or resource in self._pauses.current())",
        "not lease.remaining_s(self._state_path)",
        _GUARD,
    ),
    Mutant(
        "the guard asks only before the first write to a vCPU",
        "guard/restore.py",
        "                    if not may():\n                        return\n",
        "",
        _GUARD,
    ),
    Mutant(
        "the guard changes the weight without asking",
        "guard/restore.py",
        "group.shares() == weight or not (may is None or may())",
        "group.shares() == weight",
        _GUARD,
    ),
    Mutant(
        "a record may name a process elsewhere",
        "guard/__main__.py",
        "os.path.dirname(domain.process) != self._proc",
        "False",
        _GUARD,
    ),
    Mutant(
        "a lease of another boot is trusted",
        "guard/lease.py",
        "0.0 < left_s <= LEASE_MAX_S",
        "0.0 < left_s",
        _LEASE,
    ),
    Mutant(
        "a second guard runs beside the first",
        "guard/lease.py",
        "fcntl.flock(fd, fcntl.LOCK_EX",
        "fcntl.flock(fd, fcntl.LOCK_SH",
        _LEASE,
    ),
    Mutant(
        "a lease whose file was replaced is kept",
        "guard/lease.py",
        "os.path.samestat(os.stat(self._file), self._about)",
        "True",
        _LEASE,
    ),
    Mutant(
        "a lease that expired is kept",
        "guard/lease.py",
        '"" if time.monotonic_ns() < self._ends_ns else',
        '"" if self._ends_ns else',
        _LEASE,
    ),
    Mutant(
        "a record is read through a link",
        "guard/record.py",
        "os.O_RDONLY | os.O_NOFOLLOW",
        "os.O_RDONLY",
        _RECORD,
    ),
    Mutant(
        "a record of another user is read",
        "guard/record.py",
        "about.st_uid not in trusted or ",
        "",
        _RECORD,
    ),
    Mutant(
        "a record that others can write is read",
        "guard/record.py",
        " or about.st_mode & 0o022",
        "",
        _RECORD,
    ),
    Mutant(
        "a pause is written through a link",
        "guard/pauses.py",
        "            fresh.unlink(missing_ok=True)  # whatever it is: a link may lead anywhere\n",
        "",
        "guard/test_pauses.py",
    ),
    Mutant(
        "the state path is not checked",
        "agent/service.py",
        "            check_trusted_path(state_path)\n",
        "",
        "cmd/test_agent_process.py::test_a_state_directory_that_others_can_change_is_refused",
    ),
    Mutant(
        "a path that others can write is trusted",
        "private_files.py",
        "status.st_mode & (stat.S_IWOTH | stat.S_IWGRP)",
        "False",
        "host/test_machine.py",
    ),
    Mutant(
        "headers of any size",
        "http_server.py",
        "HEADER_BYTES_MAX = 16384",
        "HEADER_BYTES_MAX = 1 << 30",
        _HTTP,
    ),
    Mutant(
        "bodies of any size",
        "http_server.py",
        "        self.max_request_body_size = body_max\n",
        "",
        _HTTP,
    ),
    Mutant(
        "any number of connections",
        "http_server.py",
        "while len(opened := list(self.opened)) >= CONNECTIONS_MAX",
        "while len(opened := list(self.opened)) >= 1 << 30",
        _HTTP,
    ),
    Mutant(
        "connections of any length",
        "http_server.py",
        "if now_s - since_s > seconds",
        "if False",
        _HTTP,
    ),
    Mutant(
        "two lengths of one body",
        "http_server.py",
        "name in lengths and not lengths.isdisjoint(self)",
        "False",
        _HTTP,
    ),
    Mutant(
        "a length that is no number",
        "http_server.py",
        'name == b"Content-Length" and not re.fullmatch(rb"[0-9]{1,18}", value)',
        "False",
        _HTTP,
    ),
    Mutant(
        "any name of the host",
        "agent/publish/web_server.py",
        "host and not _is_allowed(host, self._names)",
        "False",
        _HTTP,
    ),
    Mutant(
        "vendordata follows redirects with the user's token",
        "tenant/application.py",
        "redirect=False",
        "redirect=True",
        _TENANT,
    ),
    Mutant(
        "vendordata answers without Keystone's filter",
        "tenant/application.py",
        'request.get("HTTP_X_IDENTITY_STATUS") != "Confirmed"',
        "False",
        _TENANT,
    ),
    Mutant(
        "any role vouches for a server",
        "tenant/application.py",
        'role not in request.get("HTTP_X_ROLES", "").lower().split(",")',
        "False",
        _TENANT,
    ),
    Mutant(
        "a server of another project is shown",
        "tenant/application.py",
        '(shown.get("id"), shown.get("tenant_id")) != (server, project)',
        "False",
        _TENANT,
    ),
    Mutant(
        "every host's series count",
        "tenant/figures.py",
        'each.metric.get("host", "") in hosts',
        "True",
        _TENANT,
    ),
    Mutant(
        "series of several hosts count if Nova names none",
        "tenant/figures.py",
        "elif len(hosts) > 1:",
        "elif False:",
        _TENANT,
    ),
    Mutant(
        "Prometheus' address may redirect",
        "prometheus.py",
        "build_opener(_NoRedirects)",
        "build_opener()",
        "test_prometheus.py",
    ),
    Mutant(
        "decisions of any size",
        "wire/decision.py",
        "not isinstance(text, str) or len(text) > CHARACTERS_MAX",
        "not isinstance(text, str)",
        "wire/test_decision.py",
    ),
    Mutant(
        "files of any size",
        "kernel/files.py",
        "if len(found) > TEXT_BYTES_MAX",
        "if False",
        "kernel",
    ),
    Mutant(
        "a socket of libvirt that was replaced is waited for",
        "host/libvirt/hypervisor.py",
        "os.path.exists(p) and os.stat(p).st_nlink",
        "os.path.exists(p)",
        "host/libvirt",
    ),
    Mutant(
        "a limit is written without a lease",
        "host/writer.py",
        """                    if (failure := self._fenced()) is not None:
                        return failure
""",
        "",
        _WRITER,
    ),
    Mutant(
        "a CPU weight is written without a lease",
        "host/writer.py",
        """            if (failure := self._fenced()) is not None:
                return failure
            self._backend.set_weight""",
        "            self._backend.set_weight",
        _WRITER,
    ),
    Mutant(
        "a write does not look whose thread it is",
        "host/writer.py",
        "                thread.verify()\n                thread.written()",
        "                thread.written()",
        _WRITER,
    ),
    Mutant(
        "a thread's ID is all that counts",
        "kernel/threads.py",
        "if started(self.task) != self.started",
        "if False",
        _WRITER,
    ),
    Mutant(
        "paused vCPUs are changed",
        "host/writer.py",
        "for c in changes.vcpus if c.key[0] in paused\n",
        "for c in changes.vcpus if False\n",
        _WRITER,
    ),
    Mutant(
        "paused instances get another CPU weight",
        "host/writer.py",
        "if r not in unset}",
        "}",
        _WRITER,
    ),
    Mutant(
        "what could not be recorded is changed",
        "host/writer.py",
        "failures |= {key: unrecorded[key] for key in keys if key in unrecorded}",
        "pass",
        "host/test_records.py",
    ),
    Mutant(
        "a limit that others set is undone",
        "host/writer.py",
        "vcpu.bandwidth is not None and not reading.domain.limited_elsewhere",
        "vcpu.bandwidth is not None",
        _WRITER,
    ),
    Mutant(
        "a limit that the kernel did not take counts as set",
        "kernel/cgroups.py",
        "if (now := self.bandwidth()) != limit",
        "if False",
        _WRITER,
    ),
    Mutant(
        "a group that replaced another is written",
        "kernel/cgroups.py",
        "os.fstat(fd).st_ino != inode",
        "False",
        "kernel",
    ),
    Mutant(
        "any number of threads is looked at",
        "kernel/threads.py",
        "[:THREADS_MAX]",
        "",
        "host/test_vcpu_threads.py",
    ),
    Mutant(
        "who moves its own threads keeps its limit",
        "control/limit.py",
        "limit = min(limit, entitlement.limit, key=_cores)",
        "pass",
        "control/test_limit.py",
    ),
    Mutant(
        "a guest's own slow work misses minutes",
        "accounting/delivery.py",
        "max(0.0, reachable - gives) / booked",
        "0.0",
        "accounting/test_delivery.py",
    ),
    Mutant(
        "a vCPU that is tampered with misses minutes",
        "accounting/accounts.py",
        'if (allocations[key].uncounted or "").startswith(TAMPERED):',
        "if False:",
        "agent/test_loop.py",
    ),
    Mutant(
        "others' changes are repaired for ever",
        "control/foreign_changes.py",
        "if len(recent) >= REPAIRS_MAX",
        "if False",
        "control/test_foreign_changes.py",
    ),
    Mutant(
        "a counter file may belong to anybody",
        "../amp_nova_lab/tcg_counter.py",
        "if owner == user:",
        "if True:",
        "lab/test_tcg_counter.py",
    ),
    Mutant(
        "a counter file may be a link",
        "../amp_nova_lab/tcg_counter.py",
        "os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK",
        "os.O_RDONLY | os.O_NONBLOCK",
        "lab/test_tcg_counter.py",
    ),
    Mutant(
        "a counter file may be any other process's",
        "../amp_nova_lab/tcg_counter.py",
        "if owner != pid:",
        "if False:",
        "lab/test_tcg_counter.py",
    ),
    Mutant(
        "everybody may ask the agent",
        "agent/operator/control_socket.py",
        "os.chmod(where, 0o600)",
        "os.chmod(where, 0o666)",
        "agent/operator",
    ),
    Mutant(
        "credentials may be open to others",
        "private_files.py",
        "status.st_mode & (stat.S_IROTH | stat.S_IWOTH | stat.S_IWGRP)",
        "False",
        "agent/publish",
    ),
    Mutant(
        "answers of Prometheus of any size and duration",
        "prometheus.py",
        "len(body) > bytes_max or time.monotonic() > end_s",
        "False",
        "tenant/test_prometheus.py",
    ),
    Mutant(
        "a definition with any number of vCPUs",
        "host/libvirt/domain_xml.py",
        "not 0 < int(count) <= VCPUS_MAX",
        "False",
        "host/libvirt",
    ),
    Mutant(
        "a quota that Nova set is replaced",
        "host/libvirt/domain_xml.py",
        "limited_elsewhere=_limited(root) and not ours.quota",
        "limited_elsewhere=False",
        "host/libvirt",
    ),
    Mutant(
        "a pause may have any name",
        "guard/pauses.py",
        "[0-9A-Za-z][0-9A-Za-z-]{0,63}",
        ".*",
        "guard/test_pauses.py",
    ),
    Mutant(
        "reports that take any amount of memory",
        "wire/encoding.py",
        "if size > SIZE_MAX",
        "if False",
        "wire",
    ),
    Mutant(
        "names of hosts that control a terminal",
        "wire/host_report.py",
        "if not (self.node.isprintable() and self.boot_id.isprintable())",
        "if False",
        "wire",
    ),
    Mutant(
        "tables with control characters",
        "osc/command.py",
        "_printable(columns), _printable(list(data))",
        "columns, list(data)",
        "osc/test_commands.py",
    ),
)


def made(mutant: Mutant, text: str) -> str:
    """The text of a file with the mutant in it; ``ValueError`` if there is no one place for it."""
    if text.count(mutant.old) != 1:
        raise ValueError(f"{mutant.file} has {text.count(mutant.old)} times {mutant.old!r}")
    return text.replace(mutant.old, mutant.new)


def survives(mutant: Mutant, copy: Path) -> bool:
    """Whether no test fails."""
    path = copy / "amp_nova" / mutant.file
    before = path.read_text()
    path.write_text(made(mutant, before))
    command = [sys.executable, "-B", "-m", "pytest", "-qx", "-p", "no:cacheprovider"]
    command += ["-p", "no:randomly", "-o", f"timeout={TEST_S}", f"tests/unit/{mutant.tests}"]
    environ = os.environ | {"PYTHONPATH": str(copy)}
    try:
        done = subprocess.run(
            command, cwd=copy, env=environ, capture_output=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return False
    finally:
        path.write_text(before)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{mutant.tests} cannot be run: {done.stdout.decode()[-2000:]}")
    return done.returncode == 0


def main(words: Sequence[str]) -> int:
    """Make the mutants one after the other."""
    chosen = [m for m in MUTANTS if not words or any(w in f"{m.file} {m.what}" for w in words)]
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    alive = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in files.stdout.decode().split("\0"):
            if name and (ROOT / name).is_file():
                (target := Path(folder, name)).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, target)
        for mutant in chosen:
            lives = survives(mutant, Path(folder))
            alive += lives
            print(f"{'SURVIVES' if lives else 'dies'}: {mutant.file}: {mutant.what}", flush=True)
    print(f"{len(chosen)} mutants, {alive} of them survive")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
