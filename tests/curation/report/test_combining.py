"""Run directories as finished runs leave them, but with hand-made tables, combined by the command."""

import json
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from built import saved_run
from click.testing import CliRunner, Result
from computed import collect
from scipy import stats
from test_report import by_name, make_run, right_on_test

from curation import metrics
from curation.cli import main
from curation.config import RunConfig
from curation.config.load import load_config
from curation.domains.grading import Graded
from curation.extras.combine.combined import _pool_rows
from curation.pipeline.running import get_finished_record, rewrite_report
from curation.report import RunRecord
from curation.rundir.graph import make_cache_key
from curation.rundir.manifest import Manifest
from curation.stages.handover import read_numbers
from curation.storage import lease

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[3]
TEACHER = ROOT / "examples/bases/teacher"
BASE, TRUTH = "base", "ground_truth"
ARMS = ["naive", "internal_confidence", "trust", "ground_truth"]


class Scribe:
    """What the stages of a run would make whose report's record is known."""

    def __init__(self, config: RunConfig, record: RunRecord) -> None:
        self.config, self.record = config, record

    def outputs(self, stage: str) -> dict[str, Any]:
        (generation,), record = self.record.generations, self.record
        kind, _, what = stage.partition("-")
        test = what.removeprefix("test-").partition("-")
        model = {"base": "bases/student", "revision": None, "adapter": None}
        counts = {"prompt_tokens": 5, "output_tokens": 5}
        ran = {"model": "scripted", "backend": "scripted", "rows": 10, "seconds": 1.0, "deaths": 0, "teachers": []}
        match kind:
            case "prepare":
                tables = {name: ref.to_json() for name, ref in record.prepared.items()}
                counts = {name: {"rows": 9, "errors": {}} for name in tables}
                return {"tables": tables, "counts": counts, "overlap": record.overlap}
            case "label" | "score":
                counts |= generation.label_counts[what]
                return {"labels": generation.labels[what].to_json(), "counts": counts, "pass": ran}
            case "trust":
                return {"trust": generation.trust.to_json(), "fit": generation.trust_fit}
            case "length":
                counts = dict.fromkeys(["num_too_long", "num_weak", "num_gold", "num_gold_only"], 0)
                return {"counts": counts | {"table": {}, "num_rows": 9}, "too_long": None}
            case "repeats":
                return {"counts": dict(generation.repeats), "repeats": None}
            case "held":
                return {"num_trained": 9, "num_rows": {}}
            case "rollouts":
                return {"texts": {"source": "answer", "samples": None}}
            case "shift":
                return {"shift": dict(generation.shift)}
            case "selected":
                return {"foreign": {"trust": {"warning": "12 % are unlike"}, "internal_confidence": {"warning": None}}}
            case "select":
                chosen = {
                    arm: {"arm": arm, "table": ref.to_json(), "num_rows": 120, "digest": arm} | generation.formats[arm]
                    for arm, ref in generation.selections.items()
                }
                chosen = {arm: chosen[arm] for arm in self.config.selection.arms}
                rows = {arm: item["table"] for arm, item in chosen.items()}
                return {"budget": generation.budget, "arms": chosen, "rows_of": rows}
            case "held":
                return {"num_rows": {}, "num_trained": 0}
            case "student":
                return {"model": model, "training": generation.training[what]}
            case "test":
                return {"labels": generation.labels["pool"].to_json(), "counts": counts, "pass": ran}
            case _ if what.startswith("test-"):
                answered = test[0] if test[2] in ("", "0") else "internal_confidence"  # in a second run
                return {"grades": generation.tests[answered][0].to_json()}
            case _:
                return {"grades": generation.grades[what].to_json()}


def finished_run(
    folder: Path, name: str, seed: int, *, first_test: int = 5000, skip: str | None = None, **changes: Any
) -> Path:
    """A run directory; its test rows are 250 from ``first_test`` on."""
    config = {
        "name": name,
        "run_dir": str(folder / name),
        "seed": seed,
        "sources": {"puzzles": {"path": str(ROOT / "examples/data/puzzles.parquet")}},
        "splits": {
            "source": {"from": "puzzles", "rows": 300},
            "test": {"from": "puzzles", "rows": 250},
            "pool": {"from": "puzzles", "rows": 400},
            "audit": True,
        },
        "teacher": {"backend": "scripted"},
        "selection": {"budget": {"n": 120}, "arms": ARMS},
        "generations": [{"student": {"path": str(TEACHER)}}],
        **changes,
    }
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(config))
    settings = load_config(path)
    tables = folder / name / "tables"
    tables.mkdir(parents=True)
    record = make_run(tables, seed, first_test)
    with lease.hold(settings.directory):
        opened, scribe = saved_run(settings), Scribe(settings, record)
        known: dict[str, Any] = {}
        for stage in opened.chain.stages:
            outputs = json.loads(json.dumps(scribe.outputs(stage.name.rpartition("/")[2])))
            if stage.name != skip:
                placed: Any = {"kind": stage.kind, "at": stage.at}
                opened.manifest.record(
                    stage.name, make_cache_key(stage, known), outputs, rows=10, seconds=1.0, **placed
                )
            known[stage.name] = outputs
    if skip is None:
        rewrite_report(settings, config_path=str(path), command=f"curate run {path}")
    return Path(settings.directory)


