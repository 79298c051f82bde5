"""The report in headless Chromium: what sticks out, contrast (WCAG AA), columns of dashes, print.

At four widths, light and dark. ``REPORT_SCREENSHOTS`` names a folder for pictures.
"""

import base64
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from chromium import LOW_CONTRAST, chromium
from computed import collect
from test_analysis_section import advantages, coherent, with_analysis
from test_chained import make_chain
from test_report import changed, make_run
from test_verdict import SHOUTING, sick

from curation.report.html import render

pytestmark = pytest.mark.slow

WIDTHS = (390, 800, 1280, 1600)
A4 = 720
"""Pixels of a printed line: 21 cm less margins of 1 cm."""
SHIFTED = {
    "auc": {"value": 0.93, "low": 0.9, "high": 0.95, "n": 300},
    "p_value": 1e-9,
    "num_source": 300,
    "num_pool": 400,
    "differs": True,
    "strength": "severe",
    "warning": "The hidden states differ.",
}

STICKS_OUT = """
const out = [];
if (document.documentElement.scrollWidth > innerWidth) out.push('page: ' + document.documentElement.scrollWidth);
for (const e of document.body.querySelectorAll('*')) {
  const box = e.getBoundingClientRect();
  const inside = e.parentElement.closest('.scroll, pre, svg');
  if (box.width && !inside && (box.right > innerWidth + 1 || box.left < -1))
    out.push(e.tagName + '.' + e.className + ': ' + e.textContent.slice(0, 40));
}
return out;
"""
NO_HINT = """
return [...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth + 1)
  .filter(e => !getComputedStyle(e).backgroundImage.includes('gradient') || e.tabIndex !== 0)
  .map(e => e.textContent.slice(0, 60));
"""
ONLY_DASHES = """
const found = [];
for (const table of document.querySelectorAll('table')) {
  const joined = c => c.colSpan > 1 || c.rowSpan > 1;
  const rows = [...table.querySelectorAll('tbody tr')].filter(r => ![...r.cells].some(joined));
  const heads = [...table.querySelectorAll('thead th')];
  heads.forEach((head, i) => {
    const texts = rows.map(r => r.cells[i] && r.cells[i].textContent.trim()).filter(t => t);
    if (texts.length && texts.every(t => t === '\\u2013')) found.push(head.textContent);
  });
}
return found;
"""
BROKEN_TIMES = """
return [...document.querySelectorAll('td.whole')].filter(e => /\\d{4}-\\d\\d-\\d\\d/.test(e.textContent))
  .filter(e => { const range = document.createRange(); range.selectNodeContents(e);
    return new Set([...range.getClientRects()].map(r => Math.round(r.top))).size > 1; }).map(e => e.textContent);
"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run to use; one without an audit on a shifted pool, without students; names that never end; two chains."""
    folder = tmp_path_factory.mktemp("pages")
    run = make_run(folder)
    run = replace(run, config={**run.config, "report_rows": 3})
    good = with_analysis(collect(run), {"advantages": advantages(), "coherence": coherent()})
    bad = collect(changed(run, audit=False, shift={"source": SHIFTED}, tests={}, training={}))
    long = json.loads(json.dumps(good))
    long["name"] = long["generations"][0]["teacher_model"]["name"] = "a-name-that-is-longer-than-any-line-" * 5
    for row in long["generations"][0]["rows"]["kinds"]["selected"]:
        row["label"] = "o" * 400
    chain = make_chain(folder)
    records = (replace(chain, generations=[record]) for record in chain.generations)
    ungraded = [changed(run, audit=False).generations[0] for run in records]
    alone = replace(chain.chain, branches={}, shallow={}, ended=None)
    chains = {"chain": collect(chain), "ungraded": collect(replace(chain, generations=ungraded, chain=alone))}
    found = {}
    for name, report in {"good": good, "bad": bad, "long": long, **chains}.items():
        found[name] = folder / f"{name}.html"
        found[name].write_text(render(report))
    return found


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


