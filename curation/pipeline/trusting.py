"""Trust functions of a generation: fitted on the source split's labels, and their scores for every split."""

from collections.abc import Mapping, Sequence
from typing import Any

from curation.arms import Fitted
from curation.config import TrustConfig
from curation.errors import DegenerateSourceError
from curation.pipeline.training import training, training_host
from curation.refs import TableRef, TrustRef
from curation.registry import check_options, code
from curation.rundir.graph import Built, Done, Out
from curation.rundir.run import Task
from curation.trust.parts import ROW_KEYS, read_by


def projecting(name: str, labels: Out, trust: TrustConfig, *, size: int, seed: int, rows: int | None) -> Built:
    """The labels with the projection of their hidden states as a column, and the projection."""
    inputs = {"labels": labels, "size": size, "trust": trust.only({"states", *ROW_KEYS}), "seed": seed}
    return Built(name=name, work=project, inputs=inputs, num_rows=rows)


def project(task: Task, labels: TableRef, size: int, trust: TrustConfig, seed: int) -> Done:
    """Fit principal components, and add them to the labels."""
    from curation.stages.project import add_projection, fit_pca
    from curation.tables import io
    from curation.trust.pca import load_projection

    ref = fit_pca(labels, trust, size=size, seed=seed, output=task.directory / "pca")
    fit = load_projection(ref).fit
    told = {"size": size, "variance_kept": fit["variance_kept"], "num_rows": fit["num_rows"]}
    task.say(f"{size} components keep {told['variance_kept']:.1%} of the variance")
    projected = add_projection(labels, ref, guard=task.guard)
    outputs = {"labels": projected.to_json(), "projection": ref.to_json(), "fit": told}
    return Done(outputs=outputs, rows=io.count(labels))


def fitting(
    name: str,
    function: str,
    fitted: Fitted,
    labels: Out,
    grades: Out,
    trust: TrustConfig,
    *,
    seed: int,
    rows: int | None,
    teacher: str | None = None,
) -> Built:
    """The trust ``function`` of that name, fitted.

    ``teacher``: who answered, where labels that are all right or all wrong end a chain and not the run: its output
    ``trust`` is then null.
    """
    return Built(
        name=name,
        work=fit,
        inputs={
            "function": function,
            "made_by": fitted.made_by,
            "fit_by": fitted.fit,
            "labels": labels,
            "grades": grades,
            "trust": read_by(function, fitted, trust),
            "seed": seed,
        },
        settings={"resources": trust.resources, "teacher": teacher},
        num_rows=rows,
        takes=trust.takes,
        host=training_host(trust) if fitted.fit is not None else None,
    )


def fit(
    task: Task,
    function: str,
    made_by: str,
    fit_by: str | None,
    labels: TableRef,
    grades: TableRef,
    trust: TrustConfig,
    seed: int,
    resources: dict[str, Any],
    teacher: str | None = None,
) -> Done:
    """Fit a trust function, and say what was chosen."""
    from curation.tables import io

    try:
        ref = _fitted(task, function, made_by, fit_by, labels, grades, trust, seed, resources)
    except DegenerateSourceError as error:
        if teacher is None:
            raise
        why = f"the chain ends, as no trust can be fitted on the answers of {teacher} ({error})"
        task.say(why)
        return Done(outputs={"trust": None, "fit": None, "absent": {"trust": why}}, rows=io.count(labels))
    fitted = summary(ref)
    if (choice := fitted["choice"]) is not None:
        task.say(choice["reason"])
    return Done(outputs={"trust": ref.to_json(), "fit": fitted}, rows=io.count(labels))


def _fitted(
    task: Task,
    function: str,
    made_by: str,
    fit_by: str | None,
    labels: TableRef,
    grades: TableRef,
    trust: TrustConfig,
    seed: int,
    resources: dict[str, Any],
) -> TrustRef:
    from train.trust import fit_here

    config, options = trust.model_copy(update=resources), trust.options.get(function, {})
    if fit_by is not None:
        fit_net = code(fit_by)
        check_options("trust.options", fit_net, labels, grades, config, seed=seed, output=task.directory, **options)
        with training(task, config):
            found: TrustRef = fit_net(labels, grades, config, seed=seed, output=task.directory, **options)
            return found
    return fit_here(code(made_by), labels, grades, config, seed=seed, output=task.directory, options=options)


def summary(trust: TrustRef) -> dict[str, Any]:
    """How a fit went, for terminal and report: its ``kind``, rows, and ``choice`` (``None`` where there was none)."""
    from curation.trust import saved

    description = saved.described(trust)
    fit = description["fit"]
    return {
        "kind": description["kind"],
        "num_fit": fit["num_fit"],
        "share_right_fit": fit["share_right_fit"],
        "num_repeats": fit.get("num_repeats", 0),
        "calibration": description["calibration"],
        "choice": fit.get("choice"),
    }


def scoring(
    name: str,
    labels: Out,
    fitted: Mapping[str, Out],
    signals: Mapping[str, Out],
    *,
    of_source: bool,
    rows: int | None,
) -> Built:
    """The labels of a split with the scores of the fitted trust functions and the signals as columns."""
    inputs = {"labels": labels, "fitted": fitted, "signals": signals, "of_source": of_source}
    return Built(name=name, work=score, inputs=inputs, num_rows=rows)


def score(
    task: Task, labels: TableRef, fitted: Mapping[str, TrustRef], signals: Mapping[str, TableRef], of_source: bool
) -> Done:
    """Score every row; those of the source by weights that have not seen them."""
    from curation.stages.score import score as score_stage
    from curation.tables import io

    scored = score_stage(labels, fitted, signals, of_source=of_source, guard=task.guard)
    return Done(outputs={"labels": scored.to_json()}, rows=io.count(scored))


def shifting(
    name: str, pool: Out, compared: Mapping[str, Out], states: Sequence[str], *, seed: int, rows: int | None
) -> Built:
    """How the teacher's hidden states of the pool differ from those of other splits."""
    inputs = {"pool": pool, "compared": compared, "states": list(states), "seed": seed}
    return Built(name=name, work=shift, inputs=inputs, num_rows=rows)


def shift(task: Task, pool: TableRef, compared: Mapping[str, TableRef], states: Sequence[str], seed: int) -> Done:
    """Test each split against the pool."""
    from curation.stages.shift import measure_shift
    from curation.tables import io

    found = {split: measure_shift(ref, pool, states, seed=seed) for split, ref in compared.items()}
    return Done(outputs={"shift": found}, rows=io.count(pool))
