# SPDX-License-Identifier: Apache-2.0
"""What a user and an operator do with the cloud, and what the kernel says of the guests."""

import os
import struct
import subprocess
from pathlib import Path
from typing import Any

from tools.cloud import controllers
from tools.cloud.layout import BIN, HOSTS, STATE, Host
from tools.cloud.processes import until

COUNTER = 0x200000
"""Where in a guest's memory its vCPU 0 counts rounds of work (tests/guests/guest.S)."""
BY_NAME = {host.name: host for host in HOSTS}
Reply = dict[str, Any]


def openstack(*arguments: str) -> str:
    """Run the ``openstack`` client with the administrator's openrc; what it printed."""
    line = f'. {STATE}/openrc && exec {BIN}/openstack "$@"'
    command = ["sh", "-c", line, "openstack", *arguments]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        raise RuntimeError(process.stderr.strip())
    return process.stdout.strip()


class Process:
    """The QEMU process of a server on one host, seen from outside of libvirt."""

    def __init__(self, host: Host, name: str) -> None:
        """Raises ``OSError`` when there is none, or no vCPU in it yet."""
        self.host = host
        self.pid = int((host.folder / f"run/qemu/{name}.pid").read_text())
        self._task = self._vcpu()
        self.group = self._group()
        folders = (host.folder / "lib/qemu/ram").glob(f"*-{name}")
        memory = next(path for folder in folders for path in folder.iterdir())
        limit = (self.group / "cpu.cfs_quota_us", self.group / "cpu.cfs_period_us")
        # Kept open: whoever looks often must not take the CPU that it measures.
        files = (self._task / "schedstat", memory, *limit)
        self._files = [path.open("rb", buffering=0) for path in files]

    def _vcpu(self) -> Path:
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            if (task / "comm").read_text().startswith("CPU 0/"):
                return task
        raise FileNotFoundError(f"QEMU {self.pid} has no vCPU yet")

    def _group(self) -> Path:
        for line in (self._task / "cgroup").read_text().splitlines():
            _, controllers_, path = line.split(":", 2)
            if "cpu" in controllers_.split(",") and path.endswith("/vcpu0"):
                return Path("/sys/fs/cgroup/cpu") / path.lstrip("/")
        raise FileNotFoundError(f"vCPU 0 of QEMU {self.pid} has no cgroup of its own yet")

    def _read(self, which: int, at: int = 0) -> bytes:
        return os.pread(self._files[which].fileno(), 64, at)

    def cpu_s(self) -> float:
        """CPU time of vCPU 0 so far."""
        return int(self._read(0).split()[0]) / 1e9

    def rounds(self) -> int:
        """Rounds of work that the guest counted so far; they travel with its memory."""
        return int(struct.unpack_from("<Q", self._read(1, COUNTER))[0])

    def quota_cores(self) -> float | None:
        """The limit in force, in cores; ``None`` when there is none."""
        quota, period = int(self._read(2)), int(self._read(3))
        return None if quota < 0 else quota / period


