"""What moving I/O work to a slow core costs and frees. Prints figures only.

A real guest under libvirt computes and sends frames through virtio-net and a tap; its vCPU is on
the fast core. Its I/O threads run on the fast core, on both and on the slow core in turns, so that
drift of the machine cancels out. The move frees CPU time of the fast core for the vCPU. Then the
agent itself moves the threads, and its metrics are printed.
"""

import os
import statistics as st
import time
from pathlib import Path
from typing import Any

from tests.benchmarks.scale import SLOWED, scaled
from tests.guests.slowcore import SlowCore
from tests.lab import FAST, SLOW, Agent, opened

TURNS = scaled((0, 10_000, 20_000, 50_000, 100_000), (0,))
"""Work of the guest between two batches of 64 frames: less of it is more I/O."""
PLACES = {"fast": {FAST}, "both": {FAST, SLOW}, "slow": {SLOW}}
ROUNDS, WINDOW_S = scaled((4, 1.0), (1, 0.5))
LINE_MBPS = 4000
FRAME_BITS = 1514 * 8


def threads(guest: Any) -> tuple[list[int], int]:
    """The I/O threads and the vCPU thread."""
    io, vcpu = [], 0
    for task in Path(f"/proc/{guest.pid}/task").iterdir():
        if (task / "comm").read_text().startswith("CPU "):
            vcpu = int(task.name)
        else:
            io.append(int(task.name))
    return io, vcpu


def run_s(tids: list[int]) -> float:
    """CPU time so far."""
    ran = (Path(f"/proc/{t}/task/{t}/schedstat").read_text().split()[0] for t in tids)
    return sum(map(int, ran)) / 1e9


def window(guest: Any) -> tuple[float, float, float]:
    """Mbit/s, CPU share of the I/O threads, CPU share of the vCPU on the fast core."""
    io, vcpu = threads(guest)
    frames, io_s, vcpu_s = guest.rounds()[0], run_s(io), run_s([vcpu])
    began = time.monotonic()
    time.sleep(WINDOW_S)
    took_s = time.monotonic() - began
    rate = (guest.rounds()[0] - frames) * FRAME_BITS / took_s / 1e6
    return rate, (run_s(io) - io_s) / took_s, (run_s([vcpu]) - vcpu_s) / took_s


def place(guest: Any, pcpus: set[int]) -> None:
    for tid in threads(guest)[0]:
        os.sched_setaffinity(tid, pcpus)
    time.sleep(0.2)


def test_throughput_before_and_after(tmp_path: Path) -> None:
    """Medians of windows in turns, for guests that do more or less I/O."""
    with opened(tmp_path / "lab") as lab, SlowCore(SLOW, SLOWED):
        guest = lab.sender("sender", pins={0: str(FAST)})
        print(
            f"\n{'turns':>7} {'I/O on':>6} {'Mbit/s':>7} {'I/O CPU':>8} {'vCPU on fast':>12} usage"
        )
        for turns in TURNS:
            guest.pause(turns)
            found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in PLACES}
            for _ in range(ROUNDS):
                for name, pcpus in PLACES.items():
                    place(guest, pcpus)
                    found[name].append(window(guest))
            middle = {n: [st.median(c) for c in zip(*w, strict=True)] for n, w in found.items()}
            for name, (rate, io, vcpu) in middle.items():
                usage = min(1.0, io) + min(1.0, rate / LINE_MBPS)
                print(f"{turns:7} {name:>6} {rate:7.0f} {io:8.1%} {vcpu:12.1%} {usage:5.0%}")
            kept = [s[0] / f[0] for f, s in zip(found["fast"], found["slow"], strict=True)]
            gain = middle["slow"][2] - middle["fast"][2]
            print(
                f"{turns:7} slow/fast throughput median {st.median(kept):.3f}, "
                f"{min(kept):.3f} to {max(kept):.3f}; fast core freed {gain:+.1%}"
            )


def test_the_agent_moves_it(tmp_path: Path) -> None:
    """A saturating and a lighter sender under ``io_work = slow``: before, after, verdict."""
    with opened(tmp_path / "lab") as lab, SlowCore(SLOW, SLOWED):
        guest = lab.sender("sender", pins={0: str(FAST)})
        name = guest.spec.name
        for turns in (0, 20_000):
            guest.pause(turns)
            place(guest, PLACES["both"])
            before = st.median(window(guest)[0] for _ in range(3))
            more = f"io_work = slow\nio_line_rate_mbps = {LINE_MBPS}\n"
            agent = Agent(tmp_path / f"agent{turns}", more=more).start()
            try:
                time.sleep(scaled(20, 3))
                after = st.median(window(guest)[0] for _ in range(3))
                labels = {"domain": name}
                figures = {
                    key: agent.metric(f"amp_instance_{key}", **labels)
                    for key in (
                        "combined_usage_ratio",
                        "io_slow",
                        "io_kept_estimate_ratio",
                        "io_effect_ratio",
                        "io_freed_seconds_total",
                    )
                }
                print(f"\n{turns} turns: {before:.0f} -> {after:.0f} Mbit/s; {figures}")
            finally:
                agent.stop()
