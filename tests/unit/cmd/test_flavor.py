# SPDX-License-Identifier: Apache-2.0
"""``amp-nova flavor check`` as a user sees it."""

import json

import pytest

from tests.support.tables import cells


@pytest.fixture
def check(amp):
    """Runs ``amp-nova flavor check``."""
    return lambda *words: amp("flavor", "check", *words)


def test_json_is_the_contract(check):
    """Exactly the keys that scripts rely on."""
    status, out, err = check(
        "--vcpus", "2", "amp:pref_core=0.5", "amp:pref_core.1=1.5", "--format", "json"
    )

    assert (status, err) == (0, "")
    vcpu = {"kind": "pref_core", "ips": None, "limit": "hard", "core_type": None}
    assert json.loads(out) == {
        "valid": True,
        "errors": [],
        "vcpus": [{"index": 0, "refcores": 0.5, **vcpu}, {"index": 1, "refcores": 1.5, **vcpu}],
        "placement": {"resources_AMP:CUSTOM_AMP_MREFCORE": "2000"},
    }


def test_json_of_ips_and_best_effort(check):
    """Unknown reference cores are null, and nothing is claimed."""
    status, out, _ = check(
        "--vcpus=2", "amp:ips.0=2.5G", "amp:limit=soft", "amp:core_type=fast", "--format=json"
    )

    found = json.loads(out)
    assert status == 0
    assert [(v["kind"], v["refcores"], v["ips"]) for v in found["vcpus"]] == [
        ("ips", None, 2.5e9),
        ("best_effort", None, None),
    ]
    assert {(v["limit"], v["core_type"]) for v in found["vcpus"]} == {("soft", "fast")}
    assert found["placement"] == {}


def test_reference_ips_converts(check):
    """With the Ips of the reference core, a booking in Ips has reference cores and a claim."""
    status, out, _ = check("amp:ips=5G", "--reference-ips=2.5G", "--format=json")

    found = json.loads(out)
    assert status == 0
    assert found["vcpus"][0]["refcores"] == 2.0
    assert found["placement"]["resources_AMP:CUSTOM_AMP_MREFCORE"] == "2000"


@pytest.mark.parametrize(
    ("words", "said", "exits"),
    [
        (["amp:burst_s=2"], "amp:burst_s has no effect without a booking", 0),
        (["amp:limit=soft"], "amp:limit has no effect without a booking", 0),
        (["amp:pref_core=1000"], "no core gives more than 100 reference cores", 0),
        (["amp:ips=1G"], "amp:ips claims nothing in Placement without --reference-ips", 0),
        (
            ["amp:pref_core=0.5", "resources_AMP:CUSTOM_AMP_MREFCORE=4000"],
            "resources_AMP:CUSTOM_AMP_MREFCORE is 4000, but its booking needs 500",
            1,
        ),
        (
            ["amp:pref_core=1", "amp:core_type=fast", "trait_AMP:CUSTOM_AMP_CORE_SLOW=required"],
            "trait_AMP:CUSTOM_AMP_CORE_SLOW is required, but its booking needs none",
            1,
        ),
        (
            ["amp:ips=1G", "resources_AMP:CUSTOM_AMP_MREFCORE=500"],
            "what amp:ips claims is unknown without --reference-ips",
            0,
        ),
    ],
)
def test_what_cannot_be_meant_is_remarked(check, words, said, exits):
    """In one sentence on standard error. A wrong claim exits with 1, as in ``openstack amp``."""
    status, out, err = check(*words)

    assert (status, bool(out), err.count("\n")) == (exits, True, 1)
    assert said in err


@pytest.mark.parametrize(
    ("argv", "errors"),
    [
        (["amp:pref_core=x", "amp:wait=1", "--vcpus=3"], ["amp:pref_core='x' is", "amp:wait"]),
        (["amp:pref_core"], ["extra spec 'amp:pref_core' is not allowed"]),
        (["amp:pref_core.9999=1"], ["vCPU 9999 is named"]),
        (["amp:pref_core=1", "amp:ips=1G", "--vcpus=4096"], ["vCPU 0-4095 is booked both by"]),
    ],
)
def test_json_of_invalid_extra_specs(check, argv, errors):
    """One object with all errors, which are also on standard error; exit status 2."""
    status, out, err = check(*argv, "--format=json")

    found = json.loads(out)
    assert status == 2
    assert (found["valid"], found["vcpus"], found["placement"]) == (False, [], {})
    assert all(text in said for text, said in zip(errors, found["errors"], strict=True))
    assert err == f"amp-nova: {'; '.join(found['errors'])}\n"


