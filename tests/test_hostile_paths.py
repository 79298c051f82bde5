"""A filter whose package, pool and output lie in folders of names that URLs, globs and shells read otherwise."""

import json
from pathlib import Path
from urllib.parse import quote

import pyarrow.dataset as ds
import pytest
from click.testing import CliRunner
from filter_package import ids_of, make_package, write_pool

from curation.cli import main

NAME = "#1 50%20? [x]* é 北京 'of' {{ x }} \"$HOME\" \\;&"
NUM_ROWS = 60


@pytest.mark.slow
@pytest.mark.parametrize("as_url", [False, True])
@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_a_filter_reads_and_writes_under_any_name(local_ray, form: str, as_url: bool, tmp_path: Path) -> None:
    home = tmp_path / NAME
    home.mkdir()
    package = make_package(home)
    for number in range(2):
        write_pool(home / "pool" / f"{number} {NAME}.jsonl", NUM_ROWS)
    pool, output = ((f"file://{quote(str(home / name))}" if as_url else str(home / name)) for name in ("pool", "out"))
    settings = ["teacher.chunk_rows=16", "pool.columns=[url]", "ray.num_cpus=2"]
    options = [text for setting in settings for text in ("--set", setting)]
    rule = ["-o", output, "--keep", "0.5", "--format", form, "--on-shift", "ignore"]
    arguments = ["filter", package.uri, pool, *rule, *options]
    for _ in range(2):  # the second time there is nothing to do
        done = CliRunner().invoke(main, arguments)
        assert done.exit_code == 0, done.stderr
    content = json.loads((home / "out" / "filter.json").read_text())
    assert sum(file["rows"] for file in content["files"]) == NUM_ROWS
    files = [str(home / "out" / file["path"]) for file in content["files"]]
    rows = ds.dataset(files, format="json" if form == "jsonl" else form).to_table().to_pylist()
    ids = {row_id for number in range(2) for row_id in ids_of(number, NUM_ROWS).tolist()}
    assert {row["row_id"] for row in rows} <= ids and len(rows) == NUM_ROWS
    verified = CliRunner().invoke(main, ["verify", str(home / "out")])
    assert verified.exit_code == 0, verified.output
