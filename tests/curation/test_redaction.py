"""Credentials of URLs are hidden in everything that is printed, logged or written, and found in configurations."""

import json
from pathlib import Path

import pytest
import yaml
from built import saved_run
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.hostile_case import write_config
from curation.cli import main
from curation.config.load import as_config, load_config
from curation.errors import ConfigError
from curation.redaction import iter_secrets, redact_text, redact_value
from curation.rundir.manifest import Manifest
from curation.telemetry.console import say

URI = "postgresql://mlflow:planted@db.internal/mlflow"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://AKIA:planted@bucket/x", "s3://***@bucket/x"),
        ("https://planted@host/x", "https://***@host/x"),
        ("failed: https://u:pl@nted@host/x?a=1.", "failed: https://***@host/x?a=1."),
        (URI, "postgresql://***@db.internal/mlflow"),
        ("https://h/x?X-Amz-Signature=planted&b=1", "https://h/x?X-Amz-Signature=***&b=1"),
        ("s3://b/x?AWSSecretAccessKey=planted", "s3://b/x?AWSSecretAccessKey=***"),
        ("https://h/x?b=1&sig=planted#top", "https://h/x?b=1&sig=***#top"),
        ("abfss://container@account.dfs.core.windows.net/x", None),
        ("ssh://me@host/x", None),
        ("s3://bucket/f@o/x", None),
        ("see https://host/a, me@host.org: ?x=1&monkey=2", None),
    ],
)
def test_what_is_secret_in_a_text_is_hidden(text: str, shown: str | None) -> None:
    assert redact_text(text) == (text if shown is None else shown)
    assert list(iter_secrets({"a": [text]})) == ([] if shown is None else [("a.0", False)])


@given(st.text())
def test_what_is_hidden_stays_hidden(text: str) -> None:
    assert redact_text(redact_text(text)) == redact_text(text)


def test_keys_that_hold_secrets_by_their_name_are_found() -> None:
    value = {"engine": {"hf_token": "x", "pad_token": "x", "max_tokens": 3, "api_key": ""}, "secret": {"path": "rows"}}
    assert list(iter_secrets(value)) == [("engine.hf_token", True)]
    assert redact_value({"a": (URI, 1, None)}) == {"a": ["postgresql://***@db.internal/mlflow", 1, None]}


def as_classes(**options: object) -> object:
    """Return the domain of a run whose pool has these options of classification."""
    source = {"path": "rows.csv", "domain": {"name": "classification", "classes": ["a", "b"], **options}}
    config = {
        "name": "r",
        "domain": {"name": "classification", "classes": ["a", "b"], **options},
        "sources": {"rows": source},
        "splits": {"source": {"from": "rows", "rows": 50}, "pool": {"from": "rows"}},
        "teacher": {"backend": "scripted"},
        "selection": {"budget": {"n": 5}},
    }
    return as_config(config).domain


def test_a_class_may_be_called_as_a_password_and_may_not_hold_one() -> None:
    classes = {"password_closed": "password closed", "card": "card"}
    assert as_classes(classes=classes)
    for options in (
        {"classes": {**classes, "card": "https://me:planted@host"}},
        {"classes": ["https://me:planted@host", "card"]},
        {"password": "planted"},
    ):
        with pytest.raises(ConfigError, match="holds a credential") as refused:
            as_classes(**options)
        assert "planted" not in str(refused.value)


def test_an_address_in_an_error_has_no_password_in_the_run_directory(tmp_path: Path, puzzle_file: Path) -> None:
    opened = saved_run(load_config(write_config(tmp_path, {}, rows=puzzle_file)))
    opened.manifest.event("untracked", error=f"cannot reach {URI}")
    written = {file: file.read_text() for file in (tmp_path / "run").rglob("*") if file.is_file()}
    assert {file.name for file in written} >= {"config.yaml", "manifest.json", "events.jsonl"}
    assert not [file for file, text in written.items() if "planted" in text]


def test_no_message_shows_a_password(tmp_path: Path, puzzle_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_config(tmp_path, {}, rows=puzzle_file)
    for override in (
        "run_dir=s3://AKIA:planted@bucket/run",
        "run_dir=https://planted@host/run",
        "sources.puzzles.path=[https://u:planted@host/x]",
        "sources=https://u:planted@host/x",
        "bases=https://u:planted@host/x",
        "tracking.mlflow=https://u:planted@host/x",
    ):
        told = CliRunner().invoke(main, ["validate", str(path), "--set", override])
        assert told.exit_code == 2 and "planted" not in told.output, told.output
    told = CliRunner().invoke(main, ["status", "https://planted@host/run"])
    assert told.exit_code == 2 and "planted" not in told.output
    say(f"cannot reach {URI}")
    Manifest.load(tmp_path).event("failed", error=[URI])
    assert "planted" not in capsys.readouterr().err
    assert "planted" not in json.dumps(yaml.safe_load((tmp_path / "events.jsonl").read_text()))
