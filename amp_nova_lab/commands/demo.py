# SPDX-License-Identifier: Apache-2.0
"""``amp-nova demo``: bookings kept on fast and slow cores, without root or a hypervisor.

The control loop and the exporter are the agent's own. Simulated time keeps pace with real time, so
that the page and the metrics can be watched.
"""

import argparse
import contextlib
import dataclasses
import sys
import textwrap
import time
from typing import Any

from amp_nova.agent.publish.exporter import Exporter
from amp_nova.agent.publish.host_info import HostInfo
from amp_nova.agent.publish.web_server import WebServer, WebSettings
from amp_nova.cmd.arguments import whole
from amp_nova.cmd.command import Command, Screen, as_json
from amp_nova_lab.commands.figure import empty, save
from amp_nova_lab.report import rounded
from amp_nova_lab.two_hosts import ACTS, TOPOLOGY, Show, VcpuRow

ADDRESS = "127.0.0.1"
WIDTH = 79
DURATION_MAX_S = 86_400
LINE = "{:<8} {:>6} | {:>9} {:>5}  {:<4} {:>5} | {:>9} {:>5}  {}"
HOST_COLUMNS = ("delivered", "ratio", "on")
HEAD = LINE.format("vCPU", "booked", *HOST_COLUMNS, "quota", *HOST_COLUMNS)


class Demo(Command):
    """Run the same guests on two simulated hosts, one with amp-nova and one without

    It shows what was booked and what was delivered, in reference cores. The exit status is 1 if a
    booking was not delivered.
    """

    _epilog = """examples:
  amp-nova demo
  amp-nova demo --serve
  amp-nova demo --format json
"""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--duration",
            type=whole(len(ACTS), DURATION_MAX_S),
            default=32,
            metavar="S",
            help="length in seconds, rounded down to a multiple of 4 (default: %(default)s)",
        )
        parser.add_argument("-f", "--format", choices=("table", "json"), default="table")
        parser.add_argument(
            "--serve",
            type=whole(0, 65_535),
            nargs="?",
            const=0,
            metavar="PORT",
            help="keep the host with amp-nova and its page until Ctrl-C (port: any by default)",
        )
        parser.add_argument("--plot", metavar="FILE", help="draw delivered over booked capacity")

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Print the verdict in one sentence; 1 if a booking was not delivered."""
        args = parsed_args
        figure = None if args.plot is None else empty(args.plot, 9, 3.4)
        exporter = Exporter(detail="vcpu")
        exporter.agent.hypervisor_up = True
        exporter.admits = HostInfo("the demo host")
        server = WebServer(exporter.routes, WebSettings(ADDRESS, args.serve or 0)).bind()
        address = f"http://{ADDRESS}:{server.bind_addr[1]}/"
        show = _simulate(args, exporter, address)
        verdict = show.verdict()
        if figure is not None:
            _draw(figure, show)
            save(figure, args.plot)
        print(as_json(_figures(show, address)) if args.format == "json" else f"\n{verdict}")
        if args.serve is not None:
            print(f"\nUntil Ctrl-C, the last act goes on: {address}", file=sys.stderr, flush=True)
            _go_on(show, exporter)
        return 0 if verdict.delivered else 1


def _go_on(show: Show, exporter: Exporter) -> None:
    """Keep the host with amp-nova working in real time until Ctrl-C."""
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            time.sleep(1.0)
            show.kept.second(None)
            exporter.update(show.kept.cycles[-1])


def _simulate(args: argparse.Namespace, exporter: Exporter, address: str) -> Show:
    """Redraw a table every second on a terminal; elsewhere print it at the end of every act."""
    show = Show(args.duration // len(ACTS))
    prints = args.format == "table"
    if prints:
        print(_introduction(address), flush=True)
    terminal = Screen() if prints and sys.stdout.isatty() else None
    started_s = time.monotonic()
    while show.second():
        for cycle in show.kept.cycles:
            exporter.update(cycle)
        time.sleep(max(0.0, started_s + show.now_s - time.monotonic()))
        if terminal is not None:
            terminal.draw(_table(show))
        elif prints and show.ends_act:
            print(_table(show), flush=True)
    return show


def _introduction(address: str) -> str:
    types = ", ".join(
        f"{len(TOPOLOGY.pcpus_of(t.name))} {t.name} cores (coefficient {t.coefficient:g})"
        for t in reversed(TOPOLOGY.core_types)
    )
    return (
        f"Watch in a browser while this runs: {address}\n\n"
        f"Two simulated hosts with {types}\nrun the same guests, which all want more than they "
        "book. Booked, delivered and quota are\nper vCPU; 1 reference core is a whole slow core.\n"
        f"Metrics of the host with amp-nova, while this runs: {address}metrics"
    )


def _table(show: Show) -> str:
    lines = ["", *textwrap.wrap(f"{show.now_s:>3} s of {show.duration_s}: {show.act.title}", WIDTH)]
    lines += [f"{'':15} | {'with amp-nova':27} | without", HEAD]
    for (name, index), kept in show.kept.rows.items():
        bare = _cells(show.bare.rows[name, index])
        vcpu = (f"{name}/{index}", _number(kept.booked_refcores))
        lines.append(LINE.format(*vcpu, *_cells(kept), _number(kept.quota_cores), *bare).rstrip())
    return "\n".join(lines)


def _draw(figure: Any, show: Show) -> None:
    """Two panels, without and with amp-nova: a line for every booked vCPU."""
    without, with_ = figure.subplots(1, 2, sharey=True)
    kept = f"With amp-nova: within {show.verdict().error_percent:g} %"
    for axes, host, title in ((without, 1, "Without amp-nova"), (with_, 0, kept)):
        for key in show.kept.ratios:
            points = [
                (second, row.ratio)
                for second, rows in enumerate(show.history, 1)
                if (row := rows[host].get(key)) is not None and row.ratio is not None
            ]
            axes.plot(*zip(*points, strict=True), label=f"{key[0]}/{key[1]}", linewidth=2)
        axes.set(title=title, xlabel="time (s)", ylim=(0, None))
        axes.grid(alpha=0.3)
    without.set_ylabel("delivered / booked capacity")
    figure.legend(*without.get_legend_handles_labels(), loc="outside right upper", title="vCPU")


def _cells(row: VcpuRow) -> list[str]:
    return [_number(row.delivered_refcores), _number(row.ratio), row.core_type]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _figures(show: Show, address: str) -> dict[str, Any]:
    """The verdict with its figures, and the last second of every vCPU."""
    verdict = show.verdict()
    return {
        "duration_s": show.duration_s,
        "page": address,
        "metrics": f"{address}metrics",
        "delivered": verdict.delivered,
        "verdict": str(verdict),
        **{key: rounded(value) for key, value in dataclasses.asdict(verdict).items()},
        "vcpus": {
            f"{name}/{index}": {
                "with": dataclasses.asdict(kept),
                "without": dataclasses.asdict(show.bare.rows[name, index]),
            }
            for (name, index), kept in show.kept.rows.items()
        },
    }
