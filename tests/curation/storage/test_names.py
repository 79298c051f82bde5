"""Names of folders: of any letters for tables, and refused where Lance opens nothing."""

from pathlib import Path
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pytest

from curation.errors import RunDirError
from curation.rundir.sealed import find_lost, load, seal
from curation.storage.paths import require_reachable, to_place
from curation.tables import commits, io
from curation.tables.versions import list_version_files


@pytest.mark.parametrize(
    "name", ["a b", "ü北京", "50%", "a%20b", "#1", "why?", "x[1]*{y}", "q'\"`$HOME", "a\\b", "s3:x"]
)
def test_a_table_lies_in_a_folder_of_any_name(name: str, tmp_path: Path):
    home = to_place(f"file://{quote(str(tmp_path / name))}")
    assert home == to_place(str(tmp_path / name)) == tmp_path / name
    require_reachable(home, writable=True)
    schema, uri = pa.schema([("row_id", pa.int64())]), str(home / f"{name}.lance")
    io.create(uri, schema)
    committer = commits.Committer(uri)
    for first in (0, 5):
        (row,) = commits.write_fragment(pa.table({"row_id": np.arange(first, first + 5)}), uri, schema).to_pylist()
        committer.add(row["fragments"], row["row_ids"])
        committer.flush()
    ref = io.find_latest(uri)
    sealed = seal(home, "stage", {"table": ref.to_json()})
    listed = load(home, sealed)
    assert listed is not None and find_lost(home, {"x": sealed}) == {}
    files = {f"{name}.lance/{file}" for file in list_version_files(ref)}
    assert len(files) == 2 and all((home / file).is_file() for file in files)
    assert files <= listed.keys() and len(listed) == 3


def test_a_folder_with_a_line_break_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("new\nline", "tab\t", "\x7f"):
        with pytest.raises(RunDirError, match="control character") as caught:
            require_reachable(to_place(str(tmp_path / name)))
        assert not {"\n", "\t", "\x7f"} & set(str(caught.value))
    (tmp_path / "here\n").mkdir()
    monkeypatch.chdir(tmp_path / "here\n")
    with pytest.raises(RunDirError, match="control character"):
        require_reachable(to_place("runs/x"))
