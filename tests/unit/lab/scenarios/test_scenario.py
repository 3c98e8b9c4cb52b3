# SPDX-License-Identifier: Apache-2.0
"""Reading scenarios: an error names the file, line, value and remedy in one sentence."""

import re

import pytest

from amp_nova_lab.commands import inputs
from amp_nova_lab.scenarios import document
from amp_nova_lab.scenarios.document import ScenarioInvalid

HOST = """\
duration_s: 10
host:
  reference: slow
  core_types:
    - {name: fast, count: 1, coefficient: 2.0}
    - {name: slow, count: 2, coefficient: 1.0}
"""
ONE_VM = HOST + "vms:\n  - name: vm1\n"


def load(tmp_path, text):
    """The scenario in a file of that text."""
    path = tmp_path / "made.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return inputs.load(path)


def refusal(tmp_path, text):
    """The sentence of the error."""
    with pytest.raises(ScenarioInvalid) as refused:
        load(tmp_path, text)
    sentence = str(refused.value)
    assert "\n" not in sentence
    assert "made.yaml" in sentence
    return sentence


def test_the_example_of_the_contract_is_read(tmp_path):
    """Every key of the interface is known, and numbers may be written as 2.0e9."""
    made = load(
        tmp_path,
        """
name: two-vms
duration_s: 600
seed: 1
host:
  reference: slow
  core_types:
    - {name: fast, count: 1, coefficient: 2.0, llc: [0]}
    - {name: slow, count: 1, coefficient: 1.0, llc: [0]}
  reference_ips: 2.0e9
vms:
  - name: vm1
    vcpus: 1
    extra_specs: {}
    workload:
      speedup: {fast: 2.0}
      ipc: {fast: 1.6, slow: 1.6}
      utilization: 1.0
      work_refcore_s: null
      barrier_s: null
      phases: null
    start_on: null
policy: amp-vm
agent: {ips_controller: printed-decay}
""",
    )

    assert (made.name, made.duration_s, made.seed, made.policy) == ("two-vms", 600, 1, "amp-vm")
    assert made.ips_controller == "printed-decay"
    assert [t.name for t in made.topology.core_types] == ["slow", "fast"]
    assert [t.nominal_ips for t in made.topology.core_types] == [2e9, 4e9]
    assert [p.core_type for p in made.topology.pcpus] == ["fast", "slow"]
    assert made.guests[0].workload.phases[0].speeds == (1.0, 2.0)
    assert made.guests[0].workload.ipc == {"fast": 1.6, "slow": 1.6}
    assert made.guests[0].start_on is None


def test_optional_keys_have_defaults(tmp_path):
    """The file's name, seed 0, no policy, one best-effort vCPU with the cores' speedup."""
    made = load(tmp_path, ONE_VM)

    assert (made.name, made.seed, made.policy) == ("made", 0, "none")
    assert made.ips_controller == "default"
    assert len(made.guests[0].booking.vcpus) == 1
    assert not made.guests[0].booking.booked
    assert made.guests[0].workload.phases[0].speeds == (1.0, 2.0)
    assert made.topology.reference == "slow"


def test_the_reference_core_may_be_elsewhere(tmp_path):
    """All cores of a host may be faster than the cloud's reference core."""
    text = ONE_VM.replace("reference: slow", "reference: old").replace("1.0", "1.25")

    made = load(tmp_path, text)

    assert made.topology.reference == "old"
    assert made.guests[0].workload.phases[0].speeds == (1.0, 1.6)


def test_caches_are_named_by_their_first_pcpu(tmp_path):
    """``llc`` ids are any numbers; the topology names a cache by its lowest pCPU."""
    text = ONE_VM.replace("coefficient: 2.0", "coefficient: 2.0, llc: [7]").replace(
        "coefficient: 1.0", "coefficient: 1.0, llc: [3, 7]"
    )

    assert [p.llc for p in load(tmp_path, text).topology.pcpus] == [0, 1, 0]


