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
    """Whether the prompt is one user turn of the reader's chat template."""


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
        named = [name for name in (self.completion, self.grade, *self.confidence) if name is not None]
        made = [make_given_column(name) for name in self.confidence]
        if len({*named}) < len(named) or len({*made}) < len(made):
            raise ValueError(
                f"completion, grade and confidence name a column twice, or two whose names differ only in signs: "
                f"{', '.join(named)}; name each once, or rename one in the source"
            )
        return self


def fill_labelled_elsewhere(value: JsonView, domain: object, arms: Sequence[str]) -> Json:
    """Return a run's sections with the defaults that follow from its teacher.

    Labels that no model here makes bring arms of given numbers, and no states and free signals that nothing provides.
    Sections that are no mappings stay unchanged: validation refuses them, or they were made in Python.

    Args:
        value: the sections of the file.
        domain: the default of ``domain``.
        arms: the default of ``selection.arms``.
    """
    teacher = found if isinstance(found := value.get("teacher"), Mapping) else {}
    server = found if isinstance(found := teacher.get("endpoint"), Mapping) else {}
    backend, is_read = teacher.get("backend"), teacher.get("reader") is not None
    columns = {key: teacher[key] for key in KEYS if teacher.get(key) is not None} if backend == GIVEN else {}
    defaults: dict[str, Json] = {"selection": {}}
    if backend in READ and not is_read:
        defaults |= {"teacher": {"states": ()}, "trust": {"states": ()}}
        arms = [arm for arm in arms if arm not in FREE or (backend != GIVEN and server.get("top_logprobs") != 0)]
    if backend == GIVEN:
        named = _as_tuple(columns.get("confidence", ()))
        numbers = [make_given_column(name) for name in named if isinstance(name, str)]
        arms = tuple(dict.fromkeys([*arms[:1], *numbers, *arms[1:]]))
        defaults["selection"] = {"gold_rollouts": {"source": "answers"}}
    elif backend in READ and server.get("kind", "openai") == "openai":
        defaults["teacher"] = defaults.get("teacher", {}) | {"chat_template": True}
    if backend in READ and isinstance(price := server.get("price"), Mapping):
        of = {"per_million_prompt_tokens": price.get("input"), "per_million_output_tokens": price.get("output")}
        defaults["prices"] = of
    defaults["selection"]["arms"] = tuple(arms)
    filled = dict(value)
    for section, keys in defaults.items():
        if isinstance(own := value.get(section) or {}, Mapping):
            filled[section] = {**keys, **own}
    if "completion" in columns:
        filled["domain"] = _add_columns(value.get("domain", domain), columns)
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