def combine(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["report", "--combine", *map(str, arguments)], catch_exceptions=False)


def refused(*arguments: object) -> str:
    result = combine(*arguments)
    assert result.exit_code == 2 and len(result.stderr.splitlines()) == 1, result.output
    return result.stderr


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Path]]:
    """Three runs that differ in their seed, each with test rows of its own."""
    folder = tmp_path_factory.mktemp("seeds")
    return folder, [finished_run(folder, f"seed{seed}", seed, first_test=5000 + 1000 * seed) for seed in range(3)]


@pytest.fixture(scope="module")
def records(seeds: tuple[Path, list[Path]]) -> list[RunRecord]:
    return [get_finished_record(load_config(directory / "config.yaml")) for directory in seeds[1]]


def test_three_seeds_by_one_command_equal_scipy_on_the_pooled_table(
    seeds: tuple[Path, list[Path]], records: list[RunRecord], tmp_path: Path
) -> None:
    result = combine(*seeds[1], "-o", tmp_path / "out")
    assert result.exit_code == 0, result.output
    content = json.loads((tmp_path / "out" / "combined.json").read_text())
    assert content["benchmarks"] == {"puzzles": 3} and [run["seed"] for run in content["runs"]] == [0, 1, 2]
    assert content["test_rows"] == {"total": 750, "distinct": 750}
    own = [collect(record) for record in records]
    for name in ("naive", "internal_confidence", "trust"):
        arm, of_runs = by_name(content)[name], [by_name(report)[name] for report in own]
        first = np.concatenate([right_on_test(record, name) for record in records])
        second = np.concatenate([right_on_test(record, "ground_truth") for record in records])
        only_first, only_second = int((first & ~second).sum()), int((second & ~first).sum())
        against = arm["against_ground_truth"]
        assert (against["num_first_only"], against["num_second_only"], against["n"]) == (only_first, only_second, 750)
        expected = stats.binomtest(max(only_first, only_second), only_first + only_second, alternative="greater").pvalue
        assert against["p_value"] == pytest.approx(expected, rel=1e-9) == arm["p_value_vs_ground_truth"]
        exact = metrics.compare_rows(metrics.compute_row_differences(first[:, None], second[:, None])).difference
        assert [against[key] for key in ("difference", "low", "high")] == [exact.value, exact.low, exact.high]
        for key in ("purity", "accuracy"):
            values = [run[key]["value"] for run in of_runs]
            low, high = stats.t.interval(0.95, 2, np.mean(values), stats.sem(values))
            assert arm[key]["value"] == pytest.approx(np.mean(values)) and arm[key]["num_runs"] == 3
            assert (arm[key]["runs"]["low"], arm[key]["runs"]["high"]) == pytest.approx((low, high))
            assert arm[key]["low"] < arm[key]["value"] < arm[key]["high"]
        assert arm["verdict"] in ("inconclusive", "below ground truth") and arm["paper_verdict"] is not None
    truth = by_name(content)["ground_truth"]
    assert truth["against_ground_truth"] is None and truth["purity_by_definition"]
    assert by_name(content)["trust"]["weak_to_strong"] is True
    # The table, the page and the JSON on the terminal are of the same numbers.
    value = by_name(content)["trust"]["accuracy"]["value"]
    assert f"{100 * value:.1f} (" in result.stdout and "3 runs: puzzles (3)" in result.stdout
    page = (tmp_path / "out" / "combined.html").read_text()
    HTMLParser().feed(page)
    assert f"{100 * value:.1f}" in page and "No test row stands in two runs" in page and "http" not in page
    assert page.count("trust: 12 % are unlike") == 3 and "internal_confidence: " not in page
    assert all(str(directory) in page for directory in seeds[1])
    as_json = json.loads(combine(*seeds[1], "-o", tmp_path / "out", "--json").stdout)
    assert {**as_json, "created": ""} == {**content, "created": ""}


