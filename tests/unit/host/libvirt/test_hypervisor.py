"""Libvirt's domains: against libvirt's own test driver, and against a fake that hangs and fails."""

import subprocess
import sys
import threading
import time

import pytest

libvirt = pytest.importorskip("libvirt", reason="libvirt-python is not installed")

from amp_nova.exceptions import HypervisorUnavailable  # noqa: E402  # only where libvirt is
from amp_nova.host.libvirt import connection  # noqa: E402
from amp_nova.host.libvirt.domain_xml import Fallback  # noqa: E402
from amp_nova.host.libvirt.hypervisor import Hypervisor  # noqa: E402
from tests.fakehost import nova_metadata, nova_xml, resource  # noqa: E402

TEST = "test:///default"
NOVA = "http://openstack.org/xmlns/libvirt/nova/1.1"
SHORT_S = 0.1


def until(condition, what):
    """Wait for what another thread does."""
    end = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen within 5 s"
        time.sleep(0.005)


class FakeDomain:
    """A FAKE libvirt domain. ``answer`` is its XML, an exception, or an event to wait for first."""

    def __init__(self, name, number=1, answer=None):
        self._name, self.number = name, number
        self.answer = nova_xml(name) if answer is None else answer
        self.asked = 0

    def name(self):
        """As libvirt has it."""
        return self._name

    def UUIDString(self):  # noqa: N802  # libvirt's name
        """As libvirt has it."""
        return resource(self._name)

    def ID(self):  # noqa: N802  # libvirt's name
        """As libvirt has it."""
        return self.number

    def XMLDesc(self, _flags):  # noqa: N802  # libvirt's name
        """Answer, at once or late, or fail."""
        self.asked += 1
        if isinstance(self.answer, threading.Event):
            self.answer.wait(30)
            return nova_xml(self._name)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class FakeLibvirtd:
    """A FAKE libvirtd: its domains, and how it answers."""

    def __init__(self, *domains):
        self.domains = list(domains)
        self.connections = []
        self.error = None
        self.listing = self.opening = None
        self.alive = True

    def open(self, _uri):
        """Connect."""
        if self.opening:
            self.opening.wait(30)
        if self.error:
            raise self.error
        self.connections.append(FakeConnection(self))
        return self.connections[-1]


class FakeConnection:
    """A FAKE connection to it."""

    def __init__(self, daemon):
        self.daemon, self.closed, self.on_close, self.on_event = daemon, False, None, None

    def setKeepAlive(self, *_):  # noqa: N802  # libvirt's name
        """Not every driver has it."""
        raise libvirt.libvirtError("this function is not supported")

    def registerCloseCallback(self, callback, _opaque):  # noqa: N802  # libvirt's name
        """Remember whom to tell."""
        self.on_close = callback

    def domainEventRegisterAny(self, _domain, event, callback, _opaque):  # noqa: N802
        """Remember whom to tell."""
        if event == libvirt.VIR_DOMAIN_EVENT_ID_DEVICE_ADDED:
            raise libvirt.libvirtError("unknown event")
        self.on_event = callback

    def listAllDomains(self, _flags):  # noqa: N802  # libvirt's name
        """All domains, or the error that everything gives."""
        if self.daemon.listing:
            self.daemon.listing.wait(30)
        if self.daemon.error:
            raise self.daemon.error
        return list(self.daemon.domains)

    def isAlive(self):  # noqa: N802  # libvirt's name
        """Whether the connection holds."""
        return self.daemon.alive

    def close(self):
        """Note that it was closed."""
        self.closed = True


@pytest.fixture
def daemon(monkeypatch):
    """A fake libvirtd in the place of the real one, with two domains."""
    found = FakeLibvirtd(FakeDomain("one", 1), FakeDomain("two", 2))
    monkeypatch.setattr(libvirt, "open", found.open)
    monkeypatch.setattr(connection, "RECONNECT_S", 0.0)
    yield found
    for domain in found.domains:
        if isinstance(domain.answer, threading.Event):
            domain.answer.set()


def known(found):
    """Names of the domains it tells, sorted."""
    return sorted(xml.domain.name for xml in found.domains().values())


def test_domains_of_libvirts_own_test_driver_are_read():
    """Real libvirt, no daemon: the test driver's one domain, with what its XML says."""
    found = Hypervisor(TEST)

    (xml,) = found.domains().values()

    assert (xml.domain.name, xml.domain.vcpus, xml.domain.specs) == ("test", 2, {})
    assert found.available
    found.close()


