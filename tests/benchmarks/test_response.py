"""Response times beside busy neighbours, under our limits, Nova's quota and none.

A process answers requests that arrive at random, at half of its booking. The rival is a core of the
speed that is booked, computed for the same arrivals: what a tenant would buy elsewhere.
``AMP_NOVA_RESPONSE_S=60`` prints the table of ``doc/source/user/tenants.rst``.
"""

import ast
import os
import random
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import quantiles

import pytest

from amp_nova.model import cpu_weight
from amp_nova.model.bandwidth import Bandwidth, bandwidth, period_us
from tests.support.lab import FAST, measured

pytestmark = pytest.mark.measures
SECONDS = float(os.environ.get("AMP_NOVA_RESPONSE_S", "6"))
CASES = [(0.25, 0.002), (0.5, 0.002)]
if SECONDS > 30.0:
    CASES += [(0.1, 0.002), (0.1, 0.02), (0.25, 0.02), (0.5, 0.02)]
LOAD_RATIO = 0.5
GROUPS = Path("/sys/fs/cgroup/cpu")
SERVER = """
import sys, time
arrivals, work_s = eval(sys.stdin.readline()), float(sys.argv[1])
print(flush=True)
start_s, found = time.monotonic(), []
for at_s in arrivals:
    wait_s = start_s + at_s - time.monotonic()
    if wait_s > 0:
        time.sleep(wait_s)
    ends_s = time.thread_time() + work_s
    while time.thread_time() < ends_s:
        pass
    found.append(time.monotonic() - start_s - at_s)
print(found)
"""
BUSY = "while True: pass"


@contextmanager
def process(name, weight, limit, program, *arguments):
    """A process on one pCPU, in a group of its own with this weight and limit."""
    group = GROUPS / f"amp-test-{os.getpid()}-{name}"
    group.mkdir()
    (group / "cpu.shares").write_text(str(round(weight * 1024 / cpu_weight.DEFAULT)))
    if limit is not None:
        (group / "cpu.cfs_period_us").write_text(str(limit.period_us))
        (group / "cpu.cfs_quota_us").write_text(str(limit.quota_us))
    words = ["taskset", "--cpu-list", str(FAST), sys.executable, "-c", program, *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True) as started:
        (group / "cgroup.procs").write_text(str(started.pid))
        try:
            yield started
        finally:
            started.kill()
            started.wait()
            group.rmdir()


def responses_s(arrivals, work_s, limits, weights):
    """How long each request took. Of server and booked neighbour; best effort has no limit."""
    ours, theirs, idle = weights
    with ExitStack() as stack:
        stack.enter_context(process("busy", theirs, limits[1], BUSY))
        stack.enter_context(process("best-effort", idle, None, BUSY))
        server = stack.enter_context(process("server", ours, limits[0], SERVER, str(work_s)))
        found, _ = server.communicate(f"{arrivals}\n")
        return ast.literal_eval(found.strip())


def of_a_core(arrivals, work_s, speed):
    """The same for a core of this speed that nobody else uses."""
    free_s, found = 0.0, []
    for at_s in arrivals:
        free_s = max(free_s, at_s) + work_s / speed
        found.append(free_s - at_s)
    return found


def percentiles_ms(times_s):
    """The median and the 99th percentile."""
    cuts = quantiles(times_s, n=100)
    return cuts[49] * 1e3, cuts[98] * 1e3


@pytest.mark.parametrize(("booked", "work_s"), CASES)
def test_response_times(within, capsys, booked, work_s):
    """Prints both percentiles; checks ours against that of the core that is booked."""
    chance, at_s, arrivals = random.Random(f"{booked} {work_s}"), 0.0, []
    while (at_s := at_s + chance.expovariate(LOAD_RATIO * booked / work_s)) < SECONDS:
        arrivals.append(round(at_s, 6))
    rest = 0.9 - booked
    ours = cpu_weight.booked(1), cpu_weight.booked(1), cpu_weight.best_effort(1)
    novas = (cpu_weight.DEFAULT,) * 3

    def kept():
        core = percentiles_ms(of_a_core(arrivals, work_s, booked))
        limits = [bandwidth(b, period_us(b)) for b in (booked, rest)]
        found = percentiles_ms(responses_s(arrivals, work_s, limits, ours))
        quotas = [Bandwidth(round(b * 100_000), 100_000) for b in (booked, rest)]
        nova = percentiles_ms(responses_s(arrivals, work_s, quotas, novas))
        with capsys.disabled():
            print(f"\nbooked {booked}, {len(arrivals)} x {work_s * 1e3:g} ms: p50, p99 in ms")
            for name, (p50, p99) in (("a core", core), ("amp-nova", found), ("quota", nova)):
                print(f"{name:10}{p50:8.1f}{p99:8.1f}")
        within("response_p99_over_a_core", found[1] / core[1])

    measured(kept)
