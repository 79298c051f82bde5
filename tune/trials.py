"""The fits of a search that have ended, a file each."""

import json
from dataclasses import asdict, dataclass
from typing import NamedTuple, Self

from curation.json_types import JsonView
from curation.storage.paths import Place, write_atomically
from tune.objective import Outcome


class Fold(NamedTuple):
    """The rows that a fit holds out, and its seeds."""

    number: int
    seed: int
    """Seed of the folds and of the parts of the other rows."""
    fit_seed: int
    """Seed of initial weights and batches."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One fit of a search: what was tried and what came of it."""

    number: int
    kind: str
    drawn: JsonView
    """The values of the space's dimensions; empty for the default."""
    outcome: Outcome | None = None
    error: str | None = None
    """Why it has no outcome."""

    @classmethod
    def from_json(cls, value: JsonView) -> Self:
        """The inverse of ``dataclasses.asdict``."""
        outcome = value["outcome"]
        return cls(**{**value, "outcome": None if outcome is None else Outcome(**outcome)})


class TrialJournal:
    """The fits that have ended: a file each, so that it is there whole or not at all."""

    def __init__(self, directory: Place) -> None:
        self._directory = directory
        names = directory.iterdir() if directory.is_dir() else ()
        read = (Trial.from_json(json.loads(path.read_text())) for path in names if path.name.endswith(".json"))
        self._done = {trial.number: trial for trial in read}

    @property
    def all(self) -> list[Trial]:
        """Trials by number."""
        return [self._done[number] for number in sorted(self._done)]

    def __len__(self) -> int:
        return len(self._done)

    def get(self, number: int) -> Trial | None:
        """The fit of that number, if it has ended."""
        return self._done.get(number)

    def add(self, trial: Trial) -> None:
        """Record a fit."""
        write_atomically(self._directory / f"{trial.number:05d}.json", json.dumps(asdict(trial), indent=1) + "\n")
        self._done[trial.number] = trial