class Server:
    """One instance of Nova."""

    def __init__(self, cloud: "Cloud", resource: str) -> None:
        self.cloud = cloud
        self.id = resource

    def show(self) -> Reply:
        """What Nova says of it."""
        server: Reply = self.cloud.nova("get", f"/servers/{self.id}")["server"]
        return server

    @property
    def host(self) -> Host:
        """Where it runs, as Nova says."""
        return BY_NAME[self.show()["OS-EXT-SRV-ATTR:host"]]

    @property
    def domain(self) -> str:
        """Its name in libvirt."""
        return str(self.show()["OS-EXT-SRV-ATTR:instance_name"])

    def act(
        self, action: str, what: object = None, status: str = "ACTIVE", timeout_s: float = 180
    ) -> "Server":
        """Do something to it, and wait until Nova is done."""
        self.cloud.nova("post", f"/servers/{self.id}/action", {action: what})
        return self.wait(status, timeout_s)

    def wait(self, status: str = "ACTIVE", timeout_s: float = 180) -> "Server":
        """Until it has this status and nothing is going on with it."""

        def there() -> bool:
            server = self.show()
            assert server["status"] != "ERROR" or status == "ERROR", server.get("fault")
            return server["status"] == status and server["OS-EXT-STS:task_state"] is None

        until(there, f"{status} of server {self.id}", timeout_s)
        return self

    def process(self) -> Process:
        """Its QEMU process; waits until its guest counts."""
        processes: list[Process] = []
        host, name = self.host, self.domain

        def counts() -> bool:
            try:
                process = Process(host, name)
                if process.rounds():
                    processes.append(process)
            except (OSError, StopIteration):
                pass
            return bool(processes)

        until(counts, f"the counting guest of server {self.id}", 30)
        return processes[0]

    def allocations(self) -> Reply:
        """What Placement holds for it."""
        reply = self.cloud.sdk.placement.get(f"/allocations/{self.id}")
        allocations: Reply = reply.json()["allocations"]
        return allocations

    def delete(self) -> None:
        """Delete it, and wait until Nova forgot it."""
        self.cloud.sdk.compute.delete_server(self.id, ignore_missing=True)
        gone = self.cloud.sdk.compute
        until(lambda: not any(s.id == self.id for s in gone.servers()), "the deletion", 60)


class Cloud:
    """The administrator's view of the cloud; what a test makes in it is gone at its end."""

    def __init__(self) -> None:
        self.sdk = controllers.connect()
        self._servers: list[Server] = []

    def nova(self, method: str, path: str, body: object = None) -> Reply:
        """One call to Nova's API; ``AssertionError`` with its words when it refuses."""
        call = getattr(self.sdk.compute, method)
        reply = call(path, microversion="2.96", **({} if body is None else {"json": body}))
        assert reply.status_code < 400, reply.text
        return reply.json() if reply.content else {}

    def image(self, folder: Path) -> str:
        """The image of guests that count their work: a kernel and an empty disk."""
        from tests.guests.guest import build

        image = self.sdk.image.find_image("counting")
        if image is not None:
            return str(image.id)
        disk = folder / "empty.img"
        disk.write_bytes(b"")
        os.truncate(disk, 1 << 20)
        upload = self.sdk.image.create_image
        kernel = upload(
            name="counting-kernel",
            filename=str(build(folder)),
            disk_format="aki",
            container_format="aki",
            visibility="public",
        )
        made = upload(
            name="counting",
            filename=str(disk),
            disk_format="raw",
            container_format="bare",
            visibility="public",
            kernel_id=kernel.id,
        )
        return str(made.id)

    def flavor(self, name: str, specs: dict[str, str] | None = None) -> str:
        """A flavor, made with the ``openstack`` client as an operator would."""
        if self.sdk.compute.find_flavor(name) is not None:
            return name
        words = [w for k, v in (specs or {}).items() for w in ("--property", f"{k}={v}")]
        size = ("--vcpus", "1", "--ram", "16", "--disk", "0")
        openstack("flavor", "create", name, *size, *words)
        return name

    def create(self, image: str, flavor: str, host: Host | None = None) -> Server:
        """Ask for a server, on a host or where the scheduler puts it."""
        body: Reply = {
            "name": f"e2e-{flavor}",
            "imageRef": image,
            "flavorRef": self.sdk.compute.find_flavor(flavor).id,
            "networks": "none",
        }
        if host is not None:
            body["host"] = host.name  # the filters run all the same
        made = self.nova("post", "/servers", {"server": body})
        server = Server(self, made["server"]["id"])
        self._servers.append(server)
        return server

    def boot(self, image: str, flavor: str, host: Host | None = None) -> Server:
        """The same, and wait until it runs."""
        return self.create(image, flavor, host).wait()

    def clear(self) -> None:
        """Delete all servers that were made, at the same time."""
        for server in self._servers:
            self.sdk.compute.delete_server(server.id, ignore_missing=True)
        while self._servers:
            self._servers.pop().delete()
