"""Characters that act on a terminal or turn its text leave no module of ours as they are."""

import ast
import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import curation
from curation.cli import main
from curation.domains import attempt
from curation.errors import RowError
from curation.escaping import echo, escape_text, format_error, get_logger, quote_text
from curation.rundir.manifest import Manifest
from curation.telemetry import console

ACTING = "\x00\x07\x1b\r\x7f\x85\x9b\u061c\u200e\u200f\u2028\u202e\u2066\u2069\ufeff\ud800\U000e0041"
HARMLESS = "é 北京 \u200d👩\u200d🔬 \\ ' \" ~ <script>"


def test_what_acts_is_escaped_and_the_rest_stays():
    assert escape_text(HARMLESS) == HARMLESS
    assert escape_text("\x1b[0m\x7f\x9b\u202e\ud800\U000e0041") == r"\u001b[0m\u007f\u009b\u202e\ud800\U000e0041"
    assert all(sign not in escape_text(f"a{sign}b") for sign in ACTING)
    assert escape_text("a\tb\nc") == "a\\u0009b\\u000ac" and escape_text("a\tb\nc", page=True) == "a\tb\nc"
    assert json.loads(escape_text(json.dumps({"a": "\x7f"}))) == {"a": "\x7f"}
    assert quote_text("x" * 100) == f"'{'x' * 60}...'"
    assert (
        format_error(ValueError("x" * 10**6)).endswith("x...") and len(format_error(ValueError("x" * 10**6))) == 1_000
    )


def test_every_way_out_escapes(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, tmp_path: Path):
    echo(f"column {ACTING}")
    console.say(f"stage {ACTING}")
    get_logger("curation.test_escaping").warning("%s: %s", "path\x1b[2J", ValueError("\u202e"))
    Manifest.load(tmp_path).event("started", stage=ACTING)
    out, err = capsys.readouterr()
    events = (tmp_path / "events.jsonl").read_text()
    for text in (out, err, caplog.text, events):
        assert text and not any(sign in text for sign in ACTING)
    assert json.loads(events)["stage"] == ACTING
    assert "path\\u001b[2J: \\u202e" in caplog.text


def test_a_terminal_that_lacks_a_character_gets_its_number(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    with (tmp_path / "out").open("w", encoding="ascii") as out:
        monkeypatch.setattr(sys, "stdout", out)
        echo("é\u202e")
    assert (tmp_path / "out").read_text() == "\\xe9\\u202e\n"


def test_errors_of_users_code_are_one_line_with_a_kind_that_can_be_counted():
    def fails(text: str) -> None:
        raise RowError(text)

    assert attempt(fails, "bad_fen: \x1b[31m")[1] == "bad_fen: \\u001b[31m"
    assert attempt(fails, "\ud800 is \n wrong: so")[1] == "domain_failed: RowError: \\ud800 is wrong: so"
    assert attempt(fails, "no kind")[1].startswith("domain_failed: ")
    assert len(attempt(fails, "bad: " + "x" * 10**6)[1]) == 1_000


@pytest.mark.long
def test_no_module_prints_or_logs_past_the_escaping():
    root = Path(curation.__file__).parents[1]
    for path in [path for name in ("curation", "train", "tune") for path in (root / name).rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if called in ("click.echo", "click.secho", "logging.getLogger") or called == "print":
                told = f"{path.relative_to(root)}:{node.lineno}: {called}"
                known = path.name in ("escaping.py", "console.py")
                assert known or (called == "logging.getLogger" and "__name__" not in ast.unparse(node)), told


def test_an_error_is_one_line_whatever_it_quotes(tmp_path: Path):
    result = CliRunner().invoke(main, ["validate", str(tmp_path / "a\x1b]0;b\u202e.yaml")])
    assert result.exit_code == 2 and len(result.stderr.splitlines()) == 1
    assert not any(sign in result.stderr for sign in ACTING) and "\\u001b]0;b\\u202e.yaml" in result.stderr
