"""Where Prometheus' programs and the files for operators are."""

import shutil
from pathlib import Path

import pytest
import yaml

import amp_nova

ROOT = Path(amp_nova.__file__).parent.parent
PROMETHEUS = ROOT / "etc/amp-nova/prometheus"


def program(name):
    """The path of one of Prometheus' programs; skips the test where there is none."""
    own = ROOT / ".prometheus/usr/bin"
    found = shutil.which(name) or shutil.which(name, path=own)
    if found is None:
        pytest.skip(f"{name} is not installed: tools/prometheus gets it")
    return found


def rules(name):
    """All rules in one of the files."""
    groups = yaml.safe_load((PROMETHEUS / name).read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]