def test_steady_cycles_make_no_call():
    """As long as nothing happens libvirt is not asked anything."""
    found = Hypervisor(TEST, resync_s=60)
    found.domains()
    calls = found.calls

    for _ in range(100):
        found.domains()

    assert found.calls == calls
    found.close()


def test_lost_events_are_made_up_for_by_listing():
    """After the time between two listings libvirt is asked once, for the list alone."""
    found = Hypervisor(TEST, resync_s=0.0)
    found.domains()
    calls = found.calls

    found.domains()

    assert found.calls == calls + 1
    found.close()


def test_changed_domain_is_read_again_after_its_event():
    """A real change of a real domain's metadata wakes the agent and is read."""
    woken = threading.Event()
    found = Hypervisor(TEST, wake=woken.set, resync_s=60)
    (before,) = found.domains().values()
    other = libvirt.open(TEST)
    domain = other.lookupByName("test")
    # As Nova itself does it: libvirt puts the namespace back.
    metadata = nova_metadata({"amp:pref_core": "0.5"}).replace("nova:", "")
    metadata = metadata.replace(f' xmlns:nova="{NOVA}"', "")

    domain.setMetadata(libvirt.VIR_DOMAIN_METADATA_ELEMENT, metadata, "instance", NOVA, 1)
    until(woken.is_set, "the event")

    (after,) = found.domains().values()
    assert (before.domain.specs, after.domain.specs) == ({}, {"amp:pref_core": "0.5"})
    domain.setMetadata(libvirt.VIR_DOMAIN_METADATA_ELEMENT, None, "instance", NOVA, 1)
    other.close()
    found.close()


def test_libvirt_prints_nothing():
    """Libvirt's C library would print every error: the agent's log says enough."""
    script = (
        "import libvirt, time\n"
        "from amp_nova.host.libvirt.hypervisor import Hypervisor\n"
        "found = Hypervisor('test:///default')\n"
        "(xml,) = found.domains().values()\n"
        "try: Hypervisor('nonsense:///').domains()\n"
        "except Exception as exc: print(exc)\n"
    )

    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )

    assert result.stderr == ""
    assert "nonsense:///" in result.stdout


def test_unreachable_libvirt_is_one_sentence():
    """Before libvirt ever answered there is nothing to go on with, and the URI is named."""
    found = Hypervisor("test:///no/such/file.xml", timeout_s=5)

    with pytest.raises(HypervisorUnavailable, match=r"libvirt at test:///no/such/file.xml: "):
        found.domains()

    assert not found.available


def test_fallback_bookings_reach_the_domains(daemon):
    """What is configured for domains without a booking is theirs."""
    found = Hypervisor("fake", [Fallback("t*", {"amp:pref_core": "0.5"})])

    specs = {xml.domain.name: dict(xml.domain.specs) for xml in found.domains().values()}

    assert specs == {"one": {}, "two": {"amp:pref_core": "0.5"}}


def test_domain_that_hangs_costs_its_deadline_once(daemon):
    """A domain whose lock is held delays one cycle, and no other domain; it comes when it can."""
    daemon.domains[0].answer = released = threading.Event()
    found = Hypervisor("fake", timeout_s=SHORT_S, resync_s=60)

    assert known(found) == ["two"]
    began = time.monotonic()
    for _ in range(20):
        assert known(found) == ["two"]
    assert time.monotonic() - began < SHORT_S
    assert daemon.domains[0].asked == 1
    daemon.domains[0].answer = nova_xml("one")
    released.set()

    until(lambda: known(found) == ["one", "two"], "the late answer")
    assert len(daemon.connections) == 1


def test_domain_that_hangs_later_keeps_what_was_known(daemon):
    """A changed domain that does not answer is told as it was before, not left out."""
    found = Hypervisor("fake", timeout_s=SHORT_S, resync_s=60)
    before = found.domains()
    daemon.domains[0].answer = released = threading.Event()
    daemon.connections[0].on_event(None, daemon.domains[0], 1, 2, None)

    assert found.domains() == before
    released.set()


