"""The site of ``make docs``: it builds without warnings, no link is dead, and its search works from a folder."""

import runpy
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from chromium import chromium

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
