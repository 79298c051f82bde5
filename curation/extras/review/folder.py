"""The folder of a review: ``draw.json`` and ``rows.parquet``, written once, and the verdicts, ``verdicts.json``."""

import fcntl
import json
import os
import re
import shutil
import uuid
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import TypeAdapter

from curation.errors import ReviewError
from curation.extras.review.source import Origin, find_origin, find_review_rows, read_row_texts
from curation.json_types import Json, JsonView
from curation.selection.review import Stratum, draw
from curation.storage.inside import from_record, run_around, to_record
from curation.storage.paths import Place, write_atomically
from curation.tables.schemas import ROW_ID

FORMAT, DEFAULT_NUM = 2, 200
ROWS = pa.schema(
    [
        ROW_ID,
        pa.field("prompt", pa.string()),
        pa.field("label", pa.string()),  # the weak label; null if it was not read
        pa.field("completion", pa.string()),
        pa.field("raw", pa.float32()),  # null if the arm does not rank
        pa.field("selected", pa.bool_(), nullable=False),
        pa.field("stratum", pa.int32(), nullable=False),
        pa.field("uniform", pa.bool_(), nullable=False),  # belongs to the part that was drawn uniformly
    ]
)
"""The rows of a review, in the order in which people judge them."""
Verdicts = dict[int, dict[str, str]]
"""The last verdict of each person by row id: ``right``, ``wrong`` or ``unsure``."""


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
        """The selection that the review was drawn from."""
        return TypeAdapter(Origin).validate_python(self.drawn["origin"])

    @cached_property
    def strata(self) -> list[Stratum]:
        """The strata, from the most to the least trusted."""
        return [Stratum(**item) for item in self.drawn["strata"]]

    @cached_property
    def rows(self) -> pa.Table:
        """The rows (``ROWS``)."""
        return pq.read_table(self.folder / "rows.parquet", schema=ROWS)

    def read_verdicts(self) -> Verdicts:
        """Return the verdicts so far."""
        path = self.folder / "verdicts.json"
        found = json.loads(path.read_text()) if path.exists() else {}
        return {int(row_id): said for row_id, said in found.items()}

    def add_verdicts(self, given: Verdicts) -> int:
        """Add verdicts, which replace earlier ones of the same person on a row; return the number of new ones."""
        with (self.folder / "verdicts.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # against other imports, until the file is closed
            known = self.read_verdicts()
            entries = [(row_id, person, verdict) for row_id, of in given.items() for person, verdict in of.items()]
            new = [entry for entry in entries if known.get(entry[0], {}).get(entry[1]) != entry[2]]
            for row_id, person, verdict in new:
                known.setdefault(row_id, {})[person] = verdict
            if new:
                write_atomically(self.folder / "verdicts.json", json.dumps(known, indent=1) + "\n")
        return len(new)


def list_reviews(home: Path) -> list[str]:
    """Return the names of the reviews in a folder."""
    return sorted(path.parent.name for path in home.glob("*/draw.json") if not path.parent.name.startswith("."))


def open_review(home: Path, name: str | None) -> Review:
    """Return the review with a name or, without a name, the only one; a ``ReviewError`` if there is none."""
    names = list_reviews(home)
    listed = f"there are {', '.join(names)}" if names else "there is none; draw one with `curate review draw RUN`"
    if name is None:
        if len(names) != 1:
            raise ReviewError(f"{home}: {'name one of its reviews by --name: ' if names else ''}{listed}")
        name = names[0]
    if name not in names:
        raise ReviewError(f"{home}: no review is called {name!r}; {listed}")
    review = Review(home / name)
    if review.drawn["format"] != FORMAT:
        raise ReviewError(f"{review.folder}: was drawn by another version; draw the same rows again with --name")
    return review


def open_or_make_review(
    run: Place, home: Path, *, name: str | None, arm: str | None, num: int | None, seed: int | None
) -> Review:
    """Return the review of a name (default: the arm); draw it if there is none, refuse it if drawn by other options."""
    names = list_reviews(home)
    if name is None and (arm, num, seed) == (None, None, None) and len(names) == 1:
        return open_review(home, None)
    origin = find_origin(run, arm)
    name = name or origin.arm
    if name not in names:
        return make_review(home, name, origin, num=DEFAULT_NUM if num is None else num, seed=seed or 0)
    review = open_review(home, name)
    asked = {"arm": (arm, review.origin.arm), "num": (num, review.drawn["num"]), "seed": (seed, review.drawn["seed"])}
    for key, (requested, was) in asked.items():
        if requested is not None and requested != was:
            raise ReviewError(
                f"{review.folder}: was drawn with --{key} {was}, not {requested}; leave it out, or draw another review "
                "with --name"
            )
    return review


def make_review(home: Path, name: str, origin: Origin, *, num: int, seed: int) -> Review:
    """Draw the rows of a new review and write its folder, which appears when it is complete."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise ReviewError(f"--name: {name!r} is not a name; use letters, digits and . _ -")
    rows = find_review_rows(origin)
    drawn = draw(rows, num=num, seed=seed, ranked=origin.ranked)
    row_ids_M = rows.row_ids_N[drawn.place_M]
    texts = read_row_texts(origin, row_ids_M)
    columns: JsonView = {
        "row_id": row_ids_M,
        **{field: texts[field] for field in ("prompt", "label", "completion")},
        "raw": pa.array(rows.raw_N[drawn.place_M], pa.float32(), from_pandas=True),
        "selected": rows.selected_N[drawn.place_M],
        "stratum": drawn.stratum_M.astype("int32"),
        "uniform": drawn.uniform_M,
    }
    record = {
        "format": FORMAT,
        "origin": asdict(origin),
        "num": num,
        "seed": seed,
        "num_drawn": len(row_ids_M),
        "num_uniform": int(drawn.uniform_M.sum()),
        "num_region": sum(stratum.num_rows for stratum in drawn.strata),
        "floor": drawn.floor,
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
