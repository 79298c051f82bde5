"""Source files with hostile values, whole or damaged, read as a run reads them and by the formats' own libraries."""

import csv
import io
import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

from benchmarks.fuzz.oracle import attempt as tried
from curation.config import DomainConfig, SourceConfig
from curation.domains import Domain, attempt, get_domain
from curation.sources import check_unique, discover, read_rows, to_raw_rows
from curation.stages.split_tables import find_schema_problem

Rows = list[dict[str, Any]]

FORMS = ("jsonl", "csv", "parquet", "lance")
NAMES = (
    "problem",
    "answer",
    "level",
    "solution",
    "fen",
    "moves",
    "rating",
    "question",
    "choices",
    "id",
    "\x1b[2J",
    "é\n",
)
PIECES = (
    *("", " ", "nan", "NaN", "null", "None", "7k/R7/6K1/8/8/8/8/8 b - - 0 1", "h8g8 a7a8", "\\boxed{2}", "####", "1"),
    *('"', '""', ",", "\n", "\r\n", "\r", "\t", "\x00", "\x1b[31m", "\x7f", "\x9b", "\u202e", "\ufeff", "<script>"),
    *("{{ 7 * 7 }}", "=1+1", "@SUM(A1)", "é", "🙂", "{", "}", "\\", "'"),
)
TEXTS = st.lists(st.sampled_from(PIECES) | st.characters(exclude_categories=["Cs"]), max_size=5).map("".join)
INTEGERS = st.integers(-3, 3) | st.sampled_from([2**31, 2**53 + 1, 2**63 - 1, -(2**63)])
FLOATS = st.floats() | st.sampled_from([1.0, math.nan])
JSON = st.recursive(
    st.none() | st.booleans() | INTEGERS | st.sampled_from([2**63, 2**64]) | FLOATS | TEXTS | st.just("\ud800"),
    lambda parts: st.lists(parts, max_size=3) | st.dictionaries(TEXTS, parts, max_size=3),
    max_leaves=5,
)
COLUMNS = {
    pa.string(): TEXTS,
    pa.int64(): INTEGERS,
    pa.float64(): FLOATS,
    pa.bool_(): st.booleans(),
    pa.binary(): st.binary(max_size=3),
    pa.list_(pa.string()): st.lists(st.none() | TEXTS, max_size=3),
    pa.timestamp("ms"): st.integers(-(2**62), 2**62),
    pa.date32(): st.integers(-(2**31), 2**31 - 1),
}
DAMAGE = st.lists(
    st.tuples(st.sampled_from(["cut", "drop", "flip", "insert"]), st.floats(0, 1), st.binary(min_size=1, max_size=3)),
    max_size=2,
)


@st.composite
def files(draw: st.DrawFn) -> tuple[str, bytes | pa.Table]:
    """Draw a format and the content of a file of it."""
    form = draw(st.sampled_from(FORMS))
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True))
    num = draw(st.integers(0, 4))
    if form in ("parquet", "lance"):
        kinds = [draw(st.sampled_from(list(COLUMNS))) for _ in names]
        values = [draw(st.lists(st.none() | COLUMNS[kind], min_size=num, max_size=num)) for kind in kinds]
        table = pa.table({name: pa.array(part, kind) for name, part, kind in zip(names, values, kinds, strict=True)})
        if form == "lance":
            return form, table
        buffer = io.BytesIO()
        pq.write_table(table, buffer, row_group_size=2)
        content = buffer.getvalue()
    elif form == "csv":
        text = io.StringIO()
        end = draw(st.sampled_from(["\n", "\r\n"]))
        writer = csv.writer(text, lineterminator=end, quoting=draw(st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL])))
        writer.writerows(
            [names, *draw(st.lists(st.lists(TEXTS, min_size=len(names), max_size=len(names)), max_size=4))]
        )
        content = text.getvalue().encode()
    else:
        rows = draw(st.lists(st.dictionaries(st.sampled_from(names), JSON), min_size=num, max_size=num))
        ascii_only = draw(st.booleans())
        lines = [json.dumps(row, ensure_ascii=ascii_only).encode(errors="surrogatepass") for row in rows]
        content = b"\n".join(lines)
    return form, damaged(content, draw(DAMAGE) if draw(st.integers(0, 2)) == 0 else [])


def damaged(content: bytes, damage: list[tuple[str, float, bytes]]) -> bytes:
    """Return the content with bytes cut off, dropped, flipped or put in."""
    for kind, share, given in damage:
        at = int(share * len(content))
        rest = {"cut": b"", "drop": content[at + len(given) :], "insert": given + content[at:]}
        flipped = bytes(byte ^ (mask or 1) for byte, mask in zip(content[at:], given, strict=False))
        content = content[:at] + rest.get(kind, flipped + content[at + len(flipped) :])
    return content