def show(browser: Any, page: Path, width: int, *, dark: bool = False, media: str = "screen") -> None:
    """The page with all its folds open."""
    size = {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": [scheme]})
    browser.get(page.as_uri())
    browser.execute_script("document.querySelectorAll('details').forEach(e => e.open = true)")


def picture(browser: Any, name: str) -> None:
    """A picture of the first screen, where they are asked for."""
    if folder := os.environ.get("REPORT_SCREENSHOTS"):
        browser.execute_script("document.querySelectorAll('details').forEach(e => e.open = false)")
        shot = browser.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})
        (Path(folder) / f"{name}.png").write_bytes(base64.b64decode(shot["data"]))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dark", [False, True])
def test_nothing_sticks_out_and_all_text_can_be_read(
    browser: Any, pages: dict[str, Path], width: int, dark: bool
) -> None:
    for name, page in pages.items():
        show(browser, page, width, dark=dark)
        assert browser.execute_script(STICKS_OUT) == [], name
        assert browser.execute_script(NO_HINT) == [], name
        assert browser.execute_script(BROKEN_TIMES) == [], name
        seen, low = browser.execute_script(LOW_CONTRAST)
        assert seen > 200 and low == [], name
        background = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
        assert (background == "rgb(255, 255, 255)") is not dark
        picture(browser, f"{name}-{width}{'-dark' if dark else ''}")


def test_sick_runs_shout_on_the_first_screen(browser: Any, tmp_path: Path) -> None:
    for kind, (_, _, level, words) in SHOUTING.items():
        folder = tmp_path / kind.replace(" ", "-")
        folder.mkdir()
        page = folder / "report.html"
        page.write_text(render(sick(kind, folder)))
        show(browser, page, 1280)
        first = browser.execute_script(
            "const e = document.querySelector('.word'); return e.getBoundingClientRect().bottom < 200 && e.innerText"
        )
        assert words in first and level in first.lower()
        picture(browser, f"sick-{folder.name}")


def test_the_checks_see_what_is_wrong(browser: Any, tmp_path: Path) -> None:
    """The measurements themselves: a page with each of the faults."""
    page = tmp_path / "faulty.html"
    page.write_text(
        "<p style='width:2000px'>wide</p><p style='color:#999'>pale</p>"
        "<div class='scroll' style='overflow:auto'><p style='width:3000px'>cut</p></div>"
        "<table><thead><tr><th>Empty</th><th>Full</th></tr></thead>"
        "<tbody><tr><td>\u2013</td><td>1</td></tr></tbody></table>"
        "<table style='width:60px'><tr><td class='whole'>2026-01-01 00:00:00 UTC</td></tr></table>"
    )
    show(browser, page, 800)
    assert any("wide" in line for line in browser.execute_script(STICKS_OUT))
    assert browser.execute_script(NO_HINT) == ["cut"] and browser.execute_script(ONLY_DASHES) == ["Empty"]
    (pale,) = browser.execute_script(LOW_CONTRAST)[1]
    assert pale.startswith("2.85 P") and len(browser.execute_script(BROKEN_TIMES)) == 1


def test_no_column_has_dashes_only_and_the_contents_lead_somewhere(browser: Any, pages: dict[str, Path]) -> None:
    for name, page in pages.items():
        show(browser, page, 1280)
        assert browser.execute_script(ONLY_DASHES) == [], name
        targets = browser.execute_script("return [...document.querySelectorAll('nav a')].map(a => a.hash.slice(1))")
        assert len(targets) >= 6
        assert all(browser.execute_script("return !!document.getElementById(arguments[0])", to) for to in targets)
        first = browser.execute_script("return document.body.firstElementChild.innerText")
        assert first.startswith(("✓ Use it: ", "! Use with care: ", "✕ Do not use: "))


def test_a_printed_page_is_light_and_not_cut(browser: Any, pages: dict[str, Path]) -> None:
    for name in ("good", "bad"):
        show(browser, pages[name], A4, dark=True, media="print")
        assert browser.execute_script("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert browser.execute_script("return document.documentElement.scrollWidth") <= A4, name
        assert browser.execute_script("return getComputedStyle(document.querySelector('nav')).display") == "none"
        pdf = base64.b64decode(browser.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})["data"])
        assert pdf.startswith(b"%PDF") and len(pdf) > 20_000
