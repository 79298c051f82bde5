"""Ten public shapes of tasks: what ``curate init --data`` writes is accepted, reads the right answers, and runs."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.first_contact import TEACHER, make_teacher, meet
from curation.cli import main
from curation.config.load import load_config
from tests.tasks.reading import golds
from tests.tasks.shapes import SHAPES, make

pytestmark = pytest.mark.timeout(1200)


@pytest.mark.parametrize("name", SHAPES)
def test_what_is_written_is_valid_and_reads_the_right_answers(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shape = make(name)
    labelled, unlabelled = shape.write(tmp_path)
    Path(TEACHER).mkdir()
    teacher = [] if shape.is_given else ["--model", TEACHER]
    done = CliRunner().invoke(
        main, ["init", "--data", unlabelled.name, labelled.name, *teacher], catch_exceptions=False
    )
    assert done.exit_code == 0, done.output
    config = load_config("curation.yaml")
    assert config.domain.name == shape.domain
    assert config.sources["labelled"].path.endswith(labelled.name)
    assert golds(config) == shape.golds and not config.splits.audit
    assert (config.teacher.given is not None) == shape.is_given
    if not shape.is_given:
        make_teacher(config, Path(TEACHER), shape, learns=False)
    done = CliRunner().invoke(main, ["validate", "curation.yaml"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert {f"split source: {len(shape.labelled)} rows", f"split pool: {len(shape.unlabelled)} rows"} <= {*lines}
    assert not [line for line in lines if "cannot be" in line], done.stdout


def test_a_seed_makes_the_same_rows_and_another_one_others() -> None:
    for name in SHAPES:
        assert make(name) == make(name) != make(name, seed=1)


@pytest.mark.whole_run
@pytest.mark.parametrize("name", ["pairs", "given labels"])
def test_it_runs_without_an_edit(name: str, tmp_path: Path, local_ray: object) -> None:
    contact = meet(name, tmp_path)
    assert (contact.ran, contact.right) == ("yes", "yes"), contact.said


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SHAPES if name not in ("pairs", "given labels")])
def test_all_others_run_without_an_edit(name: str, tmp_path: Path, local_ray: object) -> None:
    contact = meet(name, tmp_path)
    assert (contact.ran, contact.right) == ("yes", "yes"), contact.said
