"""What cannot be read of a version: the message says why."""

from pathlib import Path

import pyarrow as pa
import pytest

from curation.errors import TableError
from curation.tables import io
from curation.tables.contents import rows_of


def test_an_error_of_another_origin_than_lances_is_named(tmp_path: Path) -> None:
    ref = io.write(pa.table({"row_id": ["a", "b"]}), str(tmp_path / "texts.lance"))
    with pytest.raises(TableError, match=r"texts\.lance: version 1: it cannot be read \(\w+: .+\)"):
        rows_of(ref)
