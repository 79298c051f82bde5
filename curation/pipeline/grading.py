"""The grades of a split's labels: right or wrong by the domain's rule and, where it is asked, a judge."""

from curation.config import AskConfig
from curation.pipeline.given import Generation
from curation.rundir.graph import Out
from curation.stages.grade import Grade
from curation.stages.judge import Judge


def graded(generation: Generation, stage: str, split: str, labels: Out) -> Out:
    """Which labels of a split are right, by the domain's rule and, where it is asked, the judge (``GRADES``)."""
    config, domain = generation.config, generation.config.domain_of(split)
    gold, examples = generation.gold(split), generation.tables[split]
    grades = Grade(
        name=generation.name(f"grade-{stage}"),
        labels=labels,
        gold=gold,
        examples=examples,
        domain=domain,
        num_rows=generation.sizes[split],
    ).out("grades")
    judge = config.judge
    if judge is None or split not in judge.splits:
        return grades
    assert generation.others.judge is not None, "a judge that is configured is among the models"
    return Judge(
        name=generation.name(f"judge-{stage}"),
        grades=grades,
        examples=examples,
        labels=labels,
        gold=gold,
        domain=domain,
        teacher=generation.others.judge.changed(**AskConfig.BARE),
        decoding=judge.decoding,
        seed=generation.seed(f"judge-{stage}"),
        **generation.settings,
    ).out("grades")
