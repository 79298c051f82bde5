"""The facts of a table as text for a terminal."""

import json
from collections.abc import Sequence

from curation.commands.inspect.facts import Facts
from curation.commands.inspect.find import FoundTable
from curation.escaping import escape_text

WIDTH = 100
"""Maximum length of a value or a message, in characters; longer ones are truncated."""


def format_facts(facts: Facts) -> str:
    """Return the facts of a table, section by section."""
    fragments, shown = facts.fragments, len(facts.versions)
    low, high = fragments.rows
    each = f", {low:,} rows each" if low == high else f", {low:,} to {high:,} rows each"
    deleted = f", {fragments.deleted_rows:,} rows deleted" if fragments.deleted_rows else ""
    lines = [
        f"{facts.uri}, version {facts.version}",
        f"rows       {facts.rows:,}" + (f", {facts.matching:,} where {facts.where}" if facts.where is not None else ""),
        f"fragments  {fragments.count:,}{each if fragments.count else ''}{deleted}, {format_size(fragments.bytes)} on "
        "disk",
        f"versions   {facts.num_versions:,}" + (f", the last {shown}:" if shown < facts.num_versions else ""),
        *_align([(str(item.version), item.time, f"{item.rows:,} rows", item.change) for item in facts.versions]),
        "columns",
        *_align([(item.name, item.type, "" if item.nullable else "not null") for item in facts.columns]),
    ]
    if facts.errors is not None:
        lines.append(f"error rows {sum(item.rows for item in facts.errors):,}")
        lines += _align([(item.kind, f"{item.rows:,}", f"e.g. {_cut(item.example)}") for item in facts.errors])
    if facts.sample:
        lines.append(f"sample     {len(facts.sample):,} of {facts.matching:,} rows")
    for row in facts.sample:
        lines += ["  -", *_align([(name, _format_value(value)) for name, value in row.items()], "    ")]
    return "\n".join(lines)


def format_tables(found: Sequence[FoundTable]) -> str:
    """Return the tables of a run, one line each."""
    rows = [("table", "rows", "version", "")]
    for item in found:
        count = "" if item.rows is None else f"{item.rows:,}"
        rows.append((item.name, count, "" if item.version is None else str(item.version), item.state))
    return "\n".join(_align(rows, ""))


def format_size(num_bytes: int) -> str:
    """Return a number of bytes as text in binary units."""
    value = float(num_bytes)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:,.0f} {unit}" if unit == "bytes" else f"{value:,.1f} {unit}"
        value /= 1024
    return f"{value:,.1f} TiB"


def _align(rows: Sequence[tuple[str, ...]], indent: str = "  ") -> list[str]:
    """Return each row as a line, with its cells in columns as wide as their longest cell."""
    rows = [tuple(map(escape_text, row)) for row in rows]
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))] if rows else []
    return [
        indent + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _format_value(value: object) -> str:
    if isinstance(value, str):
        return _cut(value)
    if isinstance(value, dict) and value.keys() == {"size", "norm"}:
        return f"{value['size']:,} numbers, norm {_format_value(value['norm'])}"
    if isinstance(value, float):
        return f"{value:.5g}"
    if isinstance(value, list):
        return f"[{', '.join(map(_format_value, value))}]"
    return _cut(json.dumps(value, ensure_ascii=False))


def _cut(text: str) -> str:
    line = json.dumps(text, ensure_ascii=False)[1:-1]  # line ends as \n, so that a value stays on one line
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 3]}..."
