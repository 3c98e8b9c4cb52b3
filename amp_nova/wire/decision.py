# SPDX-License-Identifier: Apache-2.0
"""What scheduler workers tell each other: the capacity that they reserve, and when that ends.

A decision is JSON text, checked as it is decoded, like a host report.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from amp_nova.exceptions import ReportInvalid
from amp_nova.wire.host_report import VCPUS_MAX, Count, Name, ReportedVcpu, Text

CHARACTERS_MAX = 1 << 20
Kind = Literal["tentative", "chosen", "over"]
"""``tentative``: a claim is in progress; ``chosen``: Nova chose the host; ``over``: nothing is
reserved any more."""


class Reservation(Struct, frozen=True, omit_defaults=True, gc=False):
    """What one worker has decided to reserve for one instance.

    ``worker`` and ``number`` identify it. ``vcpus``: the booked ones; ``cpus_allowed_list``: the
    pCPUs of the NUMA cell that Nova will pin it to, empty for all.
    """

    worker: Name
    number: Count
    kind: Kind
    resource: Name
    node: Name
    vcpus: Annotated[tuple[ReportedVcpu, ...], Meta(max_length=VCPUS_MAX)] = ()
    core_type: Text | None = None


_decoder = msgspec.json.Decoder(Reservation)


def encode(decision: Reservation) -> str:
    """The JSON text of a decision."""
    return msgspec.json.encode(decision).decode()


def decode(text: object) -> Reservation:
    """Read a decision; ``ReportInvalid`` if it is too long or malformed."""
    if not isinstance(text, str) or len(text) > CHARACTERS_MAX:
        raise ReportInvalid("malformed", "a worker's decision is not a string of a valid length")
    try:
        return _decoder.decode(text)
    except (ValueError, RecursionError) as exc:
        raise ReportInvalid("malformed", f"a worker's decision: {exc}"[:200]) from exc
