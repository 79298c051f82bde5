"""A finished run, started again: it imports nothing heavy, and leaves a report that would say the same."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from test_combining import finished_run

from curation.cli import main
from curation.rundir.manifest import Manifest
from curation.rundir.run import Run

HEAVY = {"ray", "torch", "transformers", "tokenizers", "sklearn", "peft", "trl", "datasets"}
AGAIN = """
import sys
from curation.cli import main
main(["run", sys.argv[1]], standalone_mode=False)
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""


@pytest.fixture(scope="module", autouse=True)
def drawn_quickly() -> Iterator[None]:
    """The page without its figures, which take most of the time: whether it is written is looked at."""

    def write(content: Any, directory: Path) -> tuple[Path, Path]:
        page, numbers = directory / "report.html", directory / "report.json"
        page.write_text("<html>")
        numbers.write_text(json.dumps(content))
        return page, numbers

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("curation.report.write", write)
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with its report."""
    directory = finished_run(tmp_path_factory.mktemp("again"), "again", 1)
    assert f"report: {directory / 'report.html'} is kept" in curate(directory)
    return directory


def curate(directory: Path, *options: str) -> str:
    result = CliRunner().invoke(main, ["run", str(directory), *options], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.long
def test_the_order_in_which_stages_ended_makes_no_other_report(run: Path, monkeypatch: pytest.MonkeyPatch):
    do = Run.do
    monkeypatch.setattr(Run, "do", lambda self, stages: dict(reversed(do(self, stages).items())))
    assert "nothing that it shows has changed" in curate(run)


@pytest.mark.long
def test_a_finished_run_again_imports_nothing_heavy_and_leaves_its_report(run: Path):
    before = {name: (run / name).stat().st_mtime_ns for name in ("report.html", "report.json", "manifest.json")}
    done = subprocess.run([sys.executable, "-c", AGAIN, str(run)], capture_output=True, text=True, check=True)
    assert not HEAVY & set(done.stdout.splitlines()[-1].split())
    assert "all stages are done" in done.stderr and "nothing that it shows has changed" in done.stderr
    assert {name: (run / name).stat().st_mtime_ns for name in before} == before


@pytest.mark.long
def test_what_people_said_makes_another_report_once(run: Path, tmp_path: Path):
    def review(verb: str, *options: str) -> None:
        result = CliRunner().invoke(main, ["review", verb, str(run), *options], catch_exceptions=False)
        assert result.exit_code == 0, result.output

    def judge(verdict: str) -> None:
        rows = pq.read_table(run / "review/trust/rows.parquet", columns=["row_id"])["row_id"].to_pylist()
        (tmp_path / "v.csv").write_text("row_id,verdict\n" + "".join(f"{row},{verdict}\n" for row in rows[:5]))
        review("import", "csv", str(tmp_path / "v.csv"))

    curate(run)
    review("draw", "--num", "10")
    judge("right")
    assert "nothing that it shows has changed" in curate(run)  # verdicts come to the report by a result
    for verdict in ("right", "wrong"):
        judge(verdict)
        review("result")
        assert "has changed" not in curate(run)
        review("result", "--alpha", "0.3")  # the cut is not in the report
        assert "nothing that it shows has changed" in curate(run)
    (run / "review/trust/review.json").write_text("{")
    assert "review.json cannot be read" in curate(run) and "nothing that it shows has changed" in curate(run)


@pytest.mark.long
def test_a_report_is_written_again_where_it_is_gone_damaged_or_made_of_something_else(run: Path):
    page, numbers = run / "report.html", run / "report.json"
    page.unlink()
    assert "has changed" not in curate(run) and page.is_file()
    numbers.write_text("{")
    assert "has changed" not in curate(run) and json.loads(numbers.read_text())["arms"]
    told = curate(run, "--set", "prices={gpu_hour: 3}")
    assert "has changed" not in told and json.loads(numbers.read_text())["config"]["prices"]["gpu_hour"] == 3
    told = curate(run, "--set", "prices={gpu_hour: 3}")
    assert "nothing that it shows has changed" in told
    again = CliRunner().invoke(main, ["report", str(run)], catch_exceptions=False)  # a run directory, always written
    assert again.exit_code == 0 and "gpu_hour" in numbers.read_text() and "has changed" not in again.output


@pytest.mark.long
def test_damaged_numbers_are_named_and_computed_again(run: Path):
    path = Path(Manifest.load(run).stages["gen-0/numbers"].outputs["metrics"])
    before = json.loads(path.read_text())["numbers"]
    path.write_bytes(b" " * path.stat().st_size)
    told = CliRunner().invoke(main, ["run", str(run)])
    again = f"curate run {run} --redo gen-0/numbers"
    assert told.exit_code == 2 and f"`{again}` computes them again" in told.output
    verified = CliRunner().invoke(main, ["verify", str(run)])
    assert verified.exit_code == 1 and again in verified.output
    assert "to be done again: gen-0/numbers" in curate(run, "--redo", "gen-0/numbers")
    path = Path(Manifest.load(run).stages["gen-0/numbers"].outputs["metrics"])
    path.write_text("{")  # a file of another size is seen by itself
    curate(run)
    path = Path(Manifest.load(run).stages["gen-0/numbers"].outputs["metrics"])
    assert json.loads(path.read_text())["numbers"] == before
    assert "damaged" not in CliRunner().invoke(main, ["verify", str(run)], catch_exceptions=False).output
