"""The page at a first look: what only an author of the method reads is folded, it is small, and needs no script."""

import json
from html.parser import HTMLParser

import pytest
from computed import collect
from test_report import make_run

from curation.report.charts import draw_training_figure
from curation.report.html import render
from curation.report.tested import collect_trainings


class _Page(HTMLParser):
    """The text of a page, within folds and outside."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self._depth, self._hidden = 0, 0
        self.seen, self.folded, self.tags = "", "", set[str]()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self._depth += tag == "details" and ("open", None) not in attrs
        self._hidden += tag in ("style", "title", "svg")

    def handle_endtag(self, tag: str) -> None:
        self._depth -= tag == "details"
        self._hidden -= tag in ("style", "title", "svg")

    def handle_data(self, data: str) -> None:
        if self._hidden:
            return
        if self._depth:
            self.folded += data
        else:
            self.seen += data


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    report = json.loads(json.dumps(collect(make_run(tmp_path_factory.mktemp("run")))))
    return render(report)


@pytest.mark.long
def test_what_only_an_author_of_the_method_reads_is_folded(page: str) -> None:
    found = _Page(page)
    for words in ("Brier", "exp(entropy)", "paired bootstrap", "Start-up included"):
        assert words in found.folded and words not in found.seen, words
    for words in ("Arms", "Purity", "Minus ground truth", "95 % intervals", "Purity against rows taken", "Stages"):
        assert words in found.seen, words
    assert "mean of 1 set" not in page and "seed 3" not in found.seen


def test_the_page_is_small_and_needs_no_script_and_no_network(page: str) -> None:
    assert len(page.encode()) < 2_000_000
    assert {"script", "link", "iframe", "img"}.isdisjoint(_Page(page).tags)
    assert "@import" not in page and "url(http" not in page


@pytest.mark.parametrize("num_measures", [1, 2, 3])
def test_the_names_of_all_arms_are_within_the_figure_of_the_trainings(num_measures: int) -> None:
    curves = {"grad_norm": [1.0, 2.0], "reward": [0.1, 0.2]}
    record = {"losses": [2.0, 1.0], "seconds": 1.0, "curves": dict(list(curves.items())[: num_measures - 1])}
    arms = ("naive", "internal_confidence", "last_logprob", "trust", "trust_gold", "ground_truth")
    figure = draw_training_figure(collect_trainings(dict.fromkeys(arms, record)))
    figure.draw_without_rendering()
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert len(legend.get_texts()) == 6
    assert box.x0 >= 0 and box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1
