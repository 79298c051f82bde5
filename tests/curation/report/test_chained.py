"""The chain's part of the report against counts by hand: accuracies, paired differences, teachers."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from computed import collect
from test_report import NUM_POOL, NUM_TEST, SAME, N, graded, make_run, right_on_test

from curation.domains.grading import read_grades
from curation.report import ChainRecord, GenerationRecord, RunRecord
from curation.report.collect import collect_chains
from curation.report.html import render
from curation.tables import io

SHALLOW = {"trust": 0.5, "naive": 0.3}
REASONS = ["trust has no AUC"]


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    return make_chain(tmp_path_factory.mktemp("chain"))


def make_chain(folder: Path) -> RunRecord:
    """Two of three generations: a main chain and a naive one, and what is beside them."""
    first, second, naive, before = (make_run(_made(folder / str(seed)), seed=seed) for seed in range(4))
    rng = np.random.default_rng(9)

    def student(arm: str, share: float) -> dict:
        right = (rng.random(NUM_TEST) < share).tolist()
        return {"tests": [graded(folder, f"shallow-{arm}", np.arange(NUM_TEST) + 5000, right)], "training": {}}

    of_first = first.generations[0]
    generations = [of_first, replace(second.generations[0], index=1)]
    of_naive = replace(naive.generations[0], index=1, branch="naive")
    selected = {"naive": of_naive.selections["naive"]}
    of_naive = replace(of_naive, selections=selected, tests={name: of_naive.tests[name] for name in ("naive", "base")})
    of_before = replace(before.generations[0], index=1, branch="predecessor")
    signs = {"function": "trust", "auc": SAME["auc"], "compared": "source", "shift": SAME}
    config = first.config | {"generations": [{}, {}, {}], "chain": {"shares": 4}}
    return replace(
        first,
        config=config,
        generations=generations,
        chain=ChainRecord(
            arms=("trust", "naive"),
            branches={"naive": [of_naive], "predecessor": [of_before]},
            shallow={"0": {}, "1": {arm: student(arm, share) for arm, share in SHALLOW.items()}},
            decisions=[{"signs": signs, "reasons": []}, {"signs": signs, "reasons": REASONS}],
            ended="the chain stops after generation 1: trust has no AUC",
        ),
    )


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def part(record: GenerationRecord) -> dict:
    """What the chain's part reads of a generation's, by hand."""
    arms = [
        {"name": arm, "num_selected": io.count(ref), "purity": {"value": 0.5 + record.index / 4}}
        for arm, ref in record.selections.items()
    ]
    auc = {"value": 0.5 + record.index / 4}
    return {
        "index": record.index,
        "student_base": {"name": "bases/student"},
        "teacher_model": {"name": f"teacher {record.index}"},
        "teacher": {"test": {"value": 0.25}, "pool": None},
        "arms": arms,
        "num_pool": NUM_POOL,
        "trust": {"validation": {"parsed": {"functions": {"trust": {"auc": auc}}}}},
        "shift": record.shift,
    }


@pytest.fixture(scope="module")
def found(chain: RunRecord) -> dict:
    """The chain's part of the report."""
    return collect_chains(chain, [part(record) for record in chain.generations], part)


@pytest.fixture(scope="module")
def report(chain: RunRecord) -> dict:
    return collect(chain)


def right(chain: RunRecord, index: int, name: str) -> np.ndarray:
    return right_on_test(replace(chain, generations=[chain.generations[index]]), name)


