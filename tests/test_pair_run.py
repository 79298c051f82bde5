"""Pairs of answers, end to end: a run with its exported pairs, and what is refused before anything is done."""

import json
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pytest
import yaml
from click.testing import CliRunner

from benchmarks.recorded import planned
from curation.cli import main
from tests import golden

pytestmark = [pytest.mark.timeout(900), pytest.mark.whole_run]
NUM_LABELLED, NUM_POOL, N = 160, 240, 60


def curate(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(main, list(arguments))
    assert result.exit_code == code, result.output
    return result.output


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def labelled(num: int) -> list[dict[str, Any]]:
    return [{"prompt": f"Say {n}.", "chosen": f"{n}, of course", "rejected": f"not {n}"} for n in range(num)]


def unlabelled(num: int) -> list[dict[str, Any]]:
    return [{"prompt": f"Tell {n}.", "first": f"{n} it is", "second": f"some {n}"} for n in range(num)]


def config(folder: Path, **sections: Any) -> str:
    found: dict[str, Any] = {
        "name": "pairs",
        "run_dir": str(folder / "run"),
        "domain": "pair",
        "sources": {name: {"path": str(folder / f"{name}.jsonl")} for name in ("labelled", "unlabelled")},
        "splits": {"source": {"from": "labelled"}, "pool": {"from": "unlabelled"}},
        "teacher": {"backend": "scripted"},
        "trust": {"kind": "linear_probe"},
        "selection": {"arms": ["naive", "trust"], "budget": {"n": N}},
        "ray": {"num_cpus": 2},
    }
    (folder / "pairs.yaml").write_text(yaml.safe_dump(found | sections))
    return str(folder / "pairs.yaml")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pairs")
    write(folder / "labelled.jsonl", labelled(NUM_LABELLED))
    write(folder / "unlabelled.jsonl", unlabelled(NUM_POOL))
    return folder


@pytest.fixture(scope="module")
def finished(folder: Path) -> Path:
    path = config(folder)
    assert f"split pool: {NUM_POOL} rows" in curate("validate", path)
    curate("plan", path, "--no-probe")
    curate("run", path)
    return folder


@pytest.mark.quick
def test_selected_pairs_are_exported_as_prompt_chosen_and_rejected(finished: Path) -> None:
    folder = finished
    golden.check("pair", folder / "run")
    record = planned(folder / "run")["gen-0/preferences"]
    raws = {row["prompt"]: row for row in unlabelled(NUM_POOL)}
    for arm in ("naive", "trust"):
        files = record["outputs"]["arms"][arm]
        (selected,) = (folder / "run" / "gen-0").glob(f"select*/{arm}.lance")
        pairs, before = (lance.dataset(str(uri)).to_table() for uri in (files["table"]["uri"], selected))
        assert pairs.num_rows == N and pairs["row_id"].equals(before["row_id"])
        for pair, label in zip(pairs.to_pylist(), before["label"].to_pylist(), strict=True):
            raw = raws[pair["prompt"]]
            other = {"first": "second", "second": "first"}[label]
            assert (pair["chosen"], pair["rejected"]) == (raw[label], raw[other])


def rated(num: int, first: int) -> list[dict[str, Any]]:
    """Pairs whose better answer says yes."""
    return [{"prompt": f"Is {n} it?", "chosen": f"yes, {n}", "rejected": f"no, {n}"} for n in range(first, first + num)]


def test_students_learn_the_selected_preferences_by_dpo(tmp_path: Path) -> None:
    """Gold pairs teach the preference; the pairs of a teacher that draws its answers do not."""
    for name, (num, first) in {"labelled": (60, 100), "pool": (160, 300), "test": (80, 600)}.items():
        write(tmp_path / f"{name}.jsonl", rated(num, first))
    batch = {"global_batch_size": 16, "micro_batch_size": 16}
    path = config(
        tmp_path,
        sources={name: {"path": str(tmp_path / f"{name}.jsonl")} for name in ("labelled", "pool", "test")},
        splits={"source": {"from": "labelled"}, "pool": {"from": "pool"}, "test": {"from": "test"}, "audit": True},
        selection={"arms": ["naive", "ground_truth"], "budget": {"n": 128}},
        student={"method": "dpo", "preset": "scratch", "epochs": 6, **batch, "learning_rate": 1e-3},
        generations=[{"student": {"init": {"hidden_size": 32, "num_layers": 2}}}],
    )
    assert "student: 128 rows, global_batch_size 16: 48 optimizer steps" in curate("validate", path)
    curate("run", path)
    stages = planned(tmp_path / "run")
    tests = {
        name: stages[f"gen-0/grade-test-{name}"]["outputs"]["grades"] for name in ("base", "naive", "ground_truth")
    }
    right = {name: lance.dataset(ref["uri"]).to_table()["correct"].to_numpy().mean() for name, ref in tests.items()}
    assert right["ground_truth"] > 0.9 and right["base"] < 0.75 and right["naive"] < 0.9, right
    (report,) = json.loads((tmp_path / "run" / "report.json").read_text())["generations"]
    gold = next(arm for arm in report["arms"] if arm["name"] == "ground_truth")
    assert gold["accuracy"]["value"] == right["ground_truth"], gold
    table = stages["gen-0/preferences"]["outputs"]["arms"]["ground_truth"]["table"]
    pairs = lance.dataset(table["uri"]).to_table().to_pylist()
    assert len(pairs) == 128 and all(pair["chosen"].startswith("yes") for pair in pairs)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"domain": "math"}, "student.method: dpo learns from pairs of answers, but rows of domain math"),
        ({"num": 2}, "generations: 2 are a chain"),
        ({"student": {"method": "dpo", "beta": -1}}, "student.beta"),
        ({"student": {"method": "dpo", "sharding": "fsdp"}}, "sharding: fsdp divides the weights"),
    ],
)
def test_students_that_cannot_learn_by_dpo_are_refused(tmp_path: Path, sections: dict[str, Any], message: str) -> None:
    rows = [{**row, "problem": row["prompt"], "answer": "1"} for row in rated(300, 100)]
    write(tmp_path / "rows.jsonl", rows)
    num, others = sections.get("num", 1), {name: value for name, value in sections.items() if name != "num"}
    student = {"student": {"init": {"hidden_size": 32, "num_layers": 2}}}
    splits = {"source": {"from": "rows", "rows": 100}, "pool": {"from": "rows", "rows": 100}, "test": {"from": "rows"}}
    given = {"sources": {"rows": {"path": str(tmp_path / "rows.jsonl")}}, "splits": splits}
    given |= {"student": {"method": "dpo"}, "generations": [student] * num, **others}
    assert message in " ".join(curate("validate", config(tmp_path, **given), code=2).split())


