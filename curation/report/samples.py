"""Samples of selected, rejected, confidently wrong and unparsed rows, with prompt, answer, trust and gold label.

Selected, rejected and unparsed rows are drawn at random, so that a reader sees what is common. The confidently wrong
rows are the most trusted ones with wrong labels, in the pool if it is graded, or else among validation rows.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from curation.arms import ARMS
from curation.arrays import Int64s
from curation.domains import attempt
from curation.hashing import derive
from curation.json_types import Json
from curation.report.record import GenerationRecord, RunInputs
from curation.report.rows import GradedRows, read_scores
from curation.tables import io
from curation.trust import get_trust

DRAWN = 1024
"""Number of pool rows to draw in search of rejected and unparsed ones."""
MOST_CHARACTERS = 1200
"""Maximum number of characters of a prompt or a completion to show."""


def collect_samples(
    run: RunInputs, record: GenerationRecord, arm: str, selected_M: Int64s, measured: Mapping[str, GradedRows]
) -> Json | None:
    """Return rows by kind (``selected``, ``rejected``, ``wrong``, ``unparsed``); ``None`` if ``report_rows`` is 0.

    Each row has ``row_id``, ``prompt``, ``completion``, ``label``, ``trust``, ``gold`` and whether it is ``right``.
    ``selected_M`` are the row ids of ``arm``. ``wrong_in`` names the set of the confidently wrong rows.
    """
    num, function = int(run.config.get("report_rows", 0)), ARMS[arm].trust
    if not num:
        return None
    labels, rng = record.labels["pool"], np.random.default_rng(derive(run.seed, "rows to look at"))
    answered = io.make_answered_filter(labels)
    share = min(1.0, DRAWN / max(io.count(labels, answered), 1))
    drawn = read_scores(labels, [], share=share, seed=int(rng.integers(1 << 62)))
    unparsed = drawn.row_ids_N[~drawn.parsed_N].tolist()
    if len(unparsed) < num:  # too rare to be in a draw
        first = io.open_table(labels).to_table(["row_id"], f"label IS NULL AND {answered}", limit=num)
        unparsed = list(dict.fromkeys([*unparsed, *first["row_id"].to_pylist()]))
    rejected = drawn.row_ids_N[drawn.parsed_N & ~np.isin(drawn.row_ids_N, selected_M)].tolist()
    rejected, unparsed = ([ids[place] for place in rng.permutation(len(ids))[:num]] for ids in (rejected, unparsed))
    places = np.sort(rng.choice(len(selected_M), min(num, len(selected_M)), replace=False, shuffle=False))

    where = "pool" if "pool" in measured and function in measured["pool"].scores else "validation"
    wrong: list[int] = []
    if where in measured and function in measured[where].scores:
        rows = measured[where].subset(measured[where].parsed_N & ~measured[where].correct_N)
        wrong = rows.row_ids_N[np.argsort(-rows.scores[function].raw_N, kind="stable")[:num]].tolist()

    ids = {"selected": selected_M[places].tolist(), "rejected": rejected, "wrong": wrong, "unparsed": unparsed}
    of_pool = [row_id for kind, of_kind in ids.items() for row_id in of_kind if kind != "wrong" or where == "pool"]
    shown = _read_rows(run, record, "pool", function, of_pool)
    of_wrong = shown if where == "pool" else _read_rows(run, record, "source", function, wrong)
    found = {**dict.fromkeys(ids, shown), "wrong": of_wrong}
    kinds = {kind: [found[kind][name] for name in of_kind if name in found[kind]] for kind, of_kind in ids.items()}
    return {"arm": arm, "kinds": kinds, "wrong_in": where}


def _read_rows(
    run: RunInputs, record: GenerationRecord, split: str, function: str, ids: Sequence[int]
) -> dict[int, Json]:
    """Return a split's rows with the given ids, by id; each table is scanned once."""
    scored, examples, grades = record.labels[split], run.prepared[split], record.grades.get(split)
    gold = examples if split == "source" else None if grades is None else run.prepared.get("audit")
    filter = f"row_id IN ({', '.join(map(str, ids))})" if ids else "false"
    trust = get_trust(function, 0)
    has_trust = set(trust.features) <= set(io.open_table(scored).schema.names)
    columns = dict.fromkeys(["row_id", "label", "completion", *(trust.features if has_trust else ())])
    labels = io.read(scored, columns=[*columns], filter=filter).combine_chunks()
    score_N: Any = trust.score(labels.to_batches()[0]) if has_trust and labels.num_rows else [None] * labels.num_rows
    further = (examples, None), (gold, ["row_id", "gold"]), (grades, ["row_id", "correct"])
    read = ([] if ref is None else io.read(ref, names, filter).to_pylist() for ref, names in further)
    asked, answers, graded = ({row["row_id"]: row for row in rows} for rows in read)
    rows = labels.select(["row_id", "label", "completion"]).to_pylist()
    by_id = {row["row_id"]: (row, score) for row, score in zip(rows, score_N, strict=True)}
    return {
        row_id: {
            "row_id": row_id,
            "prompt": _shorten(attempt(run.domain.prompt, asked[row_id])[0]),
            "completion": _shorten(by_id[row_id][0]["completion"]),
            "label": by_id[row_id][0]["label"],
            "trust": None if by_id[row_id][1] is None else float(by_id[row_id][1]),
            "gold": answers.get(row_id, {}).get("gold"),
            "right": graded.get(row_id, {}).get("correct"),
        }
        for row_id in dict.fromkeys(ids)
        if row_id in by_id and row_id in asked
    }


def _shorten(text: str | None) -> str | None:
    if text is None or len(text) <= MOST_CHARACTERS:
        return text
    return f"{text[:MOST_CHARACTERS]} … ({len(text) - MOST_CHARACTERS:,} more characters)"
