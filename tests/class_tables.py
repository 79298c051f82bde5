"""Labelled rows with classes as tables: the select job over them, and the record of a run that selected some."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lance
import pyarrow as pa

from curation.config import DomainConfig, SelectionConfig
from curation.domains import Domain, get_domain
from curation.extras.quotas.division import Classes
from curation.refs import TableRef
from curation.stages.chooser import SelectJob
from curation.stages.gold import GoldTexts
from curation.stages.pool_scores import ScoredSplit
from curation.tables import schemas

SEED = 5
LABELS = schemas.make_labels_schema([], "float16", 1)
Row = dict[str, Any]


def write(folder: Path, name: str, rows: list[Row], schema: pa.Schema) -> TableRef:
    """A table in fragments of 90 rows; missing columns are null."""
    table = pa.Table.from_pylist([{field.name: row.get(field.name) for field in schema} for row in rows], schema)
    uri = str(folder / f"{name}.lance")
    return TableRef(uri=uri, version=lance.write_dataset(table, uri, max_rows_per_file=90).version)


def by_id(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: row["row_id"])


def job_of(
    folder: Path,
    rows: list[Row],
    source: list[Row],
    domain: DomainConfig,
    names: tuple[str, ...],
    selection: dict[str, Any],
    *,
    audited: bool = False,
) -> SelectJob:
    """The job that selects among pool ``rows``, whose places are divided by ``names`` and the labelled ``source``.

    ``audited``: the gold and grades of the pool are known to it.
    """
    schema = pa.schema([*LABELS, *(pa.field(name, pa.float32()) for name in ("trust_raw", "trust_trust"))])
    columns = get_domain(domain).columns
    labels = write(folder, "labels", rows, schema)
    return SelectJob(
        pool=write(folder, "pool", rows, schemas.make_examples_schema(columns, gold=False)),
        labels=labels,
        audit=write(folder, "audit", rows, schemas.AUDIT) if audited else None,
        grades=write(folder, "grades", by_id(rows), schemas.GRADES) if audited else None,
        measured=ScoredSplit(labels=labels, grades=None),
        calibration=None,
        domain=domain,
        selection=SelectionConfig.model_validate(selection),
        teacher=None,
        generation=0,
        seed=SEED,
        texts=GoldTexts(source="answer"),
        divided={
            "quota": Classes(
                names=names,
                examples=write(folder, "source", source, schemas.make_examples_schema(columns, gold=True)),
                labels=write(folder, "source-labels", source, schema),
                grades=write(folder, "source-grades", by_id(source), schemas.GRADES),
            )
        },
    )


def run_of(
    folder: Path, domain: Domain, source: list[Row], pool: list[Row], chosen: list[Row]
) -> tuple[SimpleNamespace, SimpleNamespace]:
    """A run and its record, as the report's rows by class are read from: trust selected ``chosen`` of the pool."""
    splits = {"pool": pool, "source": source}
    record = SimpleNamespace(
        n=len(chosen),
        budget={"rule": "n", "quota": None},
        labels={name: write(folder, f"{name}-labels", rows, LABELS) for name, rows in splits.items()},
        grades={name: write(folder, f"{name}-grades", rows, schemas.GRADES) for name, rows in splits.items()},
        selections={"trust": write(folder, "trust", chosen, schemas.SELECTION)},
    )
    examples = write(folder, "source", source, schemas.make_examples_schema(domain.columns, gold=True))
    return SimpleNamespace(domain=domain, prepared={"source": examples}), record