def test_recovery_is_that_of_the_averaged_accuracies(
    seeds: tuple[Path, list[Path]], records: list[RunRecord], tmp_path: Path
) -> None:
    content = json.loads(combine(*seeds[1], "-o", tmp_path / "out", "--json").stdout)
    rows_of = {
        name: [right_on_test(record, name).astype(float) for record in records] for name in ("trust", BASE, TRUTH)
    }
    arm, base, truth = (np.array([rows.mean() for rows in rows_of[name]]) for name in ("trust", BASE, TRUTH))
    expected = (arm.mean() - base.mean()) / (truth.mean() - base.mean())
    found = by_name(content)["trust"]["recovery"]
    assert found["value"] == pytest.approx(expected) != pytest.approx(((arm - base) / (truth - base)).mean(), abs=1e-6)
    assert (found["n"], found["num_runs"]) == (750, 3) and by_name(content)["trust"]["recovery_withheld"] is None
    rng, ratios = np.random.default_rng(3), []
    for _ in range(4000):  # resampled row by row within each run
        means = np.array([[rows[at].mean() for rows in each] for at, each in drawn_rows(rng, rows_of)])
        arm_r, base_r, truth_r = means.mean(axis=0)
        ratios.append((arm_r - base_r) / (truth_r - base_r))
    assert [found["low"], found["high"]] == pytest.approx(np.quantile(ratios, [0.025, 0.975]), abs=0.03)
    assert by_name(content)["ground_truth"]["recovery"]["value"] == 1


def drawn_rows(rng: np.random.Generator, rows_of: dict[str, list[np.ndarray]]) -> list[tuple[np.ndarray, tuple]]:
    """Of each run, places of its rows with replacement, and the rows of all models."""
    runs = list(zip(*rows_of.values(), strict=True))
    return [(rng.integers(0, len(run[0]), len(run[0])), run) for run in runs]


def test_runs_that_share_test_rows_are_given_a_test_that_knows_it(tmp_path: Path) -> None:
    folder = tmp_path
    same = [finished_run(folder, f"same{seed}", seed) for seed in range(2)]
    result = combine(*same, "-o", folder / "out")
    content = json.loads((folder / "out" / "combined.json").read_text())
    assert content["test_rows"] == {"total": 500, "distinct": 250}
    assert "250 of 500 test rows occur in several runs" in result.stdout
    assert "runs share test rows" in (folder / "out" / "combined.html").read_text()
    records = [get_finished_record(load_config(directory / "config.yaml")) for directory in same]
    arm = by_name(content)["trust"]
    apart = sum(right_on_test(r, "trust").astype(int) - right_on_test(r, "ground_truth") for r in records)
    flips = np.random.default_rng(0).choice([-1, 1], size=(20_000, 250)) @ apart
    assert arm["p_value_vs_ground_truth"] == pytest.approx((flips >= abs(apart.sum())).mean(), abs=0.012)
    means = apart / 2
    half = stats.t.ppf(0.975, 249) * stats.sem(means)
    against = arm["against_ground_truth"]
    assert against["n"] == 500 and against["difference"] == pytest.approx(means.mean())
    assert against["high"] - against["low"] == pytest.approx(2 * half, rel=0.05)
    assert arm["verdict"] == ("below ground truth" if against["p_value"] < 0.025 else "inconclusive")


def test_clusters_of_one_run_stay_beside_runs_without_any() -> None:
    """Twenty groups whose rows all agree, and another benchmark of thirty rows."""
    rng, groups_N = np.random.default_rng(0), np.repeat(np.arange(20), 10)

    def graded(correct_N: np.ndarray, cluster_N: np.ndarray | None) -> tuple[Graded]:
        ids_N = np.arange(len(correct_N))
        return (Graded(row_ids_N=ids_N, correct_N=correct_N, question_N=ids_N, cluster_N=cluster_N),)

    alike_N, alone_N, right = rng.random(20) < 0.7, rng.random(30) < 0.7, np.ones(200, np.bool_)
    grouped = {"a": graded(right, groups_N), "b": graded(alike_N[groups_N], groups_N)}
    plain = {"a": graded(right[:30], None), "b": graded(alone_N, None)}
    parts: Any = [SimpleNamespace(benchmark="one", tests=grouped), SimpleNamespace(benchmark="two", tests=plain)]
    rows = _pool_rows("a", "b", parts, shared=False)
    assert rows is not None and len(np.unique(rows.cluster_N)) == 50
    wrong, found = int((~alike_N).sum() + (~alone_N).sum()), metrics.compare_rows(rows)
    assert found.p_value == pytest.approx(0.5**wrong) and found.difference.n == 230
    alone = _pool_rows("a", "b", parts[1:], shared=False)
    assert alone is not None and alone.cluster_N is None


