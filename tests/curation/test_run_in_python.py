"""The names of the package, and the ways in which a run is given to it."""

import sys
from pathlib import Path
from typing import Any

import pytest

import curation
from curation.config.load import as_config, load_config
from curation.errors import ConfigError
from curation.pipeline import running


def test_dir_lists_what_is_there_and_nothing_from_elsewhere() -> None:
    public = {name for name in dir(curation) if not name.startswith("_")}
    modules = {name for name in public if f"curation.{name}" in sys.modules}
    assert "config" in modules and public - modules == {"Filter", "open", "run", "session"}
    assert all(getattr(curation, name) is not None for name in curation.__all__)


def test_a_run_takes_a_mapping_a_path_or_a_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    monkeypatch.setattr(running, "run_chain", given.append)
    (tmp_path / "run.yaml").write_text(
        "name: one\nrun_dir: out\ndomain: mcqa\nsources: {rows: {path: rows.jsonl}}\n"
        "splits: {source: {from: rows, rows: 5}, pool: {from: rows}}\nteacher: {backend: scripted}\n"
        "selection: {budget: {n: 1}, arms: [naive]}\n"
    )
    monkeypatch.chdir(tmp_path)
    loaded = load_config("run.yaml")
    raw = {
        "name": "one",
        "run_dir": "out",
        "domain": "mcqa",
        "sources": {"rows": {"path": "rows.jsonl"}},
        "splits": {"source": {"from": "rows", "rows": 5}, "pool": {"from": "rows"}},
        "teacher": {"backend": "scripted"},
        "selection": {"budget": {"n": 1}, "arms": ["naive"]},
    }
    for way in (loaded, "run.yaml", tmp_path / "run.yaml", raw):
        curation.run(way)
    assert given == [loaded] * 4


def test_what_is_no_configuration_is_refused_with_what_to_give() -> None:
    with pytest.raises(ConfigError, match=r"a list is not a configuration; give a mapping .* the path"):
        as_config([])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"config: .*sources"):
        as_config({"name": "one"})
