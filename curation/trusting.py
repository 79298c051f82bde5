"""Trust functions of a generation: fitted on the source split's labels, and their scores for every split.

Each function here is one stage: what it reads and how it is done, handed to :meth:`curation.runs.Run.stage`.
"""

from collections.abc import Mapping
from typing import Any

from curation import arms, store
from curation.config import TrainSection, TrustConfig
from curation.places import Place
from curation.refs import ProjectionRef, TableRef, TrustRef
from curation.runs import Done, Generation, Run, say
from curation.trust.parts import ROW_KEYS

_PROBE_KEYS = {"states", "class_weight", *ROW_KEYS}
"""What of ``TrustConfig`` a linear probe reads."""


def project(run: Run, generation: Generation, labels: TableRef, size: int) -> tuple[TableRef, ProjectionRef]:
    """The source split's labels with the projection of their hidden states as a column, and the projection."""
    config = run.config
    inputs = {
        "labels": labels.to_json(),
        "size": size,
        "trust": config.trust.model_dump(mode="json", include={"states", *ROW_KEYS}),
        "seed": config.seed,
    }

    def work(directory: Place) -> Done:
        from curation.stages.project import add_projection, fit_pca
        from curation.trust.pca import load_projection

        ref = fit_pca(labels, config.trust, size=size, seed=config.seed, output=directory / "pca")
        fit = load_projection(ref).fit
        told = {"size": size, "variance_kept": fit["variance_kept"], "num_rows": fit["num_rows"]}
        say(f"{generation.name('pca')}: {size} components keep {told['variance_kept']:.1%} of the variance")
        outputs = {"labels": add_projection(labels, ref).to_json(), "projection": ref.to_json(), "fit": told}
        return Done(outputs=outputs, rows=store.count(labels))

    outputs = run.stage(generation.name("pca"), inputs, work)
    return TableRef.from_json(outputs["labels"]), ProjectionRef.from_json(outputs["projection"])


def fit(run: Run, generation: Generation, labels: TableRef, grades: TableRef) -> dict[str, TrustRef]:
    """The trust functions that the arms need, fitted on the source split, by name; the neural one always."""
    config = run.config
    names = dict.fromkeys((arms.REFERENCE_ARM, *arms.fitted_of(config.selection.used)))
    fitted: dict[str, TrustRef] = {}
    for name in names:
        stage = "trust" if name == arms.REFERENCE_ARM else f"trust-{name}"
        read = _PROBE_KEYS if name == "linear_probe" else set(TrustConfig.model_fields) - TrainSection.RESOURCES
        inputs = {
            "labels": labels.to_json(),
            "grades": grades.to_json(),
            "trust": config.fitting.model_dump(mode="json", include=read),
            "seed": config.seed,
        }

        def work(directory: Place, name: str = name, stage: str = stage) -> Done:
            from train.trust import FITS

            trust = FITS[name](labels, grades, config.fitting, seed=config.seed, output=directory)
            fitted = summary(trust)
            if (choice := fitted["choice"]) is not None:
                aucs = ", ".join(f"{kind} {auc:.3f}" for kind, auc in choice["calibration_auc"].items())
                say(
                    f"{generation.name(stage)}: {choice['num_fit']:,} rows to fit on are fewer than trust.probe_below "
                    f"{choice['probe_below']:,}: {choice['taken']} is taken (AUC on {fitted['num_calibration']:,} "
                    f"calibration rows: {aucs})"
                )
            return Done(outputs={"trust": trust.to_json(), "fit": fitted}, rows=store.count(labels))

        fitted[name] = TrustRef.from_json(run.stage(generation.name(stage), inputs, work)["trust"])
    return fitted


def summary(trust: TrustRef) -> dict[str, Any]:
    """How a fit went, for terminal and report: its ``kind``, rows, and ``choice`` (``None`` where there was none)."""
    from curation.trust import saved

    description = saved.described(trust)
    fit = description["fit"]
    return {
        "kind": description["kind"],
        "num_fit": fit["num_fit"],
        "share_right_fit": fit["share_right_fit"],
        "num_calibration": fit.get("num_calibration", 0),
        "calibration": description["calibration"],
        "choice": fit.get("choice"),
    }


def score(
    run: Run,
    generation: Generation,
    split: str,
    labels: TableRef,
    fitted: Mapping[str, TrustRef],
    signals: Mapping[str, TableRef],
) -> TableRef:
    """The labels of a split with the scores of the fitted trust functions and the signals as columns."""

    def work(directory: Place) -> Done:
        from curation.stages.score import score as score_stage

        scored = score_stage(labels, fitted, signals)
        return Done(outputs={"labels": scored.to_json()}, rows=store.count(scored))

    inputs = {
        "labels": labels.to_json(),
        "trust": {name: ref.to_json() for name, ref in fitted.items()},
        "signals": {name: ref.to_json() for name, ref in signals.items()},
    }
    return TableRef.from_json(run.stage(generation.name(f"score-{split}"), inputs, work)["labels"])
