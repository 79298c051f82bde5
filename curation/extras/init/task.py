"""Guesses the task of a user's files, with reasons that become comments; what cannot be guessed is refused."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from curation.config import DomainConfig
from curation.config.external import GivenConfig
from curation.domains import attempt, get_domain
from curation.domains.classification import with_words
from curation.domains.mcqa import LETTERS
from curation.errors import ConfigError
from curation.escaping import quote_text
from curation.extras.init.table import TableFiles, describe_free_text, find_given_columns, has_lists, has_objects, is_id

ANSWERS = (
    "label", "labels", "answer", "answers", "gold", "class", "category", "target", "intent", "y", "solution", "correct",
    "correct_answer", "answerkey", "answer_key", "right_answer", "final_answer",
)  # fmt: skip
TEXTS = (
    "text", "problem", "question", "sentence", "content", "body", "message", "review", "comment", "query", "utterance",
    "prompt", "input", "document", "description", "messages", "conversation", "conversations", "dialog", "dialogue",
)  # fmt: skip
PUBLISHED = ("chess", "mcqa", "pair")
"""Domains that are recognised by the names of columns alone."""
PROBLEMS = ("problem", "question", "exercise", "task")
_OPTION = re.compile(r"(?i)(?:option|choice|opt|answer|ans|distractor)?[ _-]?(?:[a-h]|\d{1,2})")
_NUMBER = re.compile(r"[-+$\s]*\d[\d\s.,/:^*%]*|.*\\(?:boxed|frac|sqrt)\b.*|.*####.*", re.DOTALL)
MOST_CLASSES, ROWS_A_CLASS = 200, 4
"""Maximum number of values, and minimum mean number of rows per value, for the values of a column to be classes."""


@dataclass(frozen=True, kw_only=True)
class TaskHints:
    """Options with which the user describes the task."""

    domain: str | None = None
    answer: str | None = None
    text: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()


class DetectedTask(NamedTuple):
    """A task with the reasons for which it was detected."""

    domain: dict[str, Any]
    """The section ``domain``."""
    labelled: TableFiles
    unlabelled: TableFiles | None
    """The unlabelled file; None if the rows of one file are split."""
    audited: bool
    """Whether the pool has the right answers too."""
    why: tuple[str, ...]
    given: GivenConfig | None = None
    """The columns with labels made elsewhere; None if the teacher is a model."""
    answer: str = ""
    """The column with the answers; empty for a published format."""


def detect_task(tables: Sequence[TableFiles], hints: TaskHints) -> DetectedTask:
    """Return the task of one or two files; a ``ConfigError`` names what is unclear, and the option that settles it."""
    if not 1 <= len(tables) <= 2:
        raise ConfigError("--data: give one file of labelled rows, or a labelled and an unlabelled one")
    if not (hints.text or hints.choices or hints.answer):
        for name in PUBLISHED:
            if hints.domain in (None, name) and (found := _detect_published(name, tables)) is not None:
                return found
    if hints.domain in ("chess", "pair"):
        has = "; ".join(f"{table.path} has the columns {table.listed}" for table in tables)
        forms = ", or ".join(" and ".join(form) for form in get_domain(DomainConfig(name=hints.domain)).forms)
        raise ConfigError(
            f"--data: {has}; {hints.domain} reads {forms}: rename the columns, or say what it is by --domain"
        )
    common = [name for name in tables[0].columns if all(name in table.columns for table in tables)]
    options = [name for name in common if _OPTION.fullmatch(name) and tables[0].filled(name) > 0.5]
    choices = [tables[0].require(name, "--choices") for name in hints.choices]
    if not choices and 2 <= len(options) <= len(LETTERS):
        choices = options
    is_choice = bool(choices) and hints.domain in (None, "mcqa")
    if hints.domain == "mcqa" and not is_choice:
        raise ConfigError(
            f"--domain mcqa: {tables[0].path} has the columns {tables[0].listed}, and none looks like an option; name "
            "them by --choices A,B,C"
        )
    if is_choice:
        common = [name for name in common if name not in choices]
    roles = _find_roles(tables, hints, without=choices if is_choice else ())
    given = find_given_columns(roles.labelled, roles.answer, common, ANSWERS)
    left = [name for name in common if given is None or name not in (given.completion, *given.confidence)]
    if is_choice:
        (question, *_), why_text = _find_text(roles, hints, left, ("question", *TEXTS))
        section: dict[str, Any] = {"name": "mcqa", "question": question, "choices": choices, "answer": roles.answer}
        why = f"the columns {', '.join(choices)} look like the options of a question"
    else:
        made = roles if given is None or given.grade is None else roles._replace(answer=given.completion)
        domain, why = _find_kind(made, hints, common)
        texts, why_text = _find_text(roles, hints, left, PROBLEMS if domain == "math" else TEXTS)
        is_usual = texts[0] in ("problem", "question") and roles.answer in ("answer", "solution")
        section = {"name": domain}
        if domain == "classification":
            section, why = _describe_classes(made, roles.answer, texts, why)
        elif domain == "text":
            section, how = describe_free_text(roles.labelled, texts, roles.answer)
            why = f"{why}; {how}"
        elif domain == "math" and not is_usual:
            section |= {"problem": texts[0], "answer": roles.answer}
    reasons = [*roles.why, why, why_text]
    if given is not None:
        sure = ", ".join(map(quote_text, given.confidence))
        reasons.append(
            f"every row has a label that was made elsewhere, {quote_text(given.completion)}, and a number that says "
            f"how sure it is, {sure}, so that no model is asked for labels; to ask one, name it by teacher.model "
            "instead"
        )
    return roles._replace(domain=section, why=tuple(reasons), given=given)


def _describe_classes(roles: DetectedTask, label: str, texts: Sequence[str], why: str) -> tuple[dict[str, Any], str]:
    """Return the section of a classification, and why; ``label`` is a grade if other labels give the classes."""
    section = {"name": "classification", "text": list(texts) if len(texts) > 1 else texts[0], "label": label}
    counts = roles.labelled.counts(roles.answer)
    if label != roles.answer and roles.unlabelled is not None:
        counts = counts + roles.unlabelled.counts(roles.answer)
    classes = sorted(counts)
    is_joint = any("," in name and {part.strip() for part in name.split(",")} <= {*counts} for name in classes)
    if is_joint or has_lists(roles.labelled, roles.answer):
        why = f"{why}; a row may have several, in a list or between commas: they are the labels of the labelled split"
        return section | {"multi": True}, why
    numbers = all(re.fullmatch(r"-?\d+", name) for name in classes)
    if numbers:
        why = f"{why}; put each class's name after its number: the teacher scores these words"
    return section | {"classes": {name: name for name in classes} if numbers else with_words(classes)}, why


def _detect_published(name: str, tables: Sequence[TableFiles]) -> DetectedTask | None:
    """Return the task of a domain if the columns are those of one of its published formats, else ``None``."""
    domain = get_domain(DomainConfig(name=name))
    found = [next((form for form in domain.forms if {*form} <= {*table.columns}), None) for table in tables]
    has_lists = all(isinstance(row.get("choices"), list | Mapping) for table in tables for row in table.sample[:20])
    if None in found or (name == "mcqa" and any("choices" in (form or ()) for form in found) and not has_lists):
        return None
    shares = [
        sum(attempt(domain.gold, row)[0] is not None for row in table.sample) / len(table.sample) for table in tables
    ]
    labelled = tables[shares.index(max(shares))]
    others = [table for table in tables if table is not labelled]
    audited = not others or shares[tables.index(others[0])] == 1
    forms = dict.fromkeys(form for form in found if form is not None)
    why = (
        f"the columns {'; '.join(', '.join(form) for form in forms)} are those that the domain {name} reads",
        f"{labelled.path} has the right answers: of {max(shares):.0%} of the rows looked at",
    )
    return DetectedTask({"name": name}, labelled, others[0] if others else None, audited, why)


def _find_roles(tables: Sequence[TableFiles], hints: TaskHints, without: Sequence[str] = ()) -> DetectedTask:
    """Return the labelled file and its answer column: one that the other file lacks, or that is named like answers."""
    first, second = tables[0], tables[-1]
    names = [name for name in dict.fromkeys((*first.columns, *second.columns)) if name not in without]
    filled = {name: [table.filled(name) for table in tables] for name in names}
    if hints.answer is not None:
        holder = next((table for table in tables if hints.answer in table.columns), first)
        answer, why = holder.require(hints.answer, "--answer"), "by --answer"
    else:
        apart = [name for name in names if len(tables) == 2 and min(filled[name]) == 0 < max(filled[name])]
        named = [name for name in apart or names if name.casefold() in ANSWERS]
        answer = next((found[0] for found in (apart, named) if len(found) == 1), "")
        why = "the only column that just one of the files has" if len(apart) == 1 else "by the column's name"
        if not answer:
            raise _make_question_error(tables, "Which column has the right answer?", "--answer COLUMN")
    shares = filled[answer]
    labelled = tables[shares.index(max(shares))]
    if max(shares) < 0.95:
        raise ConfigError(
            f"{labelled.path}: column {quote_text(answer)} has a value in {max(shares):.0%} of the rows alone; put the "
            "rows with and without into a file each, and give both to --data"
        )
    others = [table for table in tables if table is not labelled]
    audited = not others or filled[answer][tables.index(others[0])] > 0.95
    why = f"the right answer is {quote_text(answer)}: {why}"
    return DetectedTask({}, labelled, others[0] if others else None, audited, (why,), answer=answer)


def _find_kind(roles: DetectedTask, hints: TaskHints, common: Sequence[str]) -> tuple[str, str]:
    """Return the domain for texts with an answer (classification, math or text), and why."""
    if hints.domain is not None:
        return hints.domain, f"the task is {hints.domain}: by --domain"
    if has_objects(roles.labelled, roles.answer):
        return "text", "the task is text: the right answers are JSON objects"
    if has_lists(roles.labelled, roles.answer):
        return "classification", "the task is classification: the cells are lists"
    counts = roles.labelled.counts(roles.answer)
    num_rows = sum(counts.values())
    numbers = sum(num for value, num in counts.items() if _NUMBER.fullmatch(value)) / max(1, num_rows)
    asks = any(name.casefold() in PROBLEMS for name in common)
    if numbers >= 0.8 and asks and len(counts) > 2:
        why = f"the task is math: {numbers:.0%} of the answers are numbers or formulas, and the rows ask for them"
        return "math", why
    if 2 <= len(counts) <= min(MOST_CLASSES, num_rows // ROWS_A_CLASS):
        return "classification", f"the task is classification: {len(counts)} different answers in {num_rows:,} rows"
    some = ", ".join(quote_text(value, 20) for value in list(counts)[:3])
    many = f"{len(counts):,} different answers in {num_rows:,} rows ({some})"
    about = f"{many}: is the task math, classification or text?"
    option = "--domain (text: free answers, which a rule or a program checks), or a class of your own"
    raise _make_question_error([roles.labelled], about, option)


def _find_text(
    roles: DetectedTask, hints: TaskHints, common: Sequence[str], names: Sequence[str]
) -> tuple[tuple[str, ...], str]:
    """Return the columns that the teacher reads, by option or name, and the reason."""
    if hints.text:
        return tuple(roles.labelled.require(name, "--text") for name in hints.text), "the text: by --text"
    left = [name for name in common if name != roles.answer and not is_id(name)]
    known = [name for expected in dict.fromkeys(names) for name in left if name.casefold() == expected]
    if len(known) == 1 or len(left) == 1:
        found = known[0] if known else left[0]
        by_name = ": by the column's name" if known else ""
        return (found,), f"the text is {quote_text(found)}{by_name}"
    tables = [roles.labelled] if roles.unlabelled is None else [roles.labelled, roles.unlabelled]
    raise _make_question_error(tables, "Which column does the teacher read?", "--text COLUMN")


def _make_question_error(tables: Sequence[TableFiles], question: str, option: str) -> ConfigError:
    """Return an error that asks a question which the files leave open, with the option that answers it."""
    has = "; ".join(f"{table.path} has {table.listed}" for table in tables)
    return ConfigError(f"--data: {question} {has}; give {option}")
