"""The scripted teacher: answers, speed and faults, for tests and dry runs."""

from typing import Annotated

from pydantic import Field

from curation.config.base import Section


class ScriptConfig(Section):
    """Answers of the scripted teacher."""

    completions: Annotated[tuple[str, ...], Field(min_length=1)] = (" e2e4",)
    """Completions, one of which is chosen for each row by a hash of its id."""
    state_size: Annotated[int, Field(gt=0, le=65_536)] = 8
    """Length of a hidden state."""


class ScriptedConfig(ScriptConfig):
    """The scripted teacher: completions by row id, and faults on demand (tests and dry runs)."""

    seconds_per_row: Annotated[float, Field(ge=0)] = 0.0
    """Seconds per row."""
    seconds_per_token: Annotated[float, Field(ge=0)] = 0.0
    """Seconds per word of a prompt and its completion, besides ``seconds_per_row``."""
    slots: Annotated[int, Field(gt=0)] | None = None
    """Number of rows answered concurrently, each in ``seconds_per_answer``, as an engine does."""
    seconds_per_answer: Annotated[float, Field(ge=0)] = 0.0
    """Seconds per row in its slot."""
    start_seconds: Annotated[float, Field(ge=0)] = 0.0
    """Seconds until the teacher has started."""
    log: str | None = None
    """A file that receives a line ``row_id`` for each row labelled, before the row is handed on."""
    crash_rows: tuple[int, ...] = ()
    """Rows that kill the actor's process, each once per file ``<log>.crashed-<row>``."""
    poison_rows: tuple[int, ...] = ()
    """Rows that kill the actor's process whenever they are labelled."""
    hang_rows: tuple[int, ...] = ()
    """Rows on which the teacher hangs for ever."""
    error_rows: tuple[int, ...] = ()
    """Rows that come back as error rows."""
