"""The configuration: what cannot be used is one sentence, at once."""

import pytest

from amp_nova import conf
from amp_nova.exceptions import ConfigInvalid


@pytest.fixture
def load(tmp_path):
    """Load a file with this content."""

    def load_(content):
        path = tmp_path / "amp-nova.conf"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return conf.load(files=[str(path)])

    return load_


def test_defaults_are_valid(load):
    """An empty file is a configuration."""
    assert load("").agent.cycle_s == 1.0


def test_every_line_of_a_repeated_option_counts(load):
    """An option that may be repeated keeps the order of its lines."""
    found = load("[agent]\nbooking = a amp:weight=2\nbooking = b amp:weight=3\n")

    assert found.agent.booking == ["a amp:weight=2", "b amp:weight=3"]


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ("agent] cycle_s = x", "could not convert string to float: 'x'"),
        ("agent] cycle_s = 0", "Should be greater than or equal to 0.05"),
        ("agent] cycle_s = -1", "Should be greater than or equal to 0.05"),
        ("agent] cycle_s = nan", "nan is no number"),
        ("agent] resync_s = inf", "inf is no number"),
        ("agent] reserve_ratio = 1.5", "Should be less than or equal to 0.9"),
        ("agent] affinity = narrow", "Valid values are [core_type, pcpu], but found 'narrow'"),
        ("agent] coefficients = own", "Valid values are [fixed, adaptive], but found 'own'"),
        ("agent] miss_cycles = 0", "Should be greater than or equal to 1"),
        ("agent] drift_repairs_max = 1.5", "invalid literal for int() with base 10: '1.5'"),
        ("exporter] port = 99999", "Should be less than or equal to 65535"),
        ("exporter] enabled = perhaps", "Unexpected boolean value 'perhaps'"),
        ("topology] calibration_file = $nothing", "no such option nothing in group [DEFAULT]"),
    ],
)
def test_bad_value_is_refused_when_it_is_read(load, option, reason):
    """A value that is not what it has to be is named with its section, before anything runs."""
    section, line = option.split("] ")
    name = line.split(" =")[0]

    with pytest.raises(ConfigInvalid) as caught:
        load(f"[{section}]\n{line}\n")

    assert str(caught.value).startswith(f"[{section}] {name} is not valid: {reason}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "content", ["garbage\n", "[agent\n", b"\xff\xfe\x00", "[agent]\n\n  = 3\n", "\x00"]
)
def test_file_that_is_no_configuration_is_one_sentence(load, tmp_path, content):
    """Whatever is in it, the file is named."""
    with pytest.raises(ConfigInvalid) as caught:
        load(content)

    assert str(tmp_path / "amp-nova.conf") in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["not-there.conf", "."])
def test_file_that_cannot_be_read_is_one_sentence(tmp_path, name):
    """A file that is not there, or is none, is named."""
    path = str(tmp_path / name)

    with pytest.raises(ConfigInvalid) as caught:
        conf.load(files=[path])

    assert path in str(caught.value)
