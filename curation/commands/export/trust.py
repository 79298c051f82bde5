"""``curate export-trust``: a fitted trust function as a trust package (``curation.filter.package``)."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from curation.arms import ARMS
from curation.cluster.versions import find_versions
from curation.commands.export.files import load_template, write_folder
from curation.commands.export.fit import (
    Fit,
    Reference,
    find_fit,
    read_calibration_rows,
    read_questions,
    sample_reference,
    split_inputs,
)
from curation.config import AnswersConfig, AskConfig, DecodingConfig
from curation.config.endpoint import ServedConfig
from curation.features import features
from curation.filter.package.checks import UNJUDGED, check_fits, compute_digests
from curation.filter.package.description import (
    PARTS,
    CalibrationRows,
    Description,
    Made,
    RunVerdict,
    Sample,
)
from curation.filter.package.folder import PACKAGE, write
from curation.filter.parts import PackagePart
from curation.json_types import Json
from curation.refs import TableRef
from curation.registry import load_code
from curation.report.rules import STOP
from curation.rundir.manifest import StageRecord
from curation.stages.label import Label
from curation.storage.paths import Place
from curation.tables import io, schemas
from curation.trust import load_fitted


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
        about = {kind.TITLE: parts[name].summary if name in parts else kind.ABSENT for name, kind in PARTS.items()}
        card = load_template("trust_card.md.j2").render(description.model_dump(mode="json"), about=about)
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
    ask, answered = (
        _load_answers_config(fit.labelling),
        fit.stage(fit.generation, "pool", Label) or fit.stage(fit.generation, "source", Label),
    )
    assert answered is not None, "there is no labelling without it"
    kept: dict[str, Any] = {"states": tuple(state for state in ask.states if state in states)}
    if schemas.TOKEN_LOGPROBS not in columns:
        kept["token_logprobs"] = 0
    teacher, labels = fit.teacher, io.open_table(TableRef.from_json(fit.record.inputs["labels"])).schema
    size = next((int(field.type.list_size) for field in labels if schemas.is_state(field.name)), 0)
    sampled = tuple(name for name in states if name in reference)
    num_texts = 0 if sampled else max(0, len(reference.get("word_starts", ())) - 1)
    num_sampled = len(reference[sampled[0]]) if sampled else 0
    return Description(
        teacher=None if teacher is None else replace(teacher, code=None),  # whoever gets it allows code, or does not
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
