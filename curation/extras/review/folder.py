"""The folder of a review: ``draw.json`` and ``rows.parquet``, written once, and the log ``verdicts.jsonl``.

The log has one JSON object per line, appended under a lock and synced before it is acknowledged. Lines are never
rewritten. A person's last line about a row counts; ``back`` withdraws the verdict before it. A line that was cut off,
by a crash or a full disk, was never acknowledged: the next writer ends it, and readers skip it.
"""

import fcntl
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from curation.errors import ReviewError
from curation.extras.review.source import Origin, find, find_review_rows, read_row_texts
from curation.json_types import Json, JsonView
from curation.selection.review import Stratum, draw
from curation.storage.files import append_lines, open_file, sync_folder
from curation.storage.inside import from_record, run_around, to_record
from curation.storage.paths import Place, write_atomically
from curation.tables.schemas import ROW_ID

VERDICTS = ("right", "wrong", "unsure")
BACK = "back"
DEFAULT_NUM = 200
ROWS = pa.schema(
    [
        ROW_ID,
        pa.field("prompt", pa.string()),
        pa.field("label", pa.string()),  # the weak label; null if it was not read
        pa.field("completion", pa.string()),
        pa.field("raw", pa.float32()),  # null, like trust, if the arm does not rank
        pa.field("trust", pa.float32()),
        pa.field("selected", pa.bool_(), nullable=False),
        pa.field("stratum", pa.int32(), nullable=False),
        pa.field("inclusion", pa.float64(), nullable=False),  # the probability with which the row was drawn
        pa.field("uniform", pa.bool_(), nullable=False),  # belongs to the part that was drawn uniformly
    ]
)
"""The rows of a review, in the order in which people judge them."""


@dataclass(frozen=True, kw_only=True)
class VerdictLine:
    """A line of the log."""

    row_id: int
    person: str
    verdict: str
    """One of ``VERDICTS``, or ``BACK``."""
    via: str
    """Origin of the verdict: ``page``, ``csv``, ``label-studio`` or ``argilla``."""
    saw_trust: bool = False
    """Whether the person had looked at the trust score."""
    time: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="milliseconds"))
    """Time of the verdict (UTC, ISO 8601)."""


Standing = dict[int, dict[str, VerdictLine]]
"""Verdicts that count, by row id and person, each row's in the order of their last change."""


