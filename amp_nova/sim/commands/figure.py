"""Figures of the commands, drawn with matplotlib where that is installed."""

from pathlib import Path
from typing import Any

from amp_nova.exceptions import AmpError


def empty(path: str, width_in: float = 8, height_in: float = 5) -> Any:
    """An empty figure; raises ``AmpError`` before any work if it cannot be saved as ``path``."""
    try:
        from matplotlib.figure import Figure
    except ImportError as exc:
        raise AmpError("--plot needs matplotlib: install amp-nova[plot]") from exc
    figure = Figure(figsize=(width_in, height_in), layout="constrained")
    known = sorted(figure.canvas.get_supported_filetypes())
    if Path(path).suffix.removeprefix(".").lower() not in known:
        raise AmpError(f"--plot {path!r} has no known format: end the name in .{', .'.join(known)}")
    if not Path(path).parent.is_dir():
        raise AmpError(f"--plot {path!r} cannot be written: create its folder first")
    return figure


def save(figure: Any, path: str) -> None:
    """Write the figure, the same bytes for the same content; raises ``AmpError``."""
    from matplotlib import rc_context

    undated = {"metadata": {"Date": None}} if path.lower().endswith(".svg") else {}
    try:
        with rc_context({"svg.hashsalt": "amp-nova"}):
            figure.savefig(path, **undated)
    except (OSError, ValueError) as exc:
        raise AmpError(f"--plot {path} cannot be written: {exc}") from exc
