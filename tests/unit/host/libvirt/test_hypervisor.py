# SPDX-License-Identifier: Apache-2.0
"""libvirt's domains, from libvirt's own test driver and from a fake that hangs and fails."""

import threading
import time

import pytest

pytest.importorskip("libvirt", reason="libvirt-python is not installed")

import libvirt

from amp_nova.exceptions import HypervisorUnavailable
from amp_nova.host.libvirt import connection
from amp_nova.host.libvirt.domain_xml import Fallback
from amp_nova.host.libvirt.hypervisor import Hypervisor
from tests.support.fakehost import nova_metadata, nova_xml, resource
from tests.support.programs import until

TEST = "test:///default"
NOVA = "http://openstack.org/xmlns/libvirt/nova/1.1"
SHORT_S = 0.1


class FakeDomain:
    """A FAKE libvirt domain. ``answer`` is its XML, an exception, or an event to wait for first."""

    def __init__(self, name, number=1, answer=None):
        self._name, self.number = name, number
        self.answer = nova_xml(name) if answer is None else answer
        self.reads = 0

    def name(self):
        return self._name

    def UUIDString(self):  # noqa: N802  # libvirt's name
        return resource(self._name)

    def ID(self):  # noqa: N802  # libvirt's name
        return self.number

    def XMLDesc(self, _flags):  # noqa: N802  # libvirt's name
        """Answer at once, answer late, or fail."""
        self.reads += 1
        if isinstance(self.answer, threading.Event):
            self.answer.wait(30)
            return nova_xml(self._name)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class FakeLibvirtd:
    """A FAKE libvirtd: its domains and how it answers."""

    def __init__(self, *domains):
        self.domains = list(domains)
        self.connections = []
        self.error = None
        self.listing = self.opening = None
        self.alive = True

    def open(self, _uri):
        if self.opening:
            self.opening.wait(30)
        if self.error:
            raise self.error
        self.connections.append(FakeConnection(self))
        return self.connections[-1]

    def change(self, domain, answer):
        """The definition of a domain is another one, as an event tells."""
        domain.answer = answer
        self.connections[0].on_event(None, domain, 1, 2, None)


class FakeConnection:
    """A FAKE connection to the daemon."""

    def __init__(self, daemon):
        self.daemon, self.closed, self.on_close, self.on_event = daemon, False, None, None

    def setKeepAlive(self, *_):  # noqa: N802  # libvirt's name
        """Not every driver supports it."""
        raise libvirt.libvirtError("this function is not supported")

    def registerCloseCallback(self, callback, _opaque):  # noqa: N802  # libvirt's name
        self.on_close = callback

    def domainEventRegisterAny(self, _domain, event, callback, _opaque):  # noqa: N802
        if event == libvirt.VIR_DOMAIN_EVENT_ID_DEVICE_ADDED:
            raise libvirt.libvirtError("unknown event")
        self.on_event = callback

    def listAllDomains(self, _flags):  # noqa: N802  # libvirt's name
        """All domains, or the error of the daemon."""
        if self.daemon.listing:
            self.daemon.listing.wait(30)
        if self.daemon.error:
            raise self.daemon.error
        return list(self.daemon.domains)

    def isAlive(self):  # noqa: N802  # libvirt's name
        return self.daemon.alive

    def close(self):
        self.closed = True


@pytest.fixture
def daemon(monkeypatch):
    """A fake libvirtd with two domains in place of the real one."""
    found = FakeLibvirtd(FakeDomain("one", 1), FakeDomain("two", 2))
    monkeypatch.setattr(libvirt, "openReadOnly", found.open)
    monkeypatch.setattr(connection, "RECONNECT_S", 0.0)
    yield found
    for domain in found.domains:
        if isinstance(domain.answer, threading.Event):
            domain.answer.set()


def connected(**more):
    """A hypervisor of the fake libvirtd, whose domains are known."""
    found = Hypervisor("fake", **more)
    found.domains()
    return found


def known(found):
    """Sorted names of its domains."""
    return sorted(xml.domain.name for xml in found.domains().values())


