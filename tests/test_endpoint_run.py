"""Runs whose teacher is a server: drivers are killed in the middle, money runs out, and no answer is paid twice."""

import json
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from endpoint_server import Server, serving
from sums_run import NUM_SOURCE, SumsRun

from curation.cli import main
from curation.teachers.endpoint_paid import read_spending
from tests import golden

pytestmark = [pytest.mark.timeout(1200), pytest.mark.whole_run]
NUM_POOL, CONCURRENCY = 400, 8
PRICE = {"input": 1000.0, "output": 5000.0}


def answer(prompt: str) -> str:
    """Right for three of four sums; those are shorter, and so the server is surer of them."""
    (n,) = re.findall(r"What is (\d+) - ", prompt)
    return "\\boxed{1}" if int(n) % 4 else "\\boxed{2}, as I would say"


def faults(prompt: str, before: int) -> tuple[str, Any]:
    """One question in ten meets a limit or an error of the server at first."""
    (n,) = re.findall(r"What is (\d+) - ", prompt)
    if before or int(n) % 10:
        return ("pass", None)
    return ("status", (429, {"retry-after": "0.1"})) if int(n) % 20 else ("status", (503, {}))


def make_run(directory: Path, server: Server, **endpoint: Any) -> SumsRun:
    section = {"url": server.url, "model": "m", "concurrency": CONCURRENCY, "price": PRICE, **endpoint}
    teacher = {"backend": "endpoint", "endpoint": section, "decoding": {"max_tokens": 16}, "chunk_rows": 50}
    return SumsRun(
        directory,
        num_pool=NUM_POOL,
        actors={},
        seconds_per_row=0,
        sections={"teacher": teacher, "trust": {}, "selection": {"budget": {"n": 50}}},
    )


def money_of(server: Server) -> float:
    return sum(prompt * PRICE["input"] + output * PRICE["output"] for prompt, output in server.tokens) / 1e6


@pytest.mark.parametrize("num_kills", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_killed_drivers_pay_no_answer_twice_that_had_arrived(local_ray: Any, tmp_path: Path, num_kills: int) -> None:
    chance = random.Random(1)
    with serving(answer=answer, faults=faults, seconds=0.05) as server:
        run = make_run(tmp_path, server)
        for _ in range(num_kills):
            process = run.start("--until", "label-pool")
            target = len(server.paid) + chance.uniform(0.2, 0.8) * NUM_POOL / num_kills
            while process.poll() is None and len(server.paid) < target:
                time.sleep(0.02)
            assert process.poll() is None, run.errors()
            process.send_signal(signal.SIGKILL)
            process.wait()
            committed = run.committed()
            assert len(committed) == len(set(committed))
        run.run()
        assert run.committed() == run.pool() and len(run.pool()) == NUM_POOL
        assert len(server.paid) == NUM_SOURCE + NUM_POOL  # every row's question
        assert sum(server.paid.values()) - len(server.paid) <= num_kills * CONCURRENCY
        spending = read_spending(str(run.directory / "paid"))
        assert spending is not None and len(spending.open) <= num_kills * CONCURRENCY
        assert spending.questions >= len(server.paid)
    report = json.loads((run.directory / "report.json").read_text())
    (generation,) = report["generations"]
    assert generation["teacher_model"]["name"] == "m"
    assert {arm["name"] for arm in generation["arms"]} == {"naive", "naive_parsed", "internal_confidence", "trust"}
    shown = CliRunner().invoke(main, ["status", str(run.config)])
    assert shown.exit_code == 0 and re.search(r"endpoint: \d+ questions", shown.output), shown.output


def test_a_run_stops_before_its_money_is_passed_and_goes_on_with_more(local_ray: Any, tmp_path: Path) -> None:
    with serving(answer=answer) as server:
        run = make_run(tmp_path, server, limit=4.0)
        run.run("--until", "label-pool", code=1)
        assert "teacher.endpoint.limit: 4 would be exceeded" in run.errors(), run.errors()
        spent, num_paid = money_of(server), len(server.paid)
        one = (400 * PRICE["input"] + 16 * PRICE["output"]) / 1e6  # the most that an answer may cost
        assert 4.0 - 2 * one < spent <= 4.0 and 0 < num_paid < NUM_POOL
        raised = yaml.safe_load(run.config.read_text())
        raised["teacher"]["endpoint"]["limit"] = 1000
        run.config.write_text(yaml.safe_dump(raised))
        run.run("--until", "label-pool")
        assert run.committed() == run.pool() and max(server.paid.values()) == 1
        assert len(server.paid) == NUM_POOL


def test_the_page_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's configuration: validate, a plan that buys a few answers, a run that does not buy them again."""
    rows = [{"text": f"remark {k} {'is' * (k % 5)}", "label": "irony" if k % 3 else "non_irony"} for k in range(160)]
    for name, part in (("labelled", rows[:60]), ("pool", rows[60:])):
        lines = [f"{row['text']},{row['label']}" if name == "labelled" else row["text"] for row in part]
        header = "text,label" if name == "labelled" else "text"
        (tmp_path / f"{name}.csv").write_text("\n".join([header, *lines]) + "\n")

    def chosen(prompt: str) -> str:
        k = int(re.findall(r"remark (\d+)", prompt)[-1])
        says_irony = bool(k % 3) == bool(k % 4)  # right for three of four
        return json.dumps({"answer": "ironic" if says_irony else "not ironic"})

    page = (Path(__file__).parents[1] / "docs" / "endpoints.md").read_text()
    text = page.split("```yaml\n")[1].split("```")[0]
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-a-test")
    with serving(answer=chosen) as server:
        text = text.replace("https://api.openai.com/v1", server.url).replace("n: 300", "n: 20")
        (tmp_path / "served.yaml").write_text(text + f"run_dir: {tmp_path / 'run'}\n")

        path = str(tmp_path / "served.yaml")

        def curate(*arguments: str) -> str:
            command = [sys.executable, "-m", "curation.cli", *arguments, path]
            done = subprocess.run(command, capture_output=True, text=True, timeout=400)  # its Ray knows the key
            assert done.returncode == 0, done.stderr
            return done.stdout + done.stderr

        told = CliRunner().invoke(main, ["validate", path])
        assert "teacher: NAME of http://127.0.0.1" in told.output and not server.asked and told.exit_code == 0
        planned = curate("plan")
        assert "USD for tokens of the teacher" in planned and 0 < len(server.paid) <= 64, planned
        curate("run")
        assert len(server.paid) == 160 and max(server.paid.values()) == 1 and server.keys == {"Bearer sk-of-a-test"}
        golden.check("endpoint", tmp_path / "run")
        told = CliRunner().invoke(main, ["status", path])
        shown = re.search(r"endpoint: (\d+) questions(?:, (\d+) under way or lost)?, .* USD of 20\n", told.output)
        assert shown and told.exit_code == 0, told.output
        # A plan ends when its intervals are narrow, and gives up what it has asked and not got.
        assert int(shown[1]) - int(shown[2] or 0) == 160, told.output
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or b"sk-of-a-test" not in path.read_bytes(), path