def test_benchmarks_count_alike_and_several_test_runs_are_pooled_by_rows(
    seeds: tuple[Path, list[Path]], records: list[RunRecord], tmp_path: Path
) -> None:
    """Two runs of one benchmark and one of another; the average is of the benchmarks."""
    other = tmp_path / "other.parquet"
    other.write_bytes((ROOT / "examples/data/puzzles.parquet").read_bytes())
    sources, twice = {"puzzles": {"path": str(other)}}, {"num_runs": 2, "decoding": {"temperature": 0.6}}
    directory = finished_run(tmp_path, "other", 5, sources=sources, evaluation=twice)
    content = json.loads(combine(*seeds[1][:2], directory, "-o", tmp_path / "out", "--json").stdout)
    assert list(content["benchmarks"].values()) == [2, 1] and all("puzzles (" in name for name in content["benchmarks"])
    record = get_finished_record(load_config(directory / "config.yaml"))
    second = right_on_test(record, "internal_confidence")

    def of(name: str) -> list[np.ndarray]:
        """Each row's mean over the runs of its model, by run directory."""
        one_run = [right_on_test(run, name).astype(float) for run in records[:2]]
        return [*one_run, (right_on_test(record, name) + second.astype(float)) / 2]

    apart = np.concatenate(of("trust")) - np.concatenate(of("ground_truth"))
    against = by_name(content)["trust"]["against_ground_truth"]
    assert against["difference"] == pytest.approx(apart.mean()) and "num_first_only" not in against
    assert against["low"] < apart.mean() < against["high"] and against["n"] == 750
    flips = np.random.default_rng(0).choice([-1, 1], size=(20_000, 750)) @ apart
    assert against["p_value"] == pytest.approx((flips >= abs(apart.sum()) - 1e-9).mean(), abs=0.012)
    means = [right.mean() for right in of("trust")]
    accuracy = by_name(content)["trust"]["accuracy"]
    assert accuracy["value"] == pytest.approx((np.mean(means[:2]) + means[2]) / 2)
    assert accuracy["runs"] is None  # one run of a benchmark shows no spread
    assert content["test_rows"] == {"total": 750, "distinct": 750}  # the same ids, in another benchmark


def test_what_cannot_be_combined_is_refused_with_what_differs(
    seeds: tuple[Path, list[Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, _ = seeds[1]
    fewer = finished_run(tmp_path, "fewer", 1, selection={"budget": {"n": 120}, "arms": ["naive", "trust"]})
    told = refused(first, fewer)
    assert f"{first} and {fewer} cannot be combined: their arms are " in told
    assert "ground_truth, internal_confidence, naive, trust and naive, trust; set the same selection.arms" in told
    metrics_of_first = read_numbers(Manifest.load(first), 0)
    assert metrics_of_first is not None
    with monkeypatch.context() as patch:  # the hand-made tables have no columns of the other domain
        patch.setattr("curation.stages.handover.compute_numbers", lambda run, record: metrics_of_first["numbers"])
        other = finished_run(tmp_path, "letters", 1, domain="mcqa")
    assert "their domains are chess and mcqa" in refused(first, other)
    chain = {"shares": 2, "stop": None}
    longer = finished_run(tmp_path, "longer", 1, generations=[{"student": {"path": str(TEACHER)}}] * 2, chain=chain)
    assert "their numbers of generations are 1 and 2" in refused(first, longer)
    open_run = finished_run(tmp_path, "open", 1, skip="gen-0/grade-test-trust")
    assert "is unfinished, stage gen-0/grade-test-trust is missing (not done yet)" in refused(first, open_run)
    assert "is not a run directory" in refused(first, tmp_path)
    assert "is not a run directory" in refused(first, tmp_path / "nowhere")
    assert "are one directory" in refused(first, second, first / ".." / first.name)
    assert "two run directories or more, not 1" in refused(first)
    assert "--set" in refused(first, second, "--set", "seed=1")
    file = tmp_path / "file"
    file.write_text("mine")
    assert "is a file" in refused(first, second, "-o", file) and file.read_text() == "mine"
    single = CliRunner().invoke(main, ["report", str(first), str(second)])
    assert single.exit_code == 2 and "several run directories need --combine" in single.stderr
    single = CliRunner().invoke(main, ["report", str(first), "-o", "x"])
    assert single.exit_code == 2 and "--output" in single.stderr