@pytest.mark.parametrize(("resync_s", "more"), [(60, 0), (0.0, 100)], ids=["steady", "listing"])
def test_steady_cycles_make_no_call(resync_s, more):
    """Real libvirt without a daemon: the test driver's one domain is read once.

    A periodic listing, which finds lost events, is a single call if nothing has changed.
    """
    found = Hypervisor(TEST, resync_s=resync_s)
    (xml,) = found.domains().values()
    assert (xml.domain.name, xml.domain.vcpus, xml.domain.specs) == ("test", 2, {})
    assert found.available
    calls = found.connection.calls

    for _ in range(100):
        found.domains()

    assert found.connection.calls == calls + more
    found.connection.drop()


def test_changed_domain_is_read_again_after_its_event():
    """A real change of a domain's metadata wakes the agent and is read."""
    woken = threading.Event()
    found = Hypervisor(TEST, wake=woken.set, resync_s=60)
    (before,) = found.domains().values()
    other = libvirt.open(TEST)
    domain = other.lookupByName("test")
    # As Nova does it: libvirt adds the namespace again.
    metadata = nova_metadata({"amp:pref_core": "0.5"}).replace("nova:", "")
    metadata = metadata.replace(f' xmlns:nova="{NOVA}"', "")

    domain.setMetadata(libvirt.VIR_DOMAIN_METADATA_ELEMENT, metadata, "instance", NOVA, 1)
    until(woken.is_set, 5, "the event")

    (after,) = found.domains().values()
    assert (before.domain.specs, after.domain.specs) == ({}, {"amp:pref_core": "0.5"})
    domain.setMetadata(libvirt.VIR_DOMAIN_METADATA_ELEMENT, None, "instance", NOVA, 1)
    other.close()
    found.connection.drop()


def test_fallback_bookings_are_applied(daemon):
    """Domains without a booking get the configured one, also one that is configured later."""
    found = Hypervisor("fake", [Fallback("t*", {"amp:pref_core": "0.5"})])

    specs = {xml.domain.name: dict(xml.domain.specs) for xml in found.domains().values()}

    assert specs == {"one": {}, "two": {"amp:pref_core": "0.5"}}
    found.use([Fallback("o*", {"amp:pref_core": "0.3"})])
    specs = {xml.domain.name: dict(xml.domain.specs) for xml in found.domains().values()}
    assert specs == {"one": {"amp:pref_core": "0.3"}, "two": {}}


def test_domain_that_hangs_costs_its_deadline_once(daemon):
    """A locked domain delays one cycle and no other one. Its late answer may be out of date."""
    daemon.domains[0].answer = released = threading.Event()
    found = Hypervisor("fake", timeout_s=SHORT_S, resync_s=60)

    assert known(found) == ["two"]
    began = time.monotonic()
    for _ in range(20):
        assert known(found) == ["two"]
    assert time.monotonic() - began < SHORT_S
    assert daemon.domains[0].reads == 1
    daemon.domains[0].answer = nova_xml("one", specs={"amp:weight": "2"})
    released.set()

    until(lambda: known(found) == ["one", "two"], 5, "the second answer")
    assert found.domains()[resource("one")].domain.specs == {"amp:weight": "2"}
    assert len(daemon.connections) == 1


def test_libvirtd_that_hangs_costs_its_deadline_once(daemon):
    """It delays a cycle or two; the known domains stay known."""
    found = connected(timeout_s=SHORT_S, resync_s=0.0)
    daemon.listing = daemon.opening = released = threading.Event()
    found.domains()
    found.domains()

    began = time.monotonic()
    for _ in range(20):
        assert known(found) == ["one", "two"]
    assert time.monotonic() - began < SHORT_S
    assert not found.available
    daemon.listing = daemon.opening = None
    released.set()
    until(lambda: found.domains() and found.available, 5, "reconnecting")
    assert daemon.connections[0].closed


