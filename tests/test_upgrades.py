"""The table of docs/operations.md on what another version refuses: a test produces each line."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from asserted import asserted
from click.testing import CliRunner
from test_documented_messages import HERE, PAGE, documented, parts_of

from curation.cli import main
from curation.config.filter import WORK
from curation.errors import ModelError
from curation.refs import ModelRef
from curation.rundir.manifest import Manifest, sign_text
from curation.storage.paths import Place, to_place
from curation.teachers import vllm_engine

SECTION = (Path(__file__).parents[1] / "docs/operations.md").read_text().partition("## Upgrades")[2]
TABLE = [row.split(" | ") for row in SECTION.partition("\n## ")[0].splitlines() if row.startswith("| ")][2:]
OLD_FORMAT = "curation/rundir/test_manifest.py::test_a_directory_of_an_earlier_format_is_read_and_not_gone_on_with"
TESTS = {
    "is of format ... goes on with format ... alone": OLD_FORMAT,
    "has the format ... and this version reads format": (
        "curation/filter/package/test_package.py::test_other_formats_and_descriptions_are_refused"
    ),
    "is another version than the package's": (
        "curation/filter/package/test_package.py::test_another_version_of_a_domain_is_noticed"
    ),
    "the nodes of the cluster must have the versions of this process": (
        "curation/cluster/test_nodes.py::test_a_node_with_another_version_is_refused_by_name"
    ),
    "lacks what the teacher reads": "test_upgrades.py::test_a_vllm_without_what_is_read_is_refused",
    "tested with": "curation/commands/test_doctor.py::test_the_version_of_vllm_is_judged",
}


def lines() -> list[str]:
    return [line for row in TABLE for line in re.findall(r"`([^`]+)`", row[2])]


def test_every_line_of_the_table_has_a_test():
    assert len(TABLE) == 7
    elsewhere = {line for line in lines() if line in documented() and line in HERE}
    assert [line for line in lines() if line not in TESTS and line not in elsewhere and line != "curate doctor"] == []
    assert [line for line in TESTS if line not in lines()] == [], "no longer documented"
    assert "cannot be joined from this machine (...)" in elsewhere and "cannot be joined from this machine" in PAGE


@pytest.mark.parametrize("line", TESTS)
def test_the_test_that_is_named_asserts_the_line(line: str):
    found = asserted(TESTS[line])
    assert [part for part in parts_of(line) if not found.says([part])] == [], TESTS[line]


def test_a_vllm_without_what_is_read_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(__version__="9.9"))
    vllm_engine._check_tap(ModelRef(base="m"), None, [])
    with pytest.raises(ModelError, match=r"vLLM 9\.9 lacks what the teacher reads \(sampler\)"):
        vllm_engine._check_tap(ModelRef(base="m"), None, ["sampler"])


@pytest.mark.parametrize("inside", ["", WORK])
def test_commands_that_still_read_a_directory_of_another_format(tmp_path: Path, inside: str):
    home = tmp_path / "old"
    work: Place = to_place(str(home / inside))
    Manifest.load(work).record("select", {"n": 5}, {"n": 5}, rows=5, seconds=1)
    path = home / inside / "manifest.json"
    path.write_text(sign_text(path.read_text().replace('"format": 6', '"format": 2')))
    if inside:
        (home / "filter.json").write_text('{"files": [], "data": "parquet"}')
    for command in ("inspect", "verify"):
        done = CliRunner().invoke(main, [command, str(home)])
        assert done.exit_code == 0, (command, done.output)
