"""Between two generations: whether the chain goes on, and whether the student that teaches next has seen its rows."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from curation.arms import ARMS, REFERENCE_ARM
from curation.config import TrustConfig
from curation.config.chain import StopConfig
from curation.refs import TableRef
from curation.rundir.graph import Built, Done, Out, Stage, Table
from curation.rundir.run import Task
from curation.trust.parts import ROW_KEYS


def going_on(
    name: str,
    *,
    arm: str,
    record: Mapping[str, Any],
    trust: TrustConfig,
    stop: StopConfig,
    seed: int,
) -> Stage:
    """Whether the student of ``arm`` is to teach, from the generation's ``record`` (of outputs).

    Its output ``go_on`` is null where the chain stops: what needs it has nothing to do then.
    """
    functions = [ARMS[arm].trust] if ARMS[arm].ranked and not ARMS[arm].gold else []
    inputs = {
        "functions": list(dict.fromkeys([*functions, REFERENCE_ARM])),
        "source": record["labels"]["source"],
        "grades": record["grades"]["source"],
        "pool": record["labels"]["pool"],
        "budget": record["budget"],
        "shift": record["shift"],
        "trust": trust.only(ROW_KEYS),
        "stop": stop,
        "seed": seed,
    }
    return Built(name=name, work=go_on, inputs=inputs, settings={"generation": record["index"]}, num_rows=0)


def go_on(
    task: Task,
    *,
    functions: Sequence[str],
    source: TableRef,
    grades: TableRef,
    pool: TableRef,
    budget: dict[str, Any],
    shift: dict[str, Any],
    trust: TrustConfig,
    stop: StopConfig,
    seed: int,
    generation: int,
) -> Done:
    """Decide, and say why where the chain stops."""
    from curation.selection.chain_stop import reasons_to_stop
    from curation.stages.pool_scores import PoolScores
    from curation.stages.signs import read_signs

    signs = read_signs(
        functions=tuple(functions),
        source=source,
        grades=grades,
        trust=trust,
        pool=PoolScores(labels=pool, trust=functions[0], seed=seed),
        budget=budget,
        risk=stop.risk,
        shift=shift,
        seed=seed,
    )
    reasons = reasons_to_stop(signs, stop)
    why = f"the chain stops after generation {generation}: {'; '.join(reasons)}" if reasons else None
    if why is not None:
        task.say(f"{why} (chain.stop: null goes on)")
    told = {**asdict(signs), "auc": signs.auc.to_json()}
    outputs = {"go_on": None if reasons else True, "absent": {"go_on": why}, "signs": told, "reasons": reasons}
    return Done(outputs=outputs, rows=0)


def holding_out(
    name: str,
    *,
    trained: Mapping[str, Out],
    splits: Mapping[str, Table],
    share: Mapping[str, int],
    teacher: str,
    needs: Sequence[Out],
) -> Stage:
    """No row of the selections ``trained`` is in ``splits``, nor in the generation's share of the pool."""
    inputs = {"trained": trained, "splits": splits, "share": share}
    return Built(name=name, work=hold_out, inputs=inputs, settings={"teacher": teacher}, needs=needs, num_rows=0)


def hold_out(
    task: Task,
    *,
    trained: dict[str, TableRef],
    splits: dict[str, TableRef],
    share: dict[str, int],
    teacher: str,
) -> Done:
    """Compare row ids."""
    from curation.stages.held_out import check_held_out
    from curation.stages.label import Share

    found = check_held_out(trained, splits, Share(**share), teacher=teacher)
    return Done(outputs=found._asdict(), rows=sum(found.num_rows.values()))
