"""The stage between two generations: whether the student is to teach.

It reads what the generation shows of its trust function without the pool's gold labels: AUC, certified share, shift.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import NamedTuple

import numpy as np

from curation import metrics
from curation.config import RiskConfig, TrustConfig
from curation.config.chain import StopConfig
from curation.json_types import Json, JsonView
from curation.refs import TableRef
from curation.report.rows import judge
from curation.rundir.graph import Done, In, Stage, setting
from curation.rundir.run import Task
from curation.selection.chain_stop import Signs, reasons_to_stop
from curation.selection.risk import calibrate
from curation.stages.pool_scores import PoolScores
from curation.trust.parts import VALIDATION, part_of


class GoOn(Stage):
    """Decides whether the student of a generation is to teach, and says why where the chain stops."""

    class Made(NamedTuple):
        go_on: bool | None
        """Null where the chain stops: what needs it has nothing to do then."""
        absent: dict[str, str | None]
        signs: Json
        """``curation.selection.chain_stop.Signs`` as JSON."""
        reasons: list[str]

    functions: Sequence[str]
    """Trust functions; the first one that the labels have scores of is looked at."""
    source: In[TableRef]
    """The scored labels of the source split."""
    grades: In[TableRef]
    pool: In[TableRef]
    """The scored labels of the pool."""
    budget: In[Json]
    shift: In[Json]
    trust: TrustConfig
    stop: StopConfig
    seed: int
    generation: int = setting()

    def run(self, task: Task) -> Done:
        """Read the signs, and decide."""
        signs = read_signs(
            functions=tuple(self.functions),
            source=self.source,
            grades=self.grades,
            trust=self.trust,
            pool=PoolScores(labels=self.pool, trust=self.functions[0], seed=self.seed),
            budget=self.budget,
            risk=self.stop.risk,
            shift=self.shift,
        )
        reasons = reasons_to_stop(signs, self.stop)
        why = f"the chain stops after generation {self.generation}: {'; '.join(reasons)}" if reasons else None
        if why is not None:
            task.say(f"{why} (chain.stop: null goes on)")
        made = self.Made(
            go_on=None if reasons else True,
            absent={"go_on": why},
            signs={**asdict(signs), "auc": signs.auc.to_json()},
            reasons=reasons,
        )
        return Done(outputs=made, rows=0)


def read_signs(
    *,
    functions: tuple[str, ...],
    source: TableRef,
    grades: TableRef,
    trust: TrustConfig,
    pool: PoolScores,
    budget: JsonView,
    risk: RiskConfig | None,
    shift: JsonView,
) -> Signs:
    """The signs of the first of ``functions`` that the scored ``source`` labels have.

    ``risk`` certifies on validation rows; without it the run's ``budget`` tells, if it is one of risk. ``pool`` gives
    the scores of the generation's share, and the seed; its ``trust`` is replaced by that function.
    """
    seed = pool.seed
    judged = judge(source, grades, functions)
    name = next(name for name in functions if name in judged.scores)
    rows = judged.subset(part_of(judged.row_ids_N, trust, seed, unit_N=judged.cluster_N) == VALIDATION)
    parsed = rows.readable
    certified = budget["n"] / pool.num_rows if budget["risk"] is not None and pool.num_rows else None
    if risk is not None:
        scores, draws = replace(pool, trust=name), rows.one_a_cluster
        ordered = scores.ordered()
        # Read as float32, like the pool's scores.
        raw_M = np.where(draws.parsed_N, draws.scores[name].raw_N, -np.inf).astype(np.float32)
        cut = calibrate(raw_M, draws.correct_N, ordered, **risk.model_dump(), seed=seed).threshold
        num = 0 if cut is None else int(ordered.num_above([cut], inclusive=True)[0])
        certified = num / scores.num_rows
    compared = "calibration" if "calibration" in shift else "source"
    return Signs(
        function=name,
        auc=metrics.auc(parsed.scores[name].raw_N, parsed.correct_N, cluster_N=parsed.cluster_N),
        certified=certified,
        compared=compared,
        shift=shift[compared],
    )