def test_each_line_has_the_accuracy_of_its_students(chain: RunRecord, found: dict) -> None:
    lines = {(line["kind"], line["arm"]): line["accuracy"] for line in found["lines"]}
    naive, before = (chain.chain.branches[name][0] for name in ("naive", "predecessor"))
    shallow = {arm: read_grades(chain.chain.shallow["1"][arm]["tests"][0]).correct_N for arm in SHALLOW}
    expected = {
        ("chain", "trust"): [right(chain, 0, "trust"), right(chain, 1, "trust")],
        ("chain", "naive"): [right(chain, 0, "naive"), read_grades(naive.tests["naive"][0]).correct_N],
        ("first_teacher", "trust"): [right(chain, 0, "trust"), shallow["trust"]],
        ("first_teacher", "naive"): [right(chain, 0, "naive"), shallow["naive"]],
        ("predecessor", "trust"): [None, read_grades(before.tests["trust"][0]).correct_N],
        ("gold", "ground_truth"): [right(chain, 0, "ground_truth"), right(chain, 1, "ground_truth")],
        ("base", "base"): [right(chain, 0, "base"), right(chain, 1, "base")],
    }
    assert lines.keys() == expected.keys()
    for line, points in expected.items():
        assert [None if point is None else point["value"] for point in lines[line]] == [
            None if graded is None else pytest.approx(graded.mean()) for graded in points
        ], line
        assert all(point is None or (point["n"] == NUM_TEST and point["low"] < point["high"]) for point in lines[line])
    assert found["first_teacher"] == {"value": 0.25} and found["bases"] == ["bases/student"] * 2


def test_differences_are_paired_by_row(chain: RunRecord, found: dict) -> None:
    pairs = {(item["generation"], item["first"], item["second"]): item for item in found["differences"]}
    trust, naive = "chain, trust", "chain, naive"
    shallow = read_grades(chain.chain.shallow["1"]["trust"]["tests"][0]).correct_N
    last = pairs[1, trust, "shallow from the first teacher, trust"]
    ours = right(chain, 1, "trust").astype(int) - shallow.astype(int)
    assert last["difference"] == pytest.approx(ours.mean()) and last["num_first_only"] == (ours > 0).sum()
    assert last["low"] < last["difference"] < last["high"] and last["n"] == NUM_TEST
    seconds = {(first, second) for at, first, second in pairs if at == 1}
    assert seconds == {
        (trust, "shallow from the first teacher, trust"),
        (naive, "shallow from the first teacher, naive"),
        (trust, "shallow from the base before, trust"),
        (trust, naive),
        (trust, "ground truth"),
        (naive, "ground truth"),
        (trust, "its teacher"),
    }
    assert not [first for at, first, second in pairs if at == 0 and "shallow" in first + second]


def test_teachers_and_decisions(chain: RunRecord, found: dict) -> None:
    teachers = {(item["line"], item["generation"]): item for item in found["teachers"]}
    assert list(teachers) == [("trust", 0), ("trust", 1), ("naive", 1), ("predecessor", 1)]
    assert [item["name"] for item in teachers.values()] == ["teacher 0", "teacher 1", "teacher 1", "teacher 1"]
    main = teachers["trust", 1]
    assert main["purity"] == main["auc_validation"] == {"value": 0.75} and main["auc_pool"] is None
    assert main["num_selected"] == N and main["shift"] == SAME["auc"] | {"strength": SAME["strength"]}
    assert found["ended"] == chain.chain.ended and [d["reasons"] for d in found["decisions"]] == [[], REASONS]


@pytest.mark.slow
def test_the_page_shows_the_chain(chain: RunRecord, report: dict, found: dict) -> None:
    for key in ("lines", "differences"):
        assert report["chain"][key] == found[key]
    teachers = {(item["line"], item["generation"]): item for item in report["chain"]["teachers"]}
    (arm,) = [arm for arm in report["generations"][1]["arms"] if arm["name"] == "trust"]
    assert teachers["trust", 1]["purity"] == arm["purity"] != teachers["predecessor", 1]["purity"]
    validation = report["generations"][1]["trust"]["validation"]["parsed"]["functions"]["trust"]["auc"]
    assert teachers["trust", 1]["auc_validation"] == validation
    page = render(report)
    assert "2 of 3 generations" in page and "trust has no AUC" in page and 'id="chain-' in page
    assert "After generation 1: stop" in page


@pytest.mark.slow
def test_a_chain_without_tests_gold_or_rule_has_a_page(chain: RunRecord) -> None:
    generations = [replace(record, tests={}, training={}) for record in chain.generations]
    bare = replace(chain.chain, branches={}, shallow={}, decisions=[], ended=None)
    found = collect(replace(chain, generations=generations, chain=bare))
    assert found["chain"]["lines"] == [] == found["chain"]["differences"]
    assert "Test accuracy by generation" in render(found)
    assert collect(replace(chain, generations=chain.generations[:1], chain=None))["chain"] is None
