# SPDX-License-Identifier: Apache-2.0
"""Coverage-guided fuzzing of the places of ``hostile`` with atheris; run by ``tools/fuzz``.

Prints a table: place, inputs, coverage, crashes. Exit status 1: there were crashes.
"""

import argparse
import importlib.util
import os
import random
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

PLACES = {
    "extra_specs": 20,
    "domain": 18,
    "report": 20,
    "calibration": 10,
    "scenario": 2,
    "recording": 2,
    "cloud": 2,
    "configuration": 6,
    "command": 4,
    "core_type": 8,
    "question": 6,
    "scheduler": 2,
}
"""How many of the inputs each gets in proportion, by what one costs."""
NEEDS_NOVA = "scheduler"
BYTES_MAX = 1 << 16
STRUCTURED = 0.5
"""Part of the changes that replace values; the others change bytes."""
ROW = "{:<14} {:>10} {:>8} {:>9} {:>9} {:>8}"


class Crashes:
    """The distinct ones, by where they were raised; the first input of each is kept."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._seen: set[tuple[str, str, int | None]] = set()

    def add(self, data: bytes, exc: Exception) -> None:
        """Tell of one, unless it is known."""
        last = traceback.extract_tb(exc.__traceback__)[-1]
        where = (type(exc).__name__, last.filename, last.lineno)
        if where not in self._seen:
            self._seen.add(where)
            path = Path(f"crash-{self._place}-{len(self._seen)}")
            path.write_bytes(data)
            print(f"CRASH {path}: {type(exc).__name__} in {last.filename}:{last.lineno}: {exc}")
            sys.stdout.flush()


def as_text(data: bytes) -> str:
    """Any bytes as a text; halves of surrogate pairs stay what they are."""
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return data.decode("utf-8", "surrogateescape")


def fuzz(place: str, inputs: int, seed: int) -> None:
    """Fuzz one place; ends the process."""
    import atheris

    with atheris.instrument_imports(include=["amp_nova", "amp_nova_lab"]):
        from tests.support import hostile
    from tests.support.wrong_documents import mutated

    surface, crashes = hostile.surfaces()[place], Crashes(place)

    def one(data: bytes) -> None:
        try:
            surface.check(as_text(data))
        except Exception as exc:  # noqa: BLE001 - this is what is looked for
            crashes.add(data, exc)

    def change(data: bytes, most: int, number: int) -> bytes:
        rng = random.Random(number)
        if rng.random() >= STRUCTURED:
            return bytes(atheris.Mutate(data, most))
        text = mutated(as_text(data), rng)
        return text.encode("utf-8", "surrogatepass")[:most]

    corpus = Path(tempfile.mkdtemp(prefix="amp-nova-corpus-"))
    for index, text in enumerate(surface.seeds):
        (corpus / str(index)).write_text(text)
    options = [f"-runs={inputs}", f"-seed={seed}", f"-max_len={BYTES_MAX}", "-len_control=0"]
    options += ["-rss_limit_mb=4096", "-timeout=60", "-print_final_stats=1", str(corpus)]
    atheris.Setup([sys.argv[0], *options], one, custom_mutator=change)
    atheris.Fuzz()


def run(place: str, inputs: int, seed: int) -> tuple[int, int]:
    """Fuzz one place in a process of its own, and print its row; inputs and crashes."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.support.fuzz", place, "--one"]
    command += [f"--inputs={inputs}", f"--seed={seed}"]
    began = time.monotonic()
    # Of its own: a process that libFuzzer ends removes nothing.
    with tempfile.TemporaryDirectory(prefix="amp-nova-fuzz-") as folder:
        env = {**os.environ, "TMPDIR": folder}
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False, env=env
        )
    took_s = time.monotonic() - began
    found = re.findall(r"^CRASH (.*)", done.stdout, re.MULTILINE)
    made = re.search(r"stat::number_of_executed_units: (\d+)", done.stderr)
    edges = re.findall(r"cov: (\d+) ft: (\d+)", done.stderr) or [("?", "?")]
    if done.returncode or made is None:
        found.append(f"{place} ended with status {done.returncode}: {done.stderr[-2000:]}")
    count = int(made[1]) if made else 0
    print(ROW.format(place, count, *edges[-1], f"{took_s:.0f}", len(found)), flush=True)
    for line in found:
        print(f"  {line}", flush=True)
    return count, len(found)


def shares(places: list[str], inputs: int) -> Iterator[tuple[str, int]]:
    """How many inputs each place gets, rounded up."""
    for place in places:
        yield place, -(-inputs * PLACES[place] // sum(PLACES[p] for p in places))


def main() -> int:
    """Fuzz places one after the other."""
    parser = argparse.ArgumentParser(prog="tools/fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("places", nargs="*", metavar="PLACE", help=", ".join(PLACES))
    parser.add_argument("--inputs", type=int, default=1_250_000, help="of all places together")
    parser.add_argument("--seed", type=int, help="of an earlier run, to repeat it")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    nova = importlib.util.find_spec("nova") is not None
    places = arguments.places or [p for p in PLACES if nova or p != NEEDS_NOVA]
    if unknown := set(places) - set(PLACES):
        parser.error(f"{', '.join(sorted(unknown))}: there are {', '.join(PLACES)}")
    if NEEDS_NOVA in places and not nova:
        parser.error(f"{NEEDS_NOVA} needs Nova in this environment: run tools/fuzz")
    seed = arguments.seed or random.randrange(1, 1 << 31)
    if arguments.one:
        fuzz(places[0], arguments.inputs, seed)
    print(f"seed {seed}")
    print(ROW.format("place", "inputs", "branches", "features", "seconds", "crashes"), flush=True)
    results = [run(place, count, seed) for place, count in shares(places, arguments.inputs)]
    inputs, crashes = map(sum, zip(*results, strict=True))
    print(ROW.format("together", inputs, "", "", "", crashes))
    return 1 if crashes else 0


if __name__ == "__main__":
    sys.exit(main())
