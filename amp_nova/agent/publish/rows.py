"""A row of the table of metrics: how records become the samples of a metric family."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from prometheus_client.core import Metric

T = TypeVar("T")
Labels = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Distribution:
    """A summary or histogram. ``buckets``: upper bound and cumulative count of each bucket."""

    count: float
    total: float
    buckets: tuple[tuple[str, float], ...] = ()


Number = float | Distribution
Value = Number | Mapping[Any, Number] | None
"""What an accessor returns; the keys of a mapping are a label value or a tuple of label values."""


@dataclass(frozen=True, slots=True)
class Row(Generic[T]):
    """One metric. ``name``: as scraped; ``labels``: those in addition to the section's labels."""

    kind: str
    name: str
    help: str
    read: Callable[[T], Value]
    labels: Labels = ()

    def family(self, labels: Labels, records: Iterable[tuple[Labels, T]]) -> Metric:
        """The metric's samples; ``records`` come with the values of the section's ``labels``."""
        suffix = {"counter": "_total", "info": "_info"}.get(self.kind, "")
        family = Metric(self.name.removesuffix(suffix), self.help, self.kind)
        names = (*labels, *self.labels)
        for values, record in records:
            found = self.read(record)
            for own, number in found.items() if isinstance(found, Mapping) else [((), found)]:
                own = (own,) if isinstance(own, str) else own
                if number is not None:
                    _add(family, self.name, dict(zip(names, (*values, *own), strict=True)), number)
        return family


def _add(family: Metric, name: str, labels: dict[str, str], number: Number) -> None:
    if not isinstance(number, Distribution):
        family.add_sample(name, labels, number)
        return
    for bound, count in number.buckets:
        family.add_sample(f"{name}_bucket", {**labels, "le": bound}, count)
    family.add_sample(f"{name}_count", labels, number.count)
    family.add_sample(f"{name}_sum", labels, number.total)
