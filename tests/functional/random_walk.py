# SPDX-License-Identifier: Apache-2.0
"""A random walk through what a cloud's users and administrators do, judged by exact packing.

One operation begins at a time, as Nova's fixtures demand, and runs until it is done or held: at a
random point of Nova's code it may be stopped, to go on many steps later. The book-keeping is the
walk's own: what each guest needs on which host follows from the requests and Nova's answers, and
``tests.support.exact_packing`` says what fits.
"""

import contextlib
import os
import random
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from unittest import mock

from nova.compute.manager import ComputeManager
from nova.scheduler.client.query import SchedulerQueryClient
from nova.tests.functional.api.client import OpenStackApiNotFoundException
from nova.virt.fake import FakeDriver

from amp_nova.hardware.effective_speed import bookable_refcores
from tests.support.exact_packing import Packing
from tests.support.programs import until

SIZES = ((1, 0.15), (1, 0.35), (1, 0.6), (2, 0.6), (1, 1.0), (1, 1.5), (2, 0.35), (1, 2.0))
"""vCPUs of a flavor, and the reference cores that each books."""
VERBOSE = "AMP_NOVA_WALK_VERBOSE" in os.environ
FULL_RATIO = 0.7
"""Boots are frequent until so much of the cloud is booked."""
LATE_S = 0.3
"""How long a request waits at least for a worker that has just started."""
STEP_S = 90.0
"""How long an operation may take, on a busy machine."""
AT_REST = {"completed", "confirmed", "reverted", "error", "failed", "done", "finished", "cancelled"}
"""States of a migration that nothing works on."""
POINTS = {
    "boot": ("claimed", "building", "spawn"),
    "boot several": ("claimed", "building", "spawn"),
    "boot on a host": ("claimed", "building", "spawn"),
    "resize": ("claimed", "preparing", "copying", "finishing"),
    "migrate": ("claimed", "preparing", "copying", "finishing"),
    "live-migrate": ("claimed", "moving"),
    "evacuate": ("claimed", "rebuilding", "spawn"),
    "unshelve": ("claimed", "unshelving", "spawn"),
    "confirm": ("confirming",),
    "revert": ("reverting",),
    "shelve": ("destroying",),
    "delete": ("destroying",),
}
"""Where each operation can be held, in this order."""
HOOKS = (
    ("building", ComputeManager, "build_and_run_instance"),
    ("preparing", ComputeManager, "prep_resize"),
    ("rebuilding", ComputeManager, "rebuild_instance"),
    ("unshelving", ComputeManager, "unshelve_instance"),
    ("spawn", FakeDriver, "spawn"),
    ("copying", FakeDriver, "migrate_disk_and_power_off"),
    ("finishing", FakeDriver, "finish_migration"),
    ("moving", FakeDriver, "live_migration"),
    ("confirming", FakeDriver, "confirm_migration"),
    ("reverting", FakeDriver, "finish_revert_migration"),
    ("destroying", FakeDriver, "destroy"),
)
"""Nova's functions in which they are held before anything happens; ``claimed`` comes after one."""


def refcores(size):
    """What a size books in total."""
    return size[0] * size[1]


@dataclass(eq=False)
class Guest:
    """An instance; ``needs``: the sizes that it needs on each host."""

    uuid: str
    size: tuple
    state: str = "building"
    host: str | None = None
    needs: dict = field(default_factory=dict)
    source: tuple | None = None
    """The host and size to which an unconfirmed resize can be reverted."""

    def __str__(self):
        return f"{self.uuid[:8]} {self.size[0]}x{self.size[1]}"


@dataclass(eq=False)
class Left:
    """What a guest needed on a host: not all may know yet that it left."""

    host: str
    guest: Guest
    size: tuple
    operation: object
    unaware: set


@dataclass(eq=False)
class Operation:
    """Something that a user or administrator asks for.

    ``size``: the one that is asked for; ``fits``: what the oracle said before: "beside" the others
    as they are packed, only if they "move", or "nowhere". ``stop_at``: where it is held next.
    """

    kind: str
    guests: list
    size: tuple | None = None
    fits: str | None = None
    stop_at: str | None = None
    fails: bool = False
    deleted: bool = False
    judged: bool = False
    chosen: dict = field(default_factory=dict)
    held: set = field(default_factory=set)
    go_on: threading.Event = field(default_factory=threading.Event)
    finished: bool = False


