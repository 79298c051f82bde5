"""Everything that a run knows of one row: its place, prompt, labels, trust, arms."""

import numpy as np

from curation.arms import ARMS, REFERENCE_ARM
from curation.commands.export.run import RecordedRun, get_fitting_class
from curation.domains import attempt, get_domain
from curation.errors import TableError
from curation.json_types import Json
from curation.pipeline.grading import choose_grading_stage
from curation.refs import TableRef, TrustRef
from curation.stages.chooser import is_ranked_as_reference
from curation.stages.label import Label
from curation.stages.score import Score
from curation.stages.select import Select
from curation.storage.paths import Place
from curation.tables import io, schemas
from curation.trust import get_trust, load_fitted

TEXTS = ("completion", "label", "mean_logprob", "truncated", "error", schemas.DROPPED)
"""Columns of a labels table that are shown."""


def explain_row(run: Place, row_id: int, split: str | None = None) -> Json:
    """Return everything about a row as JSON: ``split``, ``origin``, ``prompt``, ``gold``, and an item per generation.

    Row ids are unique only within a source. If rows of several splits have the id, ``split`` chooses one of them
    (default: the pool's, if it has one), and ``also_in`` names the other splits.
    """
    found = RecordedRun.of(run)
    splits = [name for name in found.splits if name != "audit"]
    if split is not None and split not in splits:
        raise TableError(f"--split {split}: the run has the splits {', '.join(splits)}")
    rows = {name: found.one(found.splits[name], row_id) for name in ([split] if split else splits)}
    examples = {name: row for name, row in rows.items() if row is not None}
    if not examples:
        none = f"the split {split} has no row" if split else "no split of the run has a row"
        raise TableError(
            f"{run}: {none} {row_id}; ids are in its tables, e.g. `curate inspect {run} prepare/pool` "
            "(the number of the file times 2^40 plus the row in it, unless the source has an id_column; rows that ask "
            "the question of another split are dropped)"
        )
    split = "pool" if "pool" in examples else next(iter(examples))
    example = examples.pop(split)
    domain = get_domain(found.config.domain_of(split))
    prompt, problem = attempt(domain.prompt, example) if example.get("error") is None else (None, "")
    gold = example.get("gold")
    audit = found.splits.get("audit")
    if split == "pool" and audit is not None:
        gold = (found.one(audit, row_id, ["gold"]) or {}).get("gold")
    labelled = [
        index
        for index in range(max(1, len(found.config.generations)))
        if any(found.stage(index, name, Label) is not None for name in splits)
    ]
    return {
        "row_id": row_id,
        "split": split,
        "also_in": [*examples],
        "origin": found.origin(row_id, split),
        "error": example.get("error") or problem or None,
        "columns": {name: example.get(name) for name in domain.columns.names},
        "prompt": prompt,
        "gold": gold,
        "has_audit": split != "pool" or audit is not None,
        "generations": [_explain_generation(found, row_id, split, at) for at in range(max(labelled, default=-1) + 1)],
    }


def _explain_generation(run: RecordedRun, row_id: int, split: str, index: int) -> Json:
    """Return a row's label, trust and arms in a generation; ``weak`` is ``None`` if the teacher did not label it."""
    labelled, scored = run.stage(index, split, Label), run.stage(index, split, Score)
    found: Json = {"generation": index, "teacher": None, "weak": None, "correct": None, "trust": {}, "arms": None}
    if labelled is None:
        return {**found, "why": f"stage gen-{index}/label-{split} is not done"}
    labels = TableRef.from_json((scored or labelled).outputs["labels"])
    found["teacher"] = labelled.inputs["model"]
    row = run.one(labels, row_id)
    if row is None:
        return {**found, "why": "the row belongs to the share of another generation" if split == "pool" else "no label"}
    found["weak"] = {name: row[name] for name in TEXTS if name in row}
    found["trust"] = {
        name.removesuffix("_trust"): {"trust": value, "raw": row.get(name.removesuffix("trust") + "raw")}
        for name, value in row.items()
        if name.endswith("_trust")
    }
    found["weighed"] = _explain_stack(run, index, labels, row_id)
    grades = run.stage(index, split, choose_grading_stage(run.config, split))
    if grades is not None:
        graded = run.one(TableRef.from_json(grades.outputs["grades"]), row_id, ["correct"])
        found["correct"] = (graded or {}).get("correct")
    selected = run.stage(index, "pool", Select)
    if split == "pool" and selected is not None:
        arms = selected.outputs["arms"].items()
        found["arms"] = {arm: _explain_arm(run, labels, row_id, arm, made) for arm, made in arms}
        for by, ref in selected.inputs["choice"].get("left_out", {}).items():
            row = run.one(TableRef.from_json(ref), row_id)
            for arm in found["arms"]:
                if row is not None and is_ranked_as_reference(ARMS[arm], run.config.selection):
                    found["arms"][arm]["left_out"] = {"by": by, "why": row["error"]}
        found["budget"] = {name: (selected.outputs["budget"] or {}).get(name) for name in ("rule", "n", "reference")}
    elif split != "pool":
        found["unselected"] = f"none: only rows of the pool are selected, and this one is of the split {split}"
    else:
        found["unselected"] = f"none yet: stage gen-{index}/select is not done"
    return {**found, "why": None}


def _explain_stack(run: RecordedRun, index: int, labels: TableRef, row_id: int) -> list[Json] | None:
    """Return how far each input of a stack shifts the row's logit, largest first; ``None`` without a fitted stack."""
    from curation.trust.stacked import StackedTrust  # heavy

    fitted = run.stage(index, "source", get_fitting_class(run.config, REFERENCE_ARM), of=REFERENCE_ARM)
    if fitted is None or fitted.outputs.get("trust") is None:
        return None
    ref = TrustRef.from_json(fitted.outputs["trust"])
    function = load_fitted(ref)
    if not isinstance(function, StackedTrust) or not set(function.features) <= set(io.open_table(labels).schema.names):
        return None
    row = io.take(labels, np.array([row_id], dtype=np.int64), list(function.features)).combine_chunks().to_batches()[0]
    moved = ((name, float(adds_N[0])) for name, adds_N in function.explained(row).items())
    return [{"input": name, "adds": adds} for name, adds in sorted(moved, key=lambda item: -abs(item[1]))]


def _explain_arm(run: RecordedRun, labels: TableRef, row_id: int, arm: str, made: Json) -> Json:
    """Return a row's state in an arm: rank and completion if it is selected, its scores, and the cut.

    A row without a label or a raw score has no trust.
    """
    row = run.one(TableRef.from_json(made["table"]), row_id) if made["num_rows"] else None
    own: Json = row or {}
    raw: float | None = None
    trust: float | None = None
    function = get_trust(ARMS[arm].trust, 0) if ARMS[arm].ranked else None
    if function is not None and set(function.features) <= set(io.open_table(labels).schema.names):
        columns = list(dict.fromkeys(["label", *function.features]))
        scored = io.take(labels, np.array([row_id], dtype=np.int64), columns).combine_chunks().to_batches()[0]
        score = float(function.raw_score(scored)[0])
        if scored.column("label")[0].is_valid and np.isfinite(score):
            raw, trust = score, float(function.score(scored)[0])
    return {
        "selected": row is not None,
        "left_out": None,
        "rank": own.get("rank"),
        "trust": own.get("trust", trust),
        "raw": raw,
        "num_selected": made["num_rows"],
        "threshold": made["threshold"],
        **{name: own.get(name) for name in ("completion", "label", "label_source", "completion_source")},
    }
