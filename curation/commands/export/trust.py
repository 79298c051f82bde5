"""``curate export-trust``: a fitted trust function as a trust package (``curation.filter.package``)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from curation.arms import ARMS
from curation.arrays import Int64s
from curation.cluster.versions import find_versions
from curation.commands.export.files import load_template, write_folder
from curation.commands.export.run import Fit, find_fit
from curation.config import AnswersConfig, AskConfig, DecodingConfig
from curation.config.external import ServedConfig
from curation.domains import get_domain
from curation.domains.given import as_asked
from curation.domains.grading import read_grades
from curation.features import features
from curation.filter.package.checks import UNJUDGED, check_fits, collect_questions, compute_digests
from curation.filter.package.description import (
    PARTS,
    CalibrationRows,
    Description,
    Made,
    Question,
    RunVerdict,
    Sample,
)
from curation.filter.package.folder import PACKAGE, SCORES, pack_words, write
from curation.filter.parts import PackagePart
from curation.json_types import Json
from curation.metrics.shift import sample_words
from curation.pipeline.grading import choose_grading_stage
from curation.refs import TableRef
from curation.registry import load_code
from curation.report.rules import STOP
from curation.rundir.manifest import StageRecord
from curation.selection.budget import GradedScores
from curation.stages.label import Label
from curation.stages.shift import get_states, sample_rows, sample_texts
from curation.storage.paths import Place
from curation.tables import io, schemas
from curation.trust import Scores, load_fitted
from curation.trust.parts import find_independent

if TYPE_CHECKING:
    from curation.trust.states import StateTrust

SAMPLE_BYTES = 32 << 20
"""Maximum size of ``shift.safetensors`` in bytes, unless ``SAMPLE_ROWS`` rows need more."""
SAMPLE_ROWS = 500
NUM_READ = 50
"""Number of rows that are searched for questions to store."""

Reference = Mapping[str, npt.NDArray[Any]]


def export_trust(
    run: Place, output: Place, *, trust: str | None, generation: int | None, force: bool, command: str
) -> list[str]:
    """Write a fitted trust function of a run as a package; return sentences on what was written, and warnings.

    The function is one that the run fitted, by default ``trust`` of the last generation. ``output`` is an empty or
    missing folder or, with ``force``, holds an earlier package. ``command`` is the command line, for the record.

    Raises:
        ExportError: there is no such function, the function is not fitted, or ``output`` is taken or cannot be written.
        PackageError: the domain's code makes other prompts or labels than the run did.
        ModelError: the files of the trust function are missing or changed.
    """
    fit = find_fit(run, trust, generation)
    function = load_fitted(fit.trust)
    graded, rows = read_calibration_rows(fit, function)
    with TemporaryDirectory() as work:
        made = {
            name: load_code(feature.export)(fit, Path(work)) for name, feature in features().items() if feature.export
        }
        parts: dict[str, PackagePart] = {name: found[0] for name, found in made.items() if not isinstance(found, str)}
        reference = sample_reference(fit, function, [state for part in parts.values() for state in part.inputs])
        description = _make_description(fit, rows, reference, parts, command)
        about = {part.TITLE: part.words for part in parts.values()}
        card = load_template("curation.commands.export", "trust_card.md.j2").render(
            description.model_dump(mode="json"), about=about
        )
        with write_folder(output, force=force, marker=PACKAGE) as folder:
            package = write(
                folder,
                description,
                trust=fit.trust,
                calibration=graded,
                reference=reference,
                parts={name: made[name][1] for name in parts},
                card=card,
            )
            check_fits(package)
    kind = "" if description.kind == fit.name else f" ({description.kind})"
    text = [f"{output}: {fit.name}{kind} of {fit.record.name} of {fit.config.name}, digest {package.digest}"]
    if not description.evaluation:
        text.append(
            f"warning: {run} has no numbers of this fit, so the package has no AUC and no purity; when "
            "`curate run` has ended, export again with --force"
        )
    if rows is None:
        text.append(
            "warning: the run held no rows out for calibration, so no cut can be certified by this package alone "
            "(splits.calibration with selection.budget.risk)"
        )
    if (verdict := description.verdict) is None:
        text.append(f"warning: {UNJUDGED}")
    elif verdict.level == STOP:
        text.append(f"warning: {verdict.sentence} `curate filter` refuses this package unless --anyway")
    text += [parts[name].words if name in parts else f"no {PARTS[name].TITLE}: {why}" for name, why in made.items()]
    return text


def _make_description(
    fit: Fit, rows: CalibrationRows | None, reference: Reference, parts: Mapping[str, PackagePart], command: str
) -> Description:
    states, columns = split_inputs(fit)
    ask = _load_answers_config(fit.labelling)
    answered = fit.stage(fit.generation, "pool", Label) or fit.stage(fit.generation, "source", Label)
    assert answered is not None, "a fitted function has labels"
    kept: dict[str, Any] = {"states": tuple(state for state in ask.states if state in states)}
    if schemas.TOKEN_LOGPROBS not in columns:
        kept["token_logprobs"] = 0
    teacher, labels = fit.teacher, io.open_table(TableRef.from_json(fit.record.inputs["labels"])).schema
    size = next((int(field.type.list_size) for field in labels if schemas.is_state(field.name)), 0)
    sampled = tuple(name for name in states if name in reference)
    num_texts = 0 if sampled else max(0, len(reference.get("word_starts", ())) - 1)
    num_sampled = len(reference[sampled[0]]) if sampled else 0
    return Description(
        teacher=None if teacher is None else replace(teacher, code=None),  # its receiver decides whether code may run
        teacher_digests={} if teacher is None else compute_digests(teacher),
        state_size=size,
        ask=ask.model_copy(update=kept),
        bought=None if fit.config.teacher.reading is None else _load_answers_config(answered),
        decoding=DecodingConfig.from_key(fit.labelling.inputs["decoding"]),
        seed=answered.inputs["seed"],
        domain=fit.config.domain_of("pool").portable,
        questions=read_questions(fit),
        trust=fit.name,
        kind=fit.described["kind"],
        inputs=(*states, *columns),
        fit=dict(fit.record.outputs["fit"]),
        calibration=rows,
        sample=Sample(num_rows=num_sampled, states=sampled, num_texts=num_texts),
        evaluation=tuple(_iter_measures(fit)),
        verdict=_find_verdict(fit),
        versions=dict(find_versions()),
        made=Made(
            run=fit.config.name,
            directory=str(fit.manifest.directory.resolve()),
            generation=fit.generation,
            stage=fit.record.name,
            fingerprint=fit.record.fingerprint,
            seed=fit.seed,
            command=command,
        ),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        **parts,
    )


def _load_answers_config(stage: StageRecord) -> AnswersConfig:
    """Return the recorded configuration of a stage's answers, without the address of a server."""
    asked = {**stage.inputs["ask"], "backend": stage.inputs["backend"]}
    served = asked.pop("endpoint", None)
    answers = AskConfig.model_validate(asked).answers
    return answers if served is None else answers.model_copy(update={"endpoint": ServedConfig.model_validate(served)})


