"""Nova prefers the host where an instance does the cloud most good."""

from dataclasses import replace
from typing import ClassVar

from amp_nova.wire.host_report import Speedup, encode
from tests.functional.cloud import CloudTestCase

WEIGHERS = "amp_nova.nova_plugins.weights."


class WeighingTestCase(CloudTestCase):
    """A host of slow cores and one that has a fast core too; no other weigher has a say."""

    HOSTS: ClassVar = {
        "even": {"slow": (4, 1.0)},
        "hybrid": {"slow": (1, 1.0), "fast": (2, 2.0)},
    }
    WEIGHERS: ClassVar = [
        f"{WEIGHERS}AmpEfficiencyWeigher",
        f"{WEIGHERS}AmpScalabilityWeigher",
    ]

    def measure(self, server, host, speedup):
        """Have the host's next report carry a measured speedup of an instance."""
        entry = self.states.entry(host)
        seen = entry.snapshot

        def with_speedup(instance):
            if instance.resource != server["id"]:
                return instance
            measured = tuple(replace(v, speedup=Speedup(speedup, 0.02)) for v in instance.vcpus)
            return replace(instance, vcpus=measured)

        origin = replace(seen.origin, sequence=seen.origin.sequence + 100)
        instances = tuple(with_speedup(i) for i in seen.instances)
        assert self.states.accept(encode(replace(seen, origin=origin, instances=instances)))


class EfficiencyTest(WeighingTestCase):
    def test_work_that_gains_goes_where_fast_cores_are_free(self):
        """By its flavor's hint, as long as nothing was measured."""
        server = self.boot(self.flavor(efficiency="high"))

        assert self.host_of(server) == "hybrid"

    def test_bookings_leave_fast_cores_alone(self):
        """The tenant gets the same anywhere: five of them fill the five slow cores of the cloud."""
        flavor = self.flavor(pref_core="1")

        servers = [self.boot(flavor) for _ in range(5)]

        hosts = sorted(self.host_of(server) for server in servers)
        assert hosts == ["even"] * 4 + ["hybrid"]

    def test_what_was_measured_of_others_of_its_kind_outweighs_the_hint(self):
        """Same flavor, same image: the first one showed that it gains nothing."""
        flavor = self.flavor(efficiency="high")
        first = self.boot(flavor)
        self.cycle("hybrid")
        second = self.boot(flavor)
        self.cycle("hybrid")
        assert [self.host_of(s) for s in (first, second)] == ["hybrid", "hybrid"]

        self.measure(first, "hybrid", 1.0)
        learnt = self.states.sensitivity("another", flavor, first["image"]["id"])
        assert learnt == 0.0

    def test_what_was_measured_of_itself_counts_most(self):
        """For moves: it is weighed by what it is, not by what its kind is."""
        flavor = self.flavor(efficiency="high")
        servers = [self.boot(flavor) for _ in range(2)]
        self.cycle()
        for server, speedup in zip(servers, (2.0, 1.0), strict=True):
            self.measure(server, "hybrid", speedup)

        image = servers[0]["image"]["id"]
        found = [self.states.sensitivity(s["id"], flavor, image) for s in servers]
        assert found == [1.0, 0.0]


class MultiplierTest(WeighingTestCase):
    def test_an_aggregate_overrides_the_multiplier(self):
        """A negative one on the hybrid host's aggregate keeps work away from it."""
        for name in ("amp_efficiency_weight_multiplier", "amp_scalability_weight_multiplier"):
            aggregate = self.api.post_aggregate({"aggregate": {"name": name}})["id"]
            self.api.add_host_to_aggregate(aggregate, "hybrid")
            body = {"set_metadata": {"metadata": {name: "-1"}}}
            self.api.api_post(f"/os-aggregates/{aggregate}/action", body)

        server = self.boot(self.flavor(efficiency="high"))

        assert self.host_of(server) == "even"


class ScalabilityTest(WeighingTestCase):
    HOSTS: ClassVar = {
        "one": {"slow": (3, 1.0), "fast": (1, 2.0)},
        "two": {"slow": (2, 1.0), "fast": (2, 2.0)},
    }
    WEIGHERS: ClassVar = [f"{WEIGHERS}AmpScalabilityWeigher"]

    def test_a_parallel_instance_goes_where_it_finds_more_fast_cores(self):
        """Two vCPUs find two fast cores, not one."""
        server = self.boot(self.flavor(vcpus=2, efficiency="high"))

        assert self.host_of(server) == "two"
