"""Labels made elsewhere that a model reads, end to end: a run, its report, its package, and a filter."""

import json
import string
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
import yaml
from click.testing import CliRunner
from irony_given import CLASSES, config_of_irony, write_irony
from test_docs import DOCS, blocks

from curation.cli import main
from curation.config import DecodingConfig
from curation.config.load import as_config
from curation.domains import get_domain
from curation.models import create
from curation.pipeline.opened import open_run
from curation.refs import ModelRef
from curation.stages.asking import AskModel
from curation.tables.schemas import get_raw_column
from curation.teachers import Request, load_teacher
from curation.trust import load_fitted, saved
from curation.trust.class_probe import CLASS_PROBE

pytestmark = [pytest.mark.timeout(900), pytest.mark.long]

SHAPE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "intermediate_size": 64,
    "max_position_embeddings": 150,
    "initializer_range": 0.1,
}
STATES = ["prompt_last", "output_mean"]


def curate(*arguments: str, fails: int = 0) -> str:
    result = CliRunner().invoke(main, list(arguments))
    assert result.exit_code == fails, result.output
    return result.output if fails else result.stdout


def labels_of(folder: Path, split: str) -> pa.Table:
    (uri,) = (folder / "run" / "gen-0").glob(f"label-{split}-*/labels.lance")
    return lance.dataset(str(uri)).to_table()


