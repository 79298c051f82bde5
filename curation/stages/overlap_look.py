"""A quick check of small sources, without Ray, for questions in two splits that prepare would refuse or drop."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from curation.config import RunConfig
from curation.domains import attempt, get_domain
from curation.errors import SourceError
from curation.escaping import escape_text
from curation.json_types import JsonView
from curation.sources import NOTHING, SourceFile, make_assignment, read_rows, to_raw_rows
from curation.stages.deal import make_example_table
from curation.stages.dropping import MEND, MEND_ADDED, describe_rules, describe_shared, is_dropped, is_refused
from curation.stages.overlap import Digests, find_shared, get_identity, rank

MOST_ROWS = 20_000
"""Maximum number of rows of all sources together; only the prepare stage compares larger ones."""
_SHOWN = 200
"""Maximum length of an example row that is shown, in characters."""


def look(
    config: RunConfig, files: Mapping[str, Sequence[SourceFile]], taken: Mapping[str, int] = NOTHING
) -> Iterator[str]:
    """Yield lines on questions that two splits share; ``taken`` has the row counts of splits assigned before.

    Raises:
        SourceError: ``splits.overlap`` refuses shared questions, or a file cannot be read.
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
    names = sorted(named, key=lambda name: (name not in taken, rank(name)))
    questions: dict[str, list[tuple[int, Digests]]] = {name: [] for name in names}
    shown: dict[tuple[str, int], JsonView] = {}
    for source in sources:
        for name, number, example, digests in _iter_questions(config, source, files[source], taken):
            questions[name].append((number, digests))
            shown[name, number] = example
    pairs = [pair for pair in find_shared(names, questions) if pair.other not in taken]
    if refused := [pair for pair in pairs if is_refused(pair.kept, pair.other, config.splits.overlap)]:
        of_kept, of_other = zip((refused[0].kept, refused[0].other), refused[0].example, strict=True)
        texts = dict.fromkeys(escape_text(json.dumps(shown[row], default=str)[:_SHOWN]) for row in (of_kept, of_other))
        raise SourceError(
            f"splits {describe_shared(refused)}; e.g. row {of_kept[1]} of {of_kept[0]} and row {of_other[1]} of "
            f"{of_other[0]}: {' and '.join(texts)}; {MEND_ADDED if taken else MEND}"
        )
    for pair in pairs:
        fate = "dropped" if is_dropped(pair.kept, pair.other, config.splits.overlap) else "kept"
        rows = f"{len(pair.row_ids_M):,} rows of {pair.other} ({describe_rules(pair.rules)})"
        yield f"splits: {rows} ask questions of {pair.kept}: {fate}"


def _iter_questions(
    config: RunConfig, source: str, items: Sequence[SourceFile], taken: Mapping[str, int]
) -> Iterator[tuple[str, int, JsonView, Digests]]:
    """Yield a source's healthy rows with an identity: split, number in the split from 1, example and digests."""
    assignment = make_assignment(config, source, items, taken)
    names, numbers = list(assignment.counts), Counter[str]()
    position = 0
    for file in sorted(items, key=lambda file: file.index):
        for batch in read_rows(file):
            split_N = assignment.split_of(np.arange(position, position + batch.num_rows))
            position += batch.num_rows
            raws = to_raw_rows(batch)
            for place, name in enumerate(names):
                domain = get_domain(config.domain_of(name))
                mine = [raws[row] for row in np.flatnonzero(split_N == place)]
                for example in make_example_table(domain, name, list(range(len(mine))), mine).to_pylist():
                    numbers[name] += 1
                    identity, _ = (None, "") if example["error"] else attempt(get_identity, domain, example)
                    if identity is not None:
                        shown = {column: example[column] for column in domain.columns.names}
                        yield name, numbers[name], shown, Digests(domain.name, identity)