@pytest.mark.parametrize(("follow", "by_work"), [("work", True), ("clock", False)])
def test_phases_follow_work_or_the_clock(tmp_path, follow, by_work):
    """As the workload says."""
    phases = "{phases_follow: %s, phases: [{for_s: 2}, {for_s: 1, utilization: 0}]}"
    made = load(tmp_path, ONE_VM + f"    workload: {phases % follow}\n")
    assert made.guests[0].workload.by_work == by_work

    with pytest.raises(ScenarioInvalid, match="give one of work, clock"):
        load(tmp_path, ONE_VM + f"    workload: {phases % 'time'}\n")


def test_phases_inherit_from_the_workload(tmp_path):
    """A phase gives only what differs."""
    made = load(
        tmp_path,
        ONE_VM + "    workload:\n      utilization: 0.5\n      speedup: {fast: 1.5}\n"
        "      phases: [{for_s: 2}, {for_s: 1, utilization: 1, speedup: {fast: 3, slow: 1}}]\n",
    )

    phases = made.guests[0].workload.phases
    assert [(p.speeds, p.utilization_ratio, p.work_ref_s) for p in phases] == [
        ((1.0, 1.5), 0.5, 1.0),
        ((1.0, 3.0), 1.0, 1.0),
    ]


def test_vcpus_inherit_from_the_workload(tmp_path):
    """An entry gives only what differs."""
    made = load(
        tmp_path,
        ONE_VM + "    vcpus: 3\n    workload:\n      utilization: 0.5\n      work_refcore_s: 7\n"
        "      vcpus: [{barrier_s: [0, 2]}, {utilization: 1, barrier_s: 1}]\n",
    )

    first, second = made.guests[0].workload.different(3)
    assert [(w.phases[0].utilization_ratio, w.work_ref_s) for w in (first, second)] == [
        (0.5, 7.0),
        (1.0, 7.0),
    ]
    assert (first.barriers_ref_s, second.barriers_ref_s) == ((0.0, 2.0), (1.0,))


def test_bookings_are_read_as_written(tmp_path):
    """Extra specs need no quotes: their text is kept."""
    text = ONE_VM + "    vcpus: 2\n    extra_specs: {amp:pref_core: 0.50, amp:pref_core.1: 1.5}\n"

    booked = load(tmp_path, text).guests[0].booking.vcpus

    assert [v.refcores for v in booked] == [0.5, 1.5]


