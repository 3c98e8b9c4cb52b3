# SPDX-License-Identifier: Apache-2.0
"""Nova prefers the host where an instance is most useful."""

from dataclasses import replace
from typing import ClassVar

from msgspec import structs
from nova import context
from nova.objects.request_spec import RequestSpec
from nova.scheduler.host_manager import HostState
from nova.scheduler.weights import BaseHostWeigher, WeighedHost

from amp_nova.nova_plugins import report_server
from amp_nova.nova_plugins.weights import AmpEfficiencyWeigher
from amp_nova.wire.encoding import encode
from amp_nova.wire.host_report import Speedup
from tests.functional.cloud import CloudTestCase

WEIGHERS = "amp_nova.nova_plugins.weights."


class WeighingTestCase(CloudTestCase):
    """A host of slow cores and one with fast cores too, and no other weighers."""

    HOSTS: ClassVar = {
        "even": {"slow": (4, 1.0)},
        "hybrid": {"slow": (1, 1.0), "fast": (2, 2.0)},
    }
    WEIGHERS: ClassVar = [
        f"{WEIGHERS}AmpEfficiencyWeigher",
        f"{WEIGHERS}AmpScalabilityWeigher",
    ]

    def measure(self, server, host, speedup):
        """Deliver a report of the host with a measured speedup of an instance."""
        entry = self.states.entry(host)
        seen = entry.report

        def with_speedup(instance):
            if instance.resource != server["id"]:
                return instance
            measured = tuple(
                structs.replace(v, speedup=Speedup(speedup, 0.02)) for v in instance.vcpus
            )
            return structs.replace(instance, vcpus=measured)

        origin = structs.replace(seen.origin, sequence=seen.origin.sequence + 100)
        instances = tuple(with_speedup(i) for i in seen.instances)
        assert self.states.accept(encode(replace(seen, origin=origin, instances=instances)))


class EfficiencyTest(WeighingTestCase):
    def test_work_that_gains_goes_where_fast_cores_are_free(self):
        """By its flavor's hint, before anything is measured.

        A host is weighed alone as with others: by the loop of Nova's base class, for a caller that
        weighs host by host.
        """
        server = self.boot(self.flavor(efficiency="high"))
        assert self.host_of(server) == "hybrid"
        spec = RequestSpec.get_by_instance_uuid(context.get_admin_context(), server["id"])
        hosts = [WeighedHost(HostState(name, name, None), 0.0) for name in self.HOSTS]
        weigher = AmpEfficiencyWeigher()

        alone = BaseHostWeigher.weigh_objects(weigher, hosts, spec)

        assert alone == weigher.weigh_objects(hosts, spec)
        assert alone[0] != alone[1]

    def test_bookings_leave_fast_cores_alone(self):
        """The tenant gets the same on any core: five instances fill the five slow cores."""
        flavor = self.flavor(pref_core="1")

        servers = []
        for _ in range(5):
            servers.append(self.boot(flavor))
            report_server.shared().follow_up()  # the alternates of the build are over

        hosts = sorted(self.host_of(server) for server in servers)
        assert hosts == ["even"] * 4 + ["hybrid"]

    def test_measurements_of_the_same_flavor_and_image_override_the_hint(self):
        """The first instance gained nothing from fast cores."""
        flavor = self.flavor(efficiency="high")
        first = self.boot(flavor)
        self.cycle("hybrid")
        second = self.boot(flavor)
        self.cycle("hybrid")
        assert [self.host_of(s) for s in (first, second)] == ["hybrid", "hybrid"]

        self.measure(first, "hybrid", 1.0)
        measured = self.states.sensitivity((flavor, first["image"]["id"]))
        assert measured == 0.0


class MultiplierTest(WeighingTestCase):
    def test_an_aggregate_overrides_the_multiplier(self):
        """A negative multiplier on the hybrid host's aggregate repels instances."""
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
