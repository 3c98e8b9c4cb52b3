# SPDX-License-Identifier: Apache-2.0
"""What a recording says of a host; the simulated host stands in for a real one."""

from dataclasses import replace
from functools import cache

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from amp_nova.agent.loop import Loop, LoopSettings
from amp_nova.exceptions import TopologyUnknown
from amp_nova.model.topology import CoreType, PCpu, Topology
from amp_nova.profiling.profiles import ProfileSettings
from amp_nova.profiling.speedup import SpeedupEstimate
from amp_nova_lab import run as simulation
from amp_nova_lab.commands.inputs import load
from amp_nova_lab.host import SimHost
from amp_nova_lab.recording import file, machine
from amp_nova_lab.recording.behaviour import phases
from amp_nova_lab.recording.file import Surroundings
from amp_nova_lab.recording.recorder import Bucket, Recorder
from tests.unit.lab.builders import guest, scenario, topology

AROUND = Surroundings("made")
MIXED = """\
duration_s: 60
seed: 3
policy: acfs
host:
  core_types:
    - {name: slow, count: 2, coefficient: 1.0, llc: [4, 4]}
    - {name: fast, count: 2, coefficient: 2.0, llc: [4, 9]}
  reference_ips: 3.0e9
vms:
  - {name: web, extra_specs: {amp:pref_core: 0.5}}
  - name: two
    vcpus: 2
    workload: {speedup: {fast: 1.8}, vcpus: [{utilization: 1.0}, {utilization: 0.4}]}
  - {name: memory, workload: {speedup: {fast: 1.2}}}
  - name: phases
    workload:
      speedup: {fast: 1.5}
      phases_follow: clock
      phases: [{for_s: 15, utilization: 0.3}, {for_s: 15, utilization: 1.0}]
  - {name: counted, extra_specs: {amp:ips: 900M}, workload: {speedup: {fast: 1.4}}}
"""


def recorder():
    return Recorder(ProfileSettings(), 0.5)


def recorded(made, interval_s=0.5, policy=None):
    """A recording of a scenario under the agent's own loop, as on a host; in simulated time."""
    host = SimHost(made.topology, made.guests, made.seed)
    loop = Loop(
        host, host, LoopSettings(), simulation.read_policy(policy or made.policy), lambda: 0.0
    )
    taken = recorder()
    for step in range(round(made.duration_s / interval_s) + 1):
        if step:
            host.advance(step * interval_s)
        taken.add(host.observe())
        if not step % 2:
            loop.cycle()
    return taken.result()


def loaded(tmp_path, text):
    """The scenario of a file with this text."""
    path = tmp_path / "host.yaml"
    path.write_text(text)
    return load(path)


def replayed(tmp_path, text):
    """The scenario with the seed of ``MIXED``: when vCPUs sleep that share a pCPU is chance."""
    return replace(loaded(tmp_path, text), seed=3)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """What is recorded of ``MIXED`` under a policy, and what its guests do."""
    made = loaded(tmp_path_factory.mktemp("mixed"), MIXED)
    return cache(
        lambda p: (recorded(made, policy=p), simulation.run(made, simulation.read_policy(p)))
    )


def test_a_replay_is_what_was_recorded(tmp_path, mixed):
    """Bookings, several vCPUs, phases and instructions: the file alone gives the same numbers."""
    recording, truth = mixed("acfs")

    again = simulation.run(replayed(tmp_path, file.text(recording, Surroundings("x", "acfs"))))

    document = yaml.safe_load(file.text(recording, AROUND))
    for name, measured in document["recorded"]["vms"].items():
        true, vm = truth.vms[name], again.vms[name]
        assert measured["progress_refcores"] == pytest.approx(true.progress_refcores, rel=0.01)
        assert vm.progress_refcores == pytest.approx(true.progress_refcores, rel=0.08)
        for found in (measured["delivered_ratio"], vm.delivered_ratio):
            assert found == pytest.approx(true.delivered_ratio, abs=0.01)
    assert document["host"]["core_types"][1]["llc"] == [0, 3]
    two = document["vms"][1]["workload"]["vcpus"]
    assert [v["utilization"] for v in two] == pytest.approx([1.0, 0.4], abs=0.03)
    assert [p["utilization"] for p in document["vms"][3]["workload"]["phases"]] == pytest.approx(
        [0.3, 1.0, 0.3, 1.0], abs=0.06
    )


def test_vcpus_that_are_added_meanwhile_are_left_out():
    """An instance that is resized on its host goes on with the vCPUs that it had at first."""
    small = SimHost(topology(fast=1, slow=1), [guest("vm")])
    large = SimHost(topology(fast=1, slow=1), [guest("vm", vcpus=2)])
    taken = recorder()
    for host, at_s in ((small, 1.0), (large, 2.0), (large, 3.0)):
        host.advance(at_s)
        taken.add(host.observe())

    (instance,) = taken.result().instances.values()
    assert len(instance.vcpus) == 1


