# SPDX-License-Identifier: Apache-2.0
"""Reads a YAML file into declared types, and keeps the place of each value in the file.

msgspec decodes; what it refuses is reported in one sentence: the file, the line, the value and what
is allowed. All scalars are text until a type says otherwise, so that extra specs need no quotes and
numbers may be written as people write them (YAML 1.1 takes ``2.0e9`` for a string).
"""

import difflib
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
import yaml
from msgspec import Meta, structs

from amp_nova.exceptions import AmpError

SIZE_MAX_BYTES = 1 << 20
VALUES_MAX = SIZE_MAX_BYTES // 8
"""Keys and values: what people write and what is recorded is less dense, and each takes 30 us."""
DEPTH_MAX = 16
GREATEST = 1e15
T = TypeVar("T")
Ratio = Annotated[float, Meta(ge=0, le=1)]
NotNegative = Annotated[float, Meta(ge=0, le=GREATEST)]
Positive = Annotated[float, Meta(gt=0, le=GREATEST)]
Text = Annotated[str, Meta(min_length=1, max_length=255, pattern=r"^[^\x00-\x1f\x7f]*\Z")]
"""One line."""
_TYPES = {
    "float": "a number",
    "int": "a whole number",
    "str": "text",
    "array": "a list",
    "object": "a mapping",
}
"""Types as msgspec calls them, and as people do."""


class ScenarioInvalid(AmpError):
    """The simulator cannot run this scenario file."""