class Walk:
    """Steps through a cloud; ``faults`` has what must never happen."""

    def __init__(self, cloud, seed):
        self.cloud, self.random = cloud, random.Random(seed)
        self.guests, self.left, self.under_way, self.operations = [], [], [], []
        self.down, self.over_booked = None, set()
        self.counts, self.restarts, self.faults, self.journal = Counter(), Counter(), [], []
        self.moves_only = self.refused = self.steps = 0
        self.packing = {n: Packing(a.host.topology) for n, a in cloud.agents.items()}
        self.flavors = {size: cloud.flavor(size[0], pref_core=size[1]) for size in SIZES}
        self.active, self._lock = None, threading.Lock()
        self._late = ()

    # Nova's code.

    @contextlib.contextmanager
    def hooks(self):
        """Hold operations in Nova's code, and learn the hosts that it chooses."""
        with contextlib.ExitStack() as stack:
            for point, owner, name in HOOKS:
                replaced = self._held_before(point, getattr(owner, name))
                stack.enter_context(mock.patch.object(owner, name, replaced))
            select = SchedulerQueryClient.select_destinations

            def claimed(client, context, spec, uuids, *args, **kwargs):
                found = select(client, context, spec, uuids, *args, **kwargs)
                operation = self.active
                operation.chosen |= {
                    uuid: each[0].service_host for uuid, each in zip(uuids, found, strict=True)
                }
                self._hold("claimed", *uuids)
                return found

            stack.enter_context(
                mock.patch.object(SchedulerQueryClient, "select_destinations", claimed)
            )
            try:
                yield
            except BaseException:
                print("\n".join(self.journal[-40:]))
                raise
            finally:
                for operation in self.operations:
                    operation.stop_at = None
                    operation.go_on.set()

    def _held_before(self, point, real):
        def held(this, *args, **kwargs):
            found = [*args, *kwargs.values()]
            uuid = next(each.uuid for each in found if type(each).__name__ == "Instance")
            operation = self._hold(point, uuid)
            if point == "spawn" and operation.fails:
                raise RuntimeError("no space left on device")
            return real(this, *args, **kwargs)

        return held

    def _hold(self, point, *uuids):
        with self._lock:
            operation = self.active
            if operation is None or operation.stop_at != point:
                return operation
            operation.stop_at = None
            operation.held = {*uuids}
        assert operation.go_on.wait(3600.0)
        return operation

    # The oracle.

    def present(self, host, without=None):
        """What counts on a host: its guests' largest sizes, and who just left unnoticed."""
        sizes = defaultdict(list)
        for guest in self.guests:
            sizes[guest.uuid] += guest.needs.get(host, ())
        for each in self.left:
            if each.host == host:
                sizes[each.guest.uuid].append(each.size)
        reported = self.reported(host)
        for uuid, vcpus in reported.items():
            sizes[uuid].append((len(vcpus), vcpus[0][1]))
        fixed, floating = [], []
        for uuid, each in sizes.items():
            if uuid == without or not each:
                continue
            size, there = max(each, key=refcores), reported.get(uuid, ())
            if [size[1]] * size[0] == [v for _, v in there] and all(
                p is not None for p, _ in there
            ):
                fixed += there
            else:
                floating += [size[1]] * size[0]
        return fixed, floating

    def reported(self, host):
        """The pCPU and the booking of each vCPU, by guest, in an agent's last report."""
        agent = self.cloud.agents[host]
        return {
            i.resource: [(v.pcpu, v.refcores) for v in i.vcpus] for i in agent.report().instances
        }

    def slots(self, host, size, count, without, moving):
        """How many guests of one size fit a host, at most ``count``."""
        fixed, floating = self.present(host, without)
        if moving:
            fixed, floating = [], floating + [vcpu for _, vcpu in fixed]
        for number in range(count, 0, -1):
            if self.packing[host].fits(floating + [size[1]] * size[0] * number, fixed):
                return number
        return 0

    def fits(self, size, count=1, without=None, hosts=None):
        """Whether guests of one size fit the ``hosts``, all by default, beside all others."""
        hosts = [h for h in (hosts or self.cloud.agents) if h != self.down]
        for how, moving in (("beside", False), ("move", True)):
            if sum(self.slots(h, size, count, without, moving) for h in hosts) >= count:
                return how
        return "nowhere"

    def check_packing(self):
        """No host holds more than can be packed."""
        for host in self.cloud.agents:
            needs = [max(g.needs[host], key=refcores) for g in self.guests if host in g.needs]
            vcpus = [vcpu for count, vcpu in needs for _ in range(count)]
            if host == self.down or self.packing[host].fits(vcpus):
                self.over_booked.discard(host)
            elif host not in self.over_booked:
                self.over_booked.add(host)
                self.fault(f"over-booked: {host} needs {sorted(vcpus)}")

    # Book-keeping.

    def say(self, text):
        """Note what happens; faults print the last notes."""
        self.journal.append(f"{self.steps}: {text}")
        if VERBOSE:
            print(self.journal[-1], flush=True)

    def fault(self, text):
        """Something that must never happen, with what everybody knows at that moment."""
        self.say(f"FAULT {text}")
        self.faults.append(text)
        print("\n".join(self.journal[-40:]))
        log = self.cloud.stdlog.logger.output.splitlines()
        print("\n".join([line for line in log if "refused" in line][-3:]))
        for host in self.cloud.agents:
            here = {str(g): g.needs[host] for g in self.guests if host in g.needs}
            left = [(str(each.guest), each.size) for each in self.left if each.host == host]
            pending = [
                {
                    r[:8]: ([v.refcores for v in p.sizes[0].vcpus], p.chosen)
                    for r, p in w.states.entry(host).pending.items()
                }
                for w in self.cloud.workers
            ]
            print(f"  {host}: needs {here} left {left} reported {self.reported(host)}")
            print(f"    pending {pending}")

    def leaves(self, guest, host, size, operation=None):
        """A guest no longer needs a size on a host."""
        guest.needs[host].remove(size)
        if not guest.needs[host]:
            del guest.needs[host]
        self.left.append(Left(host, guest, size, operation, {*self.cloud.workers}))

    def learn(self, workers):
        """These workers have read what Nova has, and the reports before."""
        for each in list(self.left):
            if each.size in each.guest.needs.get(each.host, ()):
                self.left.remove(each)  # it has come back
                continue
            there = self.reported(each.host).get(each.guest.uuid, ())
            shown = [each.size[1]] * each.size[0] == [v for _, v in there]
            if not shown and (each.operation is None or each.operation.finished):
                each.unaware -= set(workers)
                if not each.unaware:
                    self.left.remove(each)

    # Operations.

    def begin(self, operation, post):
        """Start an operation; it ends, or is held somewhere."""
        self.counts[operation.kind] += 1
        points = POINTS.get(operation.kind, ())
        if operation.kind == "delete" and operation.guests[0].state == "resized":
            points = ()  # the API itself waits until the resize is confirmed
        if points and self.random.random() < 0.35:
            operation.stop_at = self.random.choice(points)
        self._late = ()
        if operation.fits is not None and self.random.random() < 0.15:
            self._late = self.restart(wait=False)
        self.say(
            f"{operation.kind} {' '.join(map(str, operation.guests))} {operation.size or ''}"
            f" fits {operation.fits}"
            f"{f' until {operation.stop_at}' if operation.stop_at else ''}"
        )
        self.active = operation
        self.operations.append(operation)
        post()
        self.rest(operation)

    def go_on(self, operation):
        """Let a held operation go on."""
        self.under_way.remove(operation)
        self.say(f"{operation.kind} {' '.join(map(str, operation.guests))} goes on")
        if not operation.deleted and self.random.random() < 0.3:
            operation.stop_at = self.random.choice(POINTS[operation.kind])
        self.active, before = operation, operation.go_on
        operation.held, operation.go_on = set(), threading.Event()
        before.set()
        self.rest(operation)

    def rest(self, operation):
        """Wait until an operation is done or held, and take into the books what it did."""
        began_s = time.monotonic()

        def at_rest():
            if self._late and time.monotonic() - began_s > LATE_S:
                self.look_late()
            return all(
                g.uuid in operation.held or self.is_done(operation, g) for g in operation.guests
            )

        until(
            at_rest,
            STEP_S,
            f"the end of {operation}, {[self.show(g) for g in operation.guests]}",
            0.05,
        )
        until(self.look_late, STEP_S, "reports for a worker that has just started")
        if operation.fits is not None and not operation.judged:
            self.judge(operation)
        operation.judged = True
        if operation.held:
            self.say(f"... held, chosen {operation.chosen}")
            self.under_way.append(operation)
        else:
            operation.stop_at = None
            operation.finished = True
            self.finish(operation)
        self.active = None
        self.check_packing()

    def look_late(self):
        """What a worker does that has just started: it looks once all hosts have reported."""
        for worker in self._late:
            if not all(worker.states.entry(host) for host in self.cloud.agents):
                return False
            worker.follow_up()
        self.learn(self._late)
        self._late = ()
        return True

    def show(self, guest):
        """What the API says of a guest, ``None`` if it has none."""
        with contextlib.suppress(OpenStackApiNotFoundException):
            return self.cloud.api.get_server(guest.uuid)
        return None

    def is_done(self, operation, guest):
        """Whether nothing works on a guest any more."""
        server = self.show(guest)
        if server is None:
            return not self.cloud._get_allocations_by_server_uuid(guest.uuid)
        if operation.kind == "delete" or operation.deleted:
            return False
        if server["OS-EXT-STS:task_state"] is not None or server["status"] == "BUILD":
            return False
        if operation.kind == "confirm" and server["status"] == "VERIFY_RESIZE":
            return False
        query = f"/os-migrations?instance_uuid={guest.uuid}"
        migrations = self.cloud.api.api_get(query).body["migrations"]
        if any(each["status"] not in AT_REST for each in migrations):
            return False
        actions = self.cloud.api.get_instance_actions(guest.uuid)
        if not actions:
            return True
        last = self.cloud.api.get_instance_action_details(guest.uuid, actions[0]["request_id"])
        return all(event["finish_time"] for event in last["events"])

    def judge(self, operation):
        """Whether Nova chose a host, as it should."""
        if operation.chosen:
            for guest in operation.guests:
                host = operation.chosen[guest.uuid]
                guest.needs.setdefault(host, []).append(operation.size)
            if operation.fits == "move":
                self.say("... chosen with a move")
            return
        # Nova may have chosen hosts for all but the last one before it gave up.
        for guest in operation.guests[:-1]:
            for host in self.cloud.agents:
                unaware = {*self.cloud.workers}
                self.left.append(Left(host, guest, operation.size, operation, unaware))
        self.refused += 1
        self.say("... refused")
        if operation.fits == "move":
            self.moves_only += 1
        if operation.fits == "beside":
            self.fault(f"false refusal: {operation.kind} {operation.size}")

    def finish(self, operation):
        """What a finished operation did to its guests."""
        for guest in operation.guests:
            server, chosen = self.show(guest), operation.chosen.get(guest.uuid)
            self.say(
                f"... {guest} {server and server['status']}"
                f" {server and server['OS-EXT-SRV-ATTR:host']} {chosen or ''}"
            )
            if server is None:
                for host in list(guest.needs):
                    for size in list(guest.needs[host]):
                        self.leaves(guest, host, size)
                guest.state = "deleted"
                self.guests.remove(guest)
                continue
            getattr(self, f"_after_{operation.kind.replace(' ', '_').replace('-', '_')}")(
                operation, guest, server, chosen
            )
            if server["status"] == "ERROR":
                guest.state = "error"

    def _after_boot(self, operation, guest, server, chosen):
        if server["status"] == "ACTIVE":
            guest.state, guest.host = "active", chosen
            return
        assert server["status"] == "ERROR", server
        assert operation.fails or not chosen, server
        for host in list(guest.needs):
            self.leaves(guest, host, operation.size)

    _after_boot_several = _after_boot_on_a_host = _after_boot

    def _after_resize(self, operation, guest, server, chosen):
        if chosen:
            assert server["status"] == "VERIFY_RESIZE", server
            guest.source, guest.host = (guest.host, guest.size), chosen
            guest.size, guest.state = operation.size, "resized"

    _after_migrate = _after_resize

    def _after_live_migrate(self, operation, guest, server, chosen):
        if chosen:
            assert server["OS-EXT-SRV-ATTR:host"] == chosen, server
            self.leaves(guest, guest.host, guest.size)
            # Nova's fake driver keeps it there, so that it could not be evacuated back later.
            self.cloud.computes[guest.host].manager.driver.instances.pop(guest.uuid, None)
            guest.host = chosen

    def _after_evacuate(self, operation, guest, server, chosen):
        if chosen:
            assert server["OS-EXT-SRV-ATTR:host"] == chosen, server
            self.leaves(guest, guest.host, guest.size)
            guest.host = chosen
            guest.state = "active" if server["status"] == "ACTIVE" else "stopped"

    def _after_unshelve(self, operation, guest, server, chosen):
        if chosen:
            assert server["status"] == "ACTIVE", server
            guest.host, guest.state = chosen, "active"

    def _after_confirm(self, operation, guest, server, chosen):
        guest.source, guest.state = None, server["status"].lower()
        guest.state = "stopped" if guest.state == "shutoff" else guest.state

    _after_revert = _after_confirm

    def _after_shelve(self, operation, guest, server, chosen):
        guest.state, guest.host = "shelved", None

    def _after_stop(self, operation, guest, server, chosen):
        guest.state = "stopped"

    def _after_start(self, operation, guest, server, chosen):
        guest.state = "active"

    # Steps.

    def idle(self, *states):
        """A guest that nothing works on, on hosts that are up; ``None`` without one."""
        busy = {g for operation in self.under_way for g in operation.guests}
        found = [
            g
            for g in self.guests
            if g not in busy and g.state in states and self.down not in g.needs
        ]
        return self.random.choice(found) if found else None

    def others(self, host):
        """All other hosts."""
        return [h for h in self.cloud.agents if h != host]

    def act(self, operation, guest, body):
        """One action on a guest."""
        self.begin(
            operation,
            lambda: self.cloud.api.post_server_action(guest.uuid, body),
        )

    def boot(self, count=1, host=None):
        """Create servers; some builds of a single one fail.

        Several may be held one by one, and would fail at times at which ``needs`` still has them.
        """
        size = self.random.choice(SIZES)
        kind = "boot" if count == 1 else "boot several"
        fits = self.fits(size, count)
        if host is not None:
            kind = "boot on a host"
            if self.fits(size, hosts=[host]) != "beside":
                return
        fails = self.random.random() < 0.15 and count == 1
        operation = Operation(kind, [], size, fits, fails=fails)

        def post():
            request = {"flavor_id": self.flavors[size]}
            if host is not None:
                request["az"] = f"nova:{host}"
            made = self.cloud.boot_several(count, **request)
            operation.guests += [Guest(each["id"], size) for each in made]
            self.guests += operation.guests

        self.begin(operation, post)
        if host is not None:
            self.look(*self.cloud.workers)  # nobody has asked the filter

    def booked_ratio(self):
        """What guests book of the cloud, in its reference cores."""
        booked = sum(refcores(g.size) for g in self.guests if g.needs)
        topologies = [agent.host.topology for agent in self.cloud.agents.values()]
        there = (bookable_refcores(t, frozenset(p.id for p in t.pcpus)) for t in topologies)
        return booked / sum(sum(each.values()) for each in there)

    def boot_several(self):
        self.boot(self.random.choice((2, 2, 3)))

    def boot_on_a_host(self):
        self.boot(host=self.random.choice([h for h in self.cloud.agents if h != self.down]))

    def resize(self):
        if (guest := self.idle("active", "stopped")) is None:
            return
        size = self.random.choice([s for s in SIZES if s != guest.size])
        fits = self.fits(size, without=guest.uuid)
        body = {"resize": {"flavorRef": self.flavors[size]}}
        self.act(Operation("resize", [guest], size, fits), guest, body)

    def migrate(self):
        if (guest := self.idle("active", "stopped")) is None:
            return
        fits = self.fits(guest.size, without=guest.uuid, hosts=self.others(guest.host))
        self.act(Operation("migrate", [guest], guest.size, fits), guest, {"migrate": None})

    def live_migrate(self):
        if (guest := self.idle("active")) is None:
            return
        fits = self.fits(guest.size, without=guest.uuid, hosts=self.others(guest.host))
        body = {"os-migrateLive": {"host": None, "block_migration": "auto"}}
        self.act(Operation("live-migrate", [guest], guest.size, fits), guest, body)

    def settle_resize(self):
        """Confirm or revert."""
        if (guest := self.idle("resized")) is None:
            return
        host, old = guest.source
        if self.random.random() < 0.5:
            operation, body = Operation("confirm", [guest]), {"confirmResize": None}
            self.leaves(guest, host, old, operation)
        else:
            operation, body = Operation("revert", [guest]), {"revertResize": None}
            self.leaves(guest, guest.host, guest.size, operation)
            guest.host, guest.size = guest.source
        self.act(operation, guest, body)

    def shelve(self):
        if (guest := self.idle("active", "stopped")) is not None:
            operation = Operation("shelve", [guest])
            self.leaves(guest, guest.host, guest.size, operation)
            self.act(operation, guest, {"shelve": None})

    def unshelve(self):
        if (guest := self.idle("shelved")) is not None:
            fits = self.fits(guest.size, without=guest.uuid)
            operation = Operation("unshelve", [guest], guest.size, fits)
            self.act(operation, guest, {"unshelve": None})

    def stop(self):
        if (guest := self.idle("active")) is not None:
            self.act(Operation("stop", [guest]), guest, {"os-stop": None})

    def start(self):
        if (guest := self.idle("stopped")) is not None:
            self.act(Operation("start", [guest]), guest, {"os-start": None})

    def delete(self):
        """Also servers of unconfirmed resizes."""
        states = "active", "stopped", "resized", "error", "shelved"
        if (guest := self.idle(*states)) is not None:
            operation = Operation("delete", [guest])
            for host in list(guest.needs):
                for size in list(guest.needs[host]):
                    self.leaves(guest, host, size, operation)
            self.begin(operation, lambda: self.cloud.api.delete_server(guest.uuid))

    def delete_while_building(self):
        """The user has lost patience."""
        found = [
            o
            for o in self.under_way
            if o.kind.startswith("boot") and len(o.guests) == 1 and not o.deleted
        ]
        if not found:
            return
        operation = self.random.choice(found)
        (guest,) = operation.guests
        self.counts["delete while building"] += 1
        self.say(f"delete while building {guest}")
        operation.deleted = True
        self.cloud.api.delete_server(guest.uuid)
        until(
            lambda: (
                (server := self.show(guest)) is None
                or server["OS-EXT-STS:task_state"] == "deleting"
            ),
            STEP_S,
            "the deletion",
        )
        for host in list(guest.needs):
            self.leaves(guest, host, operation.size, operation)

    def fail_host(self):
        """A host is lost, with what only it has; nothing is under way there."""
        involved = {h for o in self.under_way for g in o.guests for h in (*g.needs, g.host)}
        involved |= {h for g in self.guests if g.state == "resized" for h in g.needs}
        involved |= {each.host for each in self.left if each.operation in self.under_way}
        involved |= {host for o in self.under_way for host in o.chosen.values()}
        found = [h for h in self.cloud.agents if h not in involved]
        if self.down is not None or not found:
            return
        self.counts["host fails"] += 1
        self.down = self.random.choice(found)
        self.say(f"{self.down} fails")
        self.cloud.computes[self.down].stop()
        self._force_down(self.down, True)

    def _force_down(self, host, down):
        (service,) = self.cloud.api.get_services(binary="nova-compute", host=host)
        self.cloud.api.put_service_force_down(service["id"], down)

    def evacuate(self):
        """Move a guest off the failed host."""
        busy = {g for operation in self.under_way for g in operation.guests}
        found = [g for g in self.guests if g not in busy and self.down in g.needs]
        found = [
            g for g in found if g.state in ("active", "stopped", "error") and g.host == self.down
        ]
        if self.down is None or not found:
            return
        guest = self.random.choice(found)
        fits = self.fits(guest.size, without=guest.uuid, hosts=self.others(self.down))
        self.act(Operation("evacuate", [guest], guest.size, fits), guest, {"evacuate": {}})

    def host_is_back(self):
        """It removes the guests that were evacuated."""
        if self.down is None or any(o.kind == "evacuate" for o in self.under_way):
            return
        host = self.down
        self.say(f"{host} is back")
        compute = self.cloud.restart_compute_service(self.cloud.computes[host])
        self.cloud.computes[host] = self.cloud.agents[host]._compute = compute
        self._force_down(host, False)
        self.down = None
        self.cycle(host)
        self.check_packing()

    def cycle(self, *hosts):
        """Control cycles, after which no agent has a vCPU without a place."""
        hosts = [h for h in (hosts or self.cloud.agents) if h != self.down]
        self.cloud.cycle(*hosts)
        self.learn(self.cloud.workers)
        for host in hosts:
            if over := self.cloud.agents[host].over_booked():
                self.fault(f"over-booked: {host} by its agent: {over}")

    def look(self, *workers):
        """What workers do twice a minute."""
        for worker in workers:
            worker.follow_up()
        self.learn(workers)

    def restart(self, *, wait=True):
        """Restart one or all workers; without waiting, a request comes before they know a thing."""
        workers = self.cloud.workers
        if self.random.random() < 0.5:
            workers = [self.random.choice(workers)]
        self.restarts["all" if len(workers) > 1 else "one"] += 1
        self.say(f"restart of {len(workers)}{'' if wait else ', and a request at once'}")
        if wait:
            self.cloud.restart_scheduler(*workers)
            self.learn(workers)
            return ()
        self.cloud.forget_all(*workers)
        return workers

    def hear_again(self):
        """A host was silent for so long that a worker has forgotten it, and reports again."""
        worker = self.random.choice(self.cloud.workers)
        host = self.random.choice([h for h in self.cloud.agents if h != self.down])
        self.counts["host is heard again"] += 1
        self.say(f"{host} is heard again by {worker._host}")
        del worker.states._entries[host]
        self.cloud.agents[host].publisher._request()
        until(lambda: worker.states.entry(host), STEP_S, f"{host} reports")
        self.look(worker)

    def release(self):
        if self.under_way:
            self.go_on(self.random.choice(self.under_way))

    def release_all(self):
        while self.under_way:
            self.go_on(self.under_way[0])

    ACTIONS = (
        (10, boot),
        (3, boot_several),
        (2, boot_on_a_host),
        (5, resize),
        (3, migrate),
        (3, live_migrate),
        (4, settle_resize),
        (2, shelve),
        (3, unshelve),
        (2, stop),
        (2, start),
        (6, delete),
        (1, delete_while_building),
        (1, fail_host),
        (4, evacuate),
        (2, host_is_back),
        (1, hear_again),
        (7, release),
    )

    def step(self):
        """One operation, and what happens to happen between two of them."""
        self.steps += 1
        weights, actions = zip(*self.ACTIONS, strict=True)
        if self.booked_ratio() < FULL_RATIO and self.random.random() < 0.5:
            weights = [10, 4, 2] + [0] * (len(actions) - 3)  # boots
        before = len(self.journal)
        while len(self.journal) == before:  # not every operation is possible
            self.random.choices(actions, weights)[0](self)
        if self.random.random() < 0.15:
            self.restart()
        if self.random.random() < 0.3:
            self.look(*self.random.sample(self.cloud.workers, 1))
        if self.random.random() < 0.4:
            up = [h for h in self.cloud.agents if h != self.down]
            self.cycle(*self.random.sample(up, self.random.randint(1, len(up))))

    def settle(self):
        """Let everything end; then nothing is pending anywhere."""
        self.say("settle")
        self.release_all()
        self.host_is_back()
        while any(guest.state == "resized" for guest in self.guests):
            self.settle_resize()
            self.release_all()
        self.cycle()
        if self.left:
            unclear = [f"{each.host} {each.guest} {each.size}" for each in self.left]
            self.fault(f"not over for the walk itself: {unclear}")
        for worker in self.cloud.workers:
            if pending := worker.states.pending():
                self.fault(f"leaked: {worker._host} has {pending}")

    def walk(self, steps, settled_every=25):
        """All steps; returns one line about them."""
        with self.hooks():
            for number in range(steps):
                self.step()
                if number % settled_every == settled_every - 1:
                    self.settle()
            self.settle()
        return self.summary()

    def summary(self):
        """The result in one line."""
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.counts.items()))
        count = Counter(each.split(":")[0] for each in self.faults)
        return (
            f"{self.steps} steps: {kinds}; restarts: {self.restarts['one']} of one worker,"
            f" {self.restarts['all']} of all; {self.refused} refused, {self.moves_only} of which"
            f" would have fitted with a move; false refusals: {count['false refusal']};"
            f" over-booked: {count['over-booked']}; leaked reservations: {count['leaked']}"
        )
