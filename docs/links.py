"""Checks the links of the site: ``python docs/links.py build/docs``; ``make docs`` does it.

Every link within the site must lead to a file, and to an anchor in it; every path of the repository and every test that
a page names in code font must be there. Nothing may be loaded from elsewhere: the site
works without a network. Links to other places are written to ``external-links.txt`` beside the pages, each with the
pages that have it; ``--fetch`` asks whether they answer.
"""

import argparse
import re
import sys
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urldefrag, urlsplit

LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}
"""By element, the attribute that names what the browser fetches by itself."""
SECONDS = 20
ROOT = Path(__file__).resolve().parents[1]
PARTS = ("benchmarks", "curation", "deploy", "docs", "examples", "tests", "train", "tune")
"""Folders of the repository; a page may leave out the first ones of a path."""
NAMED = re.compile(r"`((?:[\w.-]+/)*[\w-]+\.(?:py|yaml|j2))?(?:::(\w+))?`")
TO_BE_MADE = {"extending.md", "log"}
"""A page that names files which a reader is to write, and the folder of pages that name files which once were."""


class Page(HTMLParser):
    """The anchors and links of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what the element has."""
        given = {name: value for name, value in attrs if value is not None}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if (attribute := LOADED.get(tag)) in given and attribute is not None:
            self.loaded.append(given[attribute])


class Checked(NamedTuple):
    """What a site links to."""

    dead: list[str]
    num_inside: int
    outside: dict[str, list[str]]
    """By address, the pages that link to it."""


def check(site: Path) -> Checked:
    """Look at every page of a site."""
    pages = {path: Page(path.read_text()) for path in sorted(site.rglob("*.html"))}
    dead, outside, num_inside = [], defaultdict(list), 0
    for path, page in pages.items():
        name = str(path.relative_to(site))
        dead += [f"{name}: loads {link} from elsewhere" for link in page.loaded if urlsplit(link).netloc]
        for link in (*page.links, *(link for link in page.loaded if not urlsplit(link).netloc)):
            if (parts := urlsplit(link)).netloc:
                outside[link].append(name)
            elif not parts.scheme:
                num_inside += 1
                file, anchor = urldefrag(link)
                target = (path.parent / unquote(urlsplit(file).path)).resolve() if file else path.resolve()
                if not target.is_file():
                    dead.append(f"{name}: {link} is no file")
                elif anchor and target in pages and unquote(anchor) not in pages[target].anchors:
                    dead.append(f"{name}: {link} is no anchor")
    return Checked(dead, num_inside, dict(sorted(outside.items())))


def not_there(pages: list[Path]) -> Iterator[str]:
    """Find the paths of the repository, and the tests, that pages name in code font and that are not there."""
    files = [path for part in PARTS for path in (ROOT / part).rglob("*.*")]
    folders = {path.parent.name for path in files}
    tests = sorted((ROOT / "tests").rglob("*.py"))
    for page in pages:
        for path, test in NAMED.findall(page.read_text()):
            found = [file for file in files if str(file).endswith(f"/{path}")] if path else tests
            is_ours = path.split("/")[0] in folders if "/" in path else path.startswith("test_")
            if is_ours and not found:
                yield f"{page.name}: {path} is not there"
            elif test and not any(f"def {test}(" in file.read_text() for file in found):
                yield f"{page.name}: {path or 'tests'} has no {test}"


def answers(link: str) -> str | None:
    """What is wrong with an address elsewhere; None: it answers."""
    try:
        urllib.request.urlopen(urllib.request.Request(link, headers={"User-Agent": "links.py"}), timeout=SECONDS)
    except (OSError, ValueError) as error:
        return str(error)
    return None


def main() -> None:
    """Check, list, and fail where a link is dead."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("site", type=Path)
    parser.add_argument("--fetch", action="store_true", help="fetch links to other places")
    given = parser.parse_args()
    site = given.site.resolve()
    found = check(site)
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    dead = [*found.dead, *not_there([page for page in pages if not {page.name, page.parent.name} & TO_BE_MADE])]
    (site / "external-links.txt").write_text(
        "".join(f"{link}  {', '.join(sorted(set(at)))}\n" for link, at in found.outside.items())
    )
    if given.fetch:
        dead += [f"{link}: {wrong}" for link in found.outside if (wrong := answers(link))]
    print("\n".join(dead), end="\n" if dead else "")
    print(f"{found.num_inside:,} links within the site, {len(found.outside)} to other places, {len(dead)} dead")
    sys.exit(1 if dead else 0)


if __name__ == "__main__":
    main()