def check_file(folder: Path, form: str, content: bytes | pa.Table) -> None:
    """Read a file whole and in two parts, compare with the format's own library, and give the rows to the domains."""
    path = folder / f"rows.{form}"
    if isinstance(content, pa.Table):
        import lance

        lance.write_dataset(content, str(path), mode="overwrite")
    else:
        path.write_bytes(content)
    rows = tried(form, lambda: _read(path))
    if rows is None:
        return
    expected = _REFERENCES[form](path)
    assert len(rows) == len(expected), f"{len(rows)} rows, not {len(expected)}"
    for row, other in zip(rows, expected, strict=True):
        for name in {*row, *other}:
            assert same(row.get(name), present(other.get(name))), (
                f"{name!r}: {row.get(name)!r}, not {other.get(name)!r}"
            )
    for name in ("math", "chess", "mcqa"):
        for row in rows:
            _check_row(get_domain(DomainConfig(name=name)), row)


def _read(path: Path) -> Rows:
    (file,) = discover(SourceConfig(path=str(path)))
    rows = [row for batch in read_rows(file) for row in to_raw_rows(batch)]
    middle = file.num_rows // 2
    parts = [
        row for span in ((0, middle), (middle, None)) for batch in read_rows(file, *span) for row in to_raw_rows(batch)
    ]
    assert all(
        same(row[name], part[name]) or same(part[name], row[name])
        for row, part in zip(rows, parts, strict=True)
        for name in row
    )
    if "id" in file.schema:
        tried("ids", lambda: check_unique([file], "id"))
    return rows


def _check_row(domain: Domain, row: dict[str, Any]) -> None:
    example, problem = attempt(domain.read, row)
    assert example is not None or not problem.startswith("domain_failed") or not _has_form(domain, row), problem
    if example is None or find_schema_problem(example, domain.columns):
        return
    gold, problem = attempt(domain.gold, row)
    assert not problem.startswith("domain_failed"), problem
    if domain.name == "math" and present(row.get("answer")) is None and present(row.get("solution")) is None:
        assert gold is None, f"a row without an answer has the gold label {gold!r}"
    for problem in (attempt(domain.prompt, example)[1], attempt(domain.identity, example)[1]):
        assert not problem, problem


def _has_form(domain: Domain, row: dict[str, Any]) -> bool:
    return any(set(form) <= row.keys() for form in domain.forms)


def present(value: Any) -> Any:
    """Return a value as a domain should get it: missing is None, whatever the format writes for it."""
    if isinstance(value, dict):
        return {name: present(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [present(part) for part in value]
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, bytes):  # texts that do not say so
        try:
            value = str(value, "utf-8")
        except ValueError:
            return value
    return None if isinstance(value, str) and not value.strip() else value


_FAR = object()
"""A value that Python has no type for: read as any text."""


def same(found: Any, wanted: Any) -> bool:
    """Return whether a value was read rightly: as it is, as Arrow widened it, or as text if its column mixes types."""
    if wanted is _FAR:
        return isinstance(found, str)
    if isinstance(wanted, dict) and isinstance(found, dict):  # a struct has the fields of all rows
        return all(same(found.get(name), wanted.get(name)) for name in {*found, *wanted})
    if isinstance(wanted, list) and isinstance(found, list):
        return len(found) == len(wanted) and all(map(same, found, wanted))
    if isinstance(found, str) and not isinstance(wanted, str) and wanted is not None:
        try:
            return same(json.loads(found), json.loads(json.dumps(wanted)))
        except (TypeError, ValueError):
            return found == str(wanted)
    if isinstance(wanted, bool) or isinstance(found, bool):
        return found is wanted
    return bool(found == wanted)


def _jsonl(path: Path) -> Rows:
    return [json.loads(line.decode("utf-8-sig")) for line in path.read_bytes().split(b"\n") if line.strip()]


def _csv(path: Path) -> Rows:
    text = path.read_bytes().decode("utf-8-sig")
    names, *rows = [fields for fields in csv.reader(io.StringIO(text, newline="")) if fields]
    return [dict(zip(names, fields, strict=True)) for fields in rows]


def _parquet(path: Path) -> Rows:
    return _python(pq.read_table(path))


def _lance(path: Path) -> Rows:
    import lance

    return _python(lance.dataset(str(path)).to_table())


def _python(table: pa.Table) -> Rows:
    columns = {}
    for name in table.schema.names:
        columns[name] = [_plain(value) for value in table[name]]
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _plain(value: pa.Scalar) -> Any:
    try:
        return value.as_py()
    except (OverflowError, ValueError):
        return _FAR


_REFERENCES = {"jsonl": _jsonl, "csv": _csv, "parquet": _parquet, "lance": _lance}
