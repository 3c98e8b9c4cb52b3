"""Coverage-guided fuzzing of one place of ``tests.hostile`` with atheris; run by ``tools/fuzz``."""

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["amp_nova"]):
    from tests import hostile


def main() -> None:
    """``--list`` names the places; else the first argument is one, the others are libFuzzer's."""
    surfaces = hostile.surfaces()
    if sys.argv[1:] == ["--list"]:
        print("\n".join(surfaces))
        return
    place, *options = sys.argv[1:]
    surface = surfaces[place]
    corpus = Path(tempfile.mkdtemp(prefix="amp-nova-corpus-"))
    for number, seed in enumerate(surface.seeds):
        (corpus / str(number)).write_text(seed)
    atheris.Setup(
        [sys.argv[0], *options, str(corpus)],
        lambda data: surface.check(data.decode("utf-8", "surrogateescape")),
    )
    atheris.Fuzz()


if __name__ == "__main__":
    main()
