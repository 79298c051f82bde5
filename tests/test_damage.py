"""A whole run whose files are lost or changed: what the same command, the report and the advice do."""

import shutil
import subprocess
import sys
from pathlib import Path

import lance
import pytest
from sums_run import SumsRun

ARMS = {"budget": {"n": 50}, "arms": ["naive", "trust"]}


def curate(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("curate")), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.slow
def test_what_is_lost_is_made_again_or_refused_with_a_command_that_works(tmp_path: Path):
    run = SumsRun(tmp_path, num_pool=200, actors={"min": 1, "max": 1}, seconds_per_row=0, sections={"selection": ARMS})
    assert curate("run", run.config).returncode == 0
    assert curate("verify", run.directory).returncode == 0

    (table,) = map(str, run.directory.glob("gen-0/select-*/trust.lance"))
    content = lance.dataset(table).to_table()
    shutil.rmtree(table)
    assert "gen-0/select is missing (to be made again: 2 of its files" in curate("report", run.config).stderr
    assert curate("run", run.config).returncode == 0 and lance.dataset(table).to_table().equals(content)
    (why,) = (event["why"] for event in run.events("started")[-2:] if event["stage"] == "gen-0/select")
    assert "to be made again" in why

    asked = len(run.labelled())
    (run.directory / "manifest.json").rename(tmp_path / "away")  # what a damaged manifest's message says
    assert curate("run", run.config).returncode == 0 and len(run.labelled()) == asked
    assert curate("verify", run.directory).returncode == 0

    (source,) = run.directory.glob("prepare-*/source.lance")
    shutil.rmtree(source)
    again = curate("run", run.config)
    assert again.returncode == 0, again.stderr
    assert curate("verify", run.directory).returncode == 0

    (labels,) = run.directory.glob("gen-0/label-pool-*/labels.lance")
    sorted((labels / "data").iterdir(), key=lambda path: path.stat().st_size)[-1].unlink()
    for verb in ("run", "report"):
        refused = curate(verb, run.config)
        assert refused.returncode in (1, 2) and "Traceback" not in refused.stderr and ".rs:" not in refused.stderr
        assert f"`curate run {run.directory} --redo gen-0/label-pool`" in refused.stderr.splitlines()[-1]
    again = curate("run", run.directory, "--redo", "gen-0/label-pool")
    assert again.returncode == 0, again.stderr
    assert curate("verify", run.directory).returncode == 0
