"""A look at small sources, without Ray, for questions that stand in two splits: what prepare would refuse or drop."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from curation.config import RunConfig
from curation.domains import attempt, get_domain
from curation.domains.identity import RULES
from curation.errors import SourceError
from curation.escaping import escaped
from curation.json_types import JsonView
from curation.sources import NOTHING, SourceFile, assignment_of, raw_rows, read_rows
from curation.stages.deal import examples_of
from curation.stages.dropping import MEND, MEND_ADDED, drops, refuses, rules_in_words
from curation.stages.overlap import Digests, identity_of, rank

MOST_ROWS = 20_000
"""The most rows of all splits together; larger sources are compared by the stage prepare."""
_SHOWN = 200
"""Characters of an example row."""


class _Seen(NamedTuple):
    number: int
    """Number of the row within the split, from 1, in the order of the files."""
    example: JsonView
    digests: Digests


def look(
    config: RunConfig, files: Mapping[str, Sequence[SourceFile]], taken: Mapping[str, int] = NOTHING
) -> Iterator[str]:
    """Lines on questions that two splits share; ``taken``: the rows of each split that was dealt before the others.

    Raises:
        SourceError: ``splits.overlap`` refuses them; or a file cannot be read.
    """
    named = config.splits.named()
    sources = dict.fromkeys(split.source for split in named.values())
    num_rows = sum(file.num_rows for name in sources for file in files[name])
    if num_rows > MOST_ROWS:
        yield (
            f"splits.overlap: {num_rows:,} rows are more than the {MOST_ROWS:,} that are compared here; whether two "
            "splits share a question was not looked at: the stage prepare does it"
        )
        return
    rows: dict[str, list[_Seen]] = {name: [] for name in named}
    for source in sources:
        for name, seen in _questions(config, source, files[source], taken):
            rows[name].append(seen)
    refused, lines, example = [], [], ""
    names = sorted(named, key=lambda name: (name not in taken, rank(name)))
    keys: dict[str, dict[bytes, _Seen]] = {name: {} for name in names}
    for place, other in enumerate(names):
        for kept in names[:place] if other not in taken else ():
            found: Counter[str] = Counter()
            for seen in rows[other]:
                for rule, made in zip(RULES, _keys(seen.digests), strict=True):
                    if (match := next((keys[kept][key] for key in made if key in keys[kept]), None)) is not None:
                        found[rule] += 1
                        if refuses(kept, other, config.splits.overlap):
                            example = example or _example(kept, match, other, seen)
                        break
            if found:
                words = f"{found.total():,} rows of {other} ({rules_in_words(found)})"
                if refuses(kept, other, config.splits.overlap):
                    refused.append(f"{kept} and {other} share questions, {words}")
                else:
                    fate = "dropped" if drops(kept, other, config.splits.overlap) else "kept"
                    lines.append(f"splits: {words} ask questions of {kept}: {fate}")
        for seen in rows[other]:
            for made in _keys(seen.digests):
                for key in made:
                    keys[other].setdefault(key, seen)
    if refused:
        raise SourceError(f"splits {'; '.join(refused)}; e.g. {example}; {MEND_ADDED if taken else MEND}")
    yield from lines


def _questions(
    config: RunConfig, source: str, items: Sequence[SourceFile], taken: Mapping[str, int]
) -> Iterator[tuple[str, _Seen]]:
    """The healthy rows of a source that have an identity, each with its split."""
    assignment = assignment_of(config, source, items, taken)
    names, numbers = list(assignment.counts), Counter[str]()
    position = 0
    for file in sorted(items, key=lambda file: file.index):
        for batch in read_rows(file):
            split_N = assignment.split_of(np.arange(position, position + batch.num_rows))
            position += batch.num_rows
            raws = raw_rows(batch)
            for place, name in enumerate(names):
                domain = get_domain(config.domain_of(name))
                mine = [raws[row] for row in np.flatnonzero(split_N == place)]
                for example in examples_of(domain, name, list(range(len(mine))), mine).to_pylist():
                    numbers[name] += 1
                    identity, _ = (None, "") if example["error"] else attempt(identity_of, domain, example)
                    if identity is not None:
                        shown = {column: example[column] for column in domain.columns.names}
                        yield name, _Seen(numbers[name], shown, Digests(domain.name, identity))


def _keys(digests: Digests) -> tuple[list[bytes], ...]:
    """The keys by which two rows are the same, in the order of ``RULES``."""
    return [digests.same()], [digests.permuted()], digests.near()


def _example(kept: str, one: _Seen, other: str, two: _Seen) -> str:
    shown = [escaped(json.dumps(seen.example, default=str)[:_SHOWN]) for seen in (one, two)]
    both = shown[0] if shown[0] == shown[1] else " and ".join(shown)
    return f"row {one.number} of {kept} and row {two.number} of {other}: {both}"