class VerdictLog:
    """The log of a review's verdicts, which several processes and threads may write and read at once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.num_torn = 0
        """Number of lines that were cut off."""

    def add(self, entries: Iterable[VerdictLine]) -> None:
        """Append entries, and return once they are on disk; a ``ReviewError`` if they cannot be written."""
        lines = b"".join(json.dumps(asdict(entry)).encode() + b"\n" for entry in entries)
        try:
            is_new = not self._path.exists()
            with open_file(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW) as file:
                fcntl.flock(file, fcntl.LOCK_EX)  # against other processes and threads, until the file is closed
                if is_new:
                    sync_folder(self._path.parent)
                append_lines(self._path, lines)
                os.fsync(file)
        except OSError as error:
            raise ReviewError(
                f"{self._path}: the verdict is not kept ({error.strerror}); mend it and give it again"
            ) from error

    def entries(self) -> list[VerdictLine]:
        """Return all entries so far, including those of other processes, in the order of the log."""
        found, num_torn = [], 0
        lines = self._path.read_bytes().split(b"\n") if self._path.exists() else [b""]
        for line in lines[:-1]:  # what follows the last end of a line is being written
            try:
                found.append(VerdictLine(**json.loads(line)))
            except (ValueError, TypeError):
                num_torn += bool(line.strip())
        self.num_torn = num_torn
        return found

    def standing(self) -> Standing:
        """Return the verdicts that count now, by row and person."""
        return find_standing(self.entries())


def find_standing(entries: Iterable[VerdictLine]) -> Standing:
    """Return the verdicts that count after the entries of a log."""
    found: Standing = {}
    for entry in entries:
        of_row = found.setdefault(entry.row_id, {})
        of_row.pop(entry.person, None)
        if entry.verdict != BACK:
            of_row[entry.person] = entry
        if not of_row:
            del found[entry.row_id]
    return found


@dataclass(frozen=True)
class Review:
    """A review whose rows have been drawn."""

    folder: Path

    @cached_property
    def drawn(self) -> Json:
        """The record of the draw."""
        drawn: Json = from_record(json.loads((self.folder / "draw.json").read_text()), run_around(self.folder))
        return drawn

    @cached_property
    def origin(self) -> Origin:
        """The run or filter that the review was drawn from."""
        return Origin.from_json(self.drawn["origin"])

    @cached_property
    def strata(self) -> list[Stratum]:
        """The strata, from the most to the least trusted."""
        return [Stratum(**item) for item in self.drawn["strata"]]

    @cached_property
    def rows(self) -> pa.Table:
        """The rows (``ROWS``)."""
        return pq.read_table(self.folder / "rows.parquet", schema=ROWS)

    @cached_property
    def log(self) -> VerdictLog:
        """The log of verdicts."""
        return VerdictLog(self.folder / "verdicts.jsonl")


def list_reviews(home: Path) -> list[str]:
    """Return the names of the reviews in a folder."""
    return sorted(path.parent.name for path in home.glob("*/draw.json") if not path.parent.name.startswith("."))


def open_review(home: Path, name: str | None) -> Review:
    """Return the review with a name or, without a name, the only one; a ``ReviewError`` if there is none such."""
    names = list_reviews(home)
    listed = f"there are {', '.join(names)}" if names else "there is none; draw one with `curate review draw RUN`"
    if name is None:
        if len(names) != 1:
            raise ReviewError(f"{home}: {'name one of its reviews by --name: ' if names else ''}{listed}")
        name = names[0]
    if name not in names:
        raise ReviewError(f"{home}: no review is called {name!r}; {listed}")
    return Review(home / name)


def open_or_make_review(
    run: Place, home: Path, *, name: str | None, arm: str | None, num: int | None, seed: int | None
) -> Review:
    """Return the review of a name (default: the arm); draw it if there is none, refuse it if drawn by other options."""
    names = list_reviews(home)
    if name is None and (arm, num, seed) == (None, None, None) and len(names) == 1:
        return open_review(home, None)
    origin = find(run, arm)
    name = name or origin.arm
    if name not in names:
        return make_review(home, name, origin, num=DEFAULT_NUM if num is None else num, seed=seed or 0)
    review = open_review(home, name)
    asked = {"arm": (arm, review.origin.arm), "num": (num, review.drawn["num"]), "seed": (seed, review.drawn["seed"])}
    for key, (wanted, was) in asked.items():
        if wanted is not None and wanted != was:
            raise ReviewError(
                f"{review.folder}: was drawn with --{key} {was}, not {wanted}; leave it out, or draw another review "
                "with --name"
            )
    return review


def make_review(home: Path, name: str, origin: Origin, *, num: int, seed: int) -> Review:
    """Draw the rows of a new review and write its folder, which appears when it is complete."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise ReviewError(f"--name: {name!r} is not a name; use letters, digits and . _ -")
    rows, num_candidates = find_review_rows(origin)
    drawn = draw(rows, num=num, seed=seed, ranked=origin.ranked)
    row_ids_M = rows.row_ids_N[drawn.place_M]
    texts = read_row_texts(origin, row_ids_M)
    columns: JsonView = {
        "row_id": row_ids_M,
        **{field: texts[field] for field in ("prompt", "label", "completion")},
        "raw": pa.array(rows.raw_N[drawn.place_M], pa.float32(), from_pandas=True),
        "trust": pa.array(rows.trust_N[drawn.place_M], pa.float32(), from_pandas=True),
        "selected": rows.selected_N[drawn.place_M],
        "stratum": drawn.stratum_M.astype("int32"),
        "inclusion": drawn.inclusion_M,
        "uniform": drawn.uniform_M,
    }
    record = {
        "format": 1,
        "origin": asdict(origin),
        "num": num,
        "seed": seed,
        "num_drawn": len(row_ids_M),
        "num_uniform": int(drawn.uniform_M.sum()),
        "num_region": sum(stratum.num_rows for stratum in drawn.strata),
        "num_candidates": num_candidates,
        "floor": drawn.floor,
        "allocation": "a uniform part over the region, and an extra part by stratum towards Neyman's allocation",
        "strata": [asdict(stratum) for stratum in drawn.strata],
    }
    temporary = home / f".{name}.{uuid.uuid4().hex}"
    try:
        temporary.mkdir(parents=True)
        pq.write_table(pa.table(columns, schema=ROWS), temporary / "rows.parquet")
        write_record(temporary / "draw.json", record, home)
        os.rename(temporary, home / name)  # refused if there is a review of that name
    except OSError as error:
        raise ReviewError(
            f"{home / name}: cannot be written ({error.strerror}); give another --name or --folder"
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return Review(home / name)


def write_record(path: Path, record: Json, inside: Path) -> None:
    """Write a record as JSON, with paths in the run around the folder ``inside`` relative to that run."""
    text = json.dumps(to_record(record, run_around(inside)), indent=1, allow_nan=False)
    write_atomically(path, text + "\n")
