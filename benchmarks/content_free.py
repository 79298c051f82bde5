"""Calibration by texts without content: ``python -m benchmarks.content_free --model FOLDER --data FOLDER``.

A model chooses the class of labelled rows with ``domain.calibrate: content_free``. The peer is the same model without
calibration: the likeliest class by the raw scores, which are kept with each answer. Printed for each set and both: the
share of right labels with its interval of 95 %, the number of different classes that are given, and the share of the
most frequent one; then McNemar's exact test of the rows on which the two differ. Rows are drawn by a seed. Their
classes are those of ``benchmarks.real.tasks``.
"""

import argparse
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from scipy.stats import binomtest

from benchmarks.real.tasks import TASKS
from curation.config import AskConfig, DecodingConfig, DomainConfig
from curation.domains import Domain, get_domain
from curation.metrics.estimates import compute_proportion
from curation.refs import ModelRef
from curation.signals import label_request
from curation.teachers import Teacher, load_teacher
from curation.teachers.wrapped import WrappedTeacher

SETS = ("banking77", "irony")


class Chosen(NamedTuple):
    """The classes that a teacher gave to rows."""

    gold: Sequence[str]
    calibrated: Sequence[str | None]
    plain: Sequence[str | None]
    """Classes by the same scores without calibration."""


def rows_of(name: str, data: Path, num_rows: int, seed: int) -> tuple[list[dict[str, Any]], list[str]]:
    """Return rows of a set with ``text`` and ``label``, drawn without replacement, and the set's classes."""
    task = TASKS[name]
    table = pa.concat_tables(pq.read_table(file, columns=["text", "label"]) for file in sorted(data.glob(task.files)))
    classes = sorted(pc.unique(table["label"]).to_pylist())[: task.num_classes]
    table = table.filter(pc.is_in(table["label"], pa.array(classes)))
    places = np.random.default_rng(seed).permutation(len(table))[:num_rows]
    return table.take(pa.array(places)).to_pylist(), classes


def domain_of(classes: Sequence[str], cue: str) -> Domain:
    """Return the domain that scores the classes' names, calibrated."""
    words = {each: each.replace("_", " ") for each in classes}
    options = {"classes": words, "cue": cue, "calibrate": "content_free"}
    return get_domain(DomainConfig.model_validate({"name": "classification", **options}))


def chosen(teacher: Teacher, domain: Domain, rows: Sequence[Mapping[str, Any]]) -> Chosen:
    """Return the classes that a teacher gives rows; each row is asked once."""
    examples = [domain.read(row) for row in rows]
    requests = [label_request(domain, row_id, example) for row_id, example in enumerate(examples)]
    calibrated: dict[int, str | None] = {}
    plain: dict[int, str | None] = {}
    for batch in WrappedTeacher(teacher).label(requests, DecodingConfig(), seed=0, states=False):
        for row in batch.to_pylist():
            if row["error"] is not None:
                raise ValueError(f"row {row['row_id']} cannot be asked: {row['error']}; give other rows")
            row_id, example = row["row_id"], examples[row["row_id"]]
            calibrated[row_id] = domain.parse(row["completion"], example)
            options = domain.options(example) or ()
            plain[row_id] = domain.parse(options[int(np.argmax(row["option_logprobs"]))], example)
    ids = range(len(rows))
    return Chosen(
        [str(row["label"]) for row in rows], [calibrated[each] for each in ids], [plain[each] for each in ids]
    )


def lines(found: Chosen) -> Iterator[str]:
    """Yield the numbers in words."""
    num, right = len(found.gold), {}
    for words, given in (("calibrated", found.calibrated), ("not calibrated", found.plain)):
        right[words] = [one == gold for one, gold in zip(given, found.gold, strict=True)]
        share, counts = compute_proportion(sum(right[words]), num), Counter(given)
        yield (
            f"{words}: {100 * share.value:.1f} % right ({100 * share.low:.1f} to {100 * share.high:.1f}), "
            f"classes given: {len(counts)}, the most frequent to {100 * max(counts.values()) / num:.1f} % of the rows"
        )
    counts = Counter(found.gold)
    yield f"gold: {len(counts)} classes, the most frequent {100 * max(counts.values()) / num:.1f} % of the rows"
    pairs = Counter(zip(right["calibrated"], right["not calibrated"], strict=True))
    gained, lost = pairs[True, False], pairs[False, True]
    p = float(binomtest(gained, gained + lost).pvalue) if gained + lost else 1.0
    yield f"right by calibration alone {gained}, without it alone {lost}: p = {p:.2g}"


def main() -> None:
    """Print the numbers of each set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True, type=Path, help="with classification/*.parquet")
    parser.add_argument("--rows", type=int, default=200, help="of each set")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=SETS)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    ask = AskConfig(dtype=options.dtype, states=("output_last",))
    teacher = load_teacher(ask, ModelRef(base=options.model))
    for name in options.sets:
        rows, classes = rows_of(name, options.data, options.rows, options.seed)
        print(f"{name}: {len(rows)} rows of {len(classes)} classes, seed {options.seed}", flush=True)
        for line in lines(chosen(teacher, domain_of(classes, TASKS[name].cue or ""), rows)):
            print(f"  {line}", flush=True)


if __name__ == "__main__":
    main()
