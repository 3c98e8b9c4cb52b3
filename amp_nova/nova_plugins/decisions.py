"""Tells all scheduler workers what each of them decides, so that no two give the same capacity.

A worker reserves capacity in three steps: it reserves what is free as far as it knows, casts that
to all workers *including itself*, and looks again when its own message arrives. By then it has seen
every decision that the bus delivered before its own. The bus delivers to all workers in nearly the
same order, so of two workers that reserve the same capacity the later one sees the earlier.
"""

import itertools
import logging
import queue
import threading
import time
import uuid
from collections.abc import Callable

from amp_nova.exceptions import ReportInvalid
from amp_nova.nova_plugins.host_states import HostStates
from amp_nova.scheduling.pending import Pending, Reserved
from amp_nova.wire import decision as wire
from amp_nova.wire.decision import Decision
from amp_nova.wire.host_report import ReportedInstance, pcpus_of

LOG = logging.getLogger(__name__)
ECHO_S = 10.0
"""How long a request waits for its own message, normally a few milliseconds. Long, because a busy
worker must not decide alone; a bus that is down delivers no requests either."""
PAUSE_S = 60.0
"""How long no request waits after one timed out."""


class Decisions:
    """The decisions of this worker, and those that it receives; thread-safe."""

    def __init__(self, states: HostStates, clock: Callable[[], float] = time.monotonic) -> None:
        self._states = states
        self._clock = clock
        self._worker = ""
        self._numbers = itertools.count()
        self._send: queue.Queue[Decision | None] = queue.Queue()
        self._cast: Callable[[str], None] | None = None
        self._echoes: dict[int, _Echo] = {}
        self._paused_until_s = 0.0

    def connect(self, cast: Callable[[str], None]) -> None:
        """From now on cast decisions to all workers; ``cast`` may block and raise."""
        self._worker = str(uuid.uuid4())  # not earlier: workers are forked
        self._cast = cast
        threading.Thread(target=self._run, args=(cast,), name="amp-decisions", daemon=True).start()

    def stop(self) -> None:
        """Decide alone from now on."""
        self._cast = None
        self._send.put(None)

    def reserve(
        self, node: str, resource: str, request: ReportedInstance, alternates: bool
    ) -> bool:
        """Reserve capacity for a claim, unless another request or worker has taken it.

        Once a host was chosen for the instance, Nova names ``alternates`` on which it retries a
        build that fails, without asking again: their capacity is reserved as well, or refused.
        """
        kind: Reserved = "alternate" if self._states.chosen(resource) else "tentative"
        if kind == "alternate" and not alternates:
            return False
        if not self._states.reserve(node, resource, request, kind):
            if kind == "tentative":
                self._tell(self._decision("over", resource))
            return False
        if self._cast is None:
            return True
        decision = self._decision(kind, resource, node, request)
        echo = self._echoes[decision.number] = _Echo()
        self._tell(decision)
        waits = self._clock() >= self._paused_until_s
        if waits and not echo.arrived.wait(ECHO_S) and self._clock() >= self._paused_until_s:
            self._paused_until_s = self._clock() + PAUSE_S
            LOG.warning(
                "a decision was not delivered to this worker within %g s: until the message bus "
                "recovers, workers may over-book hosts",
                ECHO_S,
            )
        del self._echoes[decision.number]
        if not echo.fits:
            self._tell(self._decision("over", resource, node))
        return echo.fits

    def decided(self, node: str, resource: str, request: ReportedInstance) -> None:
        """Nova chose this host."""
        self._states.decided(node, resource, Pending(request, self._clock()))
        self._tell(self._decision("chosen", resource, node, request))

    def receive(self, text: object) -> None:
        """Take a decision of any worker, in the order of the bus; log one that is not valid."""
        try:
            decision = wire.decode(text)
            for vcpu in decision.vcpus:
                pcpus_of(vcpu.cpus_allowed_list)
        except (ReportInvalid, ValueError) as exc:
            LOG.warning("a worker's decision is ignored: %s", exc)
            return
        if decision.worker == self._worker:
            if (echo := self._echoes.get(decision.number)) is not None:
                echo.fits = self._states.ordered(decision.node, decision.resource)
                echo.arrived.set()
        elif decision.kind == "over":
            self._states.release(decision.resource, decision.node)
        else:
            request = ReportedInstance("", decision.vcpus, decision.core_type)
            each = Pending(request, self._clock(), decision.kind)
            self._states.decided(decision.node, decision.resource, each)

    def _decision(
        self,
        kind: wire.Kind,
        resource: str,
        node: str = "",
        request: ReportedInstance | None = None,
    ) -> Decision:
        number = next(self._numbers)
        if request is None:
            return Decision(self._worker, number, kind, resource, node)
        booked = request.vcpus, request.core_type
        return Decision(self._worker, number, kind, resource, node, *booked)

    def _tell(self, decision: Decision) -> None:
        if self._cast is not None:
            self._send.put(decision)

    def _run(self, cast: Callable[[str], None]) -> None:
        """Send in order; in its own thread, because a broker that is down must delay no request."""
        while (decision := self._send.get()) is not None:
            try:
                cast(wire.encode(decision))
            except Exception as exc:  # noqa: BLE001 - drivers raise exceptions of their own
                LOG.warning("cannot send a decision to the other scheduler workers: %s", exc)


class _Echo:
    """Waits for a message to come back. ``fits`` is true until it has come and says otherwise."""

    def __init__(self) -> None:
        self.arrived = threading.Event()
        self.fits = True
