# SPDX-License-Identifier: Apache-2.0
"""A real RabbitMQ for tests: an ordinary process on the loopback address, its files in a folder."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

PROGRAM = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
ADDRESS = "127.0.0.1"
START_S = 120.0


def variables(home: Path, log: Path, node: str, ports: Mapping[str, int]) -> dict[str, object]:
    """The environment of a broker; ``ports``: of ``rabbitmq``, ``distribution`` and ``epmd``."""
    return {
        "HOME": home,
        "ERL_EPMD_PORT": ports["epmd"],
        "ERL_EPMD_ADDRESS": ADDRESS,
        "RABBITMQ_NODENAME": node,
        "RABBITMQ_NODE_IP_ADDRESS": ADDRESS,
        "RABBITMQ_NODE_PORT": ports["rabbitmq"],
        "RABBITMQ_DIST_PORT": ports["distribution"],
        "RABBITMQ_CONF_ENV_FILE": "/dev/null",
        "RABBITMQ_CONFIG_FILE": home / "none",
        "RABBITMQ_ENABLED_PLUGINS_FILE": home / "plugins",
        "RABBITMQ_MNESIA_BASE": home / "data",
        "RABBITMQ_LOG_BASE": log,
        # Without these an idle broker spins.
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+sbwt none +sbwtdcpu none +sbwtdio none "
        "-kernel inet_dist_use_interface {127,0,0,1}",
    }


def free_port() -> int:
    """A port of the loopback address that nobody uses now."""
    with socket.create_server((ADDRESS, 0)) as found:
        return int(found.getsockname()[1])


class Broker:
    """One broker; ``stop`` ends it with all that it started."""

    def __init__(self, folder: Path, port: int | None = None) -> None:
        """Start it, and wait until it answers; ``port``: that of an earlier one."""
        ports = {name: free_port() for name in ("rabbitmq", "distribution", "epmd")}
        ports["rabbitmq"] = self.port = port or ports["rabbitmq"]
        self.url = f"rabbit://guest:guest@{ADDRESS}:{self.port}/"
        (folder / "data").mkdir(parents=True)
        node = f"amp-test-{os.getpid()}@localhost"
        said = {key: str(v) for key, v in variables(folder, folder, node, ports).items()}
        self.environment = {**os.environ, **said}
        self._log = (folder / "log").open("wb")
        # Started here and in the foreground; the broker would start one that outlives it.
        self._started = [self._start("epmd", "-port", str(ports["epmd"]), "-address", ADDRESS)]
        self._started.append(self._start(str(PROGRAM)))
        end = time.monotonic() + START_S
        while not self.answers():
            if time.monotonic() > end or self._started[-1].poll() is not None:
                self.stop()
                raise RuntimeError(f"RabbitMQ does not start: see {folder}/log")
            time.sleep(0.2)

    def _start(self, *command: str) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            command,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )

    def answers(self) -> bool:
        """Whether it answers as AMQP says: to a wrong protocol header with the right one."""
        try:
            with socket.create_connection((ADDRESS, self.port), 5) as client:
                client.sendall(b"AMQP\0\0\0\0")
                return client.recv(4) == b"AMQP"
        except OSError:
            return False

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the broker and what it started, as SIGSTOP and SIGCONT."""
        os.killpg(self._started[-1].pid, number)

    def control(self, *command: str) -> None:
        """Run ``rabbitmqctl``, as for users, virtual hosts and alarms."""
        subprocess.run(
            (PROGRAM.with_name("rabbitmqctl"), *command),
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            check=True,
        )

    def stop(self) -> None:
        """End it at once: nothing of it is kept."""
        for process in reversed(self._started):
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
        self._log.close()
