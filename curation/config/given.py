"""Labels made elsewhere (``teacher.backend: given``): their columns of the source, and defaults that follow."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from curation.arms import FREE
from curation.config.base import Section
from curation.config.models import ModelConfig
from curation.json_types import Json, JsonView
from curation.label_columns import make_given_column

GIVEN = "given"
"""The backend of labels that are columns of the source."""
KEYS = ("completion", "grade", "confidence")
"""The keys of ``teacher`` that name columns."""
READ = (GIVEN, "endpoint")
"""The backends whose answers a model may read, since they come without hidden states."""

Column = Annotated[str, Field(min_length=1)]


def _as_tuple(value: object) -> Any:
    return (value,) if isinstance(value, str) else value


Columns = Annotated[tuple[Column, ...], BeforeValidator(_as_tuple)]
"""A list of columns; a single column may be given without a list."""


class ReaderConfig(Section):
    """A model that reads prompt and answer once, for log-probabilities and states of answers from elsewhere.

    The other keys of ``teacher`` set how it runs and what is stored, as for a model that answers.
    """

    model: ModelConfig
    """The model that reads; it need not be the one that answered."""
    backend: Literal["transformers", "vllm", "auto"] = "transformers"
    """A backend, as in ``teacher.backend``."""
    chat_template: bool = False
    """With ``backend: endpoint``: whether the prompt is one user turn of the reader's chat template, while
    ``teacher.chat_template`` is for the server. With ``backend: given``, set ``teacher.chat_template`` instead."""

    @model_validator(mode="before")
    @classmethod
    def _has_a_model(cls, value: object) -> Any:
        if isinstance(value, Mapping) and value.get("model") is None:
            raise ValueError("needs model: the one that reads, e.g. {path: Qwen/Qwen3-0.6B}")
        return value


class GivenConfig(Section):
    """The columns of a source's rows that hold labels made elsewhere; filled from ``teacher``, never by hand."""

    completion: Column
    """``teacher.completion``."""
    grade: Column | None = None
    """``teacher.grade``."""
    confidence: Columns = ()
    """``teacher.confidence``."""

    @property
    def numbers(self) -> dict[str, str]:
        """The column of the labels table for each column of ``confidence``."""
        return {name: make_given_column(name) for name in self.confidence}

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        named = [self.completion, *([] if self.grade is None else [self.grade]), *self.confidence]
        if twice := [name for name in named if named.count(name) > 1]:
            raise ValueError(
                f"column {twice[0]!r} is named twice by teacher.completion, grade and confidence; name each column once"
            )
        by_column: dict[str, str] = {}
        for name, column in self.numbers.items():
            if column in by_column:
                raise ValueError(
                    f"confidence: columns {by_column[column]!r} and {name!r} would both be {column} in the labels "
                    "table; rename one in the source"
                )
            by_column[column] = name
        return self


def choose_arms(teacher: Any, default: Sequence[str]) -> tuple[str, ...]:
    """Return a run's default arms, with those of given numbers and without free signals that nothing provides."""
    if not isinstance(teacher, Mapping):
        return tuple(default)
    endpoint, named = teacher.get("endpoint"), _as_tuple(teacher.get("confidence", ()))
    kept = [arm for arm in default if arm not in FREE] if teacher.get("reader") is None else [*default]
    if isinstance(endpoint, Mapping) and endpoint.get("top_logprobs") == 0:
        return tuple(kept)
    if teacher.get("backend") != GIVEN:
        return tuple(default)
    columns = named if isinstance(named, list | tuple) else ()
    numbers = [make_given_column(name) for name in columns if isinstance(name, str)]
    return tuple(dict.fromkeys([*kept[:1], *numbers, *kept[1:]]))


def fill_labelled_elsewhere(value: JsonView, **defaults: Json) -> Json:
    """Return a run's sections with ``defaults`` for labels that no model here makes, and no states without a reader.

    Sections that are no mappings stay unchanged: validation refuses them, or they were made in Python.
    """
    stateless: Json = {"states": ()} if value["teacher"].get("reader") is None else {}
    filled = dict(value)
    for section in dict.fromkeys(("teacher", "trust", *defaults)):
        keys = (stateless if section in ("teacher", "trust") else {}) | defaults.get(section, {})
        if isinstance(own := value.get(section, {}), Mapping):
            filled[section] = {**keys, **own}
    return filled


def with_given(value: JsonView, default_domain: Any, arms: Sequence[str]) -> Json:
    """Return a run's sections for given labels (:func:`fill_labelled_elsewhere`), with their columns in all domains."""
    teacher = value["teacher"]
    filled = fill_labelled_elsewhere(value, selection={"gold_rollouts": {"source": "answers"}, "arms": arms})
    columns = {key: teacher[key] for key in KEYS if teacher.get(key) is not None}
    if "completion" not in columns:
        return filled
    filled["domain"] = _add_columns(value.get("domain", default_domain), columns)
    if isinstance(sources := value.get("sources"), Mapping):
        filled["sources"] = {
            name: {**source, "domain": _add_columns(source["domain"], columns)}
            if isinstance(source, Mapping) and source.get("domain") is not None
            else source
            for name, source in sources.items()
        }
    return filled


def _add_columns(domain: object, columns: Mapping[str, object]) -> Any:
    named = {"name": domain} if isinstance(domain, str) else domain
    return {**named, "given_labels": dict(columns)} if isinstance(named, Mapping) else named


def find_given_problem(teacher: Any) -> str | None:
    """Return the problem with a teacher section and its columns, or ``None`` if there is none."""
    if teacher.reads_given:
        return "reads_given: follows from reader; leave it out, and set reader: {model: ...}"
    named = [key for key in KEYS if getattr(teacher, key)]
    if teacher.backend != GIVEN:
        if teacher.reader is not None and teacher.backend not in READ:
            return (
                f"reader: reads answers that another gave, and backend {teacher.backend} has states of its own; take "
                f"backend {' or '.join(READ)}, or leave it out"
            )
        if not named:
            return None
        return (
            f"{named[0]}: names a column of labels made elsewhere, which is for backend: given; set that, or leave it "
            "out"
        )
    if teacher.completion is None:
        return "backend given needs completion: the column of the source that holds the labels"
    for key in ("model", "adapt"):
        if getattr(teacher, key) is not None:
            mend = "leave it out" if key == "adapt" else "leave it out, or name one that reads them by reader: {model}"
            return f"{key}: backend given asks no model for labels; {mend}"
    if teacher.reader is not None:
        in_turns = teacher.reader.chat_template
        return "reader.chat_template: is teacher.chat_template with backend given; set that" if in_turns else None
    used = {
        "states": bool(teacher.states),
        "token_logprobs": bool(teacher.token_logprobs),
        "store_states": teacher.store_states is not True,
    }
    if found := [key for key, is_used in used.items() if is_used]:
        return (
            f"{found[0]}: backend given asks no model, so there is nothing to store; leave it out, or set reader: "
            "{model: ...}, which reads the labels"
        )
    if not teacher.confidence:
        return (
            "backend given has neither states nor log-probabilities, so that trust can only read columns of numbers; "
            "set confidence: to one or several, e.g. the confidence that came with each label, or reader: "
            "{model: ...}, which reads the labels"
        )
    return None