def _iter_measures(fit: Fit) -> Iterator[Json]:
    """Yield the run's metrics of the function on rows with a readable label, each with its 95 % interval."""
    of_trust = {} if fit.numbers is None else fit.numbers["trust"]
    for rows in ("validation", "pool"):
        found = of_trust.get(rows, {}).get("parsed", {})
        if (own := found.get("functions", {}).get(fit.name)) is None:
            continue
        numbers = {**own, "share_right": found["share_right"], "purity": own["purity_at_n"]}
        estimates = {name: numbers[name] for name in ("share_right", "auc", "ece", "brier", "purity")}
        keys = ("value", "low", "high", "n")
        measured = {name: of and {key: of[key] for key in keys} for name, of in estimates.items()}
        yield {"rows": rows, "num_rows": found["num_rows"], "num_top": found["num_top"], **measured}


def _find_verdict(fit: Fit) -> RunVerdict | None:
    """Return the verdict on the generation if the judged arm ranks by this function, else ``None``."""
    found = None if fit.numbers is None else fit.numbers["verdict"]
    if fit.numbers is None or found is None or ARMS.find(fit.numbers["evidence"]["arm"]).trust != fit.name:
        return None
    after = found["findings"][0]["next"] if found["findings"] else ""
    return RunVerdict(level=found["level"], sentence=found["sentence"], next=after.rstrip("."))


