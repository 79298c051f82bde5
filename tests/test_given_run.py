"""Labels made elsewhere, end to end: a run, its report, its package, a filter of new files, and a run with grades."""

import json
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.csv
import pytest
import yaml
from click.testing import CliRunner
from irony_given import CLASSES, config_of_irony, write_irony
from test_docs import DOCS, blocks

from curation.cli import main
from curation.config.load import as_config
from curation.pipeline.opened import open_run
from curation.stages.asking import AskModel
from tests import golden

pytestmark = [pytest.mark.timeout(900), pytest.mark.long]


def curate(*arguments: str) -> str:
    result = CliRunner().invoke(main, list(arguments))
    assert result.exit_code == 0, result.output
    return result.stdout


def report_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "run" / "report.json").read_text())


def labels_of(folder: Path, split: str) -> pa.Table:
    (uri,) = (folder / "run" / "gen-0").glob(f"label-{split}-*/labels.lance")
    return lance.dataset(str(uri)).to_table()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with gold labels."""
    folder = tmp_path_factory.mktemp("given")
    write_irony(folder)
    (folder / "given.yaml").write_text(yaml.safe_dump(config_of_irony(folder)))
    curate("run", str(folder / "given.yaml"))
    golden.check("given", folder / "run")
    return folder


def test_labels_are_the_columns_and_nothing_is_asked(folder: Path) -> None:
    source = pyarrow.csv.read_csv(
        folder / "labelled.csv", parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True)
    )
    labels = labels_of(folder, "source").sort_by("row_id")
    assert labels["label"].to_pylist() == source["answer"].to_pylist()
    assert labels["completion"].to_pylist() == [f" {CLASSES[label]}" for label in source["answer"].to_pylist()]
    assert labels["given_confidence"].to_pylist() == pytest.approx(source["confidence"].to_pylist())
    assert labels["mean_logprob"].null_count == labels["num_prompt_tokens"].null_count == labels.num_rows
    assert not [name for name in labels.column_names if name.startswith("state_")]
    opened = open_run(as_config(str(folder / "given.yaml")))
    asking = [stage for stage in opened.chain.stages if isinstance(stage, AskModel)]
    assert asking and not any(stage.teacher.asks for stage in asking)


def test_trust_by_the_numbers_puts_right_labels_first(folder: Path) -> None:
    (generation,) = report_of(folder)["generations"]
    trust = generation["trust"]["pool"]["parsed"]["functions"]
    assert trust["trust"]["auc"]["value"] > 0.75 and trust["given_confidence"]["auc"]["value"] > 0.75
    assert not {"internal_confidence", "margin", "entropy"} & trust.keys()
    purity = {arm["name"]: arm["purity"]["value"] for arm in generation["arms"]}
    assert purity["trust"] == pytest.approx(0.967, abs=0.02)  # docs/data-forms.md says so
    assert purity["given_confidence"] == pytest.approx(0.967, abs=0.02)
    assert purity["naive"] == pytest.approx(0.717, abs=0.02)
    assert set(purity) == {"naive", "given_confidence", "naive_parsed", "trust", "trust_gold", "ground_truth"}
    assert generation["teacher_model"]["name"] == "labels made elsewhere"
    assert generation["verdict"]["level"] == "use it", generation["verdict"]
    assert "guessing" not in json.dumps(generation["verdict"])
    assert generation["evidence"]["chance"] == 0.5
    assert 0.6 < generation["teacher"]["pool"]["value"] < 0.85


def test_plan_status_and_validate_say_that_no_model_is_asked(folder: Path) -> None:
    told = curate("validate", str(folder / "given.yaml"))
    assert "labels are column answer, no model is asked; graded by gold labels" in told and "actors" not in told
    assert "Use it" in curate("status", str(folder / "given.yaml"))
    fresh = folder / "fresh.yaml"
    fresh.write_text(yaml.safe_dump({**config_of_irony(folder), "run_dir": str(folder / "fresh")}))
    told = curate("plan", str(fresh))
    assert "from start to end: not known" not in told and "probe: labelling" not in told


def test_a_package_filters_files_that_have_the_columns(folder: Path) -> None:
    curate("export-trust", str(folder / "run"), "-o", str(folder / "package"))
    pool, package = folder / "pool.csv", str(folder / "package")
    curate("filter", package, str(pool), "-o", str(folder / "kept"), "--keep", "0.2")
    found = json.loads((folder / "kept" / "filter.json").read_text())
    assert found["rows"] == 1400 and found["kept"] == 280
    table = pyarrow.csv.read_csv(pool, parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True))
    bare = folder / "bare.csv"
    pyarrow.csv.write_csv(table.select(["text", "answer"]), bare)
    result = CliRunner().invoke(main, ["filter", package, str(bare), "-o", str(folder / "none"), "--keep", "0.2"])
    assert result.exit_code == 2 and "bare.csv: has no column 'confidence'" in result.output


def test_grades_stand_for_gold_labels(folder: Path) -> None:
    graded = folder / "graded"
    graded.mkdir()
    for name in ("labelled", "pool"):
        options = pyarrow.csv.ParseOptions(newlines_in_values=True)
        table = pyarrow.csv.read_csv(folder / f"{name}.csv", parse_options=options)
        pyarrow.csv.write_csv(table.drop_columns("label"), graded / f"{name}.csv")
    _, page, *_ = (text for language, text in blocks(DOCS / "data-forms.md") if language == "yaml")
    (graded / "given.yaml").write_text(page)
    curate("run", str(graded / "given.yaml"), "--set", f"run_dir={graded / 'run'}", "--set", "splits.audit=true")
    (mine,), (theirs,) = report_of(graded)["generations"], report_of(folder)["generations"]
    assert {arm["name"] for arm in mine["arms"]} == {"naive", "given_confidence", "naive_parsed", "trust"}
    for name in ("trust", "given_confidence"):  # grades say of the same rows what their gold labels say
        found = [generation["trust"]["pool"]["parsed"]["functions"][name]["auc"] for generation in (mine, theirs)]
        assert found[0] == found[1]
