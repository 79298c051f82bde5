"""Checks that results are comparable: students trained on as many rows, epochs and in one format; models asked alike.

Arms should differ only in their selection. If training itself differed, a difference in accuracy says nothing about the
selection, so the report gives no verdict, p-value or recovery. A model that answers among listed answers is right more
often than one that answers freely. All models of a run are tested in one way. If its labels were asked for in another
way, a student that passes its teacher in the test may still be below the labels that it learned from, and the report
does not call it weak-to-strong.
"""

from collections.abc import Sequence

from curation.config import DecodingConfig, DomainConfig
from curation.config.defaults import find_traits
from curation.json_types import Json, JsonView
from curation.registry import DOMAINS
from curation.report.headline import name_of
from curation.report.record import GROUND_TRUTH

ALIKE = {
    "rows_trained": "rows trained on",
    "rows_dropped": "rows dropped in training",
    "epochs": "epochs",
    "format": "format",
}
"""Values that two students must have in common, in words; a value that an arm lacks is not compared."""
CLAIMS = ("recovery", "recovery_interval", "verdict", "paper_verdict", "p_value_vs_ground_truth")
"""Results that compare an arm's student with ground truth's."""


def explain_withheld(arms: Sequence[JsonView]) -> str | None:
    """Return why these arms' students cannot be compared, in words, or None if they can."""
    trained = [arm for arm in arms if arm.get("rows_trained") is not None]
    found = []
    for key, words in ALIKE.items():
        values = {name_of(arm): arm[key] for arm in trained if arm.get(key) is not None}
        if len(set(values.values())) > 1:
            found.append(f"{words}: " + ", ".join(f"{name} {_format_value(value)}" for name, value in values.items()))
    return f"the students trained differently ({'; '.join(found)})" if found else None


WAYS = {
    False: "freely",
    "scored": "by the likeliest of the listed answers",
    "stepwise": "token by token among the listed answers",
}
"""Descriptions of how answers are asked for, by ``DecodingConfig.constrained``."""


def read_domain(config: JsonView) -> DomainConfig:
    """Return the domain's section of a run's recorded configuration."""
    return DomainConfig.model_validate(config.get("domain", "chess"))


def describe_asking(config: JsonView, section: str) -> str:
    """Return how a run's ``teacher`` or ``evaluation`` asks for answers, in words; options are always scored."""
    decoding = DecodingConfig.model_validate(config.get(section, {}).get("decoding", {}))
    domain = read_domain(config)
    scored = domain.name not in DOMAINS or find_traits(domain.name, domain.options).answering == "scored"
    return WAYS[decoding.constrained or ("scored" if scored else False)]


def explain_unlike(config: JsonView) -> str | None:
    """Return why a student cannot be called better than its teacher's labels, in words, or None if it can."""
    labels, tests = describe_asking(config, "teacher"), describe_asking(config, "evaluation")
    return None if labels == tests else f"labels were asked for {labels}, tests {tests}"


def withhold(arms: Sequence[JsonView], unlike: str | None) -> list[Json]:
    """Return the arms' entries, without comparisons to a ground truth that trained differently.

    ``withheld`` of each entry says why, and is None if nothing is withheld. If ``unlike`` has a reason (from
    :func:`explain_unlike`), no entry says whether its arm is weak-to-strong.
    """
    truth = next((arm for arm in arms if arm["name"] == GROUND_TRUTH), None)
    entries = []
    for arm in arms:
        reason = None if truth is None or arm is truth else explain_withheld([arm, truth])
        held = (*(CLAIMS if reason else ()), *(["weak_to_strong"] if unlike else []))
        entries.append({**arm, **dict.fromkeys(held), "withheld": reason})
    return entries


def _format_value(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
