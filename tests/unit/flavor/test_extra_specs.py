# SPDX-License-Identifier: Apache-2.0
"""The grammar of ``amp:*`` extra specs, key by key."""

import pytest

from amp_nova.exceptions import BookingInvalid
from amp_nova.flavor.extra_specs import TABLE, best_effort, examine, parse, vcpus_named
from amp_nova.flavor.placement_resources import placement

NO_DECIMAL = [
    "",
    "-1",
    "1e3",
    "nan",
    "1,5",
    ".5",
    "5.",
    "٣",
    "1_000",
    " 1",
    "1\n",
    "9" * 5000,
]


def booked(vcpus=1, **specs):
    """The booking of extra specs given without their prefix; ``__`` stands for a dot."""
    return parse({f"amp:{k.replace('__', '.')}": v for k, v in specs.items()}, vcpus)


def errors(specs, vcpus=2):
    """The errors in these extra specs."""
    booking, found = examine(specs, vcpus)
    assert (booking is None) == bool(found)
    return list(found)


class TestCapacity:
    @pytest.mark.parametrize("text", [*NO_DECIMAL, "0", "0.0", "000", "0." + "0" * 400 + "1"])
    def test_a_capacity_is_a_decimal_above_zero(self, text):
        """Other values are refused in one line that names the value and what is allowed."""
        for key in ("amp:pref_core", "amp:pref_core.1", "amp:ips", "amp:ips.0"):
            (error,) = errors({key: text})

            assert error.startswith(f"{key}=")
            assert repr(text[:40])[:-1] in error
            assert "a decimal above 0" in error
            assert len(error.splitlines()) == 1
            assert len(error) < 250

    @pytest.mark.parametrize("text", ["2.5g", "1K", "1m", "1 G", "1GG", "1Gi", "G", "1P", "1001T"])
    def test_other_factors_are_refused(self, text):
        """Only k, M, G, T, and only as written; none for reference cores."""
        assert len(errors({"amp:pref_core": "2.5G"})) == 1
        (error,) = errors({"amp:ips": text})

        assert repr(text) in error
        assert "k, M, G or T" in error


class TestExclusion:
    @pytest.mark.parametrize("cores", ["amp:pref_core", "amp:pref_core.1"])
    @pytest.mark.parametrize("ips", ["amp:ips", "amp:ips.1"])
    def test_one_vcpu_has_one_unit(self, cores, ips):
        """Both units on one vCPU are refused, with or without an index, and the vCPU is named."""
        (found,) = errors({cores: "1", ips: "1G"})

        whom = "0-1" if cores + ips == "amp:pref_coreamp:ips" else "1"
        both = "is booked both by amp:pref_core and by amp:ips: keep one of them"
        assert found == f"vCPU {whom} {both}"

    @pytest.mark.parametrize("key", ["amp:pref_core", "amp:pref_core.1", "amp:ips", "amp:ips.0"])
    @pytest.mark.parametrize(
        "foreign", ["quota:cpu_quota", "quota:cpu_period", "quota:cpu_shares", "quota:cpu_\nx"]
    )
    def test_a_booking_excludes_novas_quota(self, key, foreign):
        """Only one of them can set the quota; the error names Nova's key, in one line."""
        (error,) = errors({key: "1", foreign: "1000"})

        assert foreign.splitlines()[0] in error
        assert len(error.splitlines()) == 1
        assert "keep one of them" in error

    @pytest.mark.parametrize(
        "specs",
        [
            {"amp:pref_core.0": "1", "amp:ips.1": "1G"},  # one unit for each vCPU
            {"quota:cpu_quota": "x", "amp:weight": "2", "amp:core_type": "fast"},  # no booking
            {"amp:pref_core": "1", "quota:disk_read_iops_sec": "9"},
        ],
    )
    def test_what_excludes_nothing(self, specs):
        """Several units in one flavor, Nova's CPU quota without a booking, and other quotas."""
        assert errors(specs) == []


class TestOtherKeys:
    def test_defaults(self):
        """Hard limit, no burst, any core type, weight 1."""
        booking = parse({}, 2)

        assert booking == best_effort(2)
        assert not booking.booked
        assert (booking.limit, booking.burst_s, booking.weight) == ("hard", 0.0, 1.0)
        assert booking.core_type is None
        assert booking.efficiency is None

    @pytest.mark.parametrize(
        ("key", "text", "value"),
        [
            ("limit", "soft", "soft"),
            ("burst_s", "0", 0.0),
            ("burst_s", "10", 10.0),
            ("core_type", "Cortex-A78.2_x", "Cortex-A78.2_x"),
            ("core_type", "x" * 64, "x" * 64),
            ("efficiency", "medium", "medium"),
            ("efficiency", "1", 1.0),
            ("weight", "0.01", 0.01),
            ("weight", "100", 100.0),
        ],
    )
    def test_good_values(self, key, text, value):
        """Every key accepts its whole range, including both ends."""
        assert getattr(booked(**{key: text}), key) == value

    @pytest.mark.parametrize(
        ("key", "texts"),
        [
            ("limit", ["", "HARD", "Soft", "none", "hard ", "1"]),
            ("burst_s", [*NO_DECIMAL, "10.1", "11"]),
            ("core_type", ["", " ", "-fast", ".x", "a b", "ümlaut", "x" * 65, "a/b", "fast\n"]),
            ("efficiency", [*NO_DECIMAL, "0", "0.99", "LOW", "highest", "low,high"]),
            ("weight", [*NO_DECIMAL, "0", "0.009", "100.1"]),
        ],
    )
    def test_bad_values(self, key, texts):
        """Each is refused in one line that names the key, the value and what is allowed."""
        allowed = next(s.allowed for s in TABLE if s.name == key)
        for text in texts:
            (error,) = errors({f"amp:{key}": text})

            assert error.startswith(f"amp:{key}={repr(text[:40])[:-1]}")
            assert error.endswith(f"give {allowed}")
            assert len(error.splitlines()) == 1
            assert len(error) < 250


