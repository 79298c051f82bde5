"""The bench of starts: its CPU seconds are those of all processes of a command, and it sees the first committed row."""

import os
import sys
import time
from pathlib import Path

import pytest

from benchmarks.starts import Place, arguments, environment_of, has_rows, main, measure
from curation.config.load import load_config

BURN = "import time\nwhile time.process_time() < 0.4: pass\n"
TREE = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BURN!r}])\n{BURN}"


def test_the_cost_is_that_of_all_processes() -> None:
    cost = measure([sys.executable, "-c", TREE], os.environ)
    assert 0.75 <= cost.cpu <= 5 and cost.clock > 0.4
    with pytest.raises(RuntimeError, match=r"(?s)exit code 3\nno such thing"):
        measure([sys.executable, "-c", "print('no such thing'); raise SystemExit(3)"], os.environ)


def test_a_command_ends_when_it_has_done_enough(tmp_path: Path) -> None:
    code = f"{TREE}\nopen({str(tmp_path / 'done')!r}, 'w')\nimport time; time.sleep(600)"
    begun = time.monotonic()
    cost = measure([sys.executable, "-c", code], os.environ, ended=(tmp_path / "done").exists)
    assert cost.cpu >= 0.25 and time.monotonic() - begun < 300  # of the last look before it


def test_the_first_committed_row_is_seen(tmp_path: Path) -> None:
    events = tmp_path / "events.jsonl"
    assert not has_rows(tmp_path)
    events.write_text('{"event": "started", "stage": "gen-0/label-pool"}\n')
    other = '{"event": "progress", "stage": "prepare", "rows": 500, "total": 500}\n'
    none_yet = (
        '{"event": "progress", "stage": "gen-0/label-pool", "rows": 0, "answered": 9, "total": 200}\n{"event": "pro'
    )
    events.write_text(events.read_text() + other + none_yet)
    assert not has_rows(tmp_path)
    events.write_text(events.read_text().replace('"rows": 0', '"rows": 32'))
    assert has_rows(tmp_path)


def test_the_rows_and_the_configuration_are_those_that_are_asked_for(tmp_path: Path) -> None:
    config = Place(tmp_path, tmp_path / "model").write("look", 30, 50, tmp_path / "model")
    loaded = load_config(config)
    assert loaded.teacher.actors.max == 1 and loaded.teacher.actors.num_cpus is None
    lines = [(config.parent / name).read_text().splitlines() for name in ("labelled.csv", "unlabelled.csv")]
    assert [len(found) for found in lines] == [31, 51] and lines[0][1] == "10 + 10 = ?,20"
    assert arguments("plan", config, config)[:2] == ["plan", "--no-probe"]
    cold = environment_of(tmp_path, "cold", tmp_path / "bytecode")
    assert cold["PYTHONPYCACHEPREFIX"] == str(tmp_path / "bytecode") and "PYTHONDONTWRITEBYTECODE" not in cold
    assert environment_of(tmp_path, "without", None)["PYTHONDONTWRITEBYTECODE"] == "1"


def test_a_table_of_one_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["starts", "--only", "help", "--bytecode", "warm", "--repeats", "1"])
    main()
    head, line = capsys.readouterr().out.splitlines()
    assert head.split()[:2] == ["command", "bytecode"] and line.split()[:2] == ["help", "warm"]
    assert 0 < float(line.split()[2]) < 10
