"""Repeated questions in real data, by rule: ``python -m benchmarks.overlap --data FOLDER``.

Multiple choice: all pairs of rows of MMLU, ARC, OpenBookQA, SciQ and SocialIQA whose texts are equal, by the number of
options that they share. A pair's right answers are compared as texts; the rule does not see them. The control is the
rule that compares only the text: its additional pairs share at most one option.

Then rows of one set that are in another, by the earlier rule of identical prompts and by ours: within a benchmark from
training to test rows, and across benchmarks; and the mathematics sets, by the same two rules. ``--show N`` prints N
pairs for each number of shared options, for inspection.
"""

import argparse
import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq

from curation.domains import Domain, Identity, attempt
from curation.domains.identity import match_questions, normalise_prose
from curation.domains.math import Math
from curation.domains.mcqa import LETTERS, Mcqa

Pair = tuple["Row", "Row"]


class Row(NamedTuple):
    """A row of a file as a run reads it."""

    file: str
    identity: Identity
    prompt: str
    gold: str
    shown: str


def rows_of(domain: Domain, folder: Path) -> list[Row]:
    """Return all rows that can be read."""
    return [row for path in sorted(folder.glob("*.parquet")) for row in _read(domain, path)]


def _read(domain: Domain, path: Path) -> Iterator[Row]:
    for raw in pq.read_table(path).to_pylist():
        example, _ = attempt(domain.read, raw)
        if example is None:
            continue
        gold, _ = attempt(domain.gold, raw)
        if gold and "choices" in example:
            gold = normalise_prose(example["choices"][LETTERS.index(gold)])
        shown = " | ".join(map(str, example.values()))
        yield Row(path.stem, domain.identity(example), domain.prompt(example), gold or "", shown)


def by_shared_options(rows: list[Row], num_shown: int) -> None:
    """Print a line for each number of shared options."""
    texts = defaultdict(list)
    for row in rows:
        texts[row.identity.text].append(row)
    found: dict[tuple[int, int], list[Pair]] = defaultdict(list)
    for group in texts.values():
        for one, other in itertools.combinations(group, 2):
            ones, others = set(one.identity.parts), set(other.identity.parts)
            found[min(len(ones), len(others)), len(ones & others)].append((one, other))
    print(f"{len(rows):,} rows; pairs of equal text by the options that they share")
    for (size, shared), pairs in sorted(found.items()):
        agree = sum(one.gold == other.gold for one, other in pairs)
        flagged = sum(match_questions(one.identity, other.identity) is not None for one, other in pairs)
        print(f"  {shared} of {size}: {len(pairs)} pairs, same right answer {agree}, the same question {flagged}")
        for one, other in random.Random(0).sample(pairs, min(num_shown, len(pairs))):
            print(f"    {one.file}: {one.shown}\n    {other.file}: {other.shown}\n")


def leaks(rows: list[Row]) -> None:
    """Print the rows of one file that occur in another, by rule."""
    texts = defaultdict(list)
    for row in rows:
        texts[row.identity.text].append(row)
    prompts: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        prompts[row.prompt].add(row.file)
    counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for row in rows:
        rules = defaultdict(set)
        for other in texts[row.identity.text]:
            if row.file != other.file:
                rules["same text"].add(other.file)
                if (rule := match_questions(row.identity, other.identity)) is not None:
                    rules["ours"].add(other.file)
                    rules[rule].add(other.file)
        rules["same prompt"] = prompts[row.prompt] - {row.file}
        for rule, files in rules.items():
            for file in files:
                counts[row.file, file][rule] += 1
    print("rows of a file whose question stands in another, by rule: same prompt (before), ours, same text (control)")
    for (one, other), rules in sorted(counts.items()):
        if rules["ours"]:
            kinds = ", ".join(f"{rule} {rules[rule]}" for rule in ("same", "permuted", "near_copy") if rules[rule])
            told = f"{rules['same prompt']}, {rules['ours']} ({kinds}), {rules['same text']}"
            print(f"  {one} in {other}: {told}")
    ours, before = (sum(rules[name] for rules in counts.values()) for name in ("ours", "same prompt"))
    print(f"  together: same prompt {before}, ours {ours}, same text {sum(r['same text'] for r in counts.values())}")


def main() -> None:
    """Print everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="with the folders mcqa and math")
    parser.add_argument("--show", type=int, default=0)
    given = parser.parse_args()
    questions = rows_of(Mcqa(), given.data / "mcqa")
    by_shared_options(questions, given.show)
    leaks(questions)
    problems = rows_of(Math(), given.data / "math")
    print(f"{len(problems):,} problems")
    leaks(problems)


if __name__ == "__main__":
    main()
