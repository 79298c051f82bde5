"""The grades of a split's labels: right or wrong by the domain's rule and, if configured, a judge."""

from curation.config import AskConfig, DomainConfig, RunConfig
from curation.domains import get_domain
from curation.domains.text import CHECKER, REMOVED
from curation.errors import ConfigError
from curation.json_types import Json
from curation.pipeline.roles import JUDGE, GenerationSpec
from curation.registry import load_code
from curation.rundir.graph import Out, Stage
from curation.stages.grade import Grade
from curation.stages.signal import Judge, JudgeByChoice

GONE = "not there"
"""Digest in place of that of a missing program, so that the status of a run graded by it can still be shown."""


def find_checker(domain: DomainConfig) -> str | None:
    """Return a digest of the program that grades a domain's rows, or None if no program does.

    ``ConfigError``: the program does not exist, or is not named.
    """
    if domain.name == "text" and domain.options.get("check") == REMOVED:
        raise ConfigError("domain.check: command names no program; give check: {command: [python, check.py]}")
    return None if domain.command is None else getattr(get_domain(domain), "checker", None)


def find_known_checker(domain: DomainConfig) -> str | None:
    """Return the result of :func:`find_checker`, or ``GONE`` if the program does not exist."""
    try:
        return find_checker(domain)
    except ConfigError:
        return GONE


def require_checkers(config: RunConfig) -> None:
    """Refuse a run whose grading program does not exist, or for which this machine allows no sandbox."""
    for domain in map(config.domain_of, config.splits.named()):
        if find_checker(domain) is not None and domain.options["check"].get("sandbox") != "none":
            load_code(f"{CHECKER}:require_sandbox")()


def choose_grading_stage(config: RunConfig, split: str) -> type[Stage]:
    """Return the class of the stage that makes the final grades of a split."""
    domain = config.domain_of(split)
    if domain.judge is not None:
        return JudgeByChoice
    if config.judge is not None and split in config.judge.splits:
        return Judge
    return Grade


def describe_grades(generation: GenerationSpec, stage: str, split: str, labels: Out) -> Out:
    """Return the grades of a split's labels (``GRADES``), by the domain's rule and, if configured, the judge."""
    config, domain = generation.config, generation.config.domain_of(split)
    kind = choose_grading_stage(config, split)
    by_judge = kind is JudgeByChoice
    rows: Json = {
        "labels": labels,
        "gold": generation.tables["audit" if split == "pool" else split],
        "examples": generation.tables[split],
    }
    of = "" if stage == split else stage
    grades = Grade(
        **generation.place(f"grade-{stage}", split, of=of),
        **rows,
        domain=domain.agreeing if by_judge else domain,  # it says which questions are equal, and a judge what is right
        checker=find_known_checker(domain),
    ).out("grades")
    if not issubclass(kind, Judge):
        return grades
    judge = config.judge
    assert judge is not None, "a judge that is asked is configured"
    return kind(
        **generation.place(f"judge-{stage}", split, of=of, **({} if by_judge else {"num_rows": None})),
        grades=grades,
        **rows,
        domain=domain,
        teacher=generation.helpers[JUDGE].changed(**AskConfig.BARE),
        decoding=judge.decoding,
        seed=generation.seed(f"judge-{stage}"),
        **generation.settings,
    ).out("grades")