@pytest.mark.parametrize(
    ("domain", "message"),
    [
        (
            {"name": "pair", "chosen": "chosn"},
            "labelled.jsonl: has no column 'chosn' (it has: prompt, chosen, rejected; forms that are read: prompt, "
            "chosn, rejected or prompt, first, second); did you mean 'chosen'?",
        ),
        ({"name": "pair", "chosen": "rejected"}, "domain.chosen and rejected: rejected, rejected, beside the columns"),
        ({"name": "pair", "prompt": "promt"}, "has no column 'promt'"),
    ],
)
def test_wrong_columns_are_refused_with_the_nearest(
    folder: Path, tmp_path: Path, domain: dict[str, str], message: str
) -> None:
    path = config(folder, domain=domain, run_dir=str(tmp_path / "run"))
    for verb in ("validate", "run"):
        assert message in " ".join(curate(verb, path, code=2).split())


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (("chosen", "rejected"), "has no column 'first' (it has: prompt, chosen, rejected, answer, sure)"),
        (
            ("First", "second"),
            "has no column 'first' (it has: prompt, First, second, answer, sure); did you mean 'First'?",
        ),
    ],
)
def test_labels_made_elsewhere_need_the_columns_that_they_name(
    tmp_path: Path, columns: tuple[str, str], message: str
) -> None:
    given = {"answer": "first", "sure": 0.5}
    texts = list(zip(columns, ("yes", "no"), strict=True))
    answers = [{"prompt": f"Is {n} it?", **{name: f"{text}, {n}" for name, text in texts}, **given} for n in range(3)]
    write(tmp_path / "labelled.jsonl", answers)
    write(tmp_path / "unlabelled.jsonl", [{**row, **given} for row in unlabelled(NUM_POOL)])
    teacher = {"backend": "given", "completion": "answer", "confidence": "sure"}
    path = config(tmp_path, teacher=teacher, trust={})
    told = " ".join(curate("validate", path, code=2).split())
    assert message in told and "labelled.jsonl" in told


