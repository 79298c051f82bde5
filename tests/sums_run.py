"""A run over sums in a process of its own, for tests in which something is killed."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import lance
import yaml
from click.testing import CliRunner

from benchmarks.recorded import recorded
from curation.cli import main

NUM_SOURCE = 100
ROOT = Path(__file__).parents[1]


class SumsRun:
    """One run directory and the command that is run in it again and again; half of the labels are right unless told."""

    def __init__(
        self,
        directory: Path,
        *,
        num_pool: int,
        actors: dict[str, Any],
        seconds_per_row: float,
        chunk_rows: int = 25,
        commit_seconds: float = 0.2,
        splits: Mapping[str, Any] = MappingProxyType({}),
        sections: Mapping[str, Any] = MappingProxyType({}),
        num_more: int = 0,
    ) -> None:
        """``splits`` beside source and pool take ``num_more`` rows in all; ``sections`` stand in place of others."""
        self.directory = directory / "run"
        self._stderr, self._log = directory / "stderr.log", directory / "labelled.log"
        self.stdout = directory / "stdout.log"
        sums = directory / "sums.jsonl"
        rows = [{"problem": f"What is {n + 1} - {n}?", "answer": "1"} for n in range(NUM_SOURCE + num_pool + num_more)]
        sums.write_text("\n".join(map(json.dumps, rows)))
        config = {
            "name": "sums",
            "run_dir": str(self.directory),
            "domain": "math",
            "sources": {"sums": {"path": str(sums)}},
            "splits": {
                "source": {"from": "sums", "rows": NUM_SOURCE},
                "pool": {"from": "sums", "rows": num_pool},
                **splits,
            },
            "teacher": {
                "backend": "scripted",
                "chunk_rows": chunk_rows,
                "actors": actors,
                "scripted": {
                    "completions": [" \\boxed{1}", " \\boxed{2}"],
                    "seconds_per_row": seconds_per_row,
                    "log": str(self._log),
                },
            },
            "selection": {"budget": {"n": 50}, "arms": ["naive", "internal_confidence"]},
            "commit_seconds": commit_seconds,
            **sections,
        }
        self.config = directory / "sums.yaml"
        self.config.write_text(yaml.safe_dump(config))

    @property
    def command(self) -> list[str]:
        """The command that runs it, and goes on with it."""
        return [str(Path(sys.executable).with_name("curate")), "run", str(self.config)]

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        """A driver. The project's folder comes first in ``PYTHONPATH``: ``tests/curation`` would hide the package."""
        path = (str(ROOT), environment.get("PYTHONPATH"), os.environ.get("PYTHONPATH"))
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, path))
        with self._stderr.open("a") as stderr, self.stdout.open("a") as stdout:
            return subprocess.Popen(
                [*self.command, *arguments],
                env={**os.environ, **environment},
                stdout=stdout,
                stderr=stderr,
            )

    def run(self, *arguments: str, code: int = 0) -> None:
        """The command within this process, on the Ray that runs here: far sooner done than by a driver of its own."""
        result = CliRunner().invoke(main, ["run", str(self.config), *arguments])
        with self._stderr.open("a") as stderr:
            stderr.write(result.stderr)
        assert result.exit_code == code, result.output

    def errors(self) -> str:
        """What the drivers have said."""
        return self._stderr.read_text()

    def events(self, kind: str) -> list[dict[str, Any]]:
        """The events of a kind, in order."""
        path = self.directory / "events.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [event for event in map(json.loads, lines) if event["event"] == kind]

    def labelled(self) -> list[int]:
        """The row ids that the teacher was given, again and again where it was."""
        return [int(line) for line in self._log.read_text().split("\n") if line] if self._log.exists() else []

    def labels(self) -> lance.LanceDataset | None:
        """The pool's labels, as far as they are committed."""
        # The folder is there before its first version is, and a driver may be between the two.
        found = list(self.directory.glob("gen-0/label-pool-*/labels.lance/_versions/*.manifest"))
        return lance.dataset(str(found[0].parents[1])) if found else None

    def committed(self) -> list[int]:
        """The row ids in the pool's labels, in order."""
        labels = self.labels()
        return [] if labels is None else sorted(labels.to_table(columns=["row_id"])["row_id"].to_pylist())

    def pool(self) -> list[int]:
        """The row ids of the pool, in order."""
        (path,) = self.directory.glob("prepare-*/pool.lance")
        return sorted(lance.dataset(str(path)).to_table(columns=["row_id"])["row_id"].to_pylist())

    def counts(self) -> dict[str, Any]:
        """What the manifest says became of the pool's rows."""
        stages = recorded(self.directory)
        counts: dict[str, Any] = stages["gen-0/label-pool"]["outputs"]["counts"]
        return counts
