"""Trust packages whose digests are right and whose content is not: each command refuses them before any work."""

from pathlib import Path

import pytest
from tiny_package import sums, tiny_package

from benchmarks.hostile_packages import PACKAGES, Package, attempt
from curation.errors import PackageError
from curation.filter import Filter
from curation.filter.package.checks import check_content
from curation.filter.package.folder import TrustPackage


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> TrustPackage:
    return tiny_package(tmp_path_factory.mktemp("packages") / "tiny")


@pytest.mark.parametrize("verb", ["verify", "filter"])
@pytest.mark.parametrize("case", PACKAGES, ids=lambda case: case.name)
def test_it_is_refused_in_a_line_and_nothing_of_it_runs(
    good: TrustPackage, tmp_path: Path, case: Package, verb: str
) -> None:
    outcome, line = attempt(case, verb, good, tmp_path / "it")
    assert outcome == "refused", line


@pytest.mark.parametrize("case", PACKAGES, ids=lambda case: case.name)
def test_it_scores_no_row_in_this_process(good: TrustPackage, tmp_path: Path, case: Package) -> None:
    made = case.make(good, tmp_path / "it")
    with pytest.raises(PackageError):
        list(Filter.load(made).score(sums(3)))


def test_a_good_one_holds_what_it_says(good: TrustPackage) -> None:
    check_content(good)
