"""All papers, and what runs their figures."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from amp_nova.exceptions import ConfigInvalid
from amp_nova.sim.reproduce import chen2014, kumar2009, kwon2011, saez2015, teabe2017
from amp_nova.sim.reproduce.experiment import Figure, Paper, Row

PAPERS: Mapping[str, Paper] = {
    module.PAPER.name: module.PAPER
    for module in (teabe2017, kwon2011, saez2015, chen2014, kumar2009)
}


class Found(NamedTuple):
    """A row, and where it belongs."""

    paper: Paper
    figure: Figure
    row: Row


def select(paper: str | None, figure: str | None) -> list[tuple[Paper, Figure]]:
    """The figures of one paper or of all, or those with this name.

    Raises:
        ConfigInvalid: there is no figure of this name.
    """
    papers = list(PAPERS.values()) if paper is None else [PAPERS[paper]]
    every = [(p, f) for p in papers for f in p.figures]
    chosen = [(p, f) for p, f in every if figure in (None, f.name)]
    if not chosen:
        known = ", ".join(dict.fromkeys(f"'{f.name}'" for _, f in every))
        raise ConfigInvalid(f"--figure '{figure}' is not known: choose one of {known}")
    return chosen


def reproduce(figures: list[tuple[Paper, Figure]]) -> Iterator[Found]:
    """Every row as soon as it is computed."""
    for paper, figure in figures:
        for row in figure.rows():
            yield Found(paper, figure, row)