def test_late_answer_is_not_taken_for_the_present(daemon):
    """What a domain said when it was asked long ago may have changed: it is asked again."""
    daemon.domains[0].answer = released = threading.Event()
    found = Hypervisor("fake", timeout_s=SHORT_S, resync_s=60)
    found.domains()
    daemon.domains[0].answer = nova_xml("one", specs={"amp:weight": "2"})
    released.set()

    until(lambda: known(found) == ["one", "two"], "the second answer")

    assert found.domains()[resource("one")].domain.specs == {"amp:weight": "2"}


def test_libvirtd_that_hangs_costs_its_deadline_once(daemon):
    """A libvirtd that stops answering delays a cycle or two; what was known holds all along."""
    found = Hypervisor("fake", timeout_s=SHORT_S, resync_s=0.0)
    found.domains()
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
    until(lambda: found.domains() and found.available, "reconnecting")
    assert daemon.connections[0].closed


def test_domain_that_vanishes_while_it_is_read_does_not_stop_the_others(daemon):
    """Libvirt may not know a domain any more that it has just listed."""
    daemon.domains[0].answer = libvirt.libvirtError("Domain not found")
    found = Hypervisor("fake")

    assert known(found) == ["two"]
    del daemon.domains[0]
    assert known(found) == ["two"]


def test_definition_that_cannot_be_read_does_not_stop_the_others(daemon):
    """It is told as a domain with a problem."""
    daemon.domains[0].answer = "<domain>"
    found = Hypervisor("fake")

    domains = {xml.domain.name: xml.domain for xml in found.domains().values()}

    assert domains["one"].problem.startswith("its definition cannot be read (not XML: ")
    assert domains["one"].resource == resource("one")
    assert domains["two"].problem is None


def test_restarted_domain_is_read_again(daemon):
    """Another number is another life of the domain, whose definition may be another."""
    found = Hypervisor("fake", resync_s=0.0)
    found.domains()
    daemon.domains[0].number = 9
    daemon.domains[0].answer = nova_xml("one", vcpus=4)

    assert found.domains()[resource("one")].domain.vcpus == 4
    assert (daemon.domains[0].asked, daemon.domains[1].asked) == (2, 1)


def test_stopped_domain_is_no_longer_told(daemon):
    """A domain that is not active is not ours to look after."""
    found = Hypervisor("fake", resync_s=0.0)
    found.domains()
    del daemon.domains[1]

    assert known(found) == ["one"]


def test_restart_of_libvirtd_is_outlived(daemon):
    """While libvirt is away the domains known so far are told; then it is connected to anew."""
    found = Hypervisor("fake", resync_s=60)
    found.domains()
    daemon.error = libvirt.libvirtError("Failed to connect socket")
    daemon.connections[0].on_close(daemon.connections[0], 1, None)

    assert known(found) == ["one", "two"]
    assert not found.available
    daemon.error = None
    daemon.domains.append(FakeDomain("three", 3))
    assert known(found) == ["one", "three", "two"]
    assert found.available
    assert len(daemon.connections) == 2


def test_error_on_a_broken_connection_connects_anew(daemon):
    """A connection that broke without a word is made again after its first error."""
    found = Hypervisor("fake", resync_s=0.0)
    found.domains()
    daemon.error, daemon.alive = libvirt.libvirtError("client socket is closed"), False
    found.domains()
    daemon.error, daemon.alive = None, True

    assert known(found) == ["one", "two"]
    assert len(daemon.connections) == 2


def test_old_connection_that_closes_late_does_not_break_the_new_one(daemon):
    """Only the connection in use counts when one closes."""
    found = Hypervisor("fake", resync_s=0.0)
    found.domains()
    first = daemon.connections[0]
    first.on_close(first, 1, None)
    found.domains()

    first.on_close(first, 1, None)
    found.domains()

    assert len(daemon.connections) == 2


def test_unforeseen_error_in_a_call_is_not_taken_for_a_hang(daemon):
    """A fault of ours comes out at once, as what it is."""
    daemon.error = TypeError("a fault")
    found = Hypervisor("fake", timeout_s=30)

    with pytest.raises(TypeError, match="a fault"):
        found.domains()


def test_reconnecting_is_not_tried_in_every_cycle(daemon, monkeypatch):
    """A libvirt that is down is asked every few seconds, not every cycle."""
    monkeypatch.setattr(connection, "RECONNECT_S", 60.0)
    daemon.error = libvirt.libvirtError("Failed to connect socket")
    found = Hypervisor("fake")
    for _ in range(3):
        with pytest.raises(HypervisorUnavailable):
            found.domains()

    assert found.calls == 1