WORKLOAD = ONE_VM + "    workload: "
SPECS = ONE_VM + "    extra_specs: "
FAULTS = {
    "empty file": ("", "is empty"),
    "not text": (b"\xff\xfe\x00", "not text in UTF-8"),
    "control characters": ("name: \x01", "not the YAML of a scenario"),
    "not YAML": (HOST + "vms: [", "line 7: is not the YAML"),
    "several documents": (ONE_VM + "---\na: 1\n", "not the YAML of a scenario"),
    "a list": ("- 1\n", "the scenario is a list: give a mapping"),
    "an alias": (HOST + "vms: &a [*a]\n", "line 7: .* alias"),
    "nested too deep": (HOST + "vms: " + "[" * 500 + "]" * 500, "nested too deep"),
    "too big": (b"#" * (1 << 21), "at most 1048576 bytes"),
    "a key twice": (ONE_VM + "vms: []\n", "line 9: vms is given twice"),
    "an unknown key": (ONE_VM + "polizy: none\n", "line 9: 'polizy' .* did you mean 'policy'"),
    "an unknown key of a workload": (
        WORKLOAD + "{requets: 1}\n",
        "of .*workload: did you mean 'requests'",
    ),
    "a key that is a list": (ONE_VM + "? [a]\n: 1\n", "a key of the scenario is a list"),
    "no VMs": (HOST, "a scenario has no 'vms': add it"),
    "two VMs of one name": (ONE_VM + "  - name: vm1\n", "line 9: there are two VMs called 'vm1'"),
    "no vCPU": (ONE_VM + "    vcpus: 0\n", "'0': give a whole number >= 1"),
    "too many vCPUs": (ONE_VM + "    vcpus: 4096\n  - name: vm2\n    vcpus: 1\n", "more than 4096"),
    "no time": (ONE_VM.replace("10", "0", 1), "line 1: duration_s is '0': give a number > 0"),
    "not a number": (ONE_VM.replace("10", ".nan", 1), "'.nan': give a number"),
    "too many cores": (ONE_VM.replace("count: 2", "count: 4096"), "more than 4096 pCPUs"),
    "no core type": (
        "duration_s: 1\nvms: []\nhost: {core_types: []}\n",
        "line 3: host.core_types is empty: give a list of length >= 1",
    ),
    "a core type twice": (ONE_VM.replace("name: fast", "name: slow"), "'slow' is given twice"),
    "a core type's name": (
        ONE_VM.replace("name: fast", "name: a b"),
        "'a b': give text that matches",
    ),
    "not the reference": (
        ONE_VM.replace("reference: slow", "reference: fast"),
        "line 3: 'fast' is the reference core type, so its coefficient is 1 .* not 2",
    ),
    "no such reference": (
        ONE_VM.replace("reference: slow", "reference: slwo"),
        "line 3: host.reference is 'slwo': give a core type of the host: fast, slow",
    ),
    "llc ids": (ONE_VM.replace("2.0}", "2.0, llc: [0, 1]}"), "llc has 2 ids for 1 cores"),
    "start on nothing": (ONE_VM + "    start_on: gold\n", "a core type of the host: slow, fast"),
    "bad booking": (SPECS + "{amp:pref_core: -1}\n", "line 9: VM 'vm1': amp:pref_core='-1'"),
    "booking of a list": (
        SPECS + "{amp:pref_core: [1]}\n",
        "extra_specs is 'amp:pref_core: a list': give text",
    ),
    "foreign core type": (SPECS + "{amp:core_type: gold}\n", "it has slow, fast"),
    "strange arrivals": (
        WORKLOAD + "{requests: {per_s: 1, work_refcore_s: 1, arrivals: late}}\n",
        "arrivals is 'late': give one of poisson, regular",
    ),
    "requests and I/O": (
        WORKLOAD + "{requests: {per_s: 1, work_refcore_s: 1}, "
        "io: {cpu_s_per_byte: 1e-9, line_bytes_s: 1e9}}\n",
        "line 9: .* gives requests and io, but either of them decides .*: remove one",
    ),
    "tiny work before a barrier": (
        WORKLOAD + "{barrier_s: [1, 1e-9]}\n",
        "0, or a number of at least",
    ),
    "no work before barriers": (WORKLOAD + "{barrier_s: [0, 0]}\n", "barrier_s has no work"),
    "no vCPU's workload": (WORKLOAD + "{vcpus: []}\n", "has 0 entries for 1 vCPUs: give one to 1"),
    "speed of nothing": (WORKLOAD + "{speedup: {gold: 2}}\n", "core type 'gold', which is not on"),
    "a speed is missing": (
        ONE_VM.replace(
            "    - {name: slow", "    - {name: big, count: 1, coefficient: 1.5}\n    - {name: slow"
        )
        + "    workload: {speedup: {fast: 2}}\n",
        "speedup has no 'big': add it",
    ),
    "slowest is faster": (WORKLOAD + "{speedup: {fast: 2, slow: 2}}\n", "give 1 or leave it out"),
    "speed is one number": (WORKLOAD + "{speedup: 2}\n", "speedup is '2': give a mapping"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_scenario_is_refused_in_a_sentence(tmp_path, fault):
    """It names the place, the value and what is allowed."""
    text, said = FAULTS[fault]

    sentence = refusal(tmp_path, text)

    assert re.search(said, sentence), sentence


def test_a_scenario_has_a_limit_for_its_values(tmp_path, monkeypatch):
    """Its size alone would permit more than can be read in a second."""
    monkeypatch.setattr(document, "VALUES_MAX", 100)

    assert "at most 100 values" in refusal(tmp_path, "[" + "0," * 100 + "]")