def test_pairs_of_one_answer_and_empty_answers_are_named(folder: Path, tmp_path: Path) -> None:
    rows = labelled(NUM_LABELLED)
    rows[3]["rejected"], rows[5]["chosen"] = rows[3]["chosen"], ""
    write(tmp_path / "labelled.jsonl", rows)
    write(tmp_path / "unlabelled.jsonl", unlabelled(NUM_POOL))
    told = " ".join(curate("validate", config(tmp_path)).split())
    assert "same_answers: chosen and rejected hold the same answer, of which none is better" in told
    assert "null_field: chosen is empty" in told


def test_both_orders_are_asked_and_their_agreement_is_a_number(finished: Path) -> None:
    """The scripted teacher draws each answer anew, so that it disagrees with itself on half of the rows."""
    folder = finished
    (uri,) = (folder / "run" / "gen-0").glob("label-source-*/labels.lance")
    labels = lance.dataset(str(uri)).to_table()
    agreement = labels["order_agreement"].to_numpy()
    assert len(agreement) == NUM_LABELLED and ((agreement > 0) & (agreement < 1)).all()
    share = labels["option_share"].to_numpy()  # of two options whose scores differ by 1, as the script says
    assert np.allclose(np.maximum(agreement, 1 - agreement), share) and 0.3 < (agreement < 0.5).mean() < 0.7
    (generation,) = json.loads((folder / "run" / "report.json").read_text())["generations"]
    assert "order_agreement" in json.dumps(generation["trust"])
    # The page says what the second order took and how often it disagrees; tokens of both orders are counted.
    stages = planned(folder / "run")
    counts = stages["gen-0/label-source"]["outputs"]["counts"]
    columns = ("num_prompt_tokens", "num_output_tokens", "order_prompt_tokens", "order_output_tokens")
    prompt, output, other_prompt, other_output = (int(labels[name].to_numpy().sum()) for name in columns)
    assert (counts["prompt_tokens"], counts["output_tokens"]) == (prompt + other_prompt, output + other_output)
    assert counts["order_tokens"] == other_prompt + other_output == prompt + output  # the same words in another order
    page = " ".join((folder / "run" / "report.html").read_text().split())
    num = int((agreement < 0.5).sum())
    assert counts["disagreeing"] == num and f"{num} of {NUM_LABELLED} (" in page
    assert f"which took {counts['order_tokens']:,} tokens" in page


def test_a_number_of_both_orders_is_refused_where_one_is_asked(folder: Path, tmp_path: Path) -> None:
    selection = {"arms": ["order_agreement"], "budget": {"n": N}}
    path = config(folder, domain={"name": "pair", "by": "likelihood"}, selection=selection, run_dir=str(tmp_path))
    message = "order_agreement arm needs answers in both orders, as the domain pair asks unless both_orders is false"
    assert message in " ".join(curate("validate", path, code=2).split())


def test_plan_forecasts_the_tokens_of_both_orders(finished: Path, tmp_path: Path) -> None:
    folder = finished
    path = config(folder, run_dir=str(tmp_path / "fresh"))
    result = CliRunner().invoke(main, ["plan", path, "--json"])
    assert result.exit_code == 0, result.output
    (stage,) = (s for s in json.loads(result.stdout)["forecast"]["stages"] if s["name"] == "gen-0/label-source")
    (uri,) = (folder / "run" / "gen-0").glob("label-source-*/labels.lance")
    labels = lance.dataset(str(uri)).to_table()
    for kind in ("prompt", "output"):
        both = sum(int(labels[name].to_numpy().sum()) for name in (f"num_{kind}_tokens", f"order_{kind}_tokens"))
        assert stage[f"{kind}_tokens"]["value"] == pytest.approx(both, rel=0.1)
