"""Stored questions: a domain's prompts, options and labels for a few rows, and their comparison with this version's."""

import json
from collections.abc import Iterable, Mapping

from curation.domains import Domain, Example, attempt
from curation.filter.package.description import Question
from curation.json_types import JsonView

NUM_QUESTIONS = 5
SHOWN = 60
"""Maximum number of characters of a text that a message shows, from a little before the first difference."""


def collect_questions(domain: Domain, rows: Iterable[tuple[Example, str, str | None]]) -> tuple[Question, ...]:
    """Return the first ``NUM_QUESTIONS`` rows (example, completion, parsed label) that can be written as JSON."""
    found: list[Question] = []
    for example, completion, label in rows:
        own = {name: example[name] for name in domain.columns.names}
        prompt, problem = attempt(domain.prompt, own)
        options, further = attempt(domain.options, own)
        if problem or further or prompt is None or not _is_json(own):
            continue
        found.append(Question(example=own, prompt=prompt, options=options, completion=completion, label=label))
        if len(found) == NUM_QUESTIONS:
            break
    return tuple(found)


def find_difference(domain: Domain, questions: Iterable[Question]) -> str | None:
    """Return how this version of a domain differs on a stored question, in words, or ``None`` if nothing differs."""
    for number, question in enumerate(questions):
        now: JsonView = {
            "prompt": attempt(domain.prompt, question.example),
            "options": attempt(domain.options, question.example),
            "label": attempt(domain.parse, question.completion, question.example),
        }
        for what, (value, problem) in now.items():
            was = getattr(question, what)
            value = tuple(value) if isinstance(value, list) else value
            if problem or value != was:
                here, there = _cut_to_difference(problem or _to_text(value), _to_text(was))
                return f"{what} of stored question {number} is {here!r} here, and {there!r} in the package"
    return None


def _is_json(example: Mapping[str, object]) -> bool:
    try:
        return bool(json.loads(json.dumps(example, allow_nan=False)) == example)
    except (TypeError, ValueError):
        return False


def _to_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _cut_to_difference(one: str, other: str) -> tuple[str, str]:
    """Return both texts cut to the place where they first differ."""
    place = next((i for i, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), None)
    start = max(0, (min(len(one), len(other)) if place is None else place) - SHOWN // 3)
    cut = [text[start : start + SHOWN] for text in (one, other)]
    return (f"...{cut[0]}", f"...{cut[1]}") if start else (cut[0], cut[1])
