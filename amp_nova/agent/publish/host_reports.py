"""Tells the schedulers about this host: a snapshot by oslo.messaging fan-out, on change and
periodically, and when a scheduler asks for it.

All of it happens in threads of its own. A broker that is gone holds up nothing but the reports;
what is sent when it is back is the newest state.
"""

import logging
import random
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import oslo_messaging as messaging
from oslo_config import cfg

from amp_nova.admission import packing
from amp_nova.agent.cycle import CycleReport, DomainReport, VcpuReport
from amp_nova.exceptions import ConfigInvalid
from amp_nova.flavor.extra_specs import best_effort, examine
from amp_nova.wire import topics
from amp_nova.wire.host_report import (
    HostSnapshot,
    InstanceShare,
    Origin,
    Speedup,
    VcpuShare,
    encode,
)

LOG = logging.getLogger(__name__)
RETRY_S = 5.0
LATEST_GAP_S = 1.0
"""Least time between two reports: a storm of changes is one report a second."""


@dataclass(frozen=True, slots=True)
class About:
    """What a report says beside what a cycle found; ``bookable=None``: all pCPUs."""

    node: str
    bookable: frozenset[int] | None = None
    reserve_ratio: float = 0.0
    policy: str = "none"
    counters: str | None = None


def snapshot_of(
    report: CycleReport, about: About, origin: Origin, healthy: bool = True
) -> HostSnapshot:
    """What a cycle found, as the schedulers need it."""
    topology = report.topology
    online = frozenset(p.id for p in topology.pcpus)
    instances = tuple(_instance(d) for d in report.domains)
    problems = tuple(f"{d.domain.name}: {d.problem}" for d in report.domains if d.problem)
    return HostSnapshot(
        origin,
        topology,
        online if about.bookable is None else online & about.bookable,
        about.reserve_ratio,
        instances,
        about.policy,
        about.counters,
        healthy,
        problems,
        _free_fast_cores(report, about.reserve_ratio),
    )


def _instance(report: DomainReport) -> InstanceShare:
    domain = report.domain
    booking, _ = examine(domain.specs, domain.vcpus)
    # What cannot be read is best effort to the agent, and so it is to the scheduler.
    booking = booking or best_effort(domain.vcpus)
    return InstanceShare(
        domain.resource,
        tuple(_vcpu(v) for v in report.vcpus),
        booking.core_type,
        booking.weight,
        booking.efficiency,
        domain.flavor_id,
        domain.image,
    )


def _vcpu(vcpu: VcpuReport) -> VcpuShare:
    promise, reading, insight = vcpu.promise, vcpu.reading, vcpu.insight
    speedup = insight.speedup
    return VcpuShare(
        reading.index,
        promise.booking.refcores,
        promise.booking.ips,
        reading.allowed,
        promise.core_type,
        promise.pcpu,
        insight.score / insight.ipc if insight.score is not None and insight.ipc else None,
        Speedup(speedup.value, speedup.se) if speedup else None,
        insight.score,
    )


def _free_fast_cores(report: CycleReport, reserve_ratio: float) -> float:
    """What bookings leave of the fastest core type."""
    topology = report.topology
    if not topology.core_types:
        return 0.0
    fast = topology.core_types[-1]
    pcpus = topology.pcpus_of(fast.name)
    taken = sum(
        packing.cores(v.promise.booking.refcores or 0.0, fast) or 0.0
        for d in report.domains
        for v in d.vcpus
        if v.promise.pcpu in pcpus
    )
    return max(0.0, len(pcpus) * (1.0 - reserve_ratio) - taken)


def _essence(snapshot: HostSnapshot) -> object:
    """What calls for a report at once when it changes: who holds what, not how busy they are."""
    return (
        snapshot.topology,
        snapshot.bookable,
        snapshot.reserve_ratio,
        (snapshot.healthy, snapshot.problems, snapshot.counters, snapshot.policy),
        [
            (
                (i.resource, i.core_type),
                [(v.index, v.refcores, v.ips, v.allowed) for v in i.vcpus],
                [(v.core_type, v.pcpu) for v in i.vcpus if v.booked],
            )
            for i in snapshot.instances
        ],
    )


def connect(conf: cfg.ConfigOpts) -> Any:
    """The transport to Nova's message bus, as configured; it connects when it is first used."""
    try:
        # oslo.messaging reads some of its options from the process-wide configuration only.
        cfg.CONF(
            [],
            project="amp-nova",
            default_config_files=list(conf.config_file),
            default_config_dirs=list(conf.config_dir),
        )
        return messaging.get_rpc_transport(cfg.CONF, url=conf.reports.transport_url)
    except (cfg.Error, messaging.DriverLoadFailure, messaging.InvalidTransportURL) as exc:
        raise ConfigInvalid(
            f"[reports] transport_url is not valid: {exc}; write what nova.conf has"
        ) from exc


