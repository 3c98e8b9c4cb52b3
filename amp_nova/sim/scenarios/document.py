"""Reads a YAML file value by value and keeps the place of each in the file.

An invalid value is reported in one sentence: the file, the line, the value and what is allowed.
Values are read from the node tree rather than from constructed objects, which keeps line numbers
and accepts numbers as people write them (YAML 1.1 takes ``2.0e9`` for a string).
"""

import difflib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from amp_nova.exceptions import ScenarioInvalid

SIZE_MAX_BYTES = 1 << 20
DEPTH_MAX = 16
GREATEST = 1e15
_NUMBER = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")
_TEXT = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]{1,255}")
"""One line, without lone surrogates, which no file or terminal can encode."""


class _Loader(yaml.SafeLoader):
    """Composes nodes, but refuses aliases, which can make a small file huge, and deep nesting."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            raise yaml.MarkedYAMLError(
                problem="an alias (*) is not allowed: write the value out",
                problem_mark=event.start_mark,  # type: ignore[arg-type]
            )
        if self.depth >= DEPTH_MAX:
            raise yaml.MarkedYAMLError(problem="nested too deep", problem_mark=event.start_mark)
        self.depth += 1
        node: yaml.Node | None = super().compose_node(parent, index)
        self.depth -= 1
        return node


@dataclass(frozen=True, slots=True)
class Value:
    """One value of the file. ``path`` names it in messages: ``host.core_types[0].count``."""

    node: yaml.Node
    file: str
    path: str

    def wrong(self, sentence: str) -> ScenarioInvalid:
        """The error for this place in the file."""
        mark = self.node.start_mark
        return _wrong(self.file, mark.line + 1 if mark else None, sentence)

    def refused(self, expected: str) -> ScenarioInvalid:
        """The error for a value other than what is expected."""
        return self.wrong(f"{self.path or 'the scenario'} is {self._shown()}: give {expected}")

    def _shown(self) -> str:
        if isinstance(self.node, yaml.MappingNode):
            return "a mapping"
        if isinstance(self.node, yaml.SequenceNode):
            return "a list"
        text = str(self.node.value)
        if not text or self.is_null:
            return "empty"
        return repr(text if len(text) <= 60 else text[:57] + "...")

    @property
    def file_stem(self) -> str:
        """The name of the file without its ending."""
        return Path(self.file).stem

    @property
    def is_null(self) -> bool:
        """Whether it is ``null``, ``~`` or empty."""
        return str(self.node.tag).endswith(":null")

    @property
    def is_list(self) -> bool:
        """Whether it is a list."""
        return isinstance(self.node, yaml.SequenceNode)

    @property
    def is_mapping(self) -> bool:
        """Whether it is a mapping."""
        return isinstance(self.node, yaml.MappingNode)

    def entries(self, expected: str = "a mapping of keys to values") -> dict[str, "Value"]:
        """The values of a mapping by key; a duplicate key is an error."""
        if not isinstance(self.node, yaml.MappingNode):
            raise self.refused(expected)
        found: dict[str, Value] = {}
        for key_node, node in self.node.value:
            key = Value(key_node, self.file, f"a key of {self.path or 'the scenario'}").text()
            value = Value(node, self.file, f"{self.path}.{key}" if self.path else key)
            if key in found:
                raise Value(key_node, self.file, "").wrong(f"{value.path} is given twice")
            found[key] = value
        return found

    def fields(self, known: Sequence[str], required: Sequence[str] = ()) -> dict[str, "Value"]:
        """The values of a mapping with known keys; ``null`` is the same as leaving a key out."""
        found = self.entries(f"a mapping with the keys {', '.join(known)}")
        where = self.path or "a scenario"
        for key, value in found.items():
            if key not in known:
                raise value.wrong(f"'{key}' is not a key of {where}: {nearest(key, known)}")
        given = {key: value for key, value in found.items() if not value.is_null}
        for key in required:
            if key not in given:
                raise self.wrong(f"{where} has no '{key}': add it")
        return given

    def items(self, expected: str = "a list") -> list["Value"]:
        """The values of a list."""
        if not isinstance(self.node, yaml.SequenceNode):
            raise self.refused(expected)
        return [Value(n, self.file, f"{self.path}[{i}]") for i, n in enumerate(self.node.value)]

    def raw(self, expected: str = "text") -> str:
        """A scalar as it is written in the file."""
        return str(self._scalar(expected).value)

    def _scalar(self, expected: str) -> yaml.ScalarNode:
        if not isinstance(self.node, yaml.ScalarNode):
            raise self.refused(expected)
        return self.node

    def text(self) -> str:
        """A scalar as one line of text, not empty."""
        expected = "text of one line, at most 255 characters"
        text = self.raw(expected)
        if not _TEXT.fullmatch(text) or self.is_null:
            raise self.refused(expected)
        return text

    def one_of(self, known: Sequence[str], what: str) -> str:
        """One of the ``known`` names; ``what`` describes them."""
        text = self.text()
        if text not in known:
            raise self.refused(f"{what}: {', '.join(known)}")
        return text

    def number(self, low: float, high: float = GREATEST, *, above: bool = False) -> float:
        """A finite number from ``low`` (not ``low`` itself, if ``above``) to ``high``."""
        limit = f" and at most {high:g}" if high < GREATEST else ""
        expected = f"a number {'above' if above else 'of at least'} {low:g}{limit}"
        node = self._scalar(expected)
        # Quoted numbers, NaN, infinity, true and 1:30 are mistakes.
        if node.style is not None or not _NUMBER.fullmatch(node.value):
            raise self.refused(expected)
        value = float(node.value)
        if not (low < value if above else low <= value) or value > high:
            raise self.refused(expected)
        return value

    def whole(self, low: int, high: int) -> int:
        """A whole number from ``low`` to ``high``."""
        expected = f"a whole number from {low} to {high}"
        node = self._scalar(expected)
        short = node.style is None and re.fullmatch(r"[-+]?[0-9]{1,20}", node.value)
        if not short or not low <= int(node.value) <= high:
            raise self.refused(expected)
        return int(node.value)


def of_pairs(option: str, pairs: Mapping[str, str]) -> dict[str, Value]:
    """The values of an option of the command line, by key."""
    return {key: Value(yaml.ScalarNode("", text), option, key) for key, text in pairs.items()}


def _wrong(file: str, line: int | None, sentence: str) -> ScenarioInvalid:
    where = file if line is None else f"{file}, line {line}"
    return ScenarioInvalid(f"{where}: {sentence}")


def nearest(word: str, known: Collection[str]) -> str:
    """The end of a sentence on an unknown word: the one that it resembles, or all ``known``."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean '{near[0]}'?" if near else f"it has {', '.join(known) or 'none'}"


def load(path: Path) -> Value:
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
    return Value(node, name, "")