def test_calls_of_a_cycle_share_what_it_may_wait(daemon):
    """Many domains that hang at once cost a cycle one short wait; each is read once it answers."""
    daemon.domains += [FakeDomain(f"more-{i}", 10 + i) for i in range(20)]
    found = Hypervisor("fake", timeout_s=30, resync_s=60)
    before = found.domains()
    found.connection.cycle_wait_s = SHORT_S
    released = threading.Event()
    for domain in daemon.domains:
        daemon.change(domain, released if domain in daemon.domains[:10] else domain.answer)

    began = time.monotonic()
    for _ in range(3):
        assert found.domains() == before
    assert time.monotonic() - began < 10 * SHORT_S
    assert found.available
    for domain in daemon.domains[10:]:
        daemon.change(domain, nova_xml(domain.name(), vcpus=7))
    until(lambda: sum(x.domain.vcpus == 7 for x in found.domains().values()) == 12, 5, "the others")
    released.set()


def test_a_libvirtd_that_is_slow_is_not_unavailable(daemon):
    """Its answer is taken by a later cycle; no call is made twice."""
    found = connected(timeout_s=30, resync_s=0.0)
    found.connection.cycle_wait_s = SHORT_S
    daemon.listing = released = threading.Event()
    daemon.domains.append(FakeDomain("three", 3))
    calls = found.connection.calls

    for _ in range(3):
        assert known(found) == ["one", "two"]
    assert (found.available, found.connection.calls) == (True, calls + 1)
    released.set()

    until(lambda: known(found) == ["one", "three", "two"], 5, "the answer")
    assert len(daemon.connections) == 1


def test_an_event_during_a_slow_answer_is_not_lost(daemon):
    """The answer may be older than the event, so the definition is read once more."""
    found = connected(timeout_s=30, resync_s=60)
    found.connection.cycle_wait_s = SHORT_S
    released = threading.Event()
    daemon.change(daemon.domains[0], released)
    found.domains()
    daemon.change(daemon.domains[0], nova_xml("one", vcpus=5))
    released.set()

    until(lambda: found.domains()[resource("one")].domain.vcpus == 5, 5, "the second answer")


def test_a_domain_that_vanishes_or_is_malformed_does_not_affect_others(daemon):
    """It may end between the listing and the reading of its XML."""
    one = daemon.domains[0]
    one.answer = libvirt.libvirtError("Domain not found")
    found = Hypervisor("fake", resync_s=0.0)
    assert known(found) == ["two"]

    one.answer = "<domain>"
    domains = {xml.domain.name: xml.domain for xml in found.domains().values()}

    assert domains["one"].problem.startswith("its definition cannot be read (not XML: ")
    assert domains["one"].resource == resource("one")
    assert domains["two"].problem is None
    daemon.domains.remove(one)
    assert known(found) == ["two"]


def test_definition_that_became_malformed_keeps_the_booking(daemon):
    """What the flavor booked is known from before, and must not be offered to others."""
    one = daemon.domains[0]
    one.answer = nova_xml("one", specs={"amp:pref_core": "0.5"})
    found = connected(resync_s=0.0)
    one.answer, one.number = "<domain>", 3

    domain = found.domains()[resource("one")].domain

    assert (domain.specs, domain.vcpus) == ({"amp:pref_core": "0.5"}, 2)
    assert domain.problem.startswith("its definition cannot be read")


def test_restarted_domain_is_read_again(daemon):
    """A new number means a new incarnation, whose definition may differ."""
    found = connected(resync_s=0.0)
    daemon.domains[0].number = 9
    daemon.domains[0].answer = nova_xml("one", vcpus=4)

    assert found.domains()[resource("one")].domain.vcpus == 4
    assert (daemon.domains[0].reads, daemon.domains[1].reads) == (2, 1)


@pytest.mark.parametrize("closed", [True, False], ids=["libvirt closes", "a call fails"])
def test_restart_of_libvirtd_is_survived(daemon, closed):
    """Known domains stay known while libvirt is away; then the agent reconnects."""
    found = connected(resync_s=60 if closed else 0.0)
    daemon.error, daemon.alive = libvirt.libvirtError("Failed to connect socket"), closed
    if closed:
        daemon.connections[0].on_close(daemon.connections[0], 1, None)

    assert known(found) == ["one", "two"]
    assert not found.available
    daemon.error, daemon.alive = None, True
    daemon.domains.append(FakeDomain("three", 3))
    assert known(found) == ["one", "three", "two"]
    assert found.available
    assert len(daemon.connections) == 2