@pytest.mark.parametrize(("taken", "other"), [("acfs", "hsp"), ("hsp", "acfs")])
def test_another_policy_is_predicted_within_a_tenth(tmp_path, mixed, taken, other):
    """From a recording alone; the truth is what the recorded guests do under that policy."""
    text = file.text(mixed(taken)[0], replace(AROUND, policy=taken))

    predicted = simulation.run(replayed(tmp_path, text), simulation.read_policy(other))

    for name, true in mixed(other)[1].vms.items():
        found = predicted.vms[name]
        assert found.progress_refcores == pytest.approx(true.progress_refcores, rel=0.1)
        assert found.delivered_ratio == pytest.approx(true.delivered_ratio, abs=0.01)


def test_what_was_never_measured_is_null_and_said():
    """A vCPU that never left its core type; what its flavor states is better than nothing."""
    made = scenario(guest("a"), guest("b", efficiency="1.3"), duration_s=4.0)
    recording = recorded(made)
    for instance in recording.instances.values():
        instance.vcpus[0].speedup = None  # as where nothing counts instructions

    text = file.text(recording, AROUND)

    a, b = yaml.safe_load(text)["vms"]
    assert a["workload"]["speedup"] is None
    assert b["workload"]["speedup"] == {"fast": 1.3}
    assert "# " in text
    assert "a: the speedup of vCPU 0 was never measured: null" in text
    assert "b: the speedup of vCPU 0 was never measured: it is what the flavor states" in text


def test_the_agent_knows_speedups_that_the_recording_does_not():
    """It has watched for longer; the more certain estimate counts, measured ones first."""
    recording = recorded(scenario(guest("a"), duration_s=4.0))
    recording.instances["a"].vcpus[0].speedup = SpeedupEstimate(1.9, 0.01, "misses")
    known = {("a", 0): SpeedupEstimate(1.4, 0.05, "sampling")}

    found = yaml.safe_load(file.text(recording, replace(AROUND, published=known)))

    assert found["vms"][0]["workload"]["speedup"] == {"fast": 1.4}
    (vcpu,) = found["recorded"]["vms"]["a"]["vcpus"]
    assert (vcpu["speedup_error"], vcpu["speedup_source"]) == (0.05, "sampling")


def test_an_instance_that_comes_later_sleeps_before(tmp_path):
    """And one that ends sleeps from then on."""
    made = scenario(guest("stays"), guest("goes"), duration_s=20.0, fast=2, slow=2)
    host, taken = SimHost(made.topology, made.guests), recorder()
    for step in range(21):
        host.advance(float(step)) if step else None
        if step == 5:
            host.remove("goes")
        if step == 10:
            host.add(guest("comes"))
        taken.add(host.observe())

    text = file.text(taken.result(), AROUND)

    workloads = {vm["name"]: vm["workload"] for vm in yaml.safe_load(text)["vms"]}
    assert workloads["stays"]["utilization"] == 1.0
    assert [p["utilization"] for p in workloads["goes"]["phases"]] == [1.0, 0.0]
    assert workloads["comes"]["phases"][0] == {"for_s": 10.0, "utilization": 0.0}
    assert "comes: it existed for only a part of the recording" in text
    assert loaded(tmp_path, text).duration_s == 20.0


def text_of(made, change):
    """A short recording of a host whose domains are observed with changes."""
    host, taken = SimHost(made.topology, made.guests), recorder()
    for step in range(3):
        host.advance(step + 1.0)
        seen = host.observe()
        taken.add(replace(seen, domains=tuple(change(domain) for domain in seen.domains)))
    return file.text(taken.result(), AROUND)


def test_a_booking_that_nobody_can_read_is_left_out(tmp_path):
    """The agent takes it for best effort; the file says what was wrong."""

    def much(seen):
        return structs.replace(seen, domain=replace(seen.domain, specs={"amp:pref_core": "much"}))

    text = text_of(scenario(guest("a")), much)

    assert "a: its booking is invalid (amp:pref_core" in text
    assert not loaded(tmp_path, text).guests[0].booking.booked


def test_a_cpuset_within_one_core_type_becomes_a_core_type(tmp_path):
    """The scenario has no cpusets, but it has core types."""

    def slow(seen):
        vcpus = (structs.replace(v, allowed=frozenset({1})) for v in seen.vcpus)
        return structs.replace(seen, vcpus=tuple(vcpus))

    text = text_of(scenario(guest("a")), slow)

    assert "allows pCPUs 1 only; amp:core_type=slow" in text
    assert loaded(tmp_path, text).guests[0].booking.core_type == "slow"


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["web", "db"], ["web", "db"]),
        (["web", "web"], ["instance-1", "instance-2"]),
        (["", "null"], ["instance-1", "null"]),
        (["a\x1b[31m", "&*: #{"], ["instance-1", "&*: #{"]),
    ],
)
def test_instances_have_names_that_a_scenario_can_have(tmp_path, names, found):
    """Nova's name where it is the only one of that name and fits on a line, else libvirt's."""
    shown = dict(zip(("instance-1", "instance-2"), names, strict=True))

    def named(seen):
        domain = replace(seen.domain, display_name=shown[seen.domain.name])
        return structs.replace(seen, domain=domain)

    text = text_of(scenario(*map(guest, shown)), named)

    assert [g.name for g in loaded(tmp_path, text).guests] == found