def split_inputs(fit: Fit) -> tuple[list[str], list[str]]:
    """Return the hidden states and the scalar columns that the function reads, in order."""
    inputs = list(fit.described["inputs"])
    columns = [name for name in inputs if not schemas.is_state(schemas.get_input_column(name))]
    return [name for name in inputs if name not in columns], columns


def read_questions(fit: Fit) -> tuple[Question, ...]:
    """Return questions from a few labelled rows of the pool, or else of a source of the same domain."""
    config, decoding = fit.config.domain_of("pool"), DecodingConfig.from_key(fit.labelling.inputs["decoding"])
    domain = as_asked(get_domain(config), decoding)
    for split in ("pool", "source"):
        labelling = fit.labels(split)
        if labelling is None or fit.config.domain_of(split) != config:
            continue
        scanner = io.open_table(TableRef.from_json(labelling.outputs["labels"])).scanner(
            columns=["row_id", "completion", "label"],
            filter="error IS NULL AND label IS NOT NULL",
            limit=NUM_READ,
            scan_in_order=True,
        )
        found = {row["row_id"]: (row["completion"], row["label"]) for row in scanner.to_table().to_pylist()}
        filter = f"row_id IN ({', '.join(map(str, found)) or 'NULL'})"
        examples = io.read(TableRef.from_json(labelling.inputs["examples"]), filter=filter).to_pylist()
        return collect_questions(domain, ((example, *found[example["row_id"]]) for example in examples))
    return ()


