"""The site of ``make docs``: it builds, no link is dead, search works from a folder, and it can be read."""

import json
import runpy
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from chromium import LOW_CONTRAST, chromium
from test_docs import ANSWERS

pytest.importorskip("sphinx", reason="Sphinx is not installed: make docs")

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]


def built(pages: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "-d", f"{site}.trees"]
    return subprocess.run([*command, str(pages), str(site)], capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    site = tmp_path_factory.mktemp("site") / "html"
    done = built(ROOT / "docs", site)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return site


def test_no_link_is_dead(site: Path):
    found = runpy.run_path(str(ROOT / "docs" / "links.py"))["check"](site)
    assert found.dead == [] and found.num_inside > 1_000
    assert {"index.html", "search.html", "own-data.html"} <= {path.name for path in site.glob("*.html")}


def test_dead_links_are_found(site: Path, tmp_path: Path):
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    page = tmp_path / "docs" / "glossary.md"
    page.write_text(page.read_text() + "\n[one](nowhere.md) [two](method.md#nothing)\n")
    done = built(tmp_path / "docs", tmp_path / "site")
    assert done.returncode == 1 and "nowhere.md" in done.stderr and "nothing" in done.stderr
    shutil.copytree(site, tmp_path / "copy")
    index = tmp_path / "copy" / "index.html"
    broken = '<a href="nowhere.html">1</a><a href="method.html#nothing">2</a><script src="https://cdn.example/a.js"></script>'
    index.write_text(index.read_text().replace("</body>", f"{broken}</body>"))
    dead = runpy.run_path(str(ROOT / "docs" / "links.py"))["check"](tmp_path / "copy").dead
    assert len(dead) == 3 and all(line.startswith("index.html: ") for line in dead)


def test_search_works_from_a_folder(site: Path, tmp_path: Path):
    with chromium(tmp_path / "profile") as driver:
        driver.get(f"{(site / 'search.html').as_uri()}?q=super-recovery")
        ends, links = time.monotonic() + 20, []
        while not links and time.monotonic() < ends:
            time.sleep(0.2)
            links = [
                link.get_attribute("href") for link in driver.find_elements("css selector", "#search-results li a")
            ]
        assert any("method.html" in str(link) for link in links), links


WIDE = """
const scrolls = (element) => {
  for (let part = element; part && part !== document.body; part = part.parentElement)
    if (["auto", "scroll"].includes(getComputedStyle(part).overflowX)) return true;
  return false;
};
const all = (query) => [...document.querySelectorAll("article " + query)];
const right = (element) => element.getBoundingClientRect().right;
return JSON.stringify({
  page: document.documentElement.scrollWidth,
  lost: all("table, pre").filter((part) => right(part) > innerWidth + 1 && !scrolls(part)).length,
  cut: all("td, th").filter((cell) => cell.scrollWidth > cell.clientWidth + 1).length,
  thin: all("td, th").filter((cell) => cell.textContent.length > 20 && cell.offsetWidth < 70).length,
  tables: all("table").length,
});
"""


FOUND = """
const words = arguments[0], nodes = document.createTreeWalker(document.querySelector("article"), NodeFilter.SHOW_TEXT);
let text = "", places = [];
for (let node; node = nodes.nextNode();)
  for (const part of node.textContent) {
    const blank = /\\s/.test(part);
    if (blank && text.endsWith(" ")) continue;
    text += blank ? " " : part;
    places.push(node.parentElement);
  }
const at = text.indexOf(words);
return at < 0 ? -1 : places[at].getBoundingClientRect().top;
"""


def show(driver: Any, page: Path, width: int, height: int, *, dark: bool = False) -> None:
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    driver.get(page.as_uri())


def click(driver: Any, element: Any) -> None:
    """As a user does: once the page stands still, which a smooth scroll or a late font keeps from it for a while."""
    common = pytest.importorskip("selenium.common.exceptions")
    wait = pytest.importorskip("selenium.webdriver.support.ui").WebDriverWait
    driver.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", element)
    moving = [common.ElementClickInterceptedException, common.ElementNotInteractableException]
    wait(driver, 20, ignored_exceptions=moving).until(lambda _: element.click() is None)


def pages_of(site: Path) -> list[Path]:
    return sorted({*site.glob("*.html"), *(site / "reference").glob("*.html")})


@pytest.mark.parametrize("width", [390, 800, 1280])
def test_pages_fit_a_telephone_a_tablet_and_a_screen(site: Path, tmp_path: Path, width: int):
    """Code and tables that are wider scroll within themselves; no column is cut or too thin to read."""
    num_tables, wrong = 0, []
    with chromium(tmp_path / "profile") as driver:
        for page in pages_of(site):
            show(driver, page, width, 844)
            found = json.loads(driver.execute_script(WIDE))
            num_tables += found.pop("tables")
            if found.pop("page") > width or found != {"lost": 0, "cut": 0, "thin": 0}:
                wrong.append((page.name, found))
    assert wrong == [] and num_tables > 100


@pytest.mark.parametrize("dark", [False, True])
def test_all_text_can_be_read(site: Path, tmp_path: Path, dark: bool):
    """Contrast as WCAG AA asks, in both colour schemes."""
    low, seen = {}, 0
    with chromium(tmp_path / "profile") as driver:
        for page in pages_of(site):
            show(driver, page, 1280, 844, dark=dark)
            number, found = driver.execute_script(LOW_CONTRAST)
            seen += number
            low |= {page.name: sorted(set(found))} if found else {}
    assert low == {} and seen > 10_000


def test_the_first_screen_answers_the_question_of_its_page(site: Path, tmp_path: Path):
    with chromium(tmp_path / "profile") as driver:
        tops = {}
        for name, words in ANSWERS.items():
            show(driver, site / f"{name}.html", 1280, 800)
            tops[name] = driver.execute_script(FOUND, words)
    assert {name: top for name, top in tops.items() if not 0 <= top < 780} == {}


def test_code_is_copied_by_a_button(site: Path, tmp_path: Path):
    with chromium(tmp_path / "profile") as driver:
        driver.execute_cdp_cmd(
            "Browser.grantPermissions", {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
        )
        show(driver, site / "index.html", 1280, 800)
        blocks = driver.find_elements("css selector", "div.highlight")
        buttons = driver.find_elements("css selector", "div.highlight > button.copy")
        assert len(buttons) == len(blocks) > 0
        click(driver, buttons[0])
        time.sleep(0.5)
        assert buttons[0].text == "Copied"
        copied = driver.execute_async_script("navigator.clipboard.readText().then(arguments[0])")
        assert copied.splitlines()[0] == "curate init --data labelled.csv unlabelled.csv"
        assert driver.get_log("browser") == []


def test_the_front_page_says_for_whom_how_and_where_to():
    """Three commands, and a way in by each task, before the list of all pages."""
    page = (ROOT / "docs" / "index.md").read_text()
    first, _, rest = page.partition("## All pages")
    assert ":caption: Start" in rest and "For engineers" in first
    assert first.count("\ncurate ") == 3
    for task in ("classify", "check", "filter", "the paper"):
        assert f"**{task}**" in first
