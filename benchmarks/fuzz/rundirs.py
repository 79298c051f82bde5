"""Run directories of which files were damaged, tried with every command that reads them.

Two kinds of run, each whole and broken off: ``directories`` have stages that write what real ones write, without Ray
(:mod:`benchmarks.fuzz.sealed_run`), and ``runs`` are real ones, over sums with a scripted teacher. A command gives the
right result or refuses in one line. What it says is then done (`--redo`, a file moved away), up to three times, and
the tables, the exports and the report must be those of the undamaged run. Where the damage lies in bytes that a command
reads as data, `curate verify` must have named it.
"""

import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hypothesis

from benchmarks.fuzz.damage import Damage, Named, inflict
from benchmarks.fuzz.oracle import COUNTS
from benchmarks.fuzz.outcome import Content, Told, content_of, tell
from benchmarks.fuzz.worker import Ended, Worker

CURATE = "curation.cli:main"
LOOK_SECONDS, RUN_SECONDS = 60.0, 200.0
"""A command that takes longer hangs."""
ROUNDS = 4
_REDO = re.compile(r"--redo (\S+?)[`'\s]|--redo (\S+)$")
_AWAY = re.compile(r"^curate: (/.+?): .*(?:move it away|or remove|remove it)")
_REMOVE = re.compile(r"or remove (/.+?): the same command")


@dataclass(kw_only=True)
class Subject:
    """A run directory with its states before damage, and the commands that are tried on it."""

    kind: str
    home: Path
    states: list[Path]
    """Copies of it: broken off, and whole."""
    command: str
    """The group of commands that has ``run``, as ``module:name``."""
    run: list[str]
    looks: list[list[str]]
    """Arguments of `curate` commands that only read."""
    worker: Worker
    expected: Content = field(default_factory=dict)

    def look(self, *arguments: str) -> Told:
        """Call a command that only reads."""
        told: Told = self.worker(tell, CURATE, list(arguments), seconds=LOOK_SECONDS)
        return told

    def go(self, *redo: str) -> Told:
        """Go on with the run."""
        options = [text for stage in redo for text in ("--redo", stage)]
        told: Told = self.worker(tell, self.command, [*self.run, *options], seconds=RUN_SECONDS)
        return told

    def content(self) -> Content | str:
        """Return what the run has made."""
        found: Content | str = self.worker(content_of, str(self.home), seconds=LOOK_SECONDS)
        return found


def check_directory(subject: Subject, state: int, damages: Sequence[Damage | Named]) -> set[str]:
    """Damage a copy of the run directory, try all commands, and do what they say until the result is right.

    Returns what happened on the way: it was refused, found by `curate verify` alone, or it ended the process.
    """
    COUNTS[f"{subject.kind}: tried"] += 1
    shutil.rmtree(subject.home, ignore_errors=True)
    shutil.copytree(subject.states[state], subject.home)
    for damage in damages:
        done = inflict(subject.home, damage, subject.states[1 - state])
        note(" ".join(["damaged:", "whole" if state else "broken off", *done]))
    outcomes: set[str] = set()
    verified = subject.look("verify", str(subject.home), "--json")
    require_fine(verified, ["verify"])
    for arguments in subject.looks:
        try:
            require_fine(subject.look(*arguments), arguments)
        except Ended as error:
            _allow(error, verified, outcomes)
    redo: list[str] = []
    for _ in range(ROUNDS):
        try:
            ran = subject.go(*redo)
        except Ended as error:
            _allow(error, verified, outcomes)
            redo = _stages(subject, verified)
            continue
        require_fine(ran, ["run", *redo])
        note(f"run {redo}: {ran.code} {ran.line}")
        if ran.code:
            outcomes.add("refused")
            redo = _advised(subject, ran)
            continue
        verified = subject.look("verify", str(subject.home), "--json")
        require_fine(verified, ["verify"])
        if not verified.code:
            found = subject.content()
            assert _covers(found, subject.expected), f"a silent difference: {_difference(found, subject.expected)}"
            break
        outcomes.add("found by verify")
        redo = _stages(subject, verified)
    else:
        raise AssertionError(f"what the commands say does not help: {ran.line or verified.out}")
    for outcome in outcomes or {"right at once"}:
        COUNTS[f"{subject.kind}: {outcome}"] += 1
    return outcomes


def note(text: str) -> None:
    """Note a text, which is shown with a failing input."""
    if hypothesis.currently_in_test_context():
        hypothesis.note(text)


def require_fine(told: Told, arguments: Sequence[str]) -> None:
    """Check that a command ended as the command line may end.

    Raises:
        AssertionError: with what it said.
    """
    shown = f"{' '.join(arguments)}: {told.code}\n{told.out[-2000:]}\n{told.err[-2000:]}\n{told.trace[-6000:]}"
    assert not told.trace and "Traceback" not in told.out + told.err, shown
    assert ".rs:" not in told.out + told.err, shown
    assert told.code in (0, 1, 2), shown
    refusals = [line for line in told.err.splitlines() if line.startswith("curate: ")]
    if told.code == 0 or (arguments[0] == "verify" and not told.err):
        assert not refusals, shown
    else:
        assert len(refusals) == 1 and len(refusals[0]) < 10_000 and told.err.splitlines()[-1] == refusals[0], shown


def _allow(error: Ended, verified: Told, outcomes: set[str]) -> None:
    """Check that a process ended only because of data that `curate verify` has named."""
    if "no answer" in str(error) or verified.code != 1 or ".lance/data/" not in verified.out:
        raise error
    outcomes.add("ended the process")


def _stages(subject: Subject, verified: Told) -> list[str]:
    """Return the stages that `curate verify` names; move a damaged manifest away."""
    damage = json.loads(verified.out)["damage"] if verified.out else []  # without a manifest there is no run
    if any(item["path"] == "manifest.json" for item in damage):
        _away(subject.home / "manifest.json")
    return list(dict.fromkeys(item["stage"] for item in damage if item["stage"]))


def _advised(subject: Subject, ran: Told) -> list[str]:
    """Do what a refusal says; return the stages to do again."""
    verified = subject.look("verify", str(subject.home), "--json")
    require_fine(verified, ["verify"])
    if "`curate verify" in ran.line and (stages := _stages(subject, verified)):
        return stages
    if redo := [found[1] or found[2] for found in _REDO.finditer(ran.line)]:
        return redo
    if "another run is using it" in ran.line:  # a lease that was changed runs out
        shutil.rmtree(subject.home / "lease")
        return []
    if found := _REMOVE.search(ran.line) or _AWAY.search(ran.line):
        path = Path(found[1])
        assert path.is_relative_to(subject.home) and path != subject.home, ran.line
        _away(path)
        return []
    raise AssertionError(f"a refusal without advice that helps: {ran.line}\n{verified.out[-1000:]}")


def _away(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def _covers(found: Any, expected: Any) -> bool:
    """Return whether all that is expected was found; a table of labels may have earlier scores."""
    if isinstance(expected, dict):
        return isinstance(found, dict) and all(
            key in found and _covers(found[key], part) for key, part in expected.items()
        )
    if isinstance(expected, list):
        return isinstance(found, list) and len(found) == len(expected) and all(map(_covers, found, expected))
    return bool(found == expected)


def _difference(found: Content | str, expected: Content) -> str:
    if isinstance(found, str):
        return found
    names = [name for name, wanted in expected.items() if not _covers(found.get(name), wanted)]
    return "; ".join(f"{name}: {str(found.get(name))[:300]}, not {str(expected.get(name))[:300]}" for name in names)
