"""The search for a trust function (``curate tune``)."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from curation.config.base import NotNegative, PositiveInt, Section, Share, make_ray_resources
from curation.json_types import Json

Metric = Literal["auc", "brier", "purity", "certified"]
LARGER_IS_BETTER: Mapping[Metric, bool] = {"auc": True, "brier": False, "purity": True, "certified": True}


class TuneConfig(Section):
    """Settings of a search: the trust functions to try (``tune.space``), how to measure them, and how to choose.

    Every trial is one fit on the labelled source rows. Fits on other folds and seeds then compare the best few trials
    with the trust function of the section ``trust``, and decide (``tune.search``).
    """

    RESOURCES: ClassVar[set[str]] = {"parallel", "cpus_per_trial", "gpus_per_trial", "memory_gib_per_trial"}

    space: Json = Field(default={"preset": "kinds"})
    """Settings to search and their values: ``preset`` and/or keys of ``trust``, ``kind`` and ``options.KIND.NAME``."""
    search: Literal["tpe", "random", "grid"] = "tpe"
    """Search method. ``tpe``: Optuna's tree-structured Parzen estimator; ``grid``: all points of a space of lists."""
    trials: PositiveInt = 64
    """Number of points to try; for a grid, the maximum."""
    metric: Metric = "auc"
    """Metric on the held-out fold: ``auc`` or ``brier`` of parsed rows; ``purity`` of the share of all rows that the
    run selects; ``certified``, the share of rows that ``selection.budget.risk`` certifies."""
    share: Share | None = None
    """Share of rows whose ``purity`` is measured. Unset: ``selection.budget.n`` as a share of the pool."""
    folds: Annotated[int, Field(ge=2)] = 5
    """Number of folds of the source. A trial holds out the first; the final comparison holds out each in turn."""
    finalists: PositiveInt = 3
    """Number of best trials to compare with the default."""
    seeds: PositiveInt = 2
    """Number of repetitions of the final comparison, each with its own folds and initial weights."""
    ahead: PositiveInt = 8
    """``tpe`` proposes trial k from the results of trials 0 to k - ``ahead``, so that the points do not depend on which
    trial ends first. More trials than this never run at once."""
    parallel: PositiveInt | None = None
    """Maximum number of concurrent trials. Unset: as many as the cluster has room for."""
    cpus_per_trial: Annotated[float, Field(gt=0)] = 1.0
    """CPUs of a trial; a fraction lets small fits share a core."""
    gpus_per_trial: NotNegative = 0
    """GPUs of a trial."""
    memory_gib_per_trial: NotNegative = 0
    """Memory that a trial needs on its node, in GiB; 0 declares none."""
    hours: Annotated[float, Field(gt=0)] | None = None
    """Hours after which no trial starts; the choice is then made among finished trials."""

    @property
    def per_trial(self) -> dict[str, float]:
        """Resources of a trial on its node, under Ray's names."""
        return make_ray_resources(self.cpus_per_trial, self.gpus_per_trial, self.memory_gib_per_trial)

    @model_validator(mode="after")
    def _share_is_read(self) -> Self:
        if self.share is not None and self.metric != "purity":
            raise ValueError(f"share: only the metric purity reads it, and metric is {self.metric}; leave it out")
        return self
