"""Trust functions of a generation: fitted on the source split's labels, and their scores for every split.

Each function here is one stage: what it reads and how it is done, handed to :meth:`curation.runs.Run.stage`.
"""

from collections.abc import Mapping

from curation import arms, store
from curation.config import TrainSection, TrustConfig
from curation.places import Place
from curation.refs import ProjectionRef, TableRef, TrustRef
from curation.runs import Done, Generation, Run, say

_PROBE_KEYS = {"states", "class_weight", "validation_fraction"}
"""What of ``TrustConfig`` a linear probe reads."""


def project(run: Run, generation: Generation, labels: TableRef, size: int) -> tuple[TableRef, ProjectionRef]:
    """The source split's labels with the projection of their hidden states as a column, and the projection."""
    config = run.config
    inputs = {
        "labels": labels.to_json(),
        "size": size,
        "states": list(config.trust.states),
        "validation_fraction": config.trust.validation_fraction,
        "seed": config.seed,
    }

    def work(directory: Place) -> Done:
        from curation.stages.project import add_projection, fit_pca
        from curation.trust.pca import load_projection

        ref = fit_pca(
            labels,
            config.trust.states,
            size=size,
            validation_fraction=config.trust.validation_fraction,
            seed=config.seed,
            output=directory / "pca",
        )
        kept = load_projection(ref).fit["variance_kept"]
        say(f"{generation.name('pca')}: {size} components keep {kept:.1%} of the variance")
        outputs = {"labels": add_projection(labels, ref).to_json(), "projection": ref.to_json(), "variance_kept": kept}
        return Done(outputs=outputs, rows=store.count(labels))

    outputs = run.stage(generation.name("pca"), inputs, work)
    return TableRef.from_json(outputs["labels"]), ProjectionRef.from_json(outputs["projection"])


def fit(run: Run, generation: Generation, labels: TableRef, grades: TableRef) -> dict[str, TrustRef]:
    """The trust functions that the arms need, fitted on the source split, by name; the neural one always."""
    config = run.config
    names = dict.fromkeys((arms.REFERENCE_ARM, *arms.fitted_of(config.selection.used)))
    fitted: dict[str, TrustRef] = {}
    for name in names:
        read = _PROBE_KEYS if name == "linear_probe" else set(TrustConfig.model_fields) - TrainSection.RESOURCES
        inputs = {
            "labels": labels.to_json(),
            "grades": grades.to_json(),
            "trust": config.fitting.model_dump(mode="json", include=read),
            "seed": config.seed,
        }

        def work(directory: Place, name: str = name) -> Done:
            from train.trust import FITS

            trust = FITS[name](labels, grades, config.fitting, seed=config.seed, output=directory)
            return Done(outputs={"trust": trust.to_json()}, rows=store.count(labels))

        stage = "trust" if name == arms.REFERENCE_ARM else f"trust-{name}"
        fitted[name] = TrustRef.from_json(run.stage(generation.name(stage), inputs, work)["trust"])
    return fitted


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
