"""Labels made elsewhere (``teacher.backend: given``): their columns of the source."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from curation.config.base import Section
from curation.config.models import ModelConfig
from curation.label_columns import make_given_column

GIVEN = "given"
"""The backend of labels that are columns of the source."""
KEYS = ("completion", "grade", "confidence")
"""The keys of ``teacher`` that name columns."""
READ = (GIVEN, "endpoint")
"""The backends whose answers a model may read, since they come without hidden states."""

Column = Annotated[str, Field(min_length=1)]


def as_tuple(value: object) -> Any:
    """Return a text as a tuple of it, and any other value as it is."""
    return (value,) if isinstance(value, str) else value


Columns = Annotated[tuple[Column, ...], BeforeValidator(as_tuple)]
"""A list of columns; a single column may be given without a list."""


class ReaderConfig(Section):
    """A model that reads prompt and answer once, for log-probabilities and states of answers from elsewhere.

    The other keys of ``teacher`` set how it runs and what is stored, as for a model that answers.
    """

    model: ModelConfig
    """The model that reads; it need not be the one that answered."""
    backend: Literal["transformers", "vllm"] = "transformers"
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

    def _iter_problems(self) -> Iterator[str]:
        named = [name for name in (self.completion, self.grade, *self.confidence) if name is not None]
        made = [make_given_column(name) for name in self.confidence]
        if len({*named}) < len(named) or len({*made}) < len(made):
            yield (
                f"completion, grade and confidence name a column twice, or two whose names differ only in signs: "
                f"{', '.join(named)}; name each once, or rename one in the source"
            )
