"""The search for a trust function (``curate tune``)."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from curation.config.base import NotNegative, PositiveInt, Section, Share, make_ray_resources
from curation.json_types import Json

Metric = Literal["auc", "brier", "purity", "certified"]
LARGER_IS_BETTER: Mapping[Metric, bool] = {"auc": True, "brier": False, "purity": True, "certified": True}


class TuneConfig(Section):
    """Which trust functions a search tries, how it measures them, and how it chooses (``tune.space`` has the spaces).

    Every trial is one fit on the labelled source rows. The last word have fits on other folds and seeds, where the best
    few trials meet the trust function of the section ``trust`` (``tune.choose``).
    """

    RESOURCES: ClassVar[set[str]] = {"parallel", "cpus_per_trial", "gpus_per_trial", "memory_gib_per_trial"}

    space: Json = Field(default={"preset": "kinds"})
    """Settings and their values: ``preset`` and/or keys of ``trust``, ``kind`` and ``options.KIND.NAME``."""
    search: Literal["tpe", "random", "grid"] = "tpe"
    """``tpe``: Optuna's tree-structured Parzen estimator; ``grid``: all points of a space of lists."""
    trials: PositiveInt = 64
    """The number of points to try; of a grid, at most."""
    metric: Metric = "auc"
    """On the held-out fold: AUC or Brier score of parsed rows; purity of the share of all rows that the run selects;
    the share of rows that ``selection.budget.risk`` certifies."""
    share: Share | None = None
    """The share of ``purity``; unset, ``selection.budget.n`` as a share of the pool."""
    folds: Annotated[int, Field(ge=2)] = 5
    """Parts of the source; a trial holds out the first, the fits of the choice each of them in turn."""
    finalists: PositiveInt = 3
    """The best trials, which are compared with the default."""
    seeds: PositiveInt = 2
    """Repetitions of the choice, each with folds and weights of its own."""
    ahead: PositiveInt = 8
    """``tpe`` proposes trial k from the results of trials 0 to k - ``ahead``, so that the points do not depend on which
    trial ends first. More trials than this never run at once."""
    halving: Annotated[int, Field(ge=2)] | None = None
    """Successive halving by this factor: a network that is not among the best 1 / ``halving`` of earlier trials ends
    early (``tune.halving``). Unset, every trial takes its steps."""
    parallel: PositiveInt | None = None
    """Most trials at once; unset, as many as the cluster has room for."""
    cpus_per_trial: Annotated[float, Field(gt=0)] = 1.0
    """A fraction where small fits share a core."""
    gpus_per_trial: NotNegative = 0
    """GPUs of a trial."""
    memory_gib_per_trial: NotNegative = 0
    """Memory that a trial needs of its node; 0: not declared."""
    hours: Annotated[float, Field(gt=0)] | None = None
    """No trial starts after so long; the choice is made among those that ended."""

    @property
    def per_trial(self) -> dict[str, float]:
        """Resources of a trial on its node, under Ray's names."""
        return make_ray_resources(self.cpus_per_trial, self.gpus_per_trial, self.memory_gib_per_trial)

    @model_validator(mode="after")
    def _share_is_read(self) -> Self:
        if self.share is not None and self.metric != "purity":
            raise ValueError(f"share: only the metric purity reads it, and metric is {self.metric}; leave it out")
        return self