class TestKeys:
    @pytest.mark.parametrize(
        ("key", "meant"),
        [
            ("amp:pref-core", "amp:pref_core?"),
            ("amp:Limit", "amp:limit?"),
            ("amp:PREF_CORE", "amp:pref_core?"),
            ("amp:limit.0", "amp:limit?"),
            ("amp:prefcore.0", "amp:pref_core.N, with N from 0 to 1?"),
            ("amp:pref_core.01", "amp:pref_core.N, with N from 0 to 1?"),
            ("amp:pref_core.", "amp:pref_core.N, with N from 0 to 1?"),
            ("amp:pref_core.٣", "amp:pref_core.N, with N from 0 to 1?"),
            ("amp:ips.123456", "amp:ips.N, with N from 0 to 1?"),
        ],
    )
    def test_a_near_miss_gets_a_hint(self, key, meant):
        """A typing error is answered with the likely key."""
        (error,) = errors({key: "1"})

        assert error == f"{key!r} is not an extra spec of amp-nova: did you mean {meant}"

    @pytest.mark.parametrize("key", ["amp:", "amp:turbo_boost_everything", "amp:\n"])
    def test_an_unknown_key_gets_the_list(self, key):
        """If no key is similar, the error lists all keys, in one line."""
        (error,) = errors({key: "1"})

        assert all(f"amp:{spec.name}" in error for spec in TABLE)
        assert len(error.splitlines()) == 1

    def test_a_vcpu_that_does_not_exist(self):
        """The error names the range of indices, which begin at 0."""
        assert errors({"amp:pref_core.2": "1"}) == [
            "amp:pref_core.2 names a vCPU that does not exist: use 0 to 1"
        ]
        assert errors({"amp:pref_core.1": "1"}) == []

    @pytest.mark.parametrize(
        "key", ["hw:cpu_policy", "ampere:x", "AMP:pref_core", ":amp", "amp", "trait:CUSTOM_AMP"]
    )
    def test_other_peoples_keys_are_ignored(self, key):
        """Only the ``amp:`` namespace is read, in lower case."""
        assert parse({key: "whatever"}, 1) == best_effort(1)

    def test_parse_raises_with_every_error(self):
        """In one exception."""
        with pytest.raises(BookingInvalid, match=r"amp:pref_core='x'.*; .*amp:weight='0'"):
            parse({"amp:pref_core": "x", "amp:weight": "0"}, 1)

    def test_vcpus_named(self):
        """Without a number of vCPUs, the named ones exist."""
        assert vcpus_named({}) == 1
        assert vcpus_named({"amp:pref_core": "1"}) == 1
        assert vcpus_named({"amp:pref_core.3": "1", "amp:ips.1": "1G", "hw:x.7": "1"}) == 4


class TestPlacement:
    def claim(self, vcpus=1, reference_ips=None, **specs):
        return placement(booked(vcpus, **specs), reference_ips)

    @pytest.mark.parametrize(
        ("vcpus", "text", "amount"),
        [
            (3, "0.1", "300"),
            (7, "0.7", "4900"),
            (4096, "0.1", "409600"),
            (1, "0.0001", "1"),
            (1, "0.0011", "2"),
            (1, "1.0001", "1001"),
        ],
    )
    def test_rounds_up_but_not_because_of_rounding_errors(self, vcpus, text, amount):
        """A fraction of a thousandth counts as a whole one; an error in the sum does not count."""
        claim = self.claim(vcpus, pref_core=text)

        assert claim == {"resources_AMP:CUSTOM_AMP_MREFCORE": amount}

    @pytest.mark.parametrize(
        ("name", "trait"), [("fast", "FAST"), ("p-core", "P_CORE"), ("A78.x", "A78_X")]
    )
    def test_a_core_type_is_a_required_trait(self, name, trait):
        """Spelled as Placement spells traits; a flavor without a booking needs no properties."""
        assert self.claim(weight="2", core_type=name) == {}
        claim = self.claim(pref_core="1", core_type=name)

        assert claim[f"trait_AMP:CUSTOM_AMP_CORE_{trait}"] == "required"

    def test_ips_needs_the_reference_core(self):
        """The reference core's Ips convert them; if unknown, nothing is claimed."""
        assert self.claim(ips="1G") == {}
        assert self.claim(vcpus=2, pref_core__0="1", ips__1="1G") == {}
        assert self.claim(vcpus=2, pref_core__0="1", ips__1="1G", reference_ips=3e9) == {
            "resources_AMP:CUSTOM_AMP_MREFCORE": "1334",
            "trait_AMP:CUSTOM_AMP_IPS": "required",
        }
