"""What is read of instances, and what is said about it."""

from amp_nova.agent.state import instances
from amp_nova.model.observation import DomainReading, Observation
from tests.support import hosts, reports


def seen(*domains):
    """An observation of these domains."""
    return Observation(0, hosts.topology(), tuple(DomainReading(d, ()) for d in domains))


def test_a_flavor_whose_booking_nova_does_not_tell_is_said_once(caplog):
    """Nova before 32.0; not for each server, nor in each cycle."""
    old = [
        reports.domain(name, flavor=flavor, booking_unknown=True)
        for name, flavor in (("a", "m1.small"), ("b", "m1.small"), ("c", "m1.large"))
    ]

    first = instances.read({}, seen(*old[:2], reports.domain("new")))
    instances.read(first, seen(*old))

    said = [(m.split(":")[0], m.split("such as ")[1][:1]) for m in caplog.messages]
    assert said == [("flavor m1.small", "a"), ("flavor m1.large", "c")]