def test_the_table(check):
    """Unknown values are a dash; the properties below it are ready to paste."""
    specs = ("amp:pref_core.0=1.5", "amp:ips.1=800M", "amp:pref_core.3=0.25")
    status, out, _ = check("--vcpus=4", *specs)

    assert status == 0
    assert cells(out) == [
        ["vCPU", "Kind", "Refcores", "Ips", "Limit", "Core Type", "Delay (ms)"],
        ["0", "pref_core", "1.5", "-", "hard", "any", "-"],
        ["1", "ips", "-", "800000000", "hard", "any", "-"],
        ["2", "best_effort", "-", "-", "-", "any", "-"],
        ["3", "pref_core", "0.25", "-", "hard", "any", "62"],
    ]

    _, out, _ = check("amp:pref_core=0.25", "amp:limit=soft", "--vcpus=1")

    assert cells(out)[1][-1] == "-"

    _, out, _ = check("amp:pref_core=2", "amp:core_type=fast", "--vcpus=2")

    assert out.splitlines()[6:] == [
        "",
        "To claim it in Placement, add to the flavor:",
        "  --property resources_AMP:CUSTOM_AMP_MREFCORE=4000",
        "  --property trait_AMP:CUSTOM_AMP_CORE_FAST=required",
    ]


@pytest.mark.parametrize(
    "own",
    [
        "hw:cpu_policy=dedicated",
        "hw:cpu_policy=mixed",
        "resources:PCPU=2",
        "resources_a-b:PCPU=1",
        "hw:cpu_thread_policy=isolate",
        "hw:emulator_threads_policy=isolate",
    ],
)
def test_a_booking_excludes_dedicated_cpus(check, own):
    """Whoever has a pCPU alone needs no booking, and amp-nova could not move the vCPU.

    Without dedicated CPUs, Nova refuses what is about them.
    """
    assert check("amp:pref_core=0.5", "hw:emulator_threads_policy=share")[0] == 0
    status, _, err = check("amp:pref_core=0.5", own)

    assert status == 2
    assert "is not possible, because a booking shares its pCPUs with others: remove" in err
    assert check("amp:weight=2", own)[0] == 0


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["amp:pref_core"], "extra spec 'amp:pref_core' is not allowed: write KEY=VALUE"),
        (["=1"], "extra spec '=1' is not allowed"),
        (["a\nb"], "extra spec 'a b' is not allowed"),
        (["amp:ips=1G", "amp:ips=2G"], "extra spec amp:ips is given twice: remove one"),
        (["amp:pref_core.9999=1"], "vCPU 9999 is named: use 0 to 4095"),
        (["amp:core_type=\udcff"], r"'\udcff'"),
        (["amp:x=1", "--vcpus=0"], "'0' is not a whole number from 1 to 4096"),
        (["amp:x=1", "--vcpus=٣"], "is not a whole number"),
        (["amp:x=1", "--vcpus=4097"], "'4097' is not a whole number"),
        (
            ["amp:ips=1", "--reference-ips=fast"],
            "--reference-ips: 'fast' is not a decimal from 1",
        ),
        ([], "KEY=VALUE"),
    ],
)
def test_bad_input_gets_one_sentence(check, argv, said):
    """Exit status 2, and one line that names the value."""
    status, out, err = check(*argv)

    assert status == 2
    assert out == ""
    assert said in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("key", "remedy"),
    [
        *(
            (f"{wrong}=1", "write amp:pref_core")
            for wrong in (
                "AMP:pref_core",
                "amp_pref_core",
                " amp:pref_core",
                "apm:pref_core",
                "amp.pref_core",
                "pref_core",
                "hw:amp:pref_core",
                "quota:pref_core",
                "amp-nova:pref_core",
            )
        ),
        ("Amp:ips=2G", "write amp:ips"),
        ("hw:cpu_policy=shared", "none of these is an amp: key, so nothing is booked"),
    ],
)
def test_a_key_that_nova_accepts_and_ignores_is_named(check, key, remedy):
    """Alone or beside others: such a server would run as best effort, without a word."""
    assert check("amp:weight=2")[0] == 0
    for others in ((), ("amp:weight=2",)) if "none" not in remedy else ((),):
        status, out, err = check(key, *others)

        assert status == 1
        assert remedy in err
        assert "best_effort" in out
