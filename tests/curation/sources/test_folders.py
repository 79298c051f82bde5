"""Folders and globs: files of several splits or formats are refused."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curation.config import SourceConfig
from curation.errors import SourceError
from curation.sources import discover


def put(folder: Path, *names: str) -> None:
    for number, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".parquet"):
            pq.write_table(pa.table({"text": [f"row {number}"]}), path)
        elif name.endswith(".csv"):
            path.write_text(f"text\nrow {number}\n")
        else:
            path.write_text(f'{{"text": "row {number}"}}\n')


@pytest.mark.parametrize(
    "names, kinds",
    [
        (("train.csv", "test.csv"), ["train, csv: train.csv", "test, csv: test.csv"]),
        (("data/train-00000-of-00002.parquet", "data/dev-00000-of-00001.parquet"), ["train, parquet", "validation"]),
        (("train/a.jsonl", "eval/a.jsonl"), ["train, jsonl: train/a.jsonl", "test, jsonl: eval/a.jsonl"]),
        (("split=train/a.csv", "split=test/a.csv"), ["train, csv", "test, csv"]),
        (("trainData.csv", "testData.csv"), ["train, csv", "test, csv"]),
        (("trainset.csv", "testset1.csv"), ["train, csv", "test, csv"]),
        (("subset=train/a.csv", "subset=test/a.csv"), ["train, csv", "test, csv"]),
        (("rows.csv", "rows_mini.csv"), ["no split named, csv: rows.csv", "sample, csv: rows_mini.csv"]),
        (("rows.csv", "rows.parquet", "rows.jsonl"), ["no split named, csv", "no split named, parquet"]),
        (("rows.jsonl", "sample.jsonl"), ["no split named, jsonl: rows.jsonl", "sample, jsonl: sample.jsonl"]),
        (("labelled.csv", "unlabelled.csv"), ["labelled, csv", "unlabelled, csv"]),
    ],
)
def test_several_kinds_are_refused_with_their_files(tmp_path: Path, names: tuple[str, ...], kinds: list[str]) -> None:
    put(tmp_path, *names)
    for path in (tmp_path, tmp_path / "**" / "*", f"file://{tmp_path}"):
        with pytest.raises(SourceError, match=f"{len(names)} files of {len(names)} kinds") as refused:
            discover(SourceConfig(path=str(path)))
        assert all(kind in str(refused.value) for kind in kinds) and "mixed: true" in str(refused.value)
        assert len(discover(SourceConfig(path=str(path), mixed=True))) == len(names)
    (file,) = discover(SourceConfig(path=str(tmp_path / names[0])))
    assert file.num_rows == 1


@pytest.mark.parametrize(
    "names",
    [
        ("train-00000-of-00003.parquet", "train-00001-of-00003.parquet", "train-00002-of-00003.parquet"),
        ("train1.csv", "train2.csv"),
        ("jan.csv", "feb.csv", "deep/mar.csv"),
        ("day=1/a.csv", "day=2/a.csv"),
        ("latest.csv", "contest.csv", "trained.csv"),
        ("train/x.parquet", "train/y.parquet", "dataset_info.json", "state.json", "readme.md"),
    ],
)
def test_shards_of_one_kind_are_one_source(tmp_path: Path, names: tuple[str, ...]) -> None:
    put(tmp_path, *names)
    files = discover(SourceConfig(path=str(tmp_path)))
    assert len(files) == sum(name.endswith((".csv", ".parquet")) for name in names)


def test_a_compressed_copy_is_another_kind(tmp_path: Path) -> None:
    put(tmp_path, "a.csv", "b.csv")
    for ending, name in (("gz", "gzip"), ("bz2", "bz2")):
        with pa.CompressedOutputStream(str(tmp_path / f"a.csv.{ending}"), name) as file:
            file.write(b"text\nrow 0\n")
        with pytest.raises(SourceError, match=rf"csv\.{ending}: a\.csv\.{ending}"):
            discover(SourceConfig(path=str(tmp_path)))
    (tmp_path / "a.csv").unlink()
    with pytest.raises(SourceError, match=r"csv\.bz2: a\.csv\.bz2.* csv\.gz: a\.csv\.gz"):
        discover(SourceConfig(path=str(tmp_path)))


def test_files_of_rows_that_would_be_left_out_are_named(tmp_path: Path) -> None:
    put(tmp_path, "a.csv")
    (tmp_path / "b.tsv").write_text("text\nb\n")
    with pytest.raises(SourceError, match=r"b\.tsv would be left out: what ends in \.tsv.* is not read; convert it"):
        discover(SourceConfig(path=str(tmp_path)))
    assert len(discover(SourceConfig(path=str(tmp_path / "*.csv")))) == 1


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [("a.jsonl", "delimiter", ";"), ("a.parquet", "quoting", "none")],
)
def test_keys_of_text_that_no_file_reads_are_refused(tmp_path: Path, name: str, key: str, value: str) -> None:
    put(tmp_path, name)
    with pytest.raises(SourceError, match=rf"{key}: '{value}' is read of .*csv alone, and the source is {name[2:]}"):
        discover(SourceConfig.model_validate({"path": str(tmp_path / name), key: value}))
