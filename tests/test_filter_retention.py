"""``output.keep_rounds``: rows and labels of old rounds go, and what later starts and the shift test need stays."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner
from filter_package import make_package, write_pool
from test_filter import go, row_ids, written

from curation.cli import main
from curation.commands.inspect import list_tables
from curation.errors import RunDirError
from curation.extras.review import source
from curation.filter import described
from curation.rundir.manifest import Manifest

pytestmark = pytest.mark.long

NUM_ROWS, POOLED = 120, 300
KEEP = {"share": 0.2}


@dataclass(frozen=True)
class Daily:
    """An output after four daily rounds, the last two of which keep their tables."""

    package: str
    pool: Path
    output: Path
    bytes: list[int]
    """Of ``_curation``'s tables after each day."""

    @property
    def work(self) -> Path:
        return self.output / "_curation"

    def rounds(self, kind: str) -> list[str]:
        return sorted(path.name.split("-")[1] for path in self.work.glob(f"{kind}-*"))


def day(daily: Daily, number: int, *overrides: str, **how: object) -> None:
    write_pool(daily.pool / f"day{number}.jsonl", NUM_ROWS, first=number * NUM_ROWS)
    go(daily.package, daily.pool, daily.output, KEEP, *overrides, **how)
    tables = [path for path in daily.work.rglob("*") if path.is_file() and ".lance" in str(path)]
    daily.bytes.append(sum(path.stat().st_size for path in tables))


@pytest.fixture(scope="module")
def made(local_ray, tmp_path_factory) -> Daily:
    home = tmp_path_factory.mktemp("daily")
    daily = Daily(make_package(home).uri, home / "pool", home / "out", [])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(described, "MAX_ROWS", POOLED)  # two rounds and no third
        for number in range(4):
            day(daily, number, *(["output.keep_rounds=1"] if number else []))
    return daily


@pytest.fixture
def daily(made: Daily, monkeypatch) -> Daily:
    monkeypatch.setattr(described, "MAX_ROWS", POOLED)
    return made


def test_tables_stay_for_the_rounds_that_are_pooled_and_their_size_stops_growing(daily: Daily):
    assert daily.rounds("label") == daily.rounds("pool") == ["0002", "0003"]
    assert daily.bytes[3] < 1.1 * daily.bytes[1]
    content = json.loads((daily.output / "filter.json").read_text())
    assert [item["rows"] for item in content["rounds"]] == [NUM_ROWS] * 4
    assert len(written(daily.output)) == sum(item["kept"] for item in content["rounds"]) == len(row_ids(daily.output))
    assert content["rounds"][3]["foreign"]["rounds"] == ["0002", "0003"]
    assert sum(file["rows"] for file in content["files"]) == len(row_ids(daily.output))


def test_the_next_start_goes_on_and_labels_only_what_is_new(daily: Daily, local_ray):
    before, files = row_ids(daily.output), {path.name for path in (daily.output / "data").iterdir()}
    assert not go(daily.package, daily.pool, daily.output, KEEP, "output.keep_rounds=1").did
    started = len(list(daily.work.rglob("events.jsonl")))
    day(daily, 4, "output.keep_rounds=1")
    assert row_ids(daily.output) > before and {path.name for path in (daily.output / "data").iterdir()} > files
    assert daily.rounds("label") == ["0003", "0004"] and started == 1


def test_a_cut_or_a_format_that_needs_a_removed_round_is_refused(daily: Daily):
    before = row_ids(daily.output)
    for overrides, how in (((), {"recut": True}), (("output.rows_per_file=7",), {})):
        with pytest.raises(RunDirError, match=r"has to be done .* label-000\d.* which output.keep_rounds removed"):
            go(daily.package, daily.pool, daily.output, KEEP, *overrides, **how)
    assert row_ids(daily.output) == before


def test_commands_know_that_a_round_was_removed(daily: Daily):
    verified = CliRunner().invoke(main, ["verify", str(daily.output)])
    assert verified.exit_code == 0 and "0000" not in verified.output, verified.output
    assert {item.state for item in list_tables(daily.work)} == {"done"}
    status = CliRunner().invoke(main, ["status", str(daily.output)])
    assert status.exit_code == 0 and "to be made again" not in status.output
    rounds = daily.rounds("label")
    assert [ref.uri.split("/label-")[1][:4] for ref in source._find_in_filter(daily.output, None).labels] == rounds


def test_what_a_kill_left_of_a_removed_round_is_removed_by_clean_and_by_the_next_start(daily: Daily):
    manifest = Manifest.load(daily.work)
    folder = manifest.directory_of("label-0000", manifest.stages["label-0000"].inputs)
    for remove in (
        lambda: CliRunner().invoke(main, ["clean", str(daily.output), "--older-than", "0"]),
        lambda: go(daily.package, daily.pool, daily.output, KEEP, "output.keep_rounds=1"),
    ):
        shutil.copytree(next(daily.work.glob("label-*")), folder)
        remove()
        assert not folder.exists() and daily.rounds("label") == daily.rounds("pool")