class Keys(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The keys of a mapping in the file; ``null`` is the same as leaving a key out."""


def one_of(*names: str) -> Meta:
    """The bounds of a text that is one of these names."""
    return Meta(pattern=f"^({'|'.join(names)})$")


class _Loader(yaml.SafeLoader):
    """Composes nodes, but neither too many nor too deep, and no aliases, which make them huge."""

    depth = count = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            raise yaml.MarkedYAMLError(
                problem="an alias (*) is not allowed: write the value out",
                problem_mark=event.start_mark,  # type: ignore[arg-type]
            )
        if self.depth >= DEPTH_MAX:
            raise yaml.MarkedYAMLError(problem="nested too deep", problem_mark=event.start_mark)
        if self.count >= VALUES_MAX:
            problem = f"a scenario has at most {VALUES_MAX} values"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)
        self.count += 1
        self.depth += 1
        node: yaml.Node | None = super().compose_node(parent, index)
        self.depth -= 1
        return node


@dataclass(frozen=True, slots=True)
class Place:
    """A value in the file. ``path`` names it in messages: ``host.core_types[0].count``."""

    node: yaml.Node
    file: str
    path: str = ""

    def entries(self) -> dict[str, "Place"]:
        """The values of a mapping by key, none of anything else; a duplicate key is an error."""
        places: dict[str, Place] = {}
        for key, value in self.node.value if isinstance(self.node, yaml.MappingNode) else ():
            at = Place(key, self.file, f"a key of {self.path or 'the scenario'}")
            if not isinstance(key, yaml.ScalarNode):
                raise at.refused("text")
            path = f"{self.path}.{key.value}" if self.path else key.value
            if key.value in places:
                raise at.wrong(f"{path} is given twice")
            places[key.value] = Place(value, self.file, path)
        return places

    def __getitem__(self, key: str | int) -> "Place":
        """The place of a key or an item; that of the mapping if it does not have the key."""
        if isinstance(key, int):
            return Place(self.node.value[key], self.file, f"{self.path}[{key}]")
        return self.entries().get(key, self)

    def plain(self) -> object:
        """Text, lists and mappings; raises ``ScenarioInvalid``."""
        if isinstance(self.node, yaml.MappingNode):
            values = {key: at.plain() for key, at in self.entries().items()}
            return {key: value for key, value in values.items() if value is not None}
        if isinstance(self.node, yaml.SequenceNode):
            return [self[index].plain() for index in range(len(self.node.value))]
        text = self.node.value.encode("utf-8", "replace").decode()  # no lone surrogates
        return None if str(self.node.tag).endswith(":null") else text

    def wrong(self, sentence: str) -> ScenarioInvalid:
        """The error for this place in the file."""
        mark = self.node.start_mark
        return _wrong(self.file, mark.line + 1 if mark else None, sentence)

    @property
    def shown(self) -> str:
        """The value in messages."""
        value = self.node.value
        if not value or str(self.node.tag).endswith(":null"):
            return "empty"
        if not isinstance(self.node, yaml.ScalarNode):
            return "a mapping" if isinstance(self.node, yaml.MappingNode) else "a list"
        return repr(value if len(value) <= 60 else value[:57] + "...")

    def refused(self, expected: str) -> ScenarioInvalid:
        """The error for a value other than what is expected."""
        return self.wrong(f"{self.path or 'the scenario'} is {self.shown}: give {expected}")


def decode(at: Place, kind: type[T]) -> T:
    """A value as an instance of ``kind``; raises ``ScenarioInvalid``."""
    try:
        return msgspec.convert(at.plain(), kind, strict=False)
    except msgspec.ValidationError as exc:
        raise _refusal(at, *str(exc).partition(" - at `$")[::2]) from None


def _refusal(at: Place, message: str, path: str) -> ScenarioInvalid:
    """What msgspec refuses at ``path``, in our words."""
    for key, index in re.findall(r"\.(\w+)|\[(\d+|\.\.\.)\]", path):
        if index == "...":  # some entry of a mapping of texts or numbers: show all
            every = ", ".join(f"{k}: {entry.shown}" for k, entry in at.entries().items())
            at = Place(yaml.ScalarNode("", every, at.node.start_mark), at.file, at.path)
            break
        at = at[int(index) if index else key]
    what, _, name = message.partition(" field `")
    name, where = name[:-1], at.path or "a scenario"
    if what == "Object missing required":
        return at.wrong(f"{where} has no '{name}': add it")
    if what == "Object contains unknown":
        near = difflib.get_close_matches(name, _names(Keys), n=1)
        hint = f"did you mean '{near[0]}'?" if near else "the user guide (simulator) lists the keys"
        return at[name].wrong(f"'{name}' is not a key of {where}: {hint}")
    return at.refused(_expected(message))


def _names(keys: type[Keys]) -> set[str]:
    """All keys that a file may have somewhere."""
    return {f.encode_name for f in structs.fields(keys)}.union(*map(_names, keys.__subclasses__()))


def _expected(message: str) -> str:
    """What msgspec expects, for people."""
    match = re.match("Expected `(.*?)`( matching regex)?(.*)", message, re.DOTALL)
    if match is None:
        return "a smaller number"
    kinds, regex, bounds = match.groups()
    if regex and (names := re.fullmatch(r" '\^\((.*)\)\$'", bounds)):
        return f"one of {names[1].replace('|', ', ')}"
    what = " or ".join(_TYPES[kind] for kind in kinds.split(" | ") if kind != "null")
    return what + (f" that matches{bounds}" if regex else re.sub(", got .*|\\.0$", "", bounds))


def _wrong(file: str, line: int | None, sentence: str) -> ScenarioInvalid:
    where = file if line is None else f"{file}, line {line}"
    return ScenarioInvalid(f"{where}: {sentence}")


def nearest(word: str, choices: Collection[str]) -> str:
    """The end of a sentence on an unknown word: the one that it resembles, or all ``choices``."""
    near = difflib.get_close_matches(word, list(choices), n=1)
    return f"did you mean '{near[0]}'?" if near else f"it has {', '.join(choices) or 'none'}"


def load(path: Path) -> Place:
    """The whole file; ``ScenarioInvalid`` if it cannot be read or is not YAML."""
    name = str(path)
    try:
        with path.open("rb") as file:
            raw = file.read(SIZE_MAX_BYTES + 1)
        if len(raw) > SIZE_MAX_BYTES:
            raise _wrong(name, None, f"a scenario has at most {SIZE_MAX_BYTES} bytes")
        node = _Loader(raw.decode()).get_single_node()
    except UnicodeDecodeError as exc:
        raise _wrong(name, None, "is not text in UTF-8: save it in that encoding") from exc
    except (OSError, ValueError, OverflowError) as exc:  # also of an escape such as \U00110000
        reason = getattr(exc, "strerror", None) or exc
        raise _wrong(name, None, f"cannot be read: {reason}") from exc
    except yaml.YAMLError as exc:
        mark = getattr(exc, "problem_mark", None)
        problem = getattr(exc, "problem", None) or " ".join(str(exc).split())
        line = mark.line + 1 if mark else None
        raise _wrong(name, line, f"is not the YAML of a scenario: {problem}") from exc
    if node is None:
        raise _wrong(name, None, "is empty: give at least duration_s, host and vms")
    return Place(node, name)
