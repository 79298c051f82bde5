"""Memory of every run of ``examples/paper`` by card: ``python -m benchmarks.paper_memory [--lines] [CARD ...]``.

The arithmetic is that of ``curate plan --gpu``, with the sizes of the models in ``paper_shapes.json``, copied from the
models' published configurations, so no model files are needed. The table has a row for each set of processes that runs
share; ``--lines`` prints each run's processes with their parts.
"""

import argparse
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from curation.config import ModelConfig, RunConfig
from curation.config.load import load_config
from curation.errors import ConfigError
from curation.models.footprint import GIB, DecoderShape, get_card_gib
from curation.pipeline.footprints import Process, iter_memory_lines, iter_processes

ROOT = Path(__file__).parents[1]
RUNS = sorted((ROOT / "examples" / "paper").glob("*.yaml"))
SHAPES = json.loads((ROOT / "benchmarks" / "paper_shapes.json").read_text())
CARDS = ("L4", "A100-80G", "H100", "H200")


def shape_of(model: ModelConfig) -> DecoderShape | None:
    """Return the sizes of a model of the paper."""
    return DecoderShape.of(SHAPES[str(model.path)])


def loaded(path: Path) -> RunConfig:
    """Return a run of the paper."""
    return load_config(str(path))


def verdict(process: Process, card: str) -> str:
    """Return GiB on a card: refused where nothing fits, and what fits of what the longest rows need."""
    usable = get_card_gib(card) * process.share
    total, least = process.footprint.total / GIB, process.footprint.least / GIB
    if least > usable:
        return f"**refused**: {least:.1f} > {usable:.1f}"
    return f"{total:.1f} of {usable:.1f}" + (", warns" if total > usable else "")


def table(paths: Iterable[Path], cards: Iterable[str]) -> Iterator[str]:
    """Yield a Markdown table of processes, each once, with the number of runs that have it."""
    cards = list(cards)
    found: dict[tuple[str, ...], int] = {}
    for path in paths:
        config = loaded(path)
        rows: dict[tuple[str, str], list[str]] = {}
        for card in cards:
            for process in iter_processes(config, get_card_gib(card) * GIB, shape_of):
                rows.setdefault((_kind(process.who, config), process.model), []).append(verdict(process, card))
        for (who, model), verdicts in rows.items():
            row = (who, model.rpartition("/")[2], *verdicts[-len(cards) :])
            found[row] = found.get(row, 0) + 1
    yield f"| process | model | {' | '.join(cards)} | runs |"
    yield "| --- " * (len(cards) + 3) + "|"
    for row, count in sorted(found.items()):
        yield f"| {' | '.join(row)} | {count} |"


def _kind(who: str, config: RunConfig) -> str:
    """Return the name of a process without a student's place in the chain."""
    return " ".join(word for word in who.split() if not word.isdigit()) + f", {config.domain.name}"


def main() -> None:
    """Print the table, or each run's lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cards", nargs="*", default=CARDS)
    parser.add_argument("--lines", action="store_true")
    given = parser.parse_args()
    if not given.lines:
        print("\n".join(table(RUNS, given.cards)))
        return
    for path in RUNS:
        for card in given.cards:
            print(f"{path.name} on {card}")
            try:
                for line in iter_memory_lines(loaded(path), card, shape_of):
                    print(f"  {line}")
            except ConfigError as error:
                print(f"  refused: {error}")


if __name__ == "__main__":
    main()