def reading(folder: Path, **further: Any) -> dict[str, Any]:
    reader = {"model": {"path": str(folder / "small")}}
    config = config_of_irony(folder, reader=reader, states=STATES, token_logprobs=3, max_error_rate=0.5)
    config["trust"] = {"states": STATES}
    return {**config, "selection": {"budget": {"n": 60}}, **further}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, read by a random model with a token a character; some rows are longer than its context."""
    folder = tmp_path_factory.mktemp("read")
    write_irony(folder, num_labelled=150, num_pool=300)
    words = tuple(string.printable)
    create(folder / "small", family="qwen3", shape=SHAPE, words=words, pattern=r"[\s\S]", seed=3)
    (folder / "read.yaml").write_text(yaml.safe_dump(reading(folder)))
    curate("run", str(folder / "read.yaml"))
    return folder


def test_labels_are_the_columns_and_numbers_and_states_the_reader_s(folder: Path) -> None:
    labels = labels_of(folder, "source")
    whole = [row for row in labels.sort_by("row_id").to_pylist() if row["error"] is None]
    assert {row["label"] for row in whole} == {"irony", "non_irony"}
    (uri,) = (folder / "run").glob("prepare-*/source.lance")
    texts = {row["row_id"]: row for row in lance.dataset(str(uri)).to_table().to_pylist()}
    config, ref = as_config(reading(folder)), ModelRef(base=str(folder / "small"))
    domain = get_domain(config.domain_of("source"))
    ask = config.teacher.ask.model_copy(update={"reads_given": False, "state_dtype": "float32", "dtype": "float32"})
    options = tuple(f" {words}" for words in CLASSES.values())
    requests = [
        Request(row_id=row["row_id"], prompt=domain.prompt(texts[row["row_id"]]), options=(row["completion"],))
        for row in whole[:20]
    ]  # the answer alone, as the only option of a teacher
    found = {
        row["row_id"]: row
        for batch in load_teacher(ask, ref).label(requests, DecodingConfig(), seed=0)
        for row in batch.to_pylist()
    }
    for row in whole[:20]:
        expected = found[row["row_id"]]
        assert row["mean_logprob"] == pytest.approx(expected["mean_logprob"], abs=1e-4)
        np.testing.assert_allclose(row["token_logprobs"], expected["token_logprobs"], atol=4e-3)
        for name in STATES:
            np.testing.assert_allclose(row[f"state_{name}"], expected[f"state_{name}"], atol=4e-3)
        score = row["option_logprobs"][options.index(row["completion"])]
        (other,) = (value for value in row["option_logprobs"] if value != score)
        assert row["margin"] == pytest.approx(score - other, abs=1e-4)


def test_the_section_of_the_page_is_valid() -> None:
    _, page, section, *_ = (text for language, text in blocks(DOCS / "data-forms.md") if language == "yaml")
    config = as_config({**yaml.safe_load(page), **yaml.safe_load(section)})
    assert config.teacher.reader is not None and config.trust.states == ("output_last",)


def test_rows_beyond_the_context_are_error_rows(folder: Path) -> None:
    labels = pa.concat_tables([labels_of(folder, split).select(["row_id", "error"]) for split in ("source", "pool")])
    errors = {error.partition(":")[0] for error in labels["error"].to_pylist() if error}
    assert labels.num_rows == 450 and errors == {"prompt_length"}
    assert 0 < labels["error"].drop_null().length() < 200


def test_report_ranks_by_everything_that_a_model_has(folder: Path) -> None:
    (generation,) = json.loads((folder / "run" / "report.json").read_text())["generations"]
    trust = generation["trust"]["pool"]["parsed"]["functions"]
    assert {"trust", "given_confidence", "internal_confidence", "margin", "entropy"} <= trust.keys()
    assert trust["trust"]["auc"]["value"] > 0.7  # the numbers that came with the labels are still there
    assert generation["teacher_model"]["name"].startswith("labels made elsewhere, read by ")
    (selection,) = (folder / "run" / "gen-0").glob("select-*/trust.lance")
    assert set(lance.dataset(str(selection)).to_table()["teacher"].to_pylist()) == {None}


def test_validate_and_plan_name_the_reader(folder: Path) -> None:
    told = curate("validate", str(folder / "read.yaml"))
    assert "teacher: labels are column answer; graded by" in told
    assert "teacher.reader: reads each answer once (transformers)" in told
    assert "trust: stacked; reads prompt_last, output_mean" in told
    assert f"reader: {folder / 'small'}" in told
    fresh = folder / "fresh.yaml"
    fresh.write_text(yaml.safe_dump(reading(folder, run_dir=str(folder / "fresh"))))
    assert "unparsed 0.0 %" in curate("plan", str(fresh))  # the sample that the reader was asked
    missing = reading(folder)
    missing["teacher"]["reader"] = {"model": {"path": str(folder / "nothing")}}
    (folder / "missing.yaml").write_text(yaml.safe_dump(missing))
    assert "nothing" in curate("validate", str(folder / "missing.yaml"), fails=2)


def test_another_reader_is_another_key_and_students_answer(folder: Path) -> None:
    def stages(config: dict[str, Any]) -> dict[str, Any]:
        return {stage.name: stage for stage in open_run(as_config(config)).chain.stages}

    tested = {"splits": {**reading(folder)["splits"], "test": {"from": "labelled", "rows": 20}}}
    students = {"generations": [{"student": {"path": str(folder / "small")}}], "run_dir": str(folder / "students")}
    mine = stages(reading(folder, **tested, **students))
    asks = {name: stage.teacher.ask for name, stage in mine.items() if isinstance(stage, AskModel)}
    assert asks["gen-0/label-pool"].reads_given and not asks["gen-0/test-base"].reads_given
    assert asks["gen-0/label-pool"].backend == asks["gen-0/test-base"].backend == "transformers"
    read, alone = stages(reading(folder)), stages(config_of_irony(folder))
    for name in ("gen-0/label-source", "gen-0/label-pool"):
        assert read[name].inputs["ask"].reads_given and "reads_given" not in alone[name].inputs["ask"].to_key()
        assert read[name].inputs["model"].base == str(folder / "small")
        assert alone[name].inputs["model"] is None and alone[name].inputs["backend"] == "given"


def test_a_package_filters_with_the_reader(folder: Path) -> None:
    package = folder / "package"
    curate("export-trust", str(folder / "run"), "-o", str(package))
    described = json.loads((package / "package.json").read_text())["description"]
    assert described["ask"]["reads_given"] is True and described["teacher"]["base"] == str(folder / "small")
    assert "reader" not in described["ask"] and described["ask"]["backend"] == "transformers"
    assert "labels made elsewhere, read by" in (package / "README.md").read_text()
    config = {
        "package": str(package),
        "pool": {"path": str(folder / "pool.csv")},
        "output": {"path": str(folder / "kept")},
        "keep": {"n": 60},
        "teacher": {"max_error_rate": 0.5},
        "anyway": True,
        "on_shift": "ignore",
    }
    (folder / "filter.yaml").write_text(yaml.safe_dump(config))
    curate("filter", str(folder / "filter.yaml"))
    assert json.loads((folder / "kept" / "filter.json").read_text())["kept"] == 60
    (uri,) = (folder / "kept" / "_curation").glob("**/labels.lance")
    filtered = {row["row_id"]: row for row in lance.dataset(str(uri)).to_table().to_pylist()}
    pool = {row["row_id"]: row for row in labels_of(folder, "pool").to_pylist()}
    assert filtered.keys() == pool.keys()
    found = {row_id: (row["completion"], row["mean_logprob"], row["margin"]) for row_id, row in pool.items()}
    for row_id, row in filtered.items():
        assert (row["completion"], row["mean_logprob"], row["margin"]) == pytest.approx(found[row_id], abs=1e-5)
    # The label is compared with the class that the prompt's state tells, in the run, in explain, and in the filter.
    function = load_fitted(saved.pin(package / "trust"))
    assert function.features[-1] == "label" and CLASS_PROBE in function.combination.names
    raw = get_raw_column("trust")
    scored = {row["row_id"]: row[raw] for row in pool.values() if row.get(raw) is not None}
    assert scored and all(filtered[row_id][raw] == pytest.approx(scored[row_id], abs=1e-4) for row_id in scored)
    explained = json.loads(curate("explain", str(folder / "run"), str(next(iter(scored))), "--json"))
    weighed = explained["generations"][0]["weighed"]
    assert CLASS_PROBE in {item["input"] for item in weighed}