def test_siblings_become_neighbours(tmp_path):
    """Linux numbers the second threads after all first ones; a scenario has them side by side."""
    pcpus = [PCpu(i, "fast", (i % 2, i % 2 + 2), llc=i % 2) for i in range(4)]
    types = (CoreType("slow", 1.0), CoreType("fast", 2.0, threads_per_core=2, smt_busy_factor=0.6))
    host = Topology(types, (*pcpus, PCpu(4, "slow", (4,), llc=4)), "slow", "test")
    notes = []

    found = machine.host(host, notes)

    assert found["core_types"][1]["llc"] == [0, 0, 1, 1]
    assert found["core_types"][1]["threads_per_core"] == 2
    assert found["core_types"][1]["smt_busy_factor"] == 0.6
    assert notes == []
    shared = machine.bookable(host, frozenset({0, 1, 4}))
    assert "threads_per_core" not in machine.host(shared, notes)["core_types"][1]
    assert [t.name for t in machine.bookable(host, frozenset({1, 3})).core_types] == ["fast"]
    with pytest.raises(TopologyUnknown, match="cpu_shared_set"):
        machine.bookable(host, frozenset({77}))


def test_a_long_recording_fits_into_a_scenario(monkeypatch, tmp_path):
    """Phases are merged until the file is small enough."""
    phased = guest("a", phases=None)
    recording = recorded(scenario(phased, duration_s=5.0))
    flapping = [Bucket(1.0, 1.0, float(i // 3 % 2)) for i in range(60)]
    recording.instances["a"].vcpus[0].buckets = flapping
    whole = file.text(recording, AROUND)
    monkeypatch.setattr(file, "SIZE_MAX_BYTES", len(whole) - 200)

    shorter = file.text(recording, AROUND)

    assert len(yaml.safe_load(whole)["vms"][0]["workload"]["phases"]) == 20
    assert len(yaml.safe_load(shorter)["vms"][0]["workload"].get("phases", [])) < 20


buckets = st.lists(
    st.builds(
        lambda length, known, demand: Bucket(length, length * known, length * known * demand),
        st.floats(0.1, 10),
        st.sampled_from([0.0, 1.0]),
        st.floats(0, 1),
    ),
    max_size=60,
)


@given(buckets, st.integers(1, 24))
def test_phases_last_as_long_and_want_as_much_as_the_buckets(given_buckets, most):
    """What is known of the demand is kept, however few phases there may be."""
    found = phases(given_buckets, most)

    assert len(found) <= most
    assert sum(p.for_s for p in found) == pytest.approx(sum(b.length_s for b in given_buckets))
    if all(b.observed_s for b in given_buckets):
        wanted_s = sum(p.for_s * p.demand_ratio for p in found)
        assert wanted_s == pytest.approx(sum(b.demand_s for b in given_buckets))


def test_a_single_outlier_is_no_phase():
    """A change counts when it stays; a moment of sleep does not end a phase."""
    steady = [Bucket(1.0, 1.0, 1.0)] * 10

    assert len(phases([*steady, Bucket(1.0, 1.0, 0.0), *steady], 24)) == 1
    assert len(phases([*steady, *[Bucket(1.0, 1.0, 0.0)] * 3, *steady], 24)) == 3


def test_a_speedup_that_changes_begins_a_phase(tmp_path):
    """Both speedups are in the file."""
    parts = [SpeedupEstimate(1.2, 0.02, "sampling")] * 5 + [
        SpeedupEstimate(1.9, 0.02, "sampling")
    ] * 5
    found = phases([Bucket(1.0, 1.0, 1.0, e) for e in parts], 24)

    assert [(p.for_s, p.speedup.value) for p in found] == [(5.0, 1.2), (5.0, 1.9)]


@pytest.mark.parametrize(("busy_cores", "said"), [(1.6, True), (1.02, False), (None, False)])
def test_what_else_kept_the_host_busy_is_said(tmp_path, busy_cores, said):
    """The simulator has no other processes, so a recording beside them is off."""
    recording = recorded(scenario(guest("a"), duration_s=4.0))

    text = file.text(recording, replace(AROUND, busy_cores=busy_cores))

    assert ("Processes other than vCPUs kept 0.60 pCPUs busy" in text) is said
    other = yaml.safe_load(text)["recorded"]["other_cores"]
    assert other is None if busy_cores is None else other == pytest.approx(busy_cores - 1.0)
    assert loaded(tmp_path, text).guests