def test_reconnecting_is_not_tried_in_every_cycle(daemon, monkeypatch):
    """While libvirt is down, the agent reconnects every few seconds only."""
    monkeypatch.setattr(connection, "RECONNECT_S", 60.0)
    daemon.error = libvirt.libvirtError("Failed to connect socket")
    found = Hypervisor("fake")
    for _ in range(3):
        with pytest.raises(HypervisorUnavailable):
            found.domains()

    assert found.connection.calls == 1


def write(found, function=lambda _handle: None, **told):
    """Change the domain ``one``, whose event will tell this."""
    names = {f"cputune.{name}": value for name, value in told.items()}
    found.change(resource("one"), function, names)


def writable(daemon, monkeypatch, **more):
    """A hypervisor whose connection may write; its domains are known."""
    monkeypatch.setattr(libvirt, "open", daemon.open)
    monkeypatch.setattr(libvirt, "openReadOnly", None)
    return connected(resync_s=60, writable=True, **more)


def test_an_event_of_an_own_change_is_no_news(daemon, monkeypatch):
    """Neither the tunables as they were set nor amp-nova's metadata; anything else is."""
    woken = threading.Event()
    found = writable(daemon, monkeypatch, wake=woken.set)
    one, event = daemon.domains[0], daemon.connections[0].on_event

    write(found, vcpu_quota=5000, vcpu_period=20000)
    write(found, vcpupin0="3")
    event(None, one, {"cputune.vcpu_quota": 5000}, None)
    event(None, one, {"cputune.vcpupin0": "3"}, None)
    event(None, one, 2, "urn:amp-nova:tuning:1", None)

    assert not woken.is_set()
    event(None, one, {"cputune.vcpu_quota": 6000}, None)
    assert woken.is_set()
    woken.clear()
    event(None, one, 2, "http://openstack.org/xmlns/libvirt/nova/1.1", None)
    assert woken.is_set()


def test_a_late_change_is_waited_for_before_the_next_one(daemon, monkeypatch):
    """libvirt holds the domain's lock, as during a migration: the order of changes stays."""
    found, may, done = writable(daemon, monkeypatch, timeout_s=5), threading.Event(), []
    found.connection.cycle_wait_s = SHORT_S

    def late(_handle):
        may.wait(30)
        done.append("first")

    found.domains()
    with pytest.raises(HypervisorUnavailable):
        write(found, late)
    found.domains()
    with pytest.raises(HypervisorUnavailable, match="not answered yet"):
        write(found, lambda _handle: done.append("second"))
    assert done == []
    may.set()
    until(lambda: done, 5, "the late change")
    found.domains()
    write(found, lambda _handle: done.append("third"))

    assert done == ["first", "third"]


def test_changes_go_through_the_present_connection(daemon, monkeypatch):
    """After libvirt was restarted, a domain's handle is a new one."""
    found, handles = writable(daemon, monkeypatch), []
    daemon.connections[0].on_close(None, 0, None)
    old, new = daemon.domains[0], FakeDomain("one", 1)
    daemon.domains[0] = new
    found._on_change(None)
    found.domains()

    write(found, handles.append)

    assert handles == [new] != [old]


def test_what_cannot_be_changed_now_has_a_reason_in_one_sentence(daemon, monkeypatch):
    """A domain that is gone; and a cycle without time left, instead of piling up changes."""
    found = writable(daemon, monkeypatch)
    found.connection.cycle_wait_s = 0.0
    found.domains()
    with pytest.raises(HypervisorUnavailable, match="continuing with the next cycle"):
        write(found)

    found.connection.cycle_wait_s = 30.0
    del daemon.domains[0]
    found._on_change(resource("one"))
    found.domains()
    with pytest.raises(HypervisorUnavailable, match="no longer lists its domain"):
        write(found)


def test_a_domain_that_does_not_run_is_known_as_inactive(daemon):
    """Until it starts or is undefined."""
    domain = FakeDomain("a", number=-1)
    daemon.domains = [domain]
    found = Hypervisor("fake:///", resync_s=0.0)

    assert (found.domains(), set(found.inactive())) == ({}, {resource("a")})
    domain.number = 7
    assert (set(found.domains()), found.inactive()) == ({resource("a")}, {})
    domain.number = -1
    daemon.domains = []
    assert (found.domains(), found.inactive()) == ({}, {})
