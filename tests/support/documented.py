# SPDX-License-Identifier: Apache-2.0
"""The shell commands in README and the documentation, block by block."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import amp_nova

ROOT = Path(amp_nova.__file__).parent.parent
PAGES = [*sorted(ROOT.glob("*.rst")), *sorted((ROOT / "doc/source").rglob("*.rst"))]
BLOCK = re.compile(r"^( *)(?:\.\. code-block:: (?:shell|console)|[^.\n ][^\n]*::)$")
COMMAND = re.compile(
    r"(\$ )?(amp-nova(-\w+)?|openstack|tools/\S+|tox|pip|apt|systemctl|python|virsh)(?=\s|$)"
)


@dataclass(frozen=True)
class Block:
    """Commands that are shown together; ``caption``: where they were run, ``line``: where it is."""

    page: Path
    line: int
    caption: str
    commands: tuple[str, ...]


def blocks() -> Iterator[Block]:
    """Every block of shell commands; literal blocks of other things are left out."""
    for page in PAGES:
        lines = page.read_text().splitlines()
        for at, line in enumerate(lines):
            if not (match := BLOCK.match(line)):
                continue
            indent = len(match[1])
            body = []
            for below in lines[at + 1 :]:
                if below.strip() and len(below) - len(below.lstrip()) <= indent:
                    break
                body.append(below.strip())
            caption = next((x for x in body if x.startswith(":caption: ")), "")
            commands = [x for x in _joined(body) if x and x[0] not in ":#"]
            if line.endswith("console"):  # what they print is below
                commands = [command for _, command, _ in session(body)]
            if "code-block" in line or (commands and COMMAND.match(commands[0])):
                yield Block(page, at + 1, caption.removeprefix(":caption: "), tuple(commands))


def session(lines: list[str]) -> Iterator[tuple[str, str, str]]:
    """Prompt (``$``, or ``#`` of root), command and output of every step of a console block."""
    steps = re.split(r"^([$#]) (.+)$", "\n".join(lines), flags=re.MULTILINE)
    for prompt, command, output in zip(steps[1::3], steps[2::3], steps[3::3], strict=True):
        yield prompt, command, output.strip("\n")


def _joined(body: list[str]) -> list[str]:
    """Lines that end with a backslash go on in the next one."""
    return "\n".join(body).replace("\\\n", "").split("\n")
