"""What a filter refuses, its plan refuses first: before Ray is started, a row is labelled or a file is written."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from filter_package import make_package, write_pool

from curation.config.filter import FilterConfig
from curation.config.load import load_filter
from curation.errors import BudgetError, ClusterError, ConfigError, SourceError
from curation.extras.plan.planning import make_plan
from curation.filter.opened import load_kept_config, look
from curation.filter.package.folder import TrustPackage, copy_package
from curation.filter.run import run_filter
from curation.rundir.graph import make_cache_key
from curation.storage.paths import to_place


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> TrustPackage:
    return make_package(tmp_path_factory.mktemp("package"))


def config_of(package: TrustPackage, folder: Path, keep: dict[str, Any], *overrides: str) -> FilterConfig:
    given = {"package": package.uri, "pool.path": str(folder / "pool"), "output.path": str(folder / "out")}
    return load_filter(None, overrides, {**given, "keep": keep})


def test_a_look_at_the_machine_comes_before_the_probe(package: TrustPackage, tmp_path: Path):
    write_pool(tmp_path / "pool" / "a.jsonl", 40)
    with pytest.raises(ClusterError, match="this machine is too small"):
        make_plan(config_of(package, tmp_path, {"n": 5}, "teacher.actors.num_gpus=64"), probe=True)
    assert not (tmp_path / "out").exists()


def test_a_rule_that_no_cut_can_follow_is_refused_by_plan_and_filter(package: TrustPackage, tmp_path: Path):
    write_pool(tmp_path / "pool" / "a.jsonl", 40)
    rows = pa.table({"raw": pa.array([0.5], pa.float32()), "correct": pa.array([True])})
    pq.write_table(rows, tmp_path / "graded.parquet")
    for keep, error, message in (
        ({"n": 41}, BudgetError, "keep.n: 41 rows are more than the 40 of 40 that can"),
        ({"share": 0.01}, BudgetError, "keep.share: nothing is written: 0.01 of 40 rows is less than one"),
        (
            {"certified": {"alpha": 0.1, "calibration": str(tmp_path / "graded.parquet")}},
            SourceError,
            "column 'trust' is missing",
        ),
    ):
        config = config_of(package, tmp_path, keep)
        for begin in (lambda of: make_plan(of, probe=True), run_filter):
            with pytest.raises(error, match=message):
                begin(config)
        assert not to_place(config.directory / "manifest.json").exists()


def test_labels_depend_on_the_package_and_not_on_where_or_how_its_teacher_runs(package: TrustPackage, tmp_path: Path):
    write_pool(tmp_path / "pool" / "a.jsonl", 40)
    other = make_package(tmp_path / "other", shift=1.0)

    def key(of: TrustPackage, *overrides: str) -> dict[str, Any]:
        label = look(config_of(of, tmp_path, {"n": 5}, *overrides)).described.rounds["0000"].label
        return make_cache_key(label, {"pool-0000": {"pool": {"uri": "pool", "version": 1}}})

    found = key(package)
    assert found == key(copy_package(package, to_place(str(tmp_path / "copy"))))
    assert found == key(package, "teacher.chunk_rows=7", "teacher.batch_tokens=99", "teacher.actors.max=3")
    assert found["package"] == package.digest and found["backend"] == "scripted"
    assert found["fitted"]["linear_probe"] == {
        "uri": str(tmp_path / "out/_curation/package/trust"),
        "digest": package.trust.digest,
    }
    changed = {name for name, value in key(other).items() if value != found[name]}
    assert changed == {"package"}  # the same fit, with another sample
    assert {name for name, value in key(package, "seed=1").items() if value != found[name]} == {"seed", "sample"}


def test_an_output_of_an_earlier_version_can_be_looked_at_and_its_keys_are_refused_elsewhere(tmp_path: Path):
    keys = {"package": "p", "pool": {"path": "x", "form": "auto"}, "output": {"path": "out", "rows_per_file": 9}}
    work = tmp_path / "out" / "_curation"
    work.mkdir(parents=True)
    for file in (work / "config.yaml", tmp_path / "filter.yaml"):
        file.write_text(yaml.safe_dump({**keys, "keep": {"certified": {"alpha": 0.1, "per": "all"}}}))
    (work / "manifest.json").write_text("{}")
    kept = load_kept_config(to_place(tmp_path / "out")).keep.certified
    assert kept is not None and kept.alpha == 0.1
    with pytest.raises(ConfigError, match=r"keep\.certified\.per: unknown key"):
        load_filter(tmp_path / "filter.yaml")
