"""``curate analyze`` before it works: what it refuses, what it leaves out, and what its stages depend on."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from curation.cli import main
from curation.config import RunConfig
from curation.config.load import load_config
from curation.errors import ConfigError
from curation.pipeline.extending import check_analysis, describe_analysis
from curation.pipeline.opened import open_run
from curation.rundir.graph import order_stages, to_plain_json, with_outs


@pytest.fixture
def config(tmp_path: Path, puzzle_file: Path) -> Path:
    """A run over puzzles with the scripted teacher and an audit."""
    raw = {
        "name": "tiny",
        "run_dir": str(tmp_path / "run"),
        "sources": {"puzzles": {"path": str(puzzle_file)}},
        "splits": {
            "source": {"from": "puzzles", "rows": 15},
            "test": {"from": "puzzles", "rows": 10},
            "pool": {"from": "puzzles", "rows": 30},
            "audit": True,
        },
        "teacher": {"backend": "scripted"},
        "selection": {"budget": {"n": 5}, "arms": ["naive", "trust", "ground_truth"]},
        "generations": [{"student": {"init": {"hidden_size": 16, "num_layers": 3}}}],
        "analyze": {"engine": {"path": "/bin/sh"}},
    }
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(raw))
    return path


def load(path: Path, *overrides: str) -> RunConfig:
    return load_config(path, overrides)


def test_what_the_run_lacks_is_refused_or_left_out(config: Path) -> None:
    assert list(check_analysis(load(config))) == []
    with pytest.raises(ConfigError, match=r"analyze\.engine: .*splits\.audit is false.*analyze\.engine: null"):
        list(check_analysis(load(config, "splits.audit=false", "selection.arms=[trust]")))
    without = ("splits.audit=false", "selection.arms=[trust]", "analyze.engine=null")
    assert list(check_analysis(load(config, *without))) == []
    with pytest.raises(ConfigError, match="no program 'no-such-engine'"):
        list(check_analysis(load(config, "analyze.engine.path=no-such-engine")))
    (line,) = check_analysis(load(config, "generations=[]"))
    assert "no gradients are taken: the run trains no student" in line
    (line,) = check_analysis(load(config, "domain=mcqa"))
    assert "labels of the domain mcqa are not chess moves" in line
    with pytest.raises(ConfigError, match=r"nothing to measure in this run \(analyze\.engine and analyze\.gradients"):
        list(check_analysis(load(config, "analyze={engine: null, gradients: null}")))
    with pytest.raises(ConfigError, match=r"nothing to measure in this run .*not chess moves; no gradients"):
        list(check_analysis(load(config, "domain=mcqa", "generations=[]")))


def keys(path: Path, *overrides: str) -> dict[str, Any]:
    """By stage of the analysis: its inputs."""
    settings = load(path, *overrides)
    opened = open_run(settings)
    own = order_stages(describe_analysis(settings, opened.chain.tables, opened.chain.generations))
    before = {stage.name for stage in opened.chain.stages}
    return {stage.name: to_plain_json(with_outs(stage.inputs, str), {}) for stage in own if stage.name not in before}


def test_stages_depend_on_what_they_read_alone(config: Path) -> None:
    stages = keys(config)
    arms = ("naive", "trust", "ground_truth")
    assert sorted(stages) == sorted(
        ["gen-0/advantages", "gen-0/coherence", *(f"gen-0/gradients-{arm}" for arm in arms)]
    )
    assert [*keys(config, "analyze.engine=null")] == [name for name in stages if name != "gen-0/advantages"]
    assert [*keys(config, "analyze.gradients=null")] == ["gen-0/advantages"]

    def differing(override: str) -> set[str]:
        now = keys(config, override)
        return {name for name in stages if stages[name] != now[name]}

    assert differing("analyze.engine.nodes=7") == {"gen-0/advantages"}
    assert differing("analyze.gradients.rows=7") == {f"gen-0/gradients-{arm}" for arm in arms}
    assert differing("analyze.gradients={cpus: 2, batch_rows: 3}") == set()


def test_a_run_that_is_not_finished_is_refused(config: Path) -> None:
    found = CliRunner().invoke(main, ["analyze", str(config)], catch_exceptions=False)
    assert found.exit_code == 1, found.output
    assert "is not finished, stage prepare is missing (not done yet); `curate run` does it" in found.stderr
    wrong = CliRunner().invoke(
        main, ["analyze", str(config), "--set", "analyze.engine.nodes=0"], catch_exceptions=False
    )
    assert wrong.exit_code == 2 and "analyze.engine.nodes" in wrong.stderr
    assert not (config.parent / "run" / "manifest.json").exists()
