# SPDX-License-Identifier: Apache-2.0
"""The grammar of extra specs gives a booking or errors for any input."""

import math

from hypothesis import given
from hypothesis import strategies as st

from amp_nova.flavor.extra_specs import TABLE, examine, vcpus_named
from amp_nova.flavor.placement_resources import placement

KNOWN = {spec.name for spec in TABLE}
names = st.sampled_from([spec.name for spec in TABLE])
indices = st.none() | st.integers(0, 12).map(str) | st.text(max_size=3)
keys = st.one_of(
    st.tuples(names, indices).map(lambda k: f"amp:{k[0]}" + ("" if k[1] is None else f".{k[1]}")),
    st.text(max_size=8).map("amp:{}".format),
    st.sampled_from(["quota:cpu_quota", "quota:cpu_shares", "hw:cpu_policy"]),
    st.text(max_size=12),
)
values = st.one_of(
    st.text(max_size=12),
    st.from_regex(r"[0-9]{1,20}(\.[0-9]{1,20})?[kMGT]?", fullmatch=True),
    st.from_regex(r"[0-9eE+\-._, ]{0,12}[kKMGT]?", fullmatch=True),
    st.floats().map(str),
    st.integers().map(str),
    st.sampled_from(["hard", "soft", "low", "high", "fast"]),
)
anything = st.dictionaries(keys, values, max_size=5)
counts = st.integers(1, 12)


@given(anything, counts)
def test_anything_gets_a_booking_or_errors(specs, vcpus):
    """Never an exception: either a booking of plausible numbers or short one-line sentences.

    Those of a key that is invalid alone are among them; keys of others decide nothing. No key in
    our namespace is ignored: a typing error must not silently lose a booking.
    """
    booking, errors = examine(specs, vcpus)

    assert (booking is None) == bool(errors)
    for error in errors:
        assert len(error.splitlines()) == 1
        assert error.isprintable()
        assert len(error) < 300
    if booking is not None:
        assert [v.index for v in booking.vcpus] == list(range(vcpus))
        for vcpu in booking.vcpus:
            amounts = [a for a in (vcpu.refcores, vcpu.ips) if a is not None]
            assert len(amounts) == (vcpu.kind != "best_effort")
            assert all(0 < a <= 1e15 for a in amounts)
        assert booking.limit in ("hard", "soft")
        assert 0.0 <= booking.burst_s <= 10.0
        assert 0.01 <= booking.weight <= 100.0
    for key, value in specs.items():
        assert set(examine({key: value}, vcpus)[1]) <= set(errors)
    if not any(k.startswith("quota:cpu_") for k in specs):
        ours = {k: v for k, v in reversed(specs.items()) if k.startswith("amp:")}
        assert examine(ours, vcpus) == (booking, errors)
    unknown = (k for k in specs if k.startswith("amp:") and k[4:].partition(".")[0] not in KNOWN)
    assert errors or not any(unknown)


decimals = st.decimals(min_value="0.001", max_value=10_000, places=3).map(str)


@given(st.lists(st.none() | decimals, min_size=1, max_size=8), st.none() | decimals)
def test_reference_cores_are_read_and_claimed_exactly(indexed, general):
    """Thousandths add up to the claim exactly, from general and indexed keys."""
    specs = {f"amp:pref_core.{i}": text for i, text in enumerate(indexed) if text is not None}
    if general is not None:
        specs["amp:pref_core"] = general
    texts = [general if text is None else text for text in indexed]

    booking, errors = examine(specs, len(indexed))

    assert errors == ()
    assert [v.refcores for v in booking.vcpus] == [None if t is None else float(t) for t in texts]
    units = sum(round(float(t) * 1000) for t in texts if t is not None)
    claim = placement(booking)
    assert claim == ({"resources_AMP:CUSTOM_AMP_MREFCORE": str(units)} if units else {})


@given(decimals, st.sampled_from(["", "k", "M", "G", "T"]), st.floats(1e3, 1e12))
def test_ips_are_read_and_converted(text, factor, reference_ips):
    """The claim is the Ips divided by those of the reference core, rounded up by less than one."""
    booking, errors = examine({"amp:ips": text + factor}, 1)
    ips = float(text) * 1000.0 ** " kMGT".index(factor or " ")

    if ips > 1e15:
        assert errors
        return
    assert math.isclose(booking.vcpus[0].ips, ips)
    units = int(placement(booking, reference_ips)["resources_AMP:CUSTOM_AMP_MREFCORE"])
    expected = ips / reference_ips * 1000
    assert expected * (1 - 1e-9) - 1e-5 <= units <= max(1.0, expected * (1 + 1e-9) + 1.0)


@given(anything)
def test_vcpus_named_makes_every_index_valid(specs):
    """With that number of vCPUs no error is about a vCPU that does not exist."""
    vcpus = vcpus_named(specs)

    assert 1 <= vcpus <= 10_000
    _, errors = examine(specs, vcpus)
    assert not any("does not exist" in error for error in errors)
