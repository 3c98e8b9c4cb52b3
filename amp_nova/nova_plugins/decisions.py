# SPDX-License-Identifier: Apache-2.0
"""Tells all scheduler workers what each of them decides, so that no two give the same capacity.

A worker reserves capacity in three steps: it reserves what is free as far as it knows, casts that
to all workers *including itself*, and looks again when its own message arrives. By then it has seen
every decision that the bus delivered before its own. The bus delivers to all workers in nearly the
same order, so of two workers that reserve the same capacity the later one sees the earlier. If two
messages cross, each worker sees its own first: they wait for that, and one of them gives up. Until
Nova has chosen a host its reservation may still be given up, so others wait for that instead of
taking the capacity for lost.
"""

import itertools
import logging
import queue
import random
import threading
import time
import uuid
from collections.abc import Callable
from weakref import WeakValueDictionary

from amp_nova.exceptions import ReportInvalid
from amp_nova.nova_plugins.host_entry import Query
from amp_nova.nova_plugins.host_states import CONTENDED, HostStates
from amp_nova.scheduling.host_fit import HostFit
from amp_nova.scheduling.pending import Pending
from amp_nova.wire import decision as wire
from amp_nova.wire.decision import Reservation
from amp_nova.wire.host_report import ReportedInstance, pcpus_of

LOG = logging.getLogger(__name__)
ECHO_S = 10.0
"""How long a request waits for its own message, normally a few milliseconds. Long, because a busy
worker must not decide alone; a bus that is down delivers no requests either. No request waits after
one timed out until a message arrives again."""
UNSENT_S = 60.0
"""After this time a decision is not sent any more: it is in Nova's records, which others read."""
CROSSING_S = 0.005
"""How long a reservation waits for others that cross it: RabbitMQ may deliver two messages to two
queues in different orders if they are sent within about a millisecond."""
CONTENDED_S = 2.0
"""How long a request waits for others that claim the capacity of the same host. Each needs as long
as a claim in Placement takes; of one whose claims were all refused, only Nova's records tell."""
RETRY_S = 0.005, 0.025
"""Shortest and longest pause before it looks again; random, so that two of them do not meet."""


class Decisions:
    """The decisions of this worker, and those that it receives; thread-safe."""

    def __init__(self, states: HostStates, refresh: Callable[[], bool] = lambda: False) -> None:
        """``refresh`` reads what became of all that is pending; returns whether it did."""
        self._states = states
        self._refresh = refresh
        self._worker = ""
        self._numbers = itertools.count()
        self._unsent: queue.SimpleQueue[tuple[Reservation, float] | None] = queue.SimpleQueue()
        self._cast: Callable[[str], None] | None = None
        self._echoes: WeakValueDictionary[int, threading.Event] = WeakValueDictionary()
        """Of messages whose return somebody waits for."""
        self._patience_s = ECHO_S

    def connect(self, cast: Callable[[str], None]) -> None:
        """From now on cast decisions to all workers; ``cast`` may block and raise."""
        self._worker = str(uuid.uuid4())  # not earlier: workers are forked
        self._cast = cast
        threading.Thread(target=self._run, args=(cast,), name="amp-decisions", daemon=True).start()

    def stop(self) -> None:
        """Decide alone from now on."""
        self._cast = None
        self._unsent.put(None)

    def reserve(self, node: str, query: Query) -> HostFit:
        """Reserve capacity for a claim, unless another request or worker has taken it."""
        until_s = time.monotonic() + CONTENDED_S
        while (fit := self._attempt(node, query)) is CONTENDED and time.monotonic() < until_s:
            time.sleep(random.uniform(*RETRY_S))
        if fit is CONTENDED and self._refresh():
            fit = self._attempt(node, query)
        return fit

    def _attempt(self, node: str, query: Query) -> HostFit:
        fit = self._states.reserve(node, query)
        return fit if fit.refused is not None or self._ordered(node, query) else CONTENDED

    def _ordered(self, node: str, query: Query) -> bool:
        """Whether a reservation fits beside all that the bus has delivered before it."""
        if self._cast is None:
            return True
        echo = self._tell("tentative", node, query.resource, query.request)
        if not echo.wait(self._patience_s) and self._patience_s:
            self._patience_s = 0.0
            LOG.warning(
                "a decision was not delivered to this worker within %g s: until the message bus "
                "recovers, workers may over-book hosts",
                ECHO_S,
            )
        if not echo.is_set():
            return True
        time.sleep(CROSSING_S)
        fits = self._states.ordered(node, query.resource)
        if not fits:
            self._tell("over", node, query.resource)
        return fits

    def release(self, node: str, resource: str) -> None:
        """The claim failed, and the instance tries another host."""
        self._states.release(node, resource)
        self._tell("over", node, resource)

    def decided(self, node: str, resource: str, request: ReportedInstance) -> None:
        """Nova chose this host."""
        self._states.decided(node, resource, Pending((request,), time.monotonic()))
        self._tell("chosen", node, resource, request)

    def receive(self, text: object) -> None:
        """Take a decision of any worker, in the order of the bus; log one that is not valid."""
        try:
            decision = wire.decode(text)
            for vcpu in decision.vcpus:
                pcpus_of(vcpu.cpus_allowed_list)
        except (ReportInvalid, ValueError) as exc:
            LOG.warning("a worker's decision is ignored: %s", exc)
            return
        echo = None
        if decision.worker == self._worker:
            self._patience_s = ECHO_S
            if (echo := self._echoes.get(decision.number)) is None:
                return  # known already
        if decision.kind == "over":
            self._states.release(decision.node, decision.resource)
        else:
            request = ReportedInstance("", decision.vcpus, decision.core_type)
            each = Pending((request,), time.monotonic(), decision.kind == "chosen")
            self._states.decided(decision.node, decision.resource, each)
        if echo is not None:
            echo.set()

    def _tell(
        self, kind: wire.Kind, node: str, resource: str, request: ReportedInstance | None = None
    ) -> threading.Event:
        """Tell all workers; the event is set when this worker has received its own message."""
        echo, number = threading.Event(), next(self._numbers)
        if self._cast is not None:
            self._echoes[number] = echo
            booked = (request.vcpus, request.core_type) if request is not None else ()
            decision = Reservation(self._worker, number, kind, resource, node, *booked)
            self._unsent.put((decision, time.monotonic()))
        return echo

    def _run(self, cast: Callable[[str], None]) -> None:
        """Send in order; in its own thread, because a broker that is down must delay no request."""
        while (unsent := self._unsent.get()) is not None:
            decision, since_s = unsent
            try:
                if time.monotonic() - since_s < UNSENT_S:
                    cast(wire.encode(decision))
            except Exception as exc:  # noqa: BLE001 - drivers raise exceptions of their own
                LOG.warning("cannot send a decision to the other scheduler workers: %s", exc)
