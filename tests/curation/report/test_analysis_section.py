"""The report's section of ``curate analyze``: its figures, tables, numbers as JSON and lines on the terminal."""

import json
import re

import numpy as np
import pytest
from computed import collect
from test_report import changed, make_run

from curation.commands.printing import describe_features
from curation.extras.analyze.coherence import compare_coherence, compute_coherence
from curation.extras.analyze.figures import figures
from curation.extras.analyze.value_moves import compare_moves
from curation.report.html import render

ARMS = ("naive", "internal_confidence", "trust")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict:
    run = make_run(tmp_path_factory.mktemp("run"))
    return collect(changed(run, analysis={"analyze": {"advantages": advantages(), "coherence": coherent()}}))


def with_analysis(report: dict, found: dict | None) -> dict:
    """The report of the same run, with another analysis."""
    features = {} if found is None else {"analyze": found}
    return {**report, "features": features, "generations": [{**report["generations"][0], "features": features}]}


def advantages(num: int = 40) -> dict:
    """What an engine found of three arms, one of which has nothing to ask about."""
    rng, arms = np.random.default_rng(0), {}
    for arm in ARMS:
        n = 0 if arm == "internal_confidence" else num
        gold, chosen = rng.choice([-200, 0, 300, 10_000], n), rng.choice([-200, 0, 300, 10_000], n)
        counts = {"num_selected": 100, "num_unparsed": 3, "num_differing": n + 2, "num_asked": n + 2}
        errors = {"engine_timeout": 2} if n else {}
        arms[arm] = {**counts, "errors": errors, **compare_moves(gold, chosen, equal_within=50)}
    return {"engine": "Tiny <b>", "nodes": 1234, "equal_within": 50, "num_rows": 84, "num_failed": 4, "arms": arms}


def coherent(num: int = 40, size: int = 12) -> dict:
    rng, ids, found = np.random.default_rng(0), np.arange(num), {}
    for arm in ARMS:
        gradients = (rng.normal(size=(num, size)) + 3 * rng.normal(size=size)).astype(np.float32)
        found[arm] = compute_coherence(lambda kept=gradients: [(ids, kept)], size)
    arms = {
        arm: {
            **measured.to_json(),
            "against": None if arm == "trust" else compare_coherence(measured, found["trust"]),
        }
        for arm, measured in found.items()
    }
    return {
        "n": num,
        "size": size,
        "reference": "trust",
        "too_few": ["ground_truth"],
        "errors": {"naive": 2, "trust": 0},
        "arms": arms,
    }


def text_of(page: str) -> str:
    """What a page shows of its section, without markup."""
    section = page[page.index('id="analyze"') : page.index('id="stages"')]
    return " ".join(re.sub(r"<[^>]+>", " ", re.sub(r"<svg.*?</svg>", "", section, flags=re.DOTALL)).split())


@pytest.mark.long
def test_the_section_has_figures_tables_and_their_numbers(report: dict) -> None:
    page, found = render(report), report["generations"][0]["features"]["analyze"]
    assert report["features"]["analyze"] == found and json.dumps(found)
    text, moves = text_of(page), found["advantages"]["arms"]["trust"]
    assert '<a href="#analyze">Why it works</a>' in page
    for share in ("stronger", "equal_or_stronger", "winning_mates"):
        assert f"{100 * moves[share]['value']:.1f} %" in text
    assert "Tiny &lt;b&gt; searches 1,234 nodes" in text and "4 rows of 84 could not be valued" in text
    assert "failed: 2 engine_timeout" in text and "42 of 100, 3 unparsed" in text
    top = found["coherence"]["arms"]["naive"]["energy"][7]
    assert f"{100 * top['value']:.1f} % {100 * top['low']:.1f} \u2013 {100 * top['high']:.1f}" in text
    assert "Gradients of 40 rows of each arm, with 12 numbers each" in text
    assert "Too few rows to compare: ground truth" in text and "2 rows of naive have no gradient" in text
    section = page[page.index('id="analyze"') : page.index('id="stages"')]
    assert section.count("<svg") == 3
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    lines = "\n".join(describe_features(report))
    assert "by Tiny <b>, 1,234 nodes" in lines and "gradients of 40 rows of each arm" in lines


@pytest.mark.long
def test_without_an_analysis_there_is_no_section_and_one_half_stands_alone(report: dict) -> None:
    without = with_analysis(report, None)
    assert "Why it works" not in render(without) and describe_features(without) == []
    alone = render(with_analysis(report, {"coherence": coherent()}))
    assert "Coherent gradients" in alone and "Weak moves that differ" not in alone
    other = render(with_analysis(report, {"advantages": advantages(0)}))
    assert "Weak moves that differ" in other and "Coherent gradients" not in other  # and no figure of no rows


@pytest.mark.long
def test_figures_are_deterministic_and_of_what_there_is() -> None:
    found = {"advantages": advantages(), "coherence": coherent()}
    assert (drawn := figures(found, "g0")) == figures(found, "g0")
    assert sorted(drawn) == ["energies", "energy_rows", "gaps"]
    assert sorted(figures({"advantages": advantages(0)}, "g0")) == []
    few = {"coherence": coherent(num=30, size=3)}  # fewer directions than 8
    assert sorted(figures(few, "g0")) == ["energies", "energy_rows"]
