"""The scripted teacher: answers, speed and faults, for tests and dry runs."""

from typing import Annotated

from pydantic import Field

from curation.config.base import Section


class ScriptConfig(Section):
    """Answers of the scripted teacher."""

    completions: Annotated[tuple[str, ...], Field(min_length=1)] = (" e2e4",)
    """One is chosen by a hash of the row id."""
    state_size: Annotated[int, Field(gt=0, le=65_536)] = 8
    """Numbers of a hidden state."""


class ScriptedConfig(ScriptConfig):
    """The scripted teacher: completions by row id, and faults on demand (tests and dry runs)."""

    seconds_per_row: Annotated[float, Field(ge=0)] = 0.0
    """How long each row takes."""
    seconds_per_token: Annotated[float, Field(ge=0)] = 0.0
    """For each word of a prompt and of its completion, besides ``seconds_per_row``."""
    slots: Annotated[int, Field(gt=0)] | None = None
    """Rows that are answered side by side, each in ``seconds_per_answer``, as an engine does with free places."""
    seconds_per_answer: Annotated[float, Field(ge=0)] = 0.0
    """How long each row takes in its slot."""
    start_seconds: Annotated[float, Field(ge=0)] = 0.0
    """How long it takes to start."""
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
