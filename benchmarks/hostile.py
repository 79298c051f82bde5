"""Tries every hostile input on the commands, and counts refusals, completed runs and tracebacks.

    python -m benchmarks.hostile                     # all suites
    python -m benchmarks.hostile --suite models      # one

Each case of models, settings and files changes a good run over the shipped puzzles (``benchmarks.hostile_case``). It is
refused if `curate validate`, `plan` or `run` ends with code 2 and one line that matches the case, and no code of the
input ran. Hostile packages are refused in the same way by `curate verify` and `filter`. Rows pass through a whole run
in each format, as data or as error rows. Damaged run directories give the right result, or are refused by the commands
that read them or by `curate verify`, and repaired by the advice in the message. If a server misbehaves, the run
completes or ends with one line; with a healthy server, the same command completes the run.
"""

import argparse
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from click.testing import CliRunner

from benchmarks import hostile_directories, hostile_endpoints, hostile_packages, hostile_rows
from benchmarks.hostile_case import RAN, Case, write_config
from benchmarks.hostile_models import MODELS
from benchmarks.hostile_rows import FILES
from benchmarks.hostile_settings import SETTINGS
from benchmarks.tiny_model import make_tiny_model

SUITES: dict[str, Sequence[Case]] = {"models": MODELS, "settings": SETTINGS, "files": FILES}
WHOLE: dict[str, Callable[[Path], Counter[str]]] = {
    "packages": hostile_packages.try_all,
    "rows": hostile_rows.try_all,
    "directories": hostile_directories.try_all,
    "endpoints": hostile_endpoints.try_all,
}
"""Suites with their own commands; rows, directories and endpoints complete runs."""
VERBS = ("validate", "plan", "run")
OUTCOMES = ("refused", "refused otherwise", "carried through", "failed", "traceback", "ran code")
ROWS = Path(__file__).parents[1] / "examples" / "data" / "puzzles.parquet"


def make_good(folder: Path) -> None:
    """Make a model and an adapter for it that the commands take."""
    from peft import LoraConfig, get_peft_model

    from curation.models import load_model

    ref = make_tiny_model(folder / "model")
    config = LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM")
    get_peft_model(load_model(ref), config).save_pretrained(folder / "adapter")


def attempt(case: Case, verb: str, folder: Path) -> tuple[str, str]:
    """Return the outcome of a command on a case, one of ``OUTCOMES``, and what it said last."""
    from curation.cli import main

    config = write_config(folder, case.make(folder), rows=ROWS)
    told = CliRunner().invoke(main, [verb, str(config)], input="y\n" * 20)
    lines = told.stderr.splitlines() or told.output.splitlines() or [""]
    if (folder / RAN).exists():
        return "ran code", lines[-1]
    if told.exception is not None and not isinstance(told.exception, SystemExit):
        return "traceback", f"{type(told.exception).__name__}: {told.exception}"
    if told.exit_code == 2:
        told_once = sum(line.startswith("curate: ") for line in lines) == 1  # Ray may say something before
        return ("refused" if told_once and re.search(case.says, lines[-1]) else "refused otherwise"), lines[-1]
    return ("carried through" if told.exit_code == 0 else "failed"), lines[-1]


def main() -> None:
    """Try all cases and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", choices=[*SUITES, *WHOLE], action="append", help="only this one")
    chosen = parser.parse_args().suite or [*SUITES, *WHOLE]
    counts: dict[tuple[str, str], Counter[str]] = {}
    with tempfile.TemporaryDirectory(prefix="hostile-") as directory:
        good = Path(directory) / "good"
        make_good(good)
        for suite in chosen:
            if suite in WHOLE:
                (below := Path(directory) / suite).mkdir()
                counts[suite, " and ".join(hostile_packages.VERBS) if suite == "packages" else "run"] = WHOLE[suite](
                    below
                )
                continue
            for verb in VERBS:
                counts[suite, verb] = Counter()
                for number, case in enumerate(SUITES[suite]):
                    folder = shutil.copytree(good, Path(directory) / f"{suite}-{verb}-{number}")
                    outcome, line = attempt(case, verb, folder)
                    counts[suite, verb][outcome] += 1
                    if outcome != "refused":
                        print(f"{suite}, {verb}: {case.name}: {outcome}: {line}")
    print(table(counts))


def table(counts: Mapping[tuple[str, str], Counter[str]]) -> str:
    """Return the counts by suite and command; commands with equal counts share a line."""
    lines = [
        f"| inputs | commands | tried | {' | '.join(OUTCOMES)} |",
        f"| --- | --- |{' ---: |' * (1 + len(OUTCOMES))}",
    ]
    groups: dict[tuple[str, ...], list[str]] = {}
    for (suite, verb), found in counts.items():
        numbers = [found.total(), *(found[outcome] for outcome in OUTCOMES)]
        groups.setdefault((suite, *map(str, numbers)), []).append(verb)
    lines += [
        f"| {suite} | {', '.join(verbs)} | {' | '.join(numbers)} |" for (suite, *numbers), verbs in groups.items()
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
