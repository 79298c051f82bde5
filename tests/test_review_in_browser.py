"""The page of a review in headless Chromium: keys alone, a reload and a killed server, rows that hold markup."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chromium import chromium
from click.testing import CliRunner
from review_run import HOSTILE, ReviewedRun, make_run

from curation.cli import main

pytestmark = pytest.mark.slow

NUM = 50


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> ReviewedRun:
    directory = tmp_path_factory.mktemp("browser") / "run"
    budget = {"risk": {"alpha": 0.2, "delta": 0.2}}
    return make_run(directory, num_rows=1_200, budget=budget, num_calibration=60, noise_at=1.5)


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Any]:
    with chromium(tmp_path / "profile", "--window-size=1100,1000") as driver:
        yield driver


def curate(*arguments: object) -> str:
    found = CliRunner().invoke(main, ["review", *map(str, arguments)], catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return found.stdout


class Server:
    """``curate review serve`` in a process of its own."""

    def __init__(self, run: ReviewedRun, port: int = 0) -> None:
        command = [sys.executable, "-m", "curation.cli", "review", "serve", str(run.directory), "--port", str(port)]
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        self.url = self.process.stdout.readline().strip()
        self.port = int(self.url.split(":")[2].split("/")[0])

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(timeout=30)
        self.process.stdout.close()


class Page:
    """What a person sees and presses."""

    def __init__(self, browser: Any) -> None:
        self.browser = browser

    def text(self, name: str) -> str:
        return self.browser.execute_script("return document.getElementById(arguments[0]).textContent", name)

    @property
    def row_id(self) -> str:
        return self.browser.execute_script("return document.getElementById('row').dataset.rowId || ''")

    def until(self, met: str) -> None:
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.browser, 20, poll_frequency=0.02).until(
            lambda driver: driver.execute_script(f"return {met}")
        )

    def press(self, key: str) -> None:
        from selenium.webdriver import ActionChains

        ActionChains(self.browser).send_keys(key).perform()

    def judge(self, key: str) -> None:
        before = self.row_id
        self.press(key)
        self.until(f"document.getElementById('row').dataset.rowId !== '{before}' && !document.body.className")


def test_fifty_verdicts_by_keyboard_survive_a_reload_and_a_killed_server(
    run: ReviewedRun, browser: Any, tmp_path: Path
):
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.keys import Keys

    curate("draw", run.directory, "--num", NUM)
    log = run.directory / "review" / "trust" / "verdicts.jsonl"
    server, page = Server(run), Page(browser)
    given: dict[str, str] = {}
    keys = {True: ("r", Keys.ARROW_RIGHT, "R"), False: ("w", Keys.ARROW_LEFT, "W")}

    def judge_one() -> None:
        row_id = page.row_id
        assert page.text("trust") == "hidden" and HOSTILE in page.text("label")
        right = run.right[int(row_id)]
        page.judge(keys[right][len(given) % 3])
        given[row_id] = "right" if right else "wrong"
        kept = [json.loads(line) for line in log.read_text().splitlines()]
        assert (str(kept[-1]["row_id"]), kept[-1]["verdict"]) == (row_id, given[row_id])

    browser.get(server.url)
    page.until("!document.getElementById('start').hidden")
    ActionChains(browser).send_keys("anna", Keys.ENTER).perform()
    page.until("document.getElementById('row').dataset.rowId")
    for _ in range(20):
        judge_one()

    browser.refresh()
    page.until("document.getElementById('row').dataset.rowId")
    assert page.text("count").startswith(f"20 of {NUM} judged") and page.row_id not in given
    shown = page.row_id
    page.press("t")
    page.until("document.getElementById('trust').textContent !== 'hidden'")
    page.judge("b")
    last = list(given)[-1]
    assert page.row_id == last and page.text("count").startswith(f"19 of {NUM} judged")
    page.judge("r" if given[last] == "right" else "w")
    assert page.row_id == shown

    server.kill()
    page.press("r")
    page.until("document.getElementById('message').className === 'alarm'")
    assert "the server does not answer" in page.text("message") and page.row_id == shown
    server = Server(run, server.port)
    page.press("r")
    page.until("document.getElementById('message').textContent.includes('server that has ended')")
    browser.get(server.url)
    page.until("document.getElementById('row').dataset.rowId")
    assert page.text("count").startswith(f"20 of {NUM} judged") and page.row_id == shown
    if folder := os.environ.get("REVIEW_SCREENSHOTS"):
        browser.save_screenshot(f"{folder}/page.png")
    while page.row_id:
        judge_one()
    assert len(given) == NUM and page.text("count").startswith(f"{NUM} of {NUM} judged")
    assert "All rows are judged" in page.text("message")

    assert browser.execute_script("return window.stolen") is None
    assert browser.execute_script("return document.querySelectorAll('img, pre *').length") == 0
    assert browser.execute_script("return document.scripts.length") == 1
    problems = [line for line in browser.get_log("browser") if "favicon" not in line["message"]]
    refused = [line for line in problems if "ERR_CONNECTION_REFUSED" in line["message"] or "403" in line["message"]]
    assert problems == refused and len(refused) == 2, problems  # the presses at the dead and at the new server

    server.kill()
    result = json.loads(curate("result", run.directory, "--json"))
    assert result["people"] == {"anna": NUM}
    assert result["answers"]["right"] == sum(run.right[int(row_id)] for row_id in given)
    before, after = result["cut"]["before"], result["cut"]["after"]
    assert after["num_counted_wrong"] == 0 and after["n"] != before["n"] and after["threshold"] != before["threshold"]
    print(curate("result", run.directory))
