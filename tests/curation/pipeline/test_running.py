"""A run from its configuration on: what it does once another driver has its directory."""

import json
import time
from pathlib import Path

import pytest

from curation.config import RunConfig
from curation.errors import CommitError
from curation.pipeline.running import hold_run
from curation.rundir.graph import order_stages
from curation.rundir.manifest import Manifest
from curation.storage import conditional

BASES = Path(__file__).parents[3] / "examples" / "bases"


def config_of(directory: Path) -> RunConfig:
    rows = [{"problem": f"What is {n + 1} - {n}?", "answer": "1"} for n in range(40)]
    (directory / "sums.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return RunConfig.model_validate(
        {
            "name": "lost",
            "run_dir": str(directory / "run"),
            "domain": "math",
            "sources": {"sums": {"path": str(directory / "sums.jsonl")}},
            "splits": {"source": {"from": "sums", "rows": 20}, "pool": {"from": "sums", "rows": 20}},
            "teacher": {"backend": "scripted", "scripted": {"completions": [" \\boxed{1}"]}},
            "selection": {"budget": {"n": 5}, "arms": ["naive", "internal_confidence"]},
        }
    )


def test_the_first_line_of_a_run_says_what_type_auto_stands_for(local_ray, tmp_path: Path, capsys):
    config = config_of(tmp_path)
    teacher = {"model": {"path": str(BASES / "teacher")}}
    with_model = RunConfig.model_validate({**config.model_dump(mode="json", exclude_unset=True), "teacher": teacher})
    with hold_run(with_model, wait=False):
        first = capsys.readouterr().err.splitlines()[0]
    assert first.endswith("teacher.dtype: auto is float32 (teacher) (actors.num_gpus: 0)")


def test_a_run_whose_directory_was_lost_commits_no_row_and_records_no_stage(local_ray, tmp_path: Path):
    config = config_of(tmp_path)
    with hold_run(config, wait=False) as (opened, run):
        register = conditional.make_register(config.directory / "lease")
        found = register.read()
        assert found is not None
        taken = json.loads(found.text) | {"owner": "another", "host": "node-7", "expires": time.time() + 600}
        assert register.put_if_match(json.dumps(taken), found.token)
        opened.manifest.guard.__self__._renew()  # as its thread does every 20 s
        with pytest.raises(CommitError, match=r"lease was lost to process \d+ on node-7"):
            run.do(order_stages([opened.chain.preparing[0].value()]))
    assert not list(config.directory.glob("prepare-*"))  # what it begins is written down first
    assert not Manifest.load(config.directory).stages
