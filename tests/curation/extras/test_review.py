"""``curate review`` on a run directory: draw, verdicts from files, what they give, and what is refused."""

import csv
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from review_run import HOSTILE, ReviewedRun, make_run, selected

from curation.cli import main
from curation.extras.review import source
from curation.extras.review.exchange import _format_csv
from curation.extras.review.folder import ROWS, open_review
from curation.hashing import derive
from curation.metrics import compute_finite_share
from curation.rundir.manifest import sign_text
from curation.selection.risk import calibrate

NUM = 1_200


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> ReviewedRun:
    """A run that certified a small cut on a small calibration split."""
    directory = tmp_path_factory.mktemp("review") / "run"
    return make_run(
        directory, num_rows=NUM, budget={"risk": {"alpha": 0.2, "delta": 0.2}}, num_calibration=60, noise_at=1.5
    )


@pytest.fixture
def run(finished: ReviewedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ReviewedRun:
    """The run, with a folder of its own for reviews: ``tmp_path / "reviews"``."""
    monkeypatch.chdir(tmp_path)
    return finished


def curate(run: ReviewedRun, verb: str, *arguments: object) -> str:
    given = ["review", verb, str(run.directory), "--folder", "reviews", *map(str, arguments)]
    found = CliRunner().invoke(main, given, catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return found.stdout


def concluded(run: ReviewedRun, *arguments: object) -> dict[str, Any]:
    """The result of the only review."""
    curate(run, "result", *arguments)
    return json.loads((open_review(Path("reviews"), None).folder / "review.json").read_text())


def refused(*arguments: object) -> str:
    found = CliRunner().invoke(main, ["review", *map(str, arguments)], catch_exceptions=False)
    assert found.exit_code == 2 and len(found.stderr.splitlines()) == 1, found.output
    return found.stderr


def drawn(name: str = "trust") -> list[int]:
    return open_review(Path("reviews"), name).rows["row_id"].to_pylist()


def test_a_draw_is_kept_with_texts_and_probabilities(run: ReviewedRun):
    told = curate(run, "draw", "--num", 80, "--seed", 3)
    assert "80 rows of arm trust" in told and "0 of 80 rows have a verdict" in told
    rows = pq.read_table("reviews/trust/rows.parquet")
    assert rows.schema.equals(ROWS)
    best = set(selected(run, "trust"))
    for row in rows.to_pylist():
        assert row["raw"] == pytest.approx(run.raw[row["row_id"]]) and row["selected"] == (row["row_id"] in best)
        assert row["prompt"].startswith("Solve the problem") and "boxed" in row["completion"] and row["label"]
    assert any(HOSTILE in row["prompt"] for row in rows.to_pylist())
    assert not {*rows["row_id"].to_pylist()} & (run.unparsed | run.failed)
    before = Path("reviews/trust/rows.parquet").read_bytes()
    assert curate(run, "draw") == told and curate(run, "draw", "--num", 80, "--seed", 3, "--arm", "trust") == told
    assert Path("reviews/trust/rows.parquet").read_bytes() == before
    curate(run, "draw", "--num", 80, "--seed", 3, "--name", "again")
    assert drawn("again") == drawn()
    assert "was drawn with --num 80, not 90" in refused("draw", run.directory, "--folder", "reviews", "--num", 90)
    assert "name one of its reviews by --name" in refused("result", run.directory, "--folder", "reviews")


def test_verdicts_give_purity_calibration_set_and_a_new_cut(run: ReviewedRun):
    curate(run, "draw", "--num", 300)
    ids = drawn()
    unsure, silent = ids[5], ids[6]
    path = run.csv(Path("anna.csv"), [row_id for row_id in ids if row_id not in (unsure, silent)], "anna")
    path.write_text(path.read_text() + f"{unsure},Unsure ,anna\n")
    assert "299 verdicts taken" in curate(run, "import", "csv", path)
    assert "0 verdicts taken, 299 were known already" in curate(run, "import", "csv", path)
    words = curate(run, "result")
    result = json.loads(Path("reviews/trust/review.json").read_text())

    rows = pq.read_table("reviews/trust/rows.parquet").to_pylist()
    decided = [row for row in rows if row["row_id"] not in (unsure, silent)]
    of = {}
    for row in decided:
        if row["selected"]:
            of.setdefault(row["stratum"], []).append(run.right[row["row_id"]])
    sizes = {index: item["num_rows"] for index, item in enumerate(result["strata"])}
    num_selected = len(selected(run, "trust"))
    assert sum(sizes[index] for index in of) == num_selected == result["num_selected"]
    shares = {index: compute_finite_share(sum(right), len(right), sizes[index]) for index, right in of.items()}
    expected = sum(sizes[index] * share.value for index, share in shares.items()) / num_selected
    purity = result["purity"]
    assert purity["value"] == pytest.approx(expected) and purity["low"] < expected < purity["high"]
    truth = np.mean([run.right[row_id] for row_id in selected(run, "trust")])
    assert purity["low"] <= truth <= purity["high"]
    assert purity["if_wrong"]["value"] <= purity["value"] <= purity["if_right"]["value"]
    assert result["answers"] == {
        "right": sum(run.right[row["row_id"]] for row in decided),
        "wrong": sum(not run.right[row["row_id"]] for row in decided),
        "unsure": 1,
        "none": 1,
    }

    uniform = [row for row in rows if row["uniform"]]
    scores = [raw for row_id, raw in run.raw.items() if row_id not in run.unparsed | run.failed]
    region = np.array([raw for raw in scores if raw >= result["floor"]], dtype=np.float32)
    cut = calibrate(
        np.array([row["raw"] for row in uniform], dtype=np.float32),
        np.array([run.right[row["row_id"]] and row["row_id"] not in (unsure, silent) for row in uniform]),
        region,
        alpha=0.2,
        delta=0.2,
        seed=derive(0, "audit risk"),
    )
    before, after = result["cut"]["before"], result["cut"]["after"]
    assert after["threshold"] == cut.threshold is not None
    assert after["n"] == (region >= cut.threshold).sum() and after["noise"] == cut.noise
    assert after["threshold"] != before["threshold"] and after["n"] != before["n"] == num_selected
    assert "with the pool's that score at least" in after["guarantee"]
    assert f"{after['n']:,} rows, at most 20% wrong with confidence 80%" in words
    assert (before["alpha"], before["delta"]) == (0.2, 0.2)

    stricter = concluded(run, "--alpha", 0.05)["cut"]["after"]
    assert stricter["n"] < after["n"]


def test_several_people_are_kept_apart_and_a_row_on_which_they_disagree_is_unsure(run: ReviewedRun):
    curate(run, "draw", "--num", 20)
    ids = drawn()
    curate(run, "import", "csv", run.csv(Path("a.csv"), ids), "--person", "anna")
    said = "wrong" if run.right[ids[0]] else "right"
    Path("b.csv").write_text(f"row_id,verdict,person\n{ids[0]},{said},ben\n{ids[1]},unsure,ben\n")
    curate(run, "import", "csv", "b.csv")
    result = concluded(run)
    assert result["people"] == {"anna": 20, "ben": 2}
    assert result["answers"]["unsure"] == 1  # of the other row, who is unsure leaves it to the other
    Path("b.csv").write_text(f"row_id,verdict,person\n{ids[0]},unsure,ben\n")
    assert "1 verdicts taken" in curate(run, "import", "csv", "b.csv")  # another verdict replaces the first
    assert concluded(run)["answers"]["unsure"] == 0


def test_verdicts_without_a_name_are_those_of_the_machines_user(run: ReviewedRun, monkeypatch: pytest.MonkeyPatch):
    curate(run, "draw", "--num", 20)
    ids = drawn()
    monkeypatch.setattr("getpass.getuser", lambda: "anna")
    curate(run, "import", "csv", run.csv(Path("a.csv"), ids))
    assert concluded(run)["people"] == {"anna": 20}


def test_an_arm_that_draws_has_an_exact_interval_and_no_cut(run: ReviewedRun):
    curate(run, "draw", "--arm", "naive", "--num", 40)
    ids = drawn("naive")
    curate(run, "import", "csv", run.csv(Path("v.csv"), ids))
    result = concluded(run)
    num_right = sum(run.right[row_id] for row_id in ids)
    share = compute_finite_share(num_right, len(ids), len(selected(run, "naive")))
    assert {name: result["purity"][name] for name in ("value", "low", "high", "n")} == share.to_json()
    assert result["purity"]["method"].startswith("exact") and result["cut"]["after"] is None
    assert "the rows of naive are not the best by score" in curate(run, "result")
    table = pq.read_table("reviews/naive/rows.parquet")
    assert table["raw"].null_count == table.num_rows


def test_a_selection_under_a_cap_is_reviewed_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    capped = make_run(tmp_path, num_rows=300, budget={"n": 40}, max_per_label=1, max_per_label_by="problem")
    curate(capped, "draw", "--num", 30)
    assert {*drawn()} < {*selected(capped, "trust")}
    curate(capped, "import", "csv", capped.csv(Path("v.csv"), drawn()))
    result = concluded(capped)
    assert result["purity"]["method"].startswith("exact") and result["cut"]["after"] is None
    assert "the rows of trust are not the best by score" in curate(capped, "result")


def test_label_studio_takes_rows_and_gives_verdicts(run: ReviewedRun):
    curate(run, "draw", "--num", 30)
    ids = drawn()
    curate(run, "import", "csv", run.csv(Path("v.csv"), ids[:4]), "--person", "anna")
    assert "26 rows that have no verdict yet (4 have one and stay out)" in curate(
        run, "export", "label-studio", "tasks.json"
    )
    tasks = json.loads(Path("tasks.json").read_text())
    rows = {str(row["row_id"]): row for row in open_review(Path("reviews"), None).rows.to_pylist()}
    assert [task["data"]["row_id"] for task in tasks] == [str(row_id) for row_id in ids[4:]]
    assert all(task["data"]["prompt"] == rows[task["data"]["row_id"]]["prompt"] for task in tasks)
    assert "trust" not in Path("tasks.json").read_text() and 'name="verdict"' in Path("tasks.xml").read_text()

    def annotated(choice: str, **more: object) -> dict:
        result = {"from_name": "verdict", "to_name": "completion", "type": "choices", "value": {"choices": [choice]}}
        return {"id": 1, "result": [result], "was_cancelled": False, "completed_by": 7, **more}

    tasks[0]["annotations"] = [annotated("right"), annotated("wrong", completed_by={"id": 8, "email": "b@c.de"})]
    tasks[1]["annotations"] = [annotated("unsure", was_cancelled=True)]
    tasks[2]["annotations"] = [annotated("unsure")]
    Path("done.json").write_text(json.dumps(tasks))
    assert "3 verdicts taken" in curate(run, "import", "label-studio", "done.json")
    verdicts = open_review(Path("reviews"), None).read_verdicts()
    assert verdicts[ids[4]] == {"7": "right", "b@c.de": "wrong"}
    assert ids[5] not in verdicts and verdicts[ids[6]] == {"7": "unsure"}


@pytest.mark.parametrize("delimiter", [",", ";"])  # spreadsheets write a semicolon in much of Europe
def test_a_spreadsheet_alone_takes_rows_and_gives_verdicts(run: ReviewedRun, delimiter: str):
    curate(run, "draw", "--num", 20)
    ids = drawn()
    assert "20 rows that have no verdict yet" in curate(run, "export", "csv", "v.csv")
    with Path("v.csv").open(newline="", encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))
    assert [row["row_id"] for row in rows] == [f"row {row_id}" for row_id in ids] and list(rows[0])[-1] == "verdict"
    assert all(row["prompt"] and "boxed" in row["completion"] for row in rows)
    for row in rows[:15]:
        row["verdict"] = "Right" if run.right[int(row["row_id"][4:])] else "wrong"
    with Path("v.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)
    assert "15 verdicts taken" in curate(run, "import", "csv", "v.csv")
    result = concluded(run)
    assert result["answers"]["right"] == sum(run.right[row_id] for row_id in ids[:15])
    assert result["answers"]["none"] == 5
    assert "v.csv: is there already" in refused("export", run.directory, "--folder", "reviews", "csv", "v.csv")
    assert "5 rows that have no verdict yet (15 have one and stay out)" in curate(run, "export", "csv", "rest.csv")


def test_texts_that_a_spreadsheet_would_compute_are_quoted(run: ReviewedRun):
    row = {"row_id": 1, "prompt": "=HYPERLINK(1)", "label": "-5", "completion": None}
    assert _format_csv([row]).splitlines()[1] == "row 1,'=HYPERLINK(1),'-5,,"


def test_imports_at_once_lose_no_verdict(run: ReviewedRun):
    curate(run, "draw", "--num", 20)
    review, ids = open_review(Path("reviews"), None), drawn()
    with ThreadPoolExecutor(5) as pool:
        added = pool.map(lambda who: [review.add_verdicts({row_id: {str(who): "right"}}) for row_id in ids], range(5))
        assert [sum(numbers) for numbers in added] == [20] * 5
    people = {str(who): "right" for who in range(5)}
    assert review.read_verdicts() == {row_id: people for row_id in ids}


def test_files_of_verdicts_are_taken_whole_or_not_at_all(run: ReviewedRun):
    curate(run, "draw", "--num", 20)
    first, second = drawn()[:2]
    where = (run.directory, "--folder", "reviews")

    def told(text: str, program: str = "csv") -> str:
        Path("v.csv").write_text(text)
        line = refused("import", *where, program, "v.csv")
        assert not Path("reviews/trust/verdicts.json").exists()
        return line

    assert "line 1: the header is id,verdict; give row_id and verdict" in told(f"id,verdict\n{first},right\n")
    assert "the header is missing" in told("")
    assert "holds no verdicts" in told("row_id,verdict\n")
    line = told(f"row_id,verdict\n{first},right\n77,right\n{second},yes\nx,wrong\n")
    assert "line 3: row_id '77' is not one of this review's 20 rows" in line and "nothing is taken" in line
    assert "line 4: verdict 'yes' is not one of right, wrong, unsure" in line and "line 5: row_id 'x'" in line
    assert "line 3: does not have the header's 2 columns" in told(f"row_id,verdict\n{first},right\n{second}\n")
    line = told(f"row_id,verdict,person\n{first},right,a\n{first},wrong,a\n")
    assert f"line 3: a gave row {first} another verdict before" in line
    assert "is not JSON" in told("{", "label-studio")
    assert "holds no verdicts" in told('[{"data": {}}]', "label-studio")
    result = '[{"from_name": "verdict", "value": {"choices": ["right"]}}]'
    for data in ("3", "{}"):
        foreign = f'[{{"data": {data}, "annotations": [{{"result": {result}}}]}}]'
        assert "not what Label Studio exports" in told(foreign, "label-studio")
    assert "not what Label Studio exports" in told('{"data": 3}', "label-studio")
    assert "cannot be read" in refused("import", *where, "csv", "none.csv")
    Path("v.csv").write_bytes(b"row_id,verdict\n\xff,right\n")
    assert "cannot be read" in refused("import", *where, "csv", "v.csv")
    assert "none of its 20 rows has a verdict" in refused("result", *where)


def test_only_the_best_rows_of_a_pool_are_held(run: ReviewedRun, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(source, "SPARE_ROWS", 0)
    origin = replace(source.find_origin(run.directory, None), num_selected=10)
    rows = source.find_review_rows(origin)
    scores = np.sort([raw for row_id, raw in run.raw.items() if row_id not in run.unparsed | run.failed])[::-1]
    assert np.array_equal(np.sort(rows.raw_N)[::-1], scores[:20].astype(np.float32))
    again = source.find_review_rows(origin, floor=float(scores[20]))
    assert len(again.raw_N) == 21


def test_a_review_of_another_version_is_refused(run: ReviewedRun):
    curate(run, "draw", "--num", 20)
    path = Path("reviews/trust/draw.json")
    path.write_text(path.read_text().replace('"format": 2', '"format": 1'))
    assert "was drawn by another version" in refused("result", run.directory, "--folder", "reviews")


def test_runs_and_settings_that_do_not_fit_are_refused(run: ReviewedRun, tmp_path: Path):
    assert "there is no such directory" in refused("draw", "none")
    (tmp_path / "empty").mkdir()
    assert "is not a run directory" in refused("draw", "empty")
    (tmp_path / "empty" / "manifest.json").write_text('{"identity": {}, "files": {}, "stages": {}}')
    assert "nothing is selected yet" in refused("draw", "empty") and "--until gen-0/select" in refused("draw", "empty")
    assert "there is none; draw one" in refused("result", "empty")
    foreign = (run.directory / "manifest.json").read_text().replace('"naive": {', '"centroids": {')
    (tmp_path / "empty" / "manifest.json").write_text(sign_text(foreign))
    assert "'centroids', whose module cannot be imported here" in refused("draw", "empty")
    where = (run.directory, "--folder", "reviews")
    assert "the arms naive, trust" in refused("draw", *where, "--arm", "ground_truth")
    assert "--num: 3 rows are too few" in refused("draw", *where, "--num", 3)
    assert "'../up' is not a name" in refused("draw", *where, "--name", "../up")
    assert "not in an object store; give --folder" in refused("draw", "s3://bucket/run")
    curate(run, "draw", "--num", 20)
    curate(run, "import", "csv", run.csv(Path("v.csv"), drawn()))
    assert "alpha: 2.0 is not a share" in refused("result", *where, "--alpha", 2)
