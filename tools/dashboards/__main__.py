# SPDX-License-Identifier: Apache-2.0
"""Write the Grafana dashboards, one JSON file each, into etc/amp-nova/grafana.

    python tools/dashboards [FOLDER]            write all of them
    python tools/dashboards --check [FOLDER]    exit 1 if a file is not up to date

Needs grafana-foundation-sdk, which is in the "test" extra.
"""

import argparse
import sys
from pathlib import Path

import cloud
import host
import instance
import policy
import scs
from panels import to_json

FOLDER = Path(__file__).resolve().parents[2] / "etc/amp-nova/grafana"
DASHBOARDS = (cloud.DASHBOARD, host.DASHBOARD, instance.DASHBOARD, policy.DASHBOARD, scs.DASHBOARD)


def main() -> int:
    """Write or check every dashboard; the exit status."""
    parser = argparse.ArgumentParser(description="Write the Grafana dashboards.")
    parser.add_argument("--check", action="store_true", help="write nothing, only compare")
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER, metavar="FOLDER")
    args = parser.parse_args()
    files = {f"{d.uid}.json": to_json(d) for d in DASHBOARDS}
    if not args.check:
        args.folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (args.folder / name).write_text(text)
        return 0
    there = {p.name: p.read_text() for p in args.folder.glob("*.json")}
    wrong = [n for n in sorted({*files, *there}) if there.get(n) != files.get(n)]
    for name in wrong:
        print(f"{name} is not up to date; run python tools/dashboards", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
