# SPDX-License-Identifier: Apache-2.0
"""Valid documents made wrong: a value replaced, cut or repeated, anywhere in their structure."""

import json
import random
import re
from collections.abc import Iterator
from typing import Any

Path = tuple[Any, ...]
NASTY = "\x00\x01\n\r\t\x1b\x7f\x85\u2028\ud800\U0010ffff\"'<>&%$[]{}=:,-"
"""What breaks readers: control characters, half a surrogate pair, what formats reserve."""
WORDS = ("", "nan", "inf", "1e999", "-0", "0x10", "9" * 5000, "x" * 70_000, "१२", "²", "∞")
ATOMS = (
    *(0, -1, 1, 2, 63, 64, 1 << 31, 1 << 64, -(1 << 63), 10**400, 10**4000),
    *(0.0, -0.0, 1e-320, 1e308, 0.1, float("nan"), float("inf"), -float("inf")),
    *(True, False, None, [], {}, [[]], {"": None}, ["x"] * 3000),
    *WORDS,
)


def places(document: Any, path: Path = ()) -> Iterator[Path]:
    """Every value in a JSON document, as a path."""
    yield path
    entries = document.items() if isinstance(document, dict) else ()
    entries = enumerate(document) if isinstance(document, list) else entries
    for key, value in entries:
        yield from places(value, (*path, key))


def put(document: Any, path: Path, value: Any) -> Any:
    """The document with another value at one place."""
    if not path:
        return value
    copy = dict(document) if isinstance(document, dict) else list(document)
    copy[path[0]] = put(copy[path[0]], path[1:], value)
    return copy


def in_text(text: str, rng: random.Random, word: str) -> str:
    """Replace a word, or cut the text, or repeat a part of it."""
    found = list(re.finditer(r"[^\s<>='\"/,:\[\]{}]+", text))
    if not found:
        return word
    match = rng.choice(found)
    how = rng.random()
    if how < 0.7:
        return text[: match.start()] + word + text[match.end() :]
    if how < 0.85:
        return text[: match.start()]
    return text[: match.end()] + text[match.start() :]


def atom(rng: random.Random) -> Any:
    """A value that readers may not expect."""
    kind = rng.randrange(4)
    if kind == 0:
        return rng.choice(ATOMS)
    if kind == 1:
        return "".join(rng.choices(NASTY, k=rng.randrange(12)))
    if kind == 2:
        return rng.randrange(-10, 200)
    return round(rng.uniform(-2.0, 100.0), rng.randrange(4))


def mutated(text: str, rng: random.Random) -> str:
    """A document with one to three values replaced, cut or repeated."""
    for _ in range(rng.randint(1, 3)):
        value = atom(rng)
        try:
            document = json.loads(text)
        except (ValueError, RecursionError):
            word = value if isinstance(value, str) else json.dumps(value)
            text = in_text(text, rng, word)
        else:
            text = json.dumps(put(document, rng.choice(list(places(document))), value))
    return text