def sample_reference(fit: Fit, function: "StateTrust", further: Sequence[str] = ()) -> Reference:
    """Return states of a sample of source rows in their stored dtype, limited by ``SAMPLE_BYTES`` and ``SAMPLE_ROWS``.

    The result has the states that the function reads, ``further`` ones, and the rows' held-out scores, named by
    ``SCORES``. Without states, it has the hashed words of a sample of the source's questions.
    """
    states = list(dict.fromkeys([*split_inputs(fit)[0], *further]))
    if not states:
        domain = get_domain(fit.config.domain_of("source").ungraded)
        texts = sample_texts(TableRef.from_json(fit.labelling.inputs["examples"]), domain, fit.seed)
        return pack_words(sample_words(texts, seed=fit.seed))
    stored = [schemas.get_raw_column(fit.name), schemas.trust_column(fit.name)]
    labels = TableRef.from_json(fit.record.inputs["labels"])
    scored = set(stored) <= set(io.open_table(labels).schema.names)
    read = ["row_id", "label", *(stored if scored else function.features)]
    rows = sample_rows(labels, states, fit.seed, read)
    dtype = np.dtype(fit.ask.state_dtype)
    found = get_states(rows, states)
    width = sum(states_ND.shape[1] for states_ND in found.values()) * dtype.itemsize
    most = min(len(rows), max(SAMPLE_ROWS, SAMPLE_BYTES // width))
    taken = np.sort(np.random.default_rng(fit.seed).permutation(len(rows))[:most])
    kept = {name: states_ND[taken].astype(dtype) for name, states_ND in found.items()}
    if not most:
        return kept
    (batch,) = rows.take(taken).combine_chunks().to_batches()
    raw_N, trust_N = _compute_held_out_scores(batch, function, stored if scored else None)
    return {**kept, **dict(zip(SCORES, (raw_N, trust_N), strict=True))}


def _compute_held_out_scores(
    batch: pa.RecordBatch, function: "StateTrust", stored: Sequence[str] | None
) -> list[Scores]:
    """Return raw scores and trust of source rows, float32 [N] each; NaN without a label or a held-out score."""
    if stored is not None:
        raw_N, trust_N = (batch.column(column).to_numpy(zero_copy_only=False) for column in stored)
    else:
        raw_N = function.source_score(batch)
        trust_N = function.to_trust(raw_N)
    parsed_N = batch.column("label").is_valid().to_numpy(zero_copy_only=False)
    return [np.where(parsed_N, score_N, np.float32(np.nan)).astype(np.float32) for score_N in (raw_N, trust_N)]


def read_calibration_rows(fit: Fit, function: "StateTrust") -> tuple[GradedScores | None, CalibrationRows | None]:
    """Return independent graded rows with held-out scores, of the calibration split or else of the source, or ``None``.

    Rows are ordered by id; scores are NaN without a readable label.
    """
    labelled = grading = None
    if fit.config.splits.calibration is not None:
        labelled = fit.labels("calibration")
        grading = fit.stage(fit.generation, "calibration", choose_grading_stage(fit.config, "calibration"))
    if (
        labelled is not None
        and grading is not None
        and matches_fit(fit, labelled)
        and grading.inputs["labels"] == labelled.outputs["labels"]
    ):
        split, labels, grades = "calibration", labelled.outputs["labels"], grading.outputs["grades"]
    else:
        split, labels, grades = "source", fit.record.inputs["labels"], fit.record.inputs["grades"]
    graded, table = read_grades(TableRef.from_json(grades)), io.open_table(TableRef.from_json(labels))
    stored = [schemas.get_raw_column(fit.name), schemas.trust_column(fit.name)]
    scored = set(stored) <= set(table.schema.names)  # scored as it was labelled: not all states are stored
    features = stored if scored else list(function.features)
    columns = list(dict.fromkeys(["row_id", "label", *features]))  # a class probe reads the label, too
    parts: list[tuple[npt.NDArray[Any], ...]] = []
    for batch in table.scanner(columns=columns, filter="error IS NULL").to_batches():
        row_ids_B = batch.column("row_id").to_numpy()
        kept_B = np.isin(row_ids_B, graded.row_ids_N)
        if split == "source":
            kept_B &= has_held_out_score(function, row_ids_B)
        batch = batch.filter(pa.array(kept_B))
        parts.append((row_ids_B[kept_B], *_compute_held_out_scores(batch, function, stored if scored else None)))
    if not any(len(row_ids_B) for row_ids_B, *_ in parts):
        return None, None
    row_ids_M, raw_M, trust_M = (np.concatenate(part) for part in zip(*parts, strict=True))
    order_M = np.argsort(row_ids_M)
    place_M = np.searchsorted(graded.row_ids_N, row_ids_M[order_M])
    raw_M, trust_M = (scores_M[order_M].astype(np.float32) for scores_M in (raw_M, trust_M))
    cluster_M = None if graded.cluster_N is None else graded.cluster_N[place_M]
    independent_M = find_independent(graded.question_N[place_M], row_ids_M[order_M], cluster_M)
    rows = GradedScores(raw_M, trust_M, graded.correct_N[place_M]).subset(independent_M)
    # The fit chose a penalty, when to stop, or the function itself by the source's rows.
    num_rows, num_right = len(rows.correct_M), int(rows.correct_M.sum())
    return rows, CalibrationRows(split=split, num_rows=num_rows, num_right=num_right, chose=split == "source")


def has_held_out_score(function: "StateTrust", row_ids_N: Int64s) -> npt.NDArray[np.bool_]:
    """Return which source rows have a score by weights that were not fitted on them, bool [N]."""
    held_out = getattr(function, "held_out", None)
    if held_out is None:
        return np.zeros(len(row_ids_N), dtype=np.bool_)
    found_N: npt.NDArray[np.bool_] = np.isin(row_ids_N, held_out.row_ids_N[~np.isnan(held_out.raw_N)])
    return found_N


def matches_fit(fit: Fit, labelled: StageRecord) -> bool:
    """Return whether a split was labelled like the source and, if it is scored at all, scored by this fit."""
    source, own = fit.labelling.inputs, (labelled.inputs.get("fitted") or {}).get(fit.name)
    same = all(labelled.inputs[key] == source[key] for key in ("model", "ask", "backend", "decoding"))
    return same and (own is None or own["digest"] == fit.trust.digest)
