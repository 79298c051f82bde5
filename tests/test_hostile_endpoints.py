"""Runs whose teacher is a server that answers oddly: some of `benchmarks.hostile --suite endpoints`."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.hostile_endpoints import BEHAVIOURS, Behaviour, once, try_behaviour

BY_NAME = {behaviour.name: behaviour for behaviour in BEHAVIOURS}
pytestmark = [pytest.mark.timeout(1200), pytest.mark.whole_run]


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("no choices", "refused"),
        ("half a character in a text", "carried through"),
        ("-1,000,000 tokens", "carried through"),
        ("302 elsewhere", "refused"),
    ],
)
def test_a_run_holds_and_a_healed_server_heals_it(name: str, outcome: str, local_ray: Any, tmp_path: Path) -> None:
    assert try_behaviour(BY_NAME[name], tmp_path / "case") == outcome


def test_a_long_wait_is_shown_in_the_progress(local_ray: Any, tmp_path: Path) -> None:
    waits = Behaviour(name="waits", faults=once(("status", (429, {"retry-after": "25"})), every=4))
    assert try_behaviour(waits, tmp_path / "case") == "carried through"
    events = map(json.loads, (tmp_path / "case/run/events.jsonl").read_text().splitlines())
    notes = [event.get("note", "") for event in events if event["event"] == "progress"]
    assert any("the server asks to wait until" in note and "(Retry-After)" in note for note in notes), notes
    assert not notes[-1]


def test_there_are_many_behaviours() -> None:
    assert len(BY_NAME) == len(BEHAVIOURS) >= 25
