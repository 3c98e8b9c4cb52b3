"""Figures and tables of papers: published values beside ours, and what the difference means.

Verdicts. *Reproduced*: within what the paper prints, or off it by no more than a tenth of the
published effect (single values: also by no more than half a percentage point, or 0.005). *Sign
only*: further off, but on the same side of no effect. *Not reproduced*: neither. *Fitted*: an input
was chosen so that this row comes out, so the row says nothing about the model.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

REPRODUCED, SIGN_ONLY, NOT_REPRODUCED = "reproduced", "sign only", "not reproduced"
FITTED = "fitted: "
TOLERATED = 0.1
"""Share of the published effect by which ours may be off."""


@dataclass(frozen=True, slots=True)
class Published:
    """What a paper says of a quantity: its text, and the least and greatest value that it allows.

    ``neutral`` is the value without any effect.
    """

    text: str
    low: float
    high: float
    neutral: float = 0.0

    @property
    def side(self) -> int:
        """On which side of no effect all allowed values are: -1, 1, or 0 if on neither."""
        return (self.low > self.neutral) - (self.high < self.neutral)


def exactly(value: float, unit: str = "", neutral: float = 0.0) -> Published:
    """A printed number."""
    return Published(f"{value:g} {unit}".rstrip(), value, value, neutral)


def between(low: float, high: float, unit: str = "", neutral: float = 0.0) -> Published:
    """A printed range."""
    return Published(f"{low:g} to {high:g} {unit}".rstrip(), low, high, neutral)


def at_most(value: float, unit: str = "", neutral: float = 0.0, text: str = "") -> Published:
    """An upper bound; ``text`` if the paper gives it in words."""
    return Published(text or f"at most {value:g} {unit}".rstrip(), -math.inf, value, neutral)


def at_least(value: float, unit: str = "", neutral: float = 0.0, text: str = "") -> Published:
    """A lower bound; ``text`` if the paper gives it in words."""
    return Published(text or f"at least {value:g} {unit}".rstrip(), value, math.inf, neutral)


@dataclass(frozen=True, slots=True)
class Row:
    """A quantity of a figure, published and ours.

    ``assumptions``: what the paper leaves open and we chose; ``cause``: why it is not reproduced,
    as far as known; ``fitted``: the input that was chosen so that this row comes out.
    """

    quantity: str
    published: Published
    ours: float
    unit: str = ""
    assumptions: tuple[str, ...] = ()
    cause: str = ""
    fitted: str = ""

    @property
    def difference(self) -> float:
        """Ours less the nearest value that the paper allows; 0 within its range."""
        return self.ours - min(max(self.ours, self.published.low), self.published.high)

    @property
    def verdict(self) -> str:
        """One of the four kinds."""
        if self.fitted:
            return FITTED + self.fitted
        published = self.published
        nearest = self.ours - self.difference
        tolerance = TOLERATED * abs(nearest - published.neutral)
        least = 0.0
        if published.low == published.high:
            least = 0.5 if self.unit == "%" else 0.005
        if abs(self.difference) <= max(tolerance, least):
            return REPRODUCED
        if published.side * (self.ours - published.neutral) > tolerance:
            return SIGN_ONLY
        return NOT_REPRODUCED


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure or table of a paper, and how to compute our values for it.

    ``section`` is where the paper states the values.
    """

    name: str
    section: str
    title: str
    rows: Callable[[], Iterator[Row]]

    @property
    def where(self) -> str:
        """Where to look it up in the paper."""
        return f"{self.name}, section {self.section}"


@dataclass(frozen=True, slots=True)
class Paper:
    """The figures of a paper.

    ``left_out``: what the paper shows and no row covers, each with the reason.
    """

    name: str
    title: str
    figures: tuple[Figure, ...]
    left_out: tuple[str, ...] = ()