@dataclass(frozen=True, slots=True)
class _Offer:
    """What one cycle offers to tell; see ``Publisher.offer``."""

    report: Callable[[], CycleReport]
    about: About
    promises: object
    healthy: bool

    def same(self, other: "_Offer | None") -> bool:
        """Whether it has nothing else to tell than another one had."""
        return (
            other is not None
            and self.promises is not None
            and self.promises is other.promises
            and (self.about, self.healthy) == (other.about, other.healthy)
        )


class Publisher:
    """Sends reports; ``offer`` it what every cycle found."""

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        node: str,
        transport: Any,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._options = conf.reports
        self._node = node
        self._clock = clock
        self._boot_id = str(uuid.uuid4())
        self._sequence = 0
        self._offered: _Offer | None = None
        self._looked: _Offer | None = None
        """The offer that was looked at last."""
        self._essence: object = None
        self._sent_s: float | None = None
        self._asked = threading.Event()
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._server: Any = None
        self._silent = False
        self.sent = 0
        self.failures = 0
        self._transport = transport

    def start(self) -> None:
        """Begin to send, and to listen for schedulers that ask."""
        for name, run in (("reports", self._send_all), ("report-requests", self._listen)):
            threading.Thread(target=run, name=name, daemon=True).start()

    def stop(self) -> None:
        """Send nothing any more, and hear nobody."""
        self._stopped.set()
        self._wake.set()
        if self._server is not None:
            self._server.stop()

    def offer(
        self,
        report: Callable[[], CycleReport],
        about: About,
        *,
        promises: object = None,
        healthy: bool = True,
    ) -> None:
        """Take what a cycle found; returns at once.

        ``report`` is asked when there may be something to tell: not while ``promises``, if given,
        is the same object as before.
        """
        self._offered = _Offer(report, about, promises, healthy)
        self._wake.set()

    def publish(self, _context: object) -> None:
        """A scheduler asks for a report (remote procedure)."""
        self._asked.set()
        self._wake.set()

    def _send_all(self) -> None:
        while not self._stopped.is_set():
            self._wake.wait(timeout=self._options.interval_s)
            self._wake.clear()
            if self._stopped.is_set():
                return
            text = self._due()
            if text is not None and not self._send(text):
                self._stopped.wait(RETRY_S)
                self._wake.set()
            elif text is not None:
                self._stopped.wait(LATEST_GAP_S)

    def _due(self) -> str | None:
        """The report to send now, if one is due."""
        if self._offered is None:
            return None
        asked = self._asked.is_set()
        if asked and self._sent_s is not None:
            # All agents are asked at once: they need not all answer at once.
            self._stopped.wait(random.uniform(0.0, self._options.answer_spread_s))
        self._asked.clear()
        offer, now_s = self._offered, self._clock()
        late = self._sent_s is None or now_s - self._sent_s >= self._options.interval_s
        if not (asked or late) and offer.same(self._looked):
            return None
        self._looked = offer
        origin = Origin(self._node, self._boot_id, self._sequence + 1, now_s)
        snapshot = snapshot_of(offer.report(), offer.about, origin, offer.healthy)
        essence = _essence(snapshot)
        if not (asked or late or essence != self._essence):
            return None
        self._sequence += 1
        self._essence = essence
        return encode(snapshot)

    def _send(self, text: str) -> bool:
        try:
            self._client().cast({}, "report", snapshot=text)
        except Exception as exc:  # noqa: BLE001 - whatever the driver raises, try again later
            if not self._silent:
                LOG.error("schedulers cannot be told about this host: %s; trying again", exc)
            self._silent = True
            self.failures += 1
            self._essence = self._looked = None
            return False
        if self._silent:
            LOG.info("schedulers are told about this host again")
        self._silent = False
        self.sent += 1
        self._sent_s = self._clock()
        return True

    def _client(self) -> Any:
        target = messaging.Target(
            exchange=topics.EXCHANGE,
            topic=topics.SCHEDULERS,
            namespace=topics.NAMESPACE,
            version=topics.RPC_VERSION,
            fanout=True,
        )
        return messaging.get_rpc_client(self._transport, target, retry=1)

    def _listen(self) -> None:
        target = messaging.Target(exchange=topics.EXCHANGE, topic=topics.AGENTS, server=self._node)
        while not self._stopped.is_set():
            try:
                server = messaging.get_rpc_server(
                    self._transport,
                    target,
                    [_Requests(self)],
                    executor="threading",
                    access_policy=messaging.DefaultRPCAccessPolicy,
                )
                server.start()
                self._server = server
            except Exception as exc:  # noqa: BLE001 - whatever the driver raises, try again later
                LOG.warning("schedulers' requests cannot be heard: %s; trying again", exc)
                self._stopped.wait(RETRY_S)
            else:
                return


class _Requests:
    """What schedulers call."""

    target = messaging.Target(namespace=topics.NAMESPACE, version=topics.RPC_VERSION)

    def __init__(self, publisher: Publisher) -> None:
        self.publish = publisher.publish
